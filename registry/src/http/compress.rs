//! Compresses JSON lists for clients that accept it. Blobs, manifests and streams are sent as they are.

use std::convert::Infallible;

use axum::body::{Body, HttpBody};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use tower::ServiceExt;
use tower_http::compression::Compression;

/// Smaller responses are not worth compressing.
const MIN_BYTES: u64 = 1024;

/// The request's Accept-Encoding, kept until its response exists.
pub(crate) struct AcceptEncoding(Option<HeaderValue>);

impl AcceptEncoding {
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> AcceptEncoding {
        AcceptEncoding(headers.get(header::ACCEPT_ENCODING).filter(|_| method != Method::HEAD).cloned())
    }

    /// Compresses the response if it is a JSON list and the client accepts it.
    pub(crate) async fn compress(self, mut response: Response) -> Response {
        if !is_list(&response) {
            return response;
        }
        response.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
        let Some(accepted) = self.0 else { return response };
        let mut request = Request::new(());
        request.headers_mut().insert(header::ACCEPT_ENCODING, accepted);
        let inner = tower::service_fn(move |_: Request<()>| {
            std::future::ready(Ok::<_, Infallible>(std::mem::take(&mut response)))
        });
        let Ok(compressed) = Compression::new(inner).oneshot(request).await;
        compressed.map(Body::new)
    }
}

/// Whether it is a complete JSON body. Content under a digest has a strong entity tag and must stay as it is.
fn is_list(response: &Response) -> bool {
    let headers = response.headers();
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json")
        && headers.get(header::ETAG).is_none_or(|tag| tag.as_bytes().starts_with(b"W/"))
        && !headers.contains_key(header::CONTENT_ENCODING)
        && response.body().size_hint().exact().is_some_and(|size| size >= MIN_BYTES)
}
