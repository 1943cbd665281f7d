//! Blobs: metadata, streaming reads of all or part of a blob, and reads into memory. Downloads to a file are
//! in pull.rs, uploads in push.rs.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use lode_model::{
    digest::{Digest, Hasher},
    reference::Repository,
};
use serde::Deserialize;

use crate::{
    Error, Registry,
    auth::Scope,
    manifests::length_header,
    response::{response_error, transport_error},
    retry::{MIN_PROGRESS_BYTES, failures_after},
    transport::Request,
};

/// The digest and size of a blob.
#[derive(Debug, Clone)]
pub struct BlobInfo {
    pub digest: Digest,
    pub size_bytes: u64,
}

/// A blob, or part of it, being received.
pub struct BlobStream {
    /// The byte range of this stream. It is the whole blob if the registry does not support ranges: compare
    /// it before use.
    pub range: Range<u64>,
    /// Size of the whole blob, if the registry reported it.
    pub total: Option<u64>,
    /// Ends with an error if the connection breaks before `range` is complete. Not verified, because a digest
    /// covers the whole blob.
    pub bytes: BoxStream<'static, Result<Bytes, Error>>,
}

impl Registry {
    /// Returns the metadata of a blob in `repository`, or `None` if it does not exist.
    pub async fn blob_head(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<BlobInfo>, Error> {
        let url = self.blob_url(repository, digest);
        let request = Request::new(Method::HEAD, url.clone(), Scope::pull(repository));
        let response = self.inner().send(&request).await?;
        match response.status() {
            StatusCode::OK => {
                let size_bytes = length_header(response.headers())
                    .ok_or_else(|| self.protocol("the response to a HEAD of a blob has no Content-Length"))?;
                Ok(Some(BlobInfo { digest: digest.clone(), size_bytes }))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(response_error(response, &url).await),
        }
    }

    /// Whether the registry has a blob of this size in any repository that the caller may read. Fails if the
    /// registry does not support this request.
    pub(crate) async fn has_blob_of_size(&self, size_bytes: u64) -> Result<bool, Error> {
        #[derive(Deserialize)]
        struct BlobSizeResponse {
            known: bool,
        }
        let response: BlobSizeResponse = self.json_get(&format!("lode/v1/blobs?size={size_bytes}")).await?;
        Ok(response.known)
    }

    /// Streams a blob, or `range` of it (end exclusive, not empty), over one connection. The caller handles
    /// interruptions.
    pub async fn blob_get(
        &self,
        repository: &Repository,
        digest: &Digest,
        range: Option<Range<u64>>,
    ) -> Result<BlobStream, Error> {
        self.blob_get_after(&mut 0, repository, digest, range).await
    }

    /// Like [`Registry::blob_get`], for a caller that has failed attempts of its own: they count, and those of this
    /// request are added.
    async fn blob_get_after(
        &self,
        failed: &mut u32,
        repository: &Repository,
        digest: &Digest,
        range: Option<Range<u64>>,
    ) -> Result<BlobStream, Error> {
        let url = self.blob_url(repository, digest);
        let mut request = Request::new(Method::GET, url.clone(), Scope::pull(repository));
        if let Some(range) = &range {
            let text = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            let value = HeaderValue::from_str(&text).map_err(|_| self.protocol("invalid range"))?;
            request = request.header(header::RANGE, value);
        }
        let response = self.inner().send_after(failed, &request).await?;
        let headers = response.headers();
        let (got, total) = match response.status() {
            StatusCode::OK => {
                let total = length_header(headers);
                (0..total.unwrap_or(u64::MAX), total)
            }
            StatusCode::PARTIAL_CONTENT if range.is_some() => content_range(headers)
                .ok_or_else(|| self.protocol("a partial response has no valid Content-Range"))?,
            StatusCode::NOT_FOUND => {
                return Err(Error::BlobUnknown {
                    server: self.server(),
                    repository: repository.clone(),
                    digest: digest.clone(),
                });
            }
            _ => return Err(response_error(response, &url).await),
        };
        Ok(BlobStream { bytes: self.body_stream(response, got.end - got.start), range: got, total })
    }

    /// Reads a small blob into memory and verifies it. Fails if it is longer than `limit` bytes.
    pub async fn blob_bytes(
        &self,
        repository: &Repository,
        digest: &Digest,
        limit: u64,
    ) -> Result<Bytes, Error> {
        // Failures of the requests and of their bodies count together.
        let mut failed = 0;
        loop {
            let stream = self.blob_get_after(&mut failed, repository, digest, None).await?;
            match read_whole(stream, digest, limit).await {
                Err(error) if error.is_transient() && failed + 1 < self.inner().options.retry.attempts => {
                    failed += 1;
                    self.inner().wait_to_retry(&error, failed, None).await;
                }
                other => return other,
            }
        }
    }

    /// Streams a blob of `size` bytes in order and resumes after interruptions. Bytes are yielded before the
    /// digest is verified: if it does not match, the last item is an error. So use the bytes only after the
    /// stream has ended without an error.
    pub fn blob_read(
        &self,
        repository: &Repository,
        digest: &Digest,
        size: u64,
    ) -> BoxStream<'static, Result<Bytes, Error>> {
        let reading = ResumingRead {
            registry: self.clone(),
            repository: repository.clone(),
            digest: digest.clone(),
            size,
            at: 0,
            hasher: Some(Hasher::new(digest.algorithm())),
            stream: None,
            received: 0,
            failed: 0,
        };
        futures::stream::unfold(reading, |mut reading| async move {
            let item = reading.next().await.transpose()?;
            if item.is_err() {
                reading.hasher = None;
            }
            Some((item, reading))
        })
        .boxed()
    }

    /// Reads `range` of a blob into memory and resumes after interruptions. Not verified, because a digest
    /// covers the whole blob. If the server ignores ranges, the blob is read up to the end of `range`.
    pub async fn blob_range(
        &self,
        repository: &Repository,
        digest: &Digest,
        range: Range<u64>,
    ) -> Result<Bytes, Error> {
        let length = range.end.saturating_sub(range.start);
        let mut body = Vec::with_capacity(length.min(64 << 20) as usize);
        // Failures of the requests and of their bodies count together.
        let mut failed = 0;
        while (body.len() as u64) < length {
            let before = body.len() as u64;
            let start = range.start + before;
            let stream = self.blob_get_after(&mut failed, repository, digest, Some(start..range.end)).await?;
            match self.read_range(stream, start..range.end, &mut body).await {
                Ok(()) => {}
                Err(error) if error.is_transient() => {
                    failed = failures_after(failed, body.len() as u64 - before, length - before, &error);
                    if failed >= self.inner().options.retry.attempts {
                        return Err(error);
                    }
                    self.inner().wait_to_retry(&error, failed, None).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(body.into())
    }

    /// Appends the bytes of `range` to `body`. Those before an interruption stay.
    async fn read_range(
        &self,
        mut stream: BlobStream,
        range: Range<u64>,
        body: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let mut at = stream.range.start;
        if at > range.start {
            return Err(self.protocol("the response starts after the requested offset"));
        }
        while let Some(chunk) = stream.bytes.next().await {
            let chunk = chunk?;
            let from = range.start.saturating_sub(at).min(chunk.len() as u64) as usize;
            let to = (range.end - at).min(chunk.len() as u64) as usize;
            body.extend_from_slice(&chunk[from.min(to)..to]);
            at += chunk.len() as u64;
            if at >= range.end {
                return Ok(());
            }
        }
        Err(self.protocol("the response ended before the end of the range"))
    }

    /// Streams the body with the idle timeout. Fails if the body has more than `length` bytes. The time that the
    /// stream's reader takes does not count.
    fn body_stream(
        &self,
        response: reqwest::Response,
        length: u64,
    ) -> BoxStream<'static, Result<Bytes, Error>> {
        let server = self.server();
        let pace = Pace::new(self.inner().options.idle_timeout);
        let state = (response, length, server, pace, false);
        futures::stream::unfold(state, move |(mut response, left, server, mut pace, ended)| async move {
            if ended {
                return None;
            }
            let next = pace.read_chunk(&mut response, &server).await;
            let (item, left) = match next {
                Ok(Some(chunk)) if chunk.len() as u64 <= left => {
                    let left = left - chunk.len() as u64;
                    (Ok(chunk), left)
                }
                Ok(Some(_)) => (
                    Err(Error::Protocol {
                        server: server.clone(),
                        why: "the response is longer than announced".into(),
                    }),
                    left,
                ),
                Ok(None) => return None,
                Err(error) => (Err(error), left),
            };
            let ended = item.is_err();
            Some((item, (response, left, server, pace, ended)))
        })
        .boxed()
    }
}

/// Reads a whole blob of at most `limit` bytes, and verifies it.
async fn read_whole(mut stream: BlobStream, digest: &Digest, limit: u64) -> Result<Bytes, Error> {
    let mut body = Vec::with_capacity(stream.total.unwrap_or(0).min(limit) as usize);
    let mut hasher = Hasher::new(digest.algorithm());
    while let Some(chunk) = stream.bytes.next().await {
        let chunk = chunk?;
        if (body.len() + chunk.len()) as u64 > limit {
            return Err(Error::SizeMismatch {
                digest: digest.clone(),
                expected: limit,
                got: stream.total.unwrap_or((body.len() + chunk.len()) as u64),
            });
        }
        hasher.update(&chunk);
        body.extend_from_slice(&chunk);
    }
    let got = hasher.finish();
    if got != *digest {
        return Err(Error::DigestMismatch { expected: digest.clone(), got });
    }
    Ok(body.into())
}

/// A blob that is read from its start, over several connections if necessary.
struct ResumingRead {
    registry: Registry,
    repository: Repository,
    digest: Digest,
    size: u64,
    at: u64,
    /// `None` after the end of the blob or an error.
    hasher: Option<Hasher>,
    stream: Option<(u64, BoxStream<'static, Result<Bytes, Error>>)>,
    /// Bytes received since the last failure.
    received: u64,
    failed: u32,
}

impl ResumingRead {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(mut hasher) = self.hasher.take() {
            if self.at == self.size {
                let got = hasher.finish();
                return if got == self.digest {
                    Ok(None)
                } else {
                    Err(Error::DigestMismatch { expected: self.digest.clone(), got })
                };
            }
            match self.chunk().await {
                Ok(Some(chunk)) => {
                    self.received += chunk.len() as u64;
                    self.at += chunk.len() as u64;
                    hasher.update(&chunk);
                    self.hasher = Some(hasher);
                    return Ok(Some(chunk));
                }
                Ok(None) => {}
                Err(error) => {
                    let received = std::mem::take(&mut self.received);
                    let missing = self.size.saturating_sub(self.at) + received;
                    self.failed = failures_after(self.failed, received, missing, &error);
                    let policy = &self.registry.inner().options.retry;
                    if !error.is_transient() || self.failed >= policy.attempts {
                        return Err(error);
                    }
                    self.stream = None;
                    self.registry.inner().wait_to_retry(&error, self.failed, None).await;
                }
            }
            self.hasher = Some(hasher);
        }
        Ok(None)
    }

    /// Reads the next bytes at `at`; `None` if the chunk only repeats known bytes.
    async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let (position, stream) = match &mut self.stream {
            Some(open) => open,
            None => {
                let range = (self.at > 0).then_some(self.at..self.size);
                // Its attempts do not count here: together they outlast the restart of a server.
                let opened = self.registry.blob_get(&self.repository, &self.digest, range).await?;
                if let Some(got) = opened.total.filter(|total| *total != self.size) {
                    return Err(Error::SizeMismatch {
                        digest: self.digest.clone(),
                        expected: self.size,
                        got,
                    });
                }
                self.stream.insert((opened.range.start, opened.bytes))
            }
        };
        let Some(chunk) = stream.next().await.transpose()? else {
            return Err(Error::SizeMismatch {
                digest: self.digest.clone(),
                expected: self.size,
                got: self.at,
            });
        };
        // A server that ignores ranges starts at offset 0.
        let start = *position;
        *position += chunk.len() as u64;
        let known = self.at.saturating_sub(start).min(chunk.len() as u64) as usize;
        if start > self.at || *position > self.size {
            return Err(self.registry.protocol("the response contains bytes outside the requested range"));
        }
        let chunk = chunk.slice(known..);
        Ok((!chunk.is_empty()).then_some(chunk))
    }
}

/// The pace of a download. A server that sends single bytes now and then counts as idle.
struct Pace {
    idle: Duration,
    /// The time spent waiting, and the bytes received, since [`MIN_PROGRESS_BYTES`] were last complete.
    waited: Duration,
    received: u64,
}

impl Pace {
    fn new(idle: Duration) -> Pace {
        Pace { idle, waited: Duration::ZERO, received: 0 }
    }

    async fn read_chunk(
        &mut self,
        response: &mut reqwest::Response,
        server: &str,
    ) -> Result<Option<Bytes>, Error> {
        let begin = tokio::time::Instant::now();
        let left = self.idle.saturating_sub(self.waited);
        let Ok(chunk) = tokio::time::timeout(left, response.chunk()).await else {
            return Err(Error::Stalled { server: server.to_owned(), seconds: self.idle.as_secs() });
        };
        let chunk = chunk.map_err(|source| transport_error(server.to_owned(), source))?;
        self.waited += begin.elapsed();
        self.received += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        if self.received >= MIN_PROGRESS_BYTES {
            *self = Pace::new(self.idle);
        }
        Ok(chunk)
    }
}

/// Parses `bytes a-b/total` into an end-exclusive range and the total, if known.
pub(crate) fn content_range(headers: &HeaderMap) -> Option<(Range<u64>, Option<u64>)> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    let end = last.checked_add(1)?;
    (first < end && total.is_none_or(|total| end <= total)).then_some((first..end, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        let check = |text: &'static str, expect| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_RANGE, HeaderValue::from_static(text));
            assert_eq!(content_range(&headers), expect, "{text}");
        };
        check("bytes 0-9/10", Some((0..10, Some(10))));
        check("bytes 5-9/*", Some((5..10, None)));
        check("bytes 5-10/10", None);
        check("bytes 9-5/10", None);
        check("bytes */10", None);
        check("0-9/10", None);
        check("bytes 0-18446744073709551615/*", None);
    }
}
