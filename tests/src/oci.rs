//! A thin client of the distribution API: one request per call; status, headers and body are returned
//! unchanged. It is independent of the client crate, which is under test.

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName};
use reqwest::{Body, Method, RequestBuilder};
use serde_json::Value;

use crate::artifact::sha256;

/// Media type of an OCI image manifest.
pub const IMAGE_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an OCI image index.
pub const IMAGE_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of docker's image manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// A client for the registry at a base URL.
#[derive(Clone)]
pub struct Registry {
    /// `http://HOST:PORT`, without a slash at the end.
    pub url: String,
    /// The HTTP client; it follows no redirects and uses no proxy.
    pub http: reqwest::Client,
}

/// An HTTP response.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The header fields.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Response {
    /// A header field as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name.parse::<HeaderName>().expect("a header name"))?.to_str().ok()
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// If it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.text()))
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The code of the first error in the envelope, or `None` without an envelope.
    #[must_use]
    pub fn code(&self) -> Option<String> {
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        Some(body["errors"][0]["code"].as_str()?.to_owned())
    }

    /// Fails the test unless the status is the expected one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(
            self.status,
            status,
            "expected {status}, got {} with {:?} and `{}`",
            self.status,
            self.headers,
            self.text()
        );
        self
    }

    /// Fails the test unless the response is an error with this status and code.
    #[track_caller]
    pub fn expect_error(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code().as_deref()), (status, Some(code)), "`{}`", self.text());
    }
}

impl Registry {
    /// A client for the registry at a base URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("building an HTTP client does not fail");
        Self { url: url.into(), http }
    }

    /// `HOST:PORT`.
    #[must_use]
    pub fn host(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// The absolute URL of a path. An absolute URL is returned unchanged.
    #[must_use]
    pub fn at(&self, path: &str) -> String {
        if path.starts_with("http") { path.to_owned() } else { format!("{}{path}", self.url) }
    }

    /// Builds a request.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.http.request(method.parse::<Method>().expect("a method"), self.at(path))
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// If the connection breaks before the response is complete.
    pub async fn try_send(&self, request: RequestBuilder) -> Result<Response, reqwest::Error> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Response { status, headers, body: response.bytes().await? })
    }

    /// Sends a request. Fails the test without a response.
    pub async fn send(&self, request: RequestBuilder) -> Response {
        self.try_send(request).await.unwrap_or_else(|e| panic!("no response: {e:?}"))
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Response {
        self.send(self.request("GET", path)).await
    }

    /// HEAD.
    pub async fn head(&self, path: &str) -> Response {
        self.send(self.request("HEAD", path)).await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str) -> Response {
        self.send(self.request("DELETE", path)).await
    }

    /// POST of a JSON document.
    pub async fn post_json(&self, path: &str, body: &Value) -> Response {
        self.send(self.request("POST", path).json(body)).await
    }

    /// Runs a garbage collection and waits for its job. The returned status is 200 only if the job succeeded.
    pub async fn collect(&self) -> Response {
        let started = self.post_json("/lode/v1/gc", &serde_json::json!({})).await;
        if started.status != 202 {
            return started;
        }
        let job = format!("{}?wait=10", started.header("location").expect("a job has a location"));
        loop {
            let mut response = self.get(&job).await;
            // A 503 means that the database is unavailable; the job may still be running.
            if response.status != 200 {
                assert_eq!(response.status, 503, "{}", response.text());
                continue;
            }
            let found = response.json();
            if found.get("finished_at").is_some() {
                response.status = if found["state"] == "succeeded" { 200 } else { 503 };
                return response;
            }
        }
    }

    /// Opens an upload and returns its location as an absolute URL.
    pub async fn upload_open(&self, repository: &str) -> String {
        let response =
            self.send(self.request("POST", &format!("/v2/{repository}/blobs/uploads/"))).await.expect(202);
        self.at(response.header("location").expect("an upload has a location"))
    }

    /// Appends a chunk with its Content-Range.
    pub async fn upload_append(&self, location: &str, first: u64, chunk: &[u8]) -> Response {
        let last = first + chunk.len() as u64 - 1;
        let request = self.request("PATCH", location).header("content-range", format!("{first}-{last}"));
        self.send(request.header("content-type", "application/octet-stream").body(chunk.to_vec())).await
    }

    /// Closes an upload with its digest and, optionally, its last bytes.
    pub async fn upload_finish(&self, location: &str, digest: &str, rest: &[u8]) -> Response {
        self.send(self.request("PUT", &with_query(location, "digest", digest)).body(rest.to_vec())).await
    }

    /// The offset of an upload, from its status.
    pub async fn upload_offset(&self, location: &str) -> u64 {
        let response = self.get(location).await.expect(204);
        offset_in(response.header("range").expect("a status names its range"))
    }

    /// Pushes a blob by POST and PUT and returns its digest.
    pub async fn blob_push(&self, repository: &str, bytes: &[u8]) -> String {
        let digest = sha256(bytes);
        let location = self.upload_open(repository).await;
        let response = self.upload_finish(&location, &digest, bytes).await.expect(201);
        assert_eq!(response.header("docker-content-digest"), Some(digest.as_str()));
        digest
    }

    /// Pushes a body of any length without holding it in memory.
    pub async fn blob_push_stream(
        &self,
        repository: &str,
        digest: &str,
        size_bytes: u64,
        body: Body,
    ) -> Response {
        let location = self.upload_open(repository).await;
        let request = self.request("PUT", &with_query(&location, "digest", digest));
        self.send(request.header("content-length", size_bytes).body(body)).await
    }

    /// GET of a blob, following a redirect to the object storage.
    pub async fn blob_get(&self, repository: &str, digest: &str) -> Response {
        let response = self.get(&format!("/v2/{repository}/blobs/{digest}")).await;
        match (response.status, response.header("location")) {
            (307, Some(elsewhere)) => self.get(elsewhere).await,
            _ => response,
        }
    }

    /// HEAD of a blob.
    pub async fn blob_head(&self, repository: &str, digest: &str) -> Response {
        self.head(&format!("/v2/{repository}/blobs/{digest}")).await
    }

    /// PUT of a manifest under a tag or digest.
    pub async fn manifest_put(
        &self,
        repository: &str,
        reference: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Response {
        let path = format!("/v2/{repository}/manifests/{reference}");
        self.send(self.request("PUT", &path).header("content-type", media_type).body(bytes.to_vec())).await
    }

    /// GET of a manifest, with the Accept header of usual clients.
    pub async fn manifest_get(&self, repository: &str, reference: &str) -> Response {
        let accept = format!("{IMAGE_MANIFEST}, {IMAGE_INDEX}, {DOCKER_MANIFEST}");
        self.send(
            self.request("GET", &format!("/v2/{repository}/manifests/{reference}")).header("accept", accept),
        )
        .await
    }

    /// The tags of a repository, from one response.
    pub async fn tags(&self, repository: &str) -> Vec<String> {
        let response = self.get(&format!("/v2/{repository}/tags/list")).await.expect(200);
        strings(&response.json()["tags"])
    }
}

/// The strings of a JSON array.
///
/// # Panics
///
/// If it is not an array of strings.
#[must_use]
pub fn strings(array: &Value) -> Vec<String> {
    let items = array.as_array().unwrap_or_else(|| panic!("expected an array, got {array}"));
    items.iter().map(|item| item.as_str().expect("a string").to_owned()).collect()
}

/// Adds a query parameter to a URL that may already have some.
#[must_use]
pub fn with_query(location: &str, name: &str, value: &str) -> String {
    let separator = if location.contains('?') { '&' } else { '?' };
    format!("{location}{separator}{name}={value}")
}

/// The offset in a `Range: 0-LAST` header. `0-0` can mean no bytes or one byte; the tests only see it for
/// empty uploads.
#[must_use]
pub fn offset_in(range: &str) -> u64 {
    let last: u64 = range
        .strip_prefix("0-")
        .and_then(|last| last.parse().ok())
        .unwrap_or_else(|| panic!("expected 0-LAST, got `{range}`"));
    if last == 0 { 0 } else { last + 1 }
}
