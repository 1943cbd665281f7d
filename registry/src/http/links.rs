//! URLs in responses: `Location` of blobs, manifests and uploads, and the `Link` to a listing's next page.
//! They are relative unless the client needs absolute ones, or the operator set a public URL.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, header};
use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Position;
use uuid::Uuid;

use super::arrival::RequestArrival;
use super::host::{host, is_loopback};
use super::state::ServerState;
use super::{agent, forwarded};
use crate::Config;

/// Characters that a query value may contain unescaped.
const QUERY_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The prefix of URLs for the client of this request: empty, or `scheme://host`.
pub(crate) struct Links {
    base: String,
}

impl Links {
    /// Absolute URLs, as far as this server knows its own.
    pub(crate) fn absolute(parts: &Parts, config: &Config) -> Links {
        Links { base: own_base_url(parts, config).unwrap_or_default() }
    }

    pub(crate) fn blob(&self, repository: &Repository, digest: &Digest) -> String {
        format!("{}/v2/{repository}/blobs/{digest}", self.base)
    }

    /// The URL of a blob with a token that opens it without other credentials for a while.
    pub(crate) fn blob_with_token(&self, repository: &Repository, digest: &Digest, token: &Secret) -> String {
        format!("{}?link={}", self.blob(repository, digest), token.expose())
    }

    pub(crate) fn manifest(&self, repository: &Repository, reference: &Reference) -> String {
        format!("{}/v2/{repository}/manifests/{reference}", self.base)
    }

    pub(crate) fn upload(&self, repository: &Repository, id: Uuid) -> String {
        format!("{}/v2/{repository}/blobs/uploads/{id}", self.base)
    }

    /// A URL of Hugging Face's API.
    pub(crate) fn hub(&self, path: &str) -> String {
        format!("{}/hf/{path}", self.base)
    }

    /// The `Link` header for the next page: `path` with these query parameters.
    pub(crate) fn next(&self, path: &str, query: &[(&str, &str)]) -> HeaderValue {
        let pairs: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, QUERY_VALUE)))
            .collect();
        header_value(&format!("<{}{path}?{}>; rel=\"next\"", self.base, pairs.join("&")))
    }

    /// The `Link` header for the entries after `last` of a list with pages of `n`, which a parameter may filter.
    pub(crate) fn after(
        &self,
        path: &str,
        n: u32,
        last: &str,
        (filter, value): (&str, Option<&str>),
    ) -> HeaderValue {
        let n = n.to_string();
        let mut query = vec![("n", &n[..]), ("last", last)];
        query.extend(value.map(|value| (filter, value)));
        self.next(path, &query)
    }
}

/// A page of a listing, with the `Link` to the next one if there is one.
pub(crate) fn page(body: impl IntoResponse, next: Option<HeaderValue>) -> Response {
    let mut response = body.into_response();
    if let Some(next) = next {
        response.headers_mut().insert(header::LINK, next);
    }
    response
}

/// A header value of text that is known to be printable ASCII.
pub(crate) fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("names, digests, numbers and escaped text are printable ASCII")
}

impl FromRequestParts<ServerState> for Links {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &ServerState) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
        let config = state.registry.config();
        let base = match &config.public_url {
            Some(url) => url.as_str().trim_end_matches('/').to_owned(),
            None if agent::is_ollama(&parts.headers) => {
                client_base_url(parts, config, peer).unwrap_or_default()
            }
            None => String::new(),
        };
        Ok(Links { base })
    }
}

/// The hosts under which clients reach this server. In a model name they mean this server.
pub(crate) struct OwnHosts(Vec<String>);

impl OwnHosts {
    #[cfg(test)]
    pub(crate) fn new(hosts: Vec<String>) -> OwnHosts {
        OwnHosts(hosts)
    }

    /// Whether `HOST` or `HOST:PORT` is one of them. All loopback names are equivalent.
    pub(crate) fn contains(&self, host: &str) -> bool {
        self.0.iter().any(|own| {
            own.eq_ignore_ascii_case(host)
                || (is_loopback(own) && is_loopback(host) && port(own) == port(host))
        })
    }
}

impl FromRequestParts<ServerState> for OwnHosts {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &ServerState) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
        let config = state.registry.config();
        let seen = forwarded::forwarded_info(&parts.headers, &config.trusted_proxies, peer);
        let mut hosts: Vec<String> =
            seen.host.or_else(|| host(parts)).map(str::to_owned).into_iter().collect();
        if let Some(url) = &config.public_url {
            hosts.push(url[Position::BeforeHost..Position::AfterPort].to_owned());
            if let (Some(name), Some(port)) = (url.host_str(), url.port_or_known_default()) {
                hosts.push(format!("{name}:{port}"));
            }
        }
        Ok(OwnHosts(hosts))
    }
}

fn port(host: &str) -> Option<&str> {
    host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'))
}

/// `scheme://host` of this server for the client of a request, if known: the public URL, or as the client
/// wrote it.
pub(crate) fn own_base_url(parts: &Parts, config: &Config) -> Option<String> {
    match &config.public_url {
        Some(url) => Some(url.as_str().trim_end_matches('/').to_owned()),
        None => {
            let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
            client_base_url(parts, config, peer)
        }
    }
}

/// `scheme://host` as the client wrote it, if known. Forwarded headers count only from a trusted proxy.
fn client_base_url(parts: &Parts, config: &Config, peer: Option<IpAddr>) -> Option<String> {
    let seen = forwarded::forwarded_info(&parts.headers, &config.trusted_proxies, peer);
    let arrived = match parts.extensions.get::<RequestArrival>() {
        Some(RequestArrival { https: true, .. }) => "https",
        _ => "http",
    };
    let scheme = seen.scheme.unwrap_or(arrived);
    let host = seen.host.or_else(|| host(parts))?;
    let plain = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-_[]".contains(&byte));
    plain.then(|| format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(config: &Config, peer: &str, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = http::Request::get("/v2/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        client_base_url(&request.body(()).unwrap().into_parts().0, config, peer.parse().ok())
    }

    #[test]
    fn forwarded_headers_count_from_trusted_proxies_only() {
        let config = Config { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], ..Config::default() };
        let headers = [
            ("host", "inner:5000"),
            ("x-forwarded-host", "models.example"),
            ("x-forwarded-proto", "https, http"),
        ];
        assert_eq!(base(&config, "10.1.1.1", &headers).as_deref(), Some("https://models.example"));
        assert_eq!(base(&config, "192.0.2.1", &headers).as_deref(), Some("http://inner:5000"));
        assert_eq!(base(&Config::default(), "10.1.1.1", &headers).as_deref(), Some("http://inner:5000"));
        assert_eq!(base(&config, "10.1.1.1", &[("host", "a b")]), None);
        assert_eq!(base(&config, "10.1.1.1", &[]), None);
    }

    #[test]
    fn next_escapes() {
        let links = Links { base: String::new() };
        let link = links.next("/v2/a/referrers/sha256:00", &[("artifactType", "a/b+c"), ("n", "2")]);
        assert_eq!(link, "</v2/a/referrers/sha256:00?artifactType=a%2Fb%2Bc&n=2>; rel=\"next\"");
    }
}
