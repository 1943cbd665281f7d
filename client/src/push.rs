//! Uploads blobs: tries an anonymous mount first, then sends chunks to an upload session. After an
//! interruption it requests the session's offset and resumes there.

use std::{io, ops::Range, sync::Arc, time::Duration};

use futures::{FutureExt, future};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use lode_model::{
    digest::{Algorithm, Digest},
    reference::Repository,
};
use url::Url;

use crate::{
    Error, Progress, Registry,
    auth::Scope,
    content::{Content, ContentReader},
    error,
    manifests::digest_header,
    response::response_error,
    session_file::{MIN_REMEMBERED_BYTES, SessionFile},
    transport::{Body, Request, Retry},
};

/// The registry's response to an offered blob.
#[derive(Debug)]
pub enum Offer {
    /// The repository has the blob; nothing needs to be sent.
    Present,
    /// The registry needs the content.
    Needed(Upload),
}

/// Whether a blob was already present or was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushOutcome {
    Present,
    Sent,
}

/// An open upload session.
#[derive(Debug)]
pub struct Upload {
    repository: Repository,
    digest: Digest,
    size_bytes: u64,
    location: Url,
    /// Bytes that the registry has from an earlier attempt.
    pub offset: u64,
}

/// Minimum size for a HEAD request after a declined mount: sending a smaller blob costs as little as the
/// request.
const MIN_HEAD_BYTES: u64 = 1 << 20;
/// Maximum size of a blob that is read into memory and sent in one piece.
const MAX_BUFFERED_BYTES: u64 = 256 << 10;
/// Maximum chunk size, as a multiple of the first.
const MAX_CHUNK_FACTOR: u64 = 16;
/// Timeout after the last byte is sent, while the registry makes the blob durable.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(600);

impl Registry {
    /// Mounts a blob of the registry into `repository`, from `from` or from any repository. Returns false if
    /// the blob has to be sent.
    pub async fn blob_mount(
        &self,
        repository: &Repository,
        digest: &Digest,
        from: Option<&Repository>,
    ) -> Result<bool, Error> {
        match self.open_session(repository, digest, from).await? {
            None => Ok(true),
            Some(location) => {
                self.session_cancel(repository, &location).await;
                Ok(false)
            }
        }
    }

    /// Offers a blob of `size` bytes: first resumes the session of an earlier run, then tries a mount.
    pub async fn blob_offer(
        &self,
        repository: &Repository,
        digest: &Digest,
        size: u64,
        from: Option<&Repository>,
    ) -> Result<Offer, Error> {
        let upload = |location, offset| Upload {
            repository: repository.clone(),
            digest: digest.clone(),
            size_bytes: size,
            location,
            offset,
        };
        if size >= MIN_REMEMBERED_BYTES
            && let Some(location) = self.memory(repository, digest).load(&self.base).await
        {
            match self.session_status(repository, &location).await {
                Ok(Some((offset, location))) if offset <= size => {
                    return Ok(Offer::Needed(upload(location, offset)));
                }
                Ok(_) => self.memory(repository, digest).forget().await,
                Err(error) => return Err(error),
            }
        }
        let Some(location) = self.open_session(repository, digest, from).await? else {
            return Ok(Offer::Present);
        };
        // A registry without anonymous mounts may still have the blob.
        if size >= MIN_HEAD_BYTES && self.blob_head(repository, digest).await?.is_some() {
            self.session_cancel(repository, &location).await;
            return Ok(Offer::Present);
        }
        Ok(Offer::Needed(upload(location, 0)))
    }

    /// Offers a blob and sends it if the registry needs it.
    pub async fn blob_push(
        &self,
        repository: &Repository,
        digest: &Digest,
        content: Arc<dyn Content>,
        progress: Arc<dyn Progress>,
    ) -> Result<PushOutcome, Error> {
        let size = content.size();
        match self.blob_offer(repository, digest, size, None).await? {
            Offer::Present => {
                progress.transferred(size);
                Ok(PushOutcome::Present)
            }
            Offer::Needed(upload) => {
                self.upload_send(upload, content, progress).await?;
                Ok(PushOutcome::Sent)
            }
        }
    }

    /// Sends the missing bytes of a session and closes it. `progress` counts each byte of the blob once,
    /// including those of earlier attempts.
    pub async fn upload_send(
        &self,
        upload: Upload,
        content: Arc<dyn Content>,
        progress: Arc<dyn Progress>,
    ) -> Result<(), Error> {
        let Upload { repository, digest, size_bytes, location, offset } = upload;
        if content.size() != size_bytes {
            return Err(Error::SizeMismatch { digest, expected: size_bytes, got: content.size() });
        }
        let sending = BlobUpload::new(self, &repository, content, progress);
        sending.run(&digest, SessionPosition { location, offset }).await
    }

    /// Whether the registry may have a blob of this size, or part of it. If not, the bytes may be sent before
    /// the digest is known. Returns true for a registry that does not support the request; only Lode
    /// does.
    pub async fn may_have_blob(&self, repository: &Repository, size_bytes: u64) -> bool {
        let memory = self.inner().options.upload_sessions_folder.as_ref();
        SessionFile::has_session_of_size(memory, &self.base, repository, size_bytes).await
            || self.has_blob_of_size(size_bytes).await.unwrap_or(true)
    }

    /// Sends content while its digest is still being computed, and passes the digest at the end. If `digest`
    /// fails, the upload is cancelled.
    pub async fn push_unhashed<E: From<Error>>(
        &self,
        repository: &Repository,
        content: Arc<dyn Content>,
        progress: Arc<dyn Progress>,
        digest: impl Future<Output = Result<Digest, E>>,
    ) -> Result<Digest, E> {
        let location = self.open_empty_session(repository, Algorithm::Sha256).await?;
        let sending = BlobUpload::new(self, repository, content, progress);
        let named = async {
            let digest = digest.await?;
            // From here on, a repeated push can resume.
            sending.remember(&digest, &location).await;
            Ok(digest)
        };
        match future::try_join(named, sending.send_unhashed(&location).map(Ok)).await {
            Ok((digest, reached)) => {
                sending.run(&digest, reached).await?;
                Ok(digest)
            }
            Err(error) => {
                self.session_cancel(repository, &location).await;
                Err(error)
            }
        }
    }

    /// Cancels an upload. A session that cannot be cancelled expires on the server.
    pub async fn upload_cancel(&self, upload: Upload) {
        self.session_cancel(&upload.repository, &upload.location).await;
    }

    fn memory(&self, repository: &Repository, digest: &Digest) -> SessionFile {
        SessionFile::of(self.inner().options.upload_sessions_folder.as_ref(), &self.base, repository, digest)
    }

    /// Opens a session for a blob. Returns `None` if the blob was mounted instead.
    async fn open_session(
        &self,
        repository: &Repository,
        digest: &Digest,
        from: Option<&Repository>,
    ) -> Result<Option<Url>, Error> {
        let mut url = self.v2(repository, "blobs/uploads/");
        url.query_pairs_mut().append_pair("mount", digest.as_str());
        if let Some(from) = from {
            url.query_pairs_mut().append_pair("from", from.as_str());
        }
        append_algorithm(&mut url, digest.algorithm());
        let request = Request::new(Method::POST, url.clone(), Scope::mount(repository, from));
        let response = self.inner().send(&request).await?;
        match response.status() {
            StatusCode::CREATED => Ok(None),
            StatusCode::ACCEPTED => self.parse_location(response.headers(), response.url()).map(Some),
            // Some registries refuse an unsupported mount instead of opening a session.
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                self.open_empty_session(repository, digest.algorithm()).await.map(Some)
            }
            _ => Err(response_error(response, &url).await),
        }
    }

    /// Opens a session for content with a digest of `algorithm`.
    async fn open_empty_session(&self, repository: &Repository, algorithm: Algorithm) -> Result<Url, Error> {
        let mut url = self.v2(repository, "blobs/uploads/");
        append_algorithm(&mut url, algorithm);
        let request = Request::new(Method::POST, url.clone(), Scope::push(repository));
        let response = self.inner().send(&request).await?;
        match response.status() {
            StatusCode::ACCEPTED | StatusCode::CREATED => {
                self.parse_location(response.headers(), response.url())
            }
            _ => Err(response_error(response, &url).await),
        }
    }

    /// Returns the offset and current URL of a session, or `None` if it no longer exists.
    async fn session_status(
        &self,
        repository: &Repository,
        location: &Url,
    ) -> Result<Option<(u64, Url)>, Error> {
        let request = Request::new(Method::GET, location.clone(), Scope::push(repository));
        let response = self.inner().send(&request).await?;
        match response.status() {
            status if status.is_success() => {
                let offset = parse_stored_bytes(response.headers());
                let next =
                    self.parse_location(response.headers(), location).unwrap_or_else(|_| location.clone());
                Ok(Some((offset, next)))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(response_error(response, location).await),
        }
    }

    async fn session_cancel(&self, repository: &Repository, location: &Url) {
        let request = Request::new(Method::DELETE, location.clone(), Scope::push(repository));
        if let Err(error) = self.inner().send_ok(&request).await {
            tracing::debug!(%error, "failed to cancel an upload session; it will expire");
        }
    }

    fn parse_location(&self, headers: &HeaderMap, from: &Url) -> Result<Url, Error> {
        let missing = || self.protocol("the response to an upload request has no valid Location");
        let value =
            headers.get(header::LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(missing)?;
        from.join(value).ok().filter(|url| matches!(url.scheme(), "http" | "https")).ok_or_else(missing)
    }
}

/// Adds the digest algorithm to the URL, if it is not the default.
fn append_algorithm(url: &mut Url, algorithm: Algorithm) {
    if algorithm != Algorithm::Sha256 {
        url.query_pairs_mut().append_pair("digest-algorithm", algorithm.as_str());
    }
}

/// Parses the stored bytes from the `Range: 0-<last>` of an upload. Registries send `0-0` both for an empty
/// session and for one byte; a wrong guess is corrected by a 416.
fn parse_stored_bytes(headers: &HeaderMap) -> u64 {
    let text = headers.get(header::RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let last =
        text.trim_start_matches("bytes=").split_once('-').and_then(|(_, last)| last.trim().parse().ok());
    match last {
        None | Some(0) => 0,
        Some(last) => u64::saturating_add(last, 1),
    }
}

/// The upload of one blob, over one or more sessions.
struct BlobUpload<'a> {
    registry: &'a Registry,
    repository: &'a Repository,
    size: u64,
    feed: Arc<ContentReader>,
}

/// The offset and URL of a session.
struct SessionPosition {
    location: Url,
    offset: u64,
}

/// The result of sending a chunk.
enum ChunkOutcome {
    Done,
    /// The offset and URL to continue at.
    Stored(u64, Url),
    /// The session must be queried for its offset.
    Uncertain(Error),
    /// The session no longer exists.
    Gone,
    /// The content could not be read.
    Unreadable(io::Error),
}

impl<'a> BlobUpload<'a> {
    fn new(
        registry: &'a Registry,
        repository: &'a Repository,
        content: Arc<dyn Content>,
        progress: Arc<dyn Progress>,
    ) -> BlobUpload<'a> {
        let size = content.size();
        BlobUpload { registry, repository, size, feed: Arc::new(ContentReader::new(content, progress)) }
    }

    fn memory(&self, digest: &Digest) -> SessionFile {
        self.registry.memory(self.repository, digest)
    }

    async fn remember(&self, digest: &Digest, location: &Url) {
        if self.size >= MIN_REMEMBERED_BYTES {
            self.memory(digest).remember(self.repository, digest, self.size, location).await;
        }
    }

    /// Sends all content as one chunk; an interruption costs no more than with several chunks. If the result
    /// is uncertain, it is resolved when the digest is known.
    async fn send_unhashed(&self, location: &Url) -> SessionPosition {
        match self.chunk(location, 0..self.size, None).await {
            Ok(ChunkOutcome::Stored(offset, location)) if offset <= self.size => {
                SessionPosition { location, offset }
            }
            _ => SessionPosition { location: location.clone(), offset: 0 },
        }
    }

    /// Sends the missing bytes, resumes after interruptions, and closes the session.
    async fn run(&self, digest: &Digest, reached: SessionPosition) -> Result<(), Error> {
        let SessionPosition { mut location, mut offset } = reached;
        let policy = self.registry.inner().options.retry;
        let mut chunk_bytes = self.first_chunk_bytes();
        let mut failed = 0;
        let mut best = offset;
        self.feed.set_offset(offset);
        loop {
            self.remember(digest, &location).await;
            let end = self.size.min(offset.saturating_add(chunk_bytes));
            let closing = Some(digest).filter(|_| end == self.size);
            let error = match self.chunk(&location, offset..end, closing).await? {
                ChunkOutcome::Done => {
                    self.feed.set_offset(self.size);
                    self.memory(digest).forget().await;
                    return Ok(());
                }
                ChunkOutcome::Stored(stored, next) if stored > offset && stored <= self.size => {
                    (location, offset) = (next, stored);
                    self.feed.set_offset(offset);
                    chunk_bytes = self.next_chunk_bytes(chunk_bytes);
                    if offset > best {
                        (best, failed) = (offset, 0);
                    }
                    continue;
                }
                ChunkOutcome::Stored(stored, _) => self.registry.protocol(format!(
                    "it accepted a chunk at offset {offset} but reports {stored} stored bytes"
                )),
                ChunkOutcome::Uncertain(error) => error,
                ChunkOutcome::Gone => self.registry.protocol("the upload session no longer exists"),
                ChunkOutcome::Unreadable(source) => {
                    return Err(Error::Content { digest: digest.clone(), source });
                }
            };
            failed += 1;
            chunk_bytes = self.first_chunk_bytes();
            tracing::debug!(%digest, offset, failed, %error, "an upload was interrupted");
            if failed >= policy.attempts {
                return Err(error);
            }
            self.registry.inner().wait_to_retry(&error, failed, None).await;
            (location, offset) = match self.registry.session_status(self.repository, &location).await? {
                Some((stored, next)) if stored <= self.size && failed < 3 => (next, stored),
                // The session may be gone because the response to the last request was lost.
                gone_or_stuck => {
                    if self.registry.blob_head(self.repository, digest).await?.is_some() {
                        self.feed.set_offset(self.size);
                        self.memory(digest).forget().await;
                        return Ok(());
                    }
                    match gone_or_stuck {
                        // The session made progress earlier, so the connection is at fault and not the
                        // session.
                        Some((stored, next)) if stored > 0 && stored <= self.size => (next, stored),
                        _ => match self.reopen_session(digest).await? {
                            Some(location) => (location, 0),
                            None => {
                                self.feed.set_offset(self.size);
                                return Ok(());
                            }
                        },
                    }
                }
            };
            if offset > best {
                (best, failed) = (offset, 0);
            }
            self.feed.set_offset(offset);
        }
    }

    async fn reopen_session(&self, digest: &Digest) -> Result<Option<Url>, Error> {
        self.memory(digest).forget().await;
        self.registry.open_session(self.repository, digest, None).await
    }

    fn first_chunk_bytes(&self) -> u64 {
        self.registry.inner().options.chunk_bytes.max(1)
    }

    /// The size of the next chunk after a successful one. No data flows between chunks, so a good connection
    /// gets larger ones.
    fn next_chunk_bytes(&self, chunk_bytes: u64) -> u64 {
        chunk_bytes.saturating_mul(4).min(self.first_chunk_bytes().saturating_mul(MAX_CHUNK_FACTOR))
    }

    /// Sends one chunk. With a digest, it also closes the session.
    async fn chunk(
        &self,
        location: &Url,
        range: Range<u64>,
        closing: Option<&Digest>,
    ) -> Result<ChunkOutcome, Error> {
        let whole = closing.is_some() && range.start == 0;
        let mut url = location.clone();
        if let Some(digest) = closing {
            url.query_pairs_mut().append_pair("digest", &digest.to_string());
        }
        let method = if closing.is_some() { Method::PUT } else { Method::PATCH };
        let length = range.end - range.start;
        let mut request = Request::new(method, url.clone(), Scope::push(self.repository))
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        request.retry = Retry::Never;
        request.first_byte_timeout = None;
        if !whole && length > 0 {
            let text = format!("{}-{}", range.start, range.end - 1);
            let value = HeaderValue::from_str(&text)
                .map_err(|_| self.registry.protocol("a range cannot be written"))?;
            request = request.header(header::CONTENT_RANGE, value);
        }
        self.feed.begin();
        let make;
        if length == 0 {
            request.body = Body::Empty;
        } else if self.size <= MAX_BUFFERED_BYTES {
            request.body = match self.feed.read(range.clone()).await {
                Ok(bytes) => Body::Bytes(bytes),
                Err(source) => return Ok(ChunkOutcome::Unreadable(source)),
            };
        } else {
            request = request.header(header::CONTENT_LENGTH, HeaderValue::from(length));
            let feed = self.feed.clone();
            make = move || feed.body(range.clone());
            request.body = Body::Stream(&make);
        }
        let sent = self.send_with_stall_timeout(&request, length).await;
        if let Some(source) = self.feed.take_failure() {
            return Ok(ChunkOutcome::Unreadable(source));
        }
        let response = match sent {
            Ok(response) => response,
            Err(error) if error.is_transient() => return Ok(ChunkOutcome::Uncertain(error)),
            Err(error) => return Err(error),
        };
        match response.status() {
            status if status.is_success() => match closing {
                None => {
                    let next = self.registry.parse_location(response.headers(), location)?;
                    Ok(ChunkOutcome::Stored(parse_stored_bytes(response.headers()), next))
                }
                Some(expected) => match digest_header(response.headers()) {
                    Some(got) if got.algorithm() == expected.algorithm() && got != *expected => {
                        Err(Error::DigestMismatch { expected: expected.clone(), got })
                    }
                    _ => Ok(ChunkOutcome::Done),
                },
            },
            StatusCode::NOT_FOUND => Ok(ChunkOutcome::Gone),
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::CONFLICT => {
                Ok(ChunkOutcome::Uncertain(response_error(response, &url).await))
            }
            _ if error::may_retry(&response) => {
                Ok(ChunkOutcome::Uncertain(response_error(response, &url).await))
            }
            _ => Err(response_error(response, &url).await),
        }
    }

    /// Waits as long as bytes are sent, and up to a longer timeout after the last byte.
    async fn send_with_stall_timeout(
        &self,
        request: &Request<'_>,
        length: u64,
    ) -> Result<reqwest::Response, Error> {
        let inner = self.registry.inner();
        let idle = inner.options.idle_timeout;
        let mut sending = std::pin::pin!(inner.send(request));
        let mut seen = 0;
        let mut waited = Duration::ZERO;
        loop {
            if let Ok(response) = tokio::time::timeout(idle, &mut sending).await {
                return response;
            }
            let fed = self.feed.sent_bytes();
            waited = if fed == seen { waited + idle } else { Duration::ZERO };
            seen = fed;
            let timeout = if fed >= length { COMMIT_TIMEOUT } else { idle };
            if waited >= timeout {
                return Err(Error::Stalled { server: self.registry.server(), seconds: waited.as_secs() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_sessions() {
        let check = |text: &'static str, expect: u64| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, HeaderValue::from_static(text));
            assert_eq!(parse_stored_bytes(&headers), expect, "{text}");
        };
        check("0-0", 0);
        check("0-9", 10);
        check("bytes=0-9", 10);
        check("nonsense", 0);
        check("0-18446744073709551615", u64::MAX);
        assert_eq!(parse_stored_bytes(&HeaderMap::new()), 0);
    }
}
