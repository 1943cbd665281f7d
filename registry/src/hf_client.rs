//! A client of a server with the API of the Hugging Face Hub, for imports: finds a revision, lists its files and reads
//! them. It connects only where the egress policy allows, checked again for each redirect; the token goes to the
//! endpoint's own origin only.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use lode_client::{Egress, Secret};
use lode_model::digest::Digest;
use lode_model::files_view::check_path;
use reqwest::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use crate::BodyError;

/// How long a response may take to begin, and a connection to deliver the next bytes.
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 5;
/// The largest JSON response.
const MAX_JSON_BYTES: usize = 16 << 20;
/// Limits for the list of files.
const MAX_FILES: usize = 10_000;
const MAX_PAGES: usize = 100;
/// How often a file is continued after the connection was lost.
const MAX_RETRIES: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The longest part of a foreign message that is repeated.
const MAX_TEXT_CHARS: usize = 300;

/// Why a model cannot be read from the Hub.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HfError {
    #[error("the endpoint `{endpoint}` is not an http or https URL")]
    Endpoint { endpoint: String },
    #[error("{server} refused {what}: {reason}")]
    Refused { server: String, what: String, reason: String },
    #[error("{server} refused {what}: {reason}")]
    Unknown { server: String, what: String, reason: String },
    /// It requires a token, or the account of this one may not read the model.
    #[error("{server} refused {what}: {reason}")]
    Unauthorized { server: String, what: String, reason: String },
    #[error("{server} does not respond")]
    Unavailable {
        server: String,
        #[source]
        source: BodyError,
    },
    #[error("{server} sent an invalid response: {reason}")]
    Invalid { server: String, reason: String },
    #[error(transparent)]
    Egress(lode_client::Error),
}

/// The bytes of a file.
pub(crate) type FileStream = BoxStream<'static, Result<Bytes, BodyError>>;

/// A file of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HfFile {
    pub(crate) path: String,
    pub(crate) size: u64,
    /// Absent for files that are not in git's large file storage.
    pub(crate) sha256: Option<Digest>,
    /// The id of the object in git.
    pub(crate) oid: String,
}

#[derive(Clone)]
pub(crate) struct HfClient {
    endpoint: Url,
    token: Option<Secret>,
    egress: Egress,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    /// `false`, or how access is granted. The information about a gated model is public, and its files are not.
    #[serde(default)]
    gated: Value,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<LfsInfo>,
}

#[derive(Deserialize)]
struct LfsInfo {
    oid: String,
    size: u64,
}

impl HfClient {
    /// A client of the server at `endpoint`. The policy is extended by `permit`.
    pub(crate) fn new(
        endpoint: &str,
        token: Option<Secret>,
        permit: impl FnOnce(&Url) -> Egress,
    ) -> Result<HfClient, HfError> {
        let invalid = || HfError::Endpoint { endpoint: endpoint.chars().take(MAX_TEXT_CHARS).collect() };
        let url: Url = endpoint.trim_end_matches('/').parse().map_err(|_| invalid())?;
        let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() || !is_plain {
            return Err(invalid());
        }
        let egress = permit(&url);
        Ok(HfClient { endpoint: url, token, egress })
    }

    /// The commit id of a revision whose files can be read: without a token, a gated model is an error.
    pub(crate) async fn commit(&self, model: &str, revision: &str) -> Result<String, HfError> {
        let url = self.url(&["api", "models"], model, &["revision", revision], "");
        let what = format!("the revision {revision} of {model}");
        let info: ModelInfo = self.json(url, &what).await?.0;
        let is_gated = !matches!(info.gated, Value::Null | Value::Bool(false));
        if is_gated && self.token.is_none() {
            let reason = "it is gated: set HF_TOKEN to a token of an account with access".to_owned();
            return Err(HfError::Unauthorized { server: self.server(), what, reason });
        }
        let is_commit = info.sha.len() == 40 && info.sha.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_commit { Ok(info.sha) } else { Err(self.invalid("the commit id is not 40 hexadecimal digits")) }
    }

    /// The files of a commit.
    pub(crate) async fn files(&self, model: &str, commit: &str) -> Result<Vec<HfFile>, HfError> {
        let mut next = Some(self.url(&["api", "models"], model, &["tree", commit], ""));
        if let Some(url) = &mut next {
            url.set_query(Some("recursive=true&expand=false"));
        }
        let (mut files, mut pages) = (Vec::new(), 0);
        while let Some(url) = next.take() {
            pages += 1;
            let (entries, link): (Vec<TreeEntry>, _) =
                self.json(url, &format!("the files of {model}")).await?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                files.push(self.file(entry)?);
            }
            if files.len() > MAX_FILES || pages > MAX_PAGES {
                return Err(self.invalid("the revision has too many files"));
            }
            // Only the endpoint's own pages get the token.
            next = link.filter(|link| link.origin() == self.endpoint.origin());
        }
        Ok(files)
    }

    fn file(&self, entry: TreeEntry) -> Result<HfFile, HfError> {
        let TreeEntry { path, size, oid, lfs, .. } = entry;
        check_path(&path).map_err(|error| self.invalid(&error.to_string()))?;
        let (size, sha256) = match lfs {
            Some(lfs) => {
                let digest = format!("sha256:{}", lfs.oid).parse();
                (lfs.size, Some(digest.map_err(|_| self.invalid("a file has an invalid sha256"))?))
            }
            None => (size, None),
        };
        Ok(HfFile { path, size, sha256, oid })
    }

    /// The bytes of a file. After a lost connection the rest is requested.
    pub(crate) async fn open(&self, model: &str, commit: &str, file: &HfFile) -> Result<FileStream, HfError> {
        let url = self.url(&[], model, &["resolve", commit], &file.path);
        let what = format!("{} of {model}", file.path);
        let reading = Reading {
            response: self.get(&url, 0, &what).await?,
            client: self.clone(),
            url,
            what,
            offset: 0,
            size: file.size,
            retries: 0,
        };
        Ok(stream::try_unfold(reading, |mut reading| async move {
            let piece = reading.next().await.map_err(BodyError::from)?;
            Ok(piece.map(|piece| (piece, reading)))
        })
        .boxed())
    }

    /// `{endpoint}/BEFORE/MODEL/AFTER/PATH`. The parts of the model and the path are segments of their own.
    fn url(&self, before: &[&str], model: &str, after: &[&str], path: &str) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(before).extend(model.split('/')).extend(after);
            if !path.is_empty() {
                segments.extend(path.split('/'));
            }
        }
        url
    }

    async fn json<T: DeserializeOwned>(&self, url: Url, what: &str) -> Result<(T, Option<Url>), HfError> {
        let mut response = self.get(&url, 0, what).await?;
        let links = response.headers().get_all("link").iter().filter_map(|value| value.to_str().ok());
        let next =
            links.flat_map(|links| links.split(',')).find_map(next_link).and_then(|next| url.join(next).ok());
        let mut body = Vec::new();
        while let Some(piece) = self.piece(&mut response).await? {
            if body.len() + piece.len() > MAX_JSON_BYTES {
                return Err(self.invalid("the response is too long"));
            }
            body.extend_from_slice(&piece);
        }
        // The parser's message would repeat parts of the response.
        let parsed = serde_json::from_slice(&body)
            .map_err(|_| self.invalid("the response is not JSON in the form of the Hub's API"))?;
        Ok((parsed, next))
    }

    /// A successful response to a request for the bytes from `offset` on.
    async fn get(&self, url: &Url, offset: u64, what: &str) -> Result<Response, HfError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let client = self.egress.http(&url).map_err(HfError::Egress)?;
            let mut request = client.get(url.clone()).header("accept-encoding", "identity");
            if let Some(token) = self.token.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
                request = request.bearer_auth(token.expose());
            }
            if offset > 0 {
                request = request.header("range", format!("bytes={offset}-"));
            }
            let sent = tokio::time::timeout(TIMEOUT, request.send()).await;
            let response = sent.map_err(|error| self.unavailable(error))?;
            let response = response.map_err(|error| self.unavailable(error.without_url()))?;
            let status = response.status();
            if status.is_redirection() {
                let target = response.headers().get("location").and_then(|value| value.to_str().ok());
                let target = target.and_then(|target| url.join(target).ok());
                let target = target.ok_or_else(|| self.invalid("a redirect has no address"))?;
                if url.scheme() == "https" && target.scheme() != "https" {
                    return Err(self.invalid("a redirect leads from https to http"));
                }
                url = target;
                continue;
            }
            return match status.as_u16() {
                206 if offset > 0 => Ok(response),
                200 if offset == 0 => Ok(response),
                200 | 206 => Err(self.invalid("a range was not answered with that range")),
                code => Err(self.refused(what, code, &response)),
            };
        }
        Err(self.invalid("it redirects too often"))
    }

    async fn piece(&self, response: &mut Response) -> Result<Option<Bytes>, HfError> {
        let piece = tokio::time::timeout(TIMEOUT, response.chunk()).await;
        let piece = piece.map_err(|error| self.unavailable(error))?;
        piece.map_err(|error| self.unavailable(error.without_url()))
    }

    fn refused(&self, what: &str, status: u16, response: &Response) -> HfError {
        let given = response.headers().get("x-error-message").and_then(|value| value.to_str().ok());
        let given: String =
            given.unwrap_or_default().chars().filter(|c| !c.is_control()).take(MAX_TEXT_CHARS).collect();
        let (is_unauthorized, is_unknown) = (matches!(status, 401 | 403), status == 404);
        let status = match status {
            _ if is_unauthorized && self.token.is_some() => {
                format!("status {status}; the token is wrong, or its account may not read it")
            }
            _ if is_unauthorized => format!("status {status}; it may be private: set HF_TOKEN"),
            404 if given.is_empty() => format!("it does not exist, status {status}"),
            _ => format!("status {status}"),
        };
        let reason = if given.is_empty() { status } else { format!("{given} ({status})") };
        let (server, what) = (self.server(), what.to_owned());
        match is_unauthorized {
            true => HfError::Unauthorized { server, what, reason },
            false if is_unknown => HfError::Unknown { server, what, reason },
            false => HfError::Refused { server, what, reason },
        }
    }

    fn server(&self) -> String {
        self.endpoint.origin().ascii_serialization()
    }

    fn unavailable(&self, source: impl Into<BodyError>) -> HfError {
        HfError::Unavailable { server: self.server(), source: source.into() }
    }

    fn invalid(&self, reason: &str) -> HfError {
        let reason = reason.chars().filter(|c| !c.is_control()).take(MAX_TEXT_CHARS).collect();
        HfError::Invalid { server: self.server(), reason }
    }
}

/// A file that is being read.
struct Reading {
    client: HfClient,
    url: Url,
    what: String,
    response: Response,
    offset: u64,
    size: u64,
    /// Since the last bytes.
    retries: u32,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<Bytes>, HfError> {
        loop {
            let lost = match self.client.piece(&mut self.response).await {
                Ok(Some(piece)) => {
                    self.offset += piece.len() as u64;
                    self.retries = 0;
                    return Ok(Some(piece));
                }
                Ok(None) if self.offset >= self.size => return Ok(None),
                Ok(None) => self.client.invalid("a file ended early"),
                Err(error) => error,
            };
            if self.retries >= MAX_RETRIES || self.offset >= self.size {
                return Err(lost);
            }
            self.retries += 1;
            tokio::time::sleep(RETRY_DELAY * self.retries).await;
            match self.client.get(&self.url, self.offset, &self.what).await {
                Ok(response) => self.response = response,
                Err(error @ HfError::Unavailable { .. }) if self.retries < MAX_RETRIES => {
                    tracing::debug!(error = crate::error::chain(&error), "retrying to read a file");
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The address of the next page in one part of a `Link` header.
fn next_link(link: &str) -> Option<&str> {
    let (address, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let is_next =
        parameters.split(';').any(|parameter| parameter.trim().eq_ignore_ascii_case("rel=\"next\""));
    is_next.then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_escaped() {
        let egress = |_: &Url| Egress::new(Vec::new()).unwrap();
        let client = HfClient::new("https://hub.example/prefix/", None, egress).unwrap();
        let url = client.url(&["api", "models"], "acme/m", &["revision", "refs/pr/1"], "");
        assert_eq!(url.as_str(), "https://hub.example/prefix/api/models/acme/m/revision/refs%2Fpr%2F1");
        let url = client.url(&[], "m", &["resolve", "main"], "a b/c?.json");
        assert_eq!(url.as_str(), "https://hub.example/prefix/m/resolve/main/a%20b/c%3F.json");
        for endpoint in ["ftp://hub.example", "hub.example", "https://u:p@hub.example", "https://"] {
            assert!(HfClient::new(endpoint, None, egress).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn the_next_page_is_found() {
        assert_eq!(next_link(" <https://a/b?c=1>; rel=\"next\""), Some("https://a/b?c=1"));
        for other in ["<https://a>; rel=\"prev\"", "https://a; rel=\"next\"", "", "<https://a"] {
            assert_eq!(next_link(other), None, "{other}");
        }
    }
}
