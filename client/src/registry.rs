//! One registry: its address, tags and pages, and requests to APIs other than `/v2`.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use lode_model::{
    digest::Digest,
    reference::{Reference, Repository, Tag},
};
use serde::{Deserialize, de::DeserializeOwned};
use url::Url;

use crate::{
    Client, CredentialKey, Error, address,
    auth::Scope,
    error,
    response::{read_limited, response_error},
    transport::{Body, Inner, Request, Retry},
};

/// A registry that is accessed through a [`Client`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Registry {
    pub(crate) client: Client,
    pub(crate) base: Url,
}

/// A page of tags; `next` requests the following page.
#[derive(Debug, Clone)]
pub struct TagPage {
    pub tags: Vec<Tag>,
    /// The last tag of this page, if more tags follow.
    pub next: Option<Tag>,
}

impl Client {
    /// Returns the registry at `address`: a base URL (`http://127.0.0.1:5000`) or a bare `host[:port]`. Sends
    /// no request.
    pub fn registry(&self, address: &str) -> Result<Registry, Error> {
        Ok(Registry::new(self.clone(), address::base_url(address, self.options().plain_http)?))
    }
}

impl Registry {
    pub(crate) fn new(client: Client, base: Url) -> Self {
        Registry { client, base }
    }

    /// The base URL; ends in `/`.
    pub fn url(&self) -> &Url {
        &self.base
    }

    /// `host[:port]`, for messages.
    pub fn host(&self) -> String {
        address::host_and_port(&self.base)
    }

    /// The key of its credentials.
    pub fn credential_key(&self) -> CredentialKey {
        CredentialKey::of(&self.base)
    }

    /// `http://host:port`, for messages.
    pub fn server(&self) -> String {
        error::server(&self.base)
    }

    /// Whether the server has responded to a request of this client.
    pub fn has_responded(&self) -> bool {
        self.inner().has_responded(&self.base)
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.client.inner
    }

    /// Requests `GET /v2/` to check that the registry is reachable and accepts the credentials.
    pub async fn ping(&self) -> Result<(), Error> {
        let request = Request::new(Method::GET, self.join("v2/"), Scope::none());
        self.inner().send_ok(&request).await.map(drop)
    }

    /// Returns the tags after `after` in the server's order, as many as fit in one response.
    pub async fn tag_page(&self, repository: &Repository, after: Option<&Tag>) -> Result<TagPage, Error> {
        #[derive(Deserialize)]
        struct TagListResponse {
            tags: Option<Vec<String>>,
        }
        let mut url = self.v2(repository, "tags/list");
        if let Some(after) = after {
            url.query_pairs_mut().append_pair("last", after.as_str());
        }
        let request = Request::new(Method::GET, url.clone(), Scope::pull(repository));
        let response = self.inner().send(&request).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                return Err(Error::NameUnknown { server: self.server(), repository: repository.clone() });
            }
            _ => return Err(response_error(response, &url).await),
        }
        let more = response.headers().contains_key(header::LINK);
        let body = read_limited(response, MAX_JSON, &self.server()).await?;
        let list: TagListResponse = self.decode(&body)?;
        // Skip invalid tags: they cannot be requested.
        let tags: Vec<Tag> =
            list.tags.unwrap_or_default().iter().filter_map(|tag| tag.parse().ok()).collect();
        let next = if more { tags.last().cloned() } else { None };
        Ok(TagPage { tags, next })
    }

    /// Returns all tags of `repository`. Fails if there are more than a million.
    pub async fn tags(&self, repository: &Repository) -> Result<Vec<Tag>, Error> {
        let mut page = self.tag_page(repository, None).await?;
        let mut tags = std::mem::take(&mut page.tags);
        while let Some(after) = page.next.take() {
            page = self.tag_page(repository, Some(&after)).await?;
            if page.next.as_ref() == Some(&after) {
                return Err(self.protocol("the pages of tags do not advance"));
            }
            tags.append(&mut page.tags);
            if tags.len() > MAX_TAGS {
                return Err(self.protocol(format!("the repository has more than {MAX_TAGS} tags")));
            }
        }
        Ok(tags)
    }

    /// Requests `path` (relative to the base URL, with query) outside `/v2` and parses the JSON response.
    pub async fn json_get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send_for_json(&self.api_request(Method::GET, path)).await
    }

    /// Requests a page of a listing outside `/v2`. Also returns the path of the next page, if the server
    /// links to one.
    pub(crate) async fn json_page<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<(T, Option<String>), Error> {
        let request = self.api_request(Method::GET, path);
        let response = self.inner().send_ok(&request).await?;
        let next = next_page(response.headers(), &request.url);
        let body = read_limited(response, MAX_JSON, &self.server()).await?;
        Ok((self.decode(&body)?, next))
    }

    /// Posts a JSON `body` to `path` outside `/v2` and parses the JSON response. Retried only if the server
    /// cannot have received the request.
    pub async fn json_post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, Error> {
        let mut request = self.json_request(Method::POST, path, body)?;
        request.first_byte_timeout = None;
        self.send_for_json(&request).await
    }

    /// Posts a form to `path` outside `/v2`. Returns the status and the JSON response, whatever the status;
    /// `None` if the response is not JSON. Sends no credentials.
    pub async fn form_post<T: DeserializeOwned>(
        &self,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Result<(StatusCode, Option<T>), Error> {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        let mut request =
            Request::new(Method::POST, self.join(path), Scope::none()).header(header::CONTENT_TYPE, form);
        request.body = Body::Bytes(Bytes::from(body));
        request.retry = Retry::IfUnsent;
        let response = self.inner().send(&request).await?;
        let status = response.status();
        let body = read_limited(response, MAX_JSON, &self.server()).await?;
        Ok((status, serde_json::from_slice(&body).ok()))
    }

    /// Sends a JSON `body` to `path` outside `/v2` and returns the response as a stream. A status other than
    /// success is an error.
    pub async fn json_stream(
        &self,
        method: Method,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<reqwest::Response, Error> {
        let mut request = self.json_request(method, path, body)?;
        request.first_byte_timeout = None;
        self.inner().send_ok(&request).await
    }

    /// Requests `path` (relative to the base URL, with query) outside `/v2` and returns the response as a
    /// stream.
    pub async fn stream_get(&self, path: &str) -> Result<reqwest::Response, Error> {
        let mut request = self.api_request(Method::GET, path);
        request.first_byte_timeout = None;
        self.inner().send_ok(&request).await
    }

    /// A request outside `/v2`, with saved credentials.
    fn api_request(&self, method: Method, path: &str) -> Request<'static> {
        let mut request = Request::new(method, self.join(path), Scope::none());
        request.credentials_first = true;
        request
    }

    fn json_request(
        &self,
        method: Method,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<Request<'static>, Error> {
        let bytes = serde_json::to_vec(body)
            .map_err(|error| self.protocol(format!("cannot serialise the request: {error}")))?;
        let mut request = self
            .api_request(method, path)
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.body = Body::Bytes(Bytes::from(bytes));
        request.retry = Retry::IfUnsent;
        Ok(request)
    }

    async fn send_for_json<T: DeserializeOwned>(&self, request: &Request<'_>) -> Result<T, Error> {
        let response = self.inner().send_ok(request).await?;
        let body = read_limited(response, MAX_JSON, &self.server()).await?;
        self.decode(&body)
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(body).map_err(|error| self.protocol(error.to_string()))
    }

    pub(crate) fn protocol(&self, why: impl Into<String>) -> Error {
        Error::Protocol { server: self.server(), why: why.into() }
    }

    /// Joins `path` to the base URL.
    pub(crate) fn join(&self, path: &str) -> Url {
        let path = path.trim_start_matches('/');
        let mut url = self.base.clone();
        match path.split_once('?') {
            Some((path, query)) => {
                url.set_path(path);
                url.set_query(Some(query));
            }
            None => url.set_path(path),
        }
        url
    }

    /// `/v2/<repository>/<tail>`. Valid names contain nothing that needs escaping.
    pub(crate) fn v2(&self, repository: &Repository, tail: &str) -> Url {
        self.join(&format!("v2/{repository}/{tail}"))
    }

    pub(crate) fn blob_url(&self, repository: &Repository, digest: &Digest) -> Url {
        self.v2(repository, &format!("blobs/{digest}"))
    }

    pub(crate) fn manifest_url(&self, repository: &Repository, reference: &Reference) -> Url {
        self.v2(repository, &format!("manifests/{reference}"))
    }
}

/// Parses `Link: <...>; rel="next"` into a path relative to the base URL. The next page is requested from the
/// same server, whatever host the link has.
pub(crate) fn next_page(headers: &HeaderMap, url: &Url) -> Option<String> {
    let links = headers.get_all(header::LINK).iter().filter_map(|value| value.to_str().ok());
    let mut next = links.filter_map(|link| {
        let (target, parameters) = link.strip_prefix('<')?.split_once('>')?;
        let is_next = parameters.split(';').any(|parameter| {
            parameter.trim().strip_prefix("rel=").is_some_and(|rel| rel.trim_matches('"') == "next")
        });
        is_next.then(|| url.join(target).ok()).flatten()
    });
    let target = next.next()?;
    let path = target.path().trim_start_matches('/');
    Some(target.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}")))
}

/// More tags than any real repository has; more indicate an endless listing.
const MAX_TAGS: usize = 1_000_000;

/// Limit for JSON responses: a long tensor list has a few MiB, a window of scores some tens.
const MAX_JSON: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_in_links() {
        let check = |link: &'static str, expect: Option<&str>| {
            let headers = HeaderMap::from_iter([(header::LINK, HeaderValue::from_static(link))]);
            let url: Url = "http://127.0.0.1:5000/lode/v1/models".parse().unwrap();
            assert_eq!(next_page(&headers, &url).as_deref(), expect, "{link}");
        };
        check("</lode/v1/models?n=2&last=a%3Ab>; rel=\"next\"", Some("lode/v1/models?n=2&last=a%3Ab"));
        check("<https://elsewhere/lode/v1/jobs?last=1>; rel=next", Some("lode/v1/jobs?last=1"));
        check("</lode/v1/models>; rel=\"prev\"", None);
        check("nonsense", None);
    }
}
