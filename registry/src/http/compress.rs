//! Compresses JSON lists, and pages with their files, for clients that accept it. Blobs, manifests and streams are
//! sent as they are. So are pages for an account: their forms have a token, and the length of a compressed page
//! that repeats a part of the request would help to guess it.

use std::convert::Infallible;

use axum::body::{Body, HttpBody};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use tower::ServiceExt;
use tower_http::compression::Compression;

/// Smaller responses are not worth compressing.
const MIN_BYTES: u64 = 1024;

/// The request's Accept-Encoding, kept until its response exists.
pub(crate) struct AcceptEncoding {
    accepted: Option<HeaderValue>,
    /// Whether the request has no credentials.
    is_anonymous: bool,
}

impl AcceptEncoding {
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> AcceptEncoding {
        AcceptEncoding {
            accepted: headers.get(header::ACCEPT_ENCODING).filter(|_| method != Method::HEAD).cloned(),
            is_anonymous: ![header::COOKIE, header::AUTHORIZATION]
                .iter()
                .any(|name| headers.contains_key(name)),
        }
    }

    /// Compresses the response if it is worth it and the client accepts it.
    pub(crate) async fn compress(self, mut response: Response) -> Response {
        if !is_compressible(&response, self.is_anonymous) {
            return response;
        }
        response.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
        let Some(accepted) = self.accepted else { return response };
        let mut request = Request::new(());
        request.headers_mut().insert(header::ACCEPT_ENCODING, accepted);
        let inner = tower::service_fn(move |_: Request<()>| {
            std::future::ready(Ok::<_, Infallible>(std::mem::take(&mut response)))
        });
        let Ok(compressed) = Compression::new(inner).oneshot(request).await;
        compressed.map(Body::new)
    }
}

/// Whether it is a complete body of a kind that is compressed. Content under a digest has a strong entity tag and
/// must stay as it is.
fn is_compressible(response: &Response, is_anonymous: bool) -> bool {
    let headers = response.headers();
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    let is_known = match kind {
        b"application/json" | b"text/css" | b"text/javascript" => true,
        b"text/html" => is_anonymous,
        _ => false,
    };
    is_known
        && headers.get(header::ETAG).is_none_or(|tag| tag.as_bytes().starts_with(b"W/"))
        && !headers.contains_key(header::CONTENT_ENCODING)
        && response.body().size_hint().exact().is_some_and(|size| size >= MIN_BYTES)
}
