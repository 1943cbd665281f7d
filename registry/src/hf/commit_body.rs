//! Reads the body of a commit line by line. A line is short, except that of a file with its content: that content is
//! decoded and stored while it arrives, so that memory is bounded whatever the client sends.

use axum::body::{Body, BodyDataStream};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::preupload::MAX_INLINE_BYTES;
use crate::app::{self, BlobInfo, Commit, CommitError, CommitOperation, MAX_OPERATIONS, commit_message};
use crate::auth::Caller;
use crate::http::Failure;
use crate::{BodyError, Error, Registry};

/// The longest line without the content of a file, and the longest content that is not streamed.
const MAX_LINE_BYTES: usize = 64 << 10;
/// The longest path. Those of new files are shorter; this bounds what the operations of a commit occupy.
const MAX_PATH_BYTES: usize = 4096;
/// How many decoded pieces wait for the storage.
const PIECES: usize = 4;

#[derive(Deserialize)]
struct Line<'a> {
    key: String,
    #[serde(borrow)]
    value: &'a RawValue,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default, rename = "parentCommit")]
    parent: Option<String>,
    #[serde(default)]
    summary: Option<String>,
    #[serde(default)]
    description: Option<String>,
}

#[derive(Deserialize)]
struct InlineFile {
    path: String,
    content: String,
    #[serde(default)]
    encoding: Option<String>,
}

#[derive(Deserialize)]
struct LfsFile {
    path: String,
    oid: String,
    #[serde(default)]
    algo: Option<String>,
    /// Absent for a copy of a stored file.
    #[serde(default)]
    size: Option<u64>,
}

#[derive(Deserialize)]
struct DeletedPath {
    path: String,
}

/// Reads a commit, and stores the contents of its files as blobs of the repository.
pub(super) async fn read_commit(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    body: Body,
) -> Result<Commit, Failure> {
    let mut reader = LineReader::new(body);
    let (mut commit, mut has_header) = (Commit::default(), false);
    while let Some(next) = reader.next().await? {
        let (line, stored) = match next {
            NextLine::Whole(line) => (line, None),
            NextLine::Content => {
                let (line, stored) = read_content(registry, caller, repository, &mut reader).await?;
                (line, Some(stored))
            }
        };
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let number = reader.number;
        let Line { key, value } = parse_line(number, &line)?;
        if key == "header" {
            let header: Header = parse_line(number, value.get().as_bytes())?;
            if std::mem::replace(&mut has_header, true) {
                return Err(wrong_line(number, "is a second header").into());
            }
            commit.parent = header.parent;
            let (title, description) = (header.summary.as_deref(), header.description.as_deref());
            commit.message = commit_message(title.unwrap_or_default(), description.unwrap_or_default());
            continue;
        }
        if !has_header {
            return Err(CommitError::HeaderMissing.into());
        }
        if commit.operations.len() == MAX_OPERATIONS {
            return Err(CommitError::TooManyOperations { limit: MAX_OPERATIONS }.into());
        }
        let value = value.get().as_bytes();
        let operation = match &key[..] {
            "file" => {
                let InlineFile { path, content, encoding } = parse_line(number, value)?;
                if let Some(encoding) = encoding.filter(|encoding| encoding != "base64") {
                    let reason = format!("has the encoding `{encoding}`, expected `base64`");
                    return Err(wrong_line(number, reason).into());
                }
                let BlobInfo { digest, size_bytes } = match stored {
                    Some(stored) => stored,
                    None => {
                        let bytes = BASE64.decode(content).map_err(|_| not_base64(number))?;
                        registry.commit_bytes(caller, repository, bytes.into()).await?
                    }
                };
                CommitOperation::Add { path, digest, size: Some(size_bytes) }
            }
            "lfsFile" => {
                let LfsFile { path, oid, algo, size } = parse_line(number, value)?;
                if let Some(algo) = algo.filter(|algo| algo != "sha256") {
                    return Err(
                        wrong_line(number, format!("has the algo `{algo}`, expected `sha256`")).into()
                    );
                }
                let digest: Option<Digest> = format!("sha256:{oid}").parse().ok();
                let digest = digest.ok_or_else(|| wrong_line(number, "has an oid that is no sha256"))?;
                CommitOperation::Add { path, digest, size }
            }
            "deletedFile" => {
                CommitOperation::DeleteFile { path: parse_line::<DeletedPath>(number, value)?.path }
            }
            "deletedFolder" => {
                CommitOperation::DeleteFolder { path: parse_line::<DeletedPath>(number, value)?.path }
            }
            other => {
                let other: String = other.escape_debug().take(64).collect();
                let reason = format!(
                    "has the key `{other}`, expected header, file, lfsFile, deletedFile or deletedFolder"
                );
                return Err(wrong_line(number, reason).into());
            }
        };
        if operation.path().len() > MAX_PATH_BYTES {
            let reason = format!("has a path of more than {MAX_PATH_BYTES} bytes");
            return Err(wrong_line(number, reason).into());
        }
        commit.operations.push(operation);
    }
    if has_header { Ok(commit) } else { Err(CommitError::HeaderMissing.into()) }
}

fn parse_line<'de, T: Deserialize<'de>>(number: usize, json: &'de [u8]) -> Result<T, CommitError> {
    serde_json::from_slice(json).map_err(|error| wrong_line(number, format!("is invalid: {error}")))
}

fn wrong_line(line: usize, reason: impl Into<String>) -> CommitError {
    CommitError::Line { line, reason: reason.into() }
}

fn not_base64(line: usize) -> CommitError {
    wrong_line(line, "has a content that is not base64")
}

/// Stores the content of the file on a long line. Also returns the line without the content.
async fn read_content(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    reader: &mut LineReader,
) -> Result<(BytesMut, BlobInfo), Failure> {
    let (sender, receiver) = mpsc::channel::<Result<Bytes, BodyError>>(PIECES);
    let body =
        stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    let body: app::Body = body.boxed();
    let decode = async {
        let decoded = decode_content(reader, &sender).await;
        if decoded.is_err() {
            // The upload must not end as if this were the whole content.
            let _ = sender.send(Err("the content is invalid".into())).await;
        }
        drop(sender);
        decoded
    };
    let (line, stored) = tokio::join!(decode, registry.blob_put_stream(caller, repository, body));
    match (line, stored) {
        (Ok(Some(line)), Ok(stored)) => Ok((line, stored)),
        // The storage refused the content, and the rest of it was not read.
        (Ok(_), Err(error)) => Err(error.into()),
        (Err(error), _) => Err(error),
        (Ok(None), Ok(_)) => Err(Error::Interrupted.into()),
    }
}

/// Sends the decoded content of a file to its upload, and returns the line without it. `None` if the upload has ended.
async fn decode_content(
    reader: &mut LineReader,
    sender: &mpsc::Sender<Result<Bytes, BodyError>>,
) -> Result<Option<BytesMut>, Failure> {
    let (mut decoder, mut total, number) = (Decoder::default(), 0_u64, reader.number);
    let mut line = reader.take_head();
    loop {
        let (piece, is_last) = reader.content_piece().await?;
        let decoded = decoder.decode(&piece, is_last).ok_or_else(|| not_base64(number))?;
        total += decoded.len() as u64;
        if total > MAX_INLINE_BYTES {
            let what = format!("the file on line {number} of the commit");
            return Err(CommitError::Inline { what, limit: MAX_INLINE_BYTES }.into());
        }
        if !decoded.is_empty() && sender.send(Ok(decoded.into())).await.is_err() {
            return Ok(None);
        }
        if is_last {
            break;
        }
    }
    let rest = reader.rest_of_line().await?;
    line.extend_from_slice(&rest);
    Ok(Some(line))
}

/// Decodes base64 that arrives in pieces.
#[derive(Default)]
struct Decoder {
    /// Digits that do not make a group of four yet.
    rest: Vec<u8>,
    is_padded: bool,
}

impl Decoder {
    /// `None` if it is no base64.
    fn decode(&mut self, piece: &[u8], is_last: bool) -> Option<Vec<u8>> {
        if self.is_padded && !piece.is_empty() {
            return None;
        }
        self.rest.extend_from_slice(piece);
        let whole = self.rest.len() / 4 * 4;
        if is_last && whole != self.rest.len() {
            return None;
        }
        let digits: Vec<u8> = self.rest.drain(..whole).collect();
        self.is_padded = digits.last() == Some(&b'=');
        BASE64.decode(digits).ok()
    }
}

/// A line of the body.
enum NextLine {
    Whole(BytesMut),
    /// The line of a file with a long content. The reader stands where the content begins.
    Content,
}

/// Splits a body into lines.
struct LineReader {
    body: BodyDataStream,
    /// What was received and not returned yet.
    buffer: BytesMut,
    is_ended: bool,
    /// Of a long line: where the content of the file begins in the buffer.
    content_at: usize,
    /// The number of the line that was returned last, from 1.
    number: usize,
}

impl LineReader {
    fn new(body: Body) -> LineReader {
        let body = body.into_data_stream();
        LineReader { body, buffer: BytesMut::new(), is_ended: false, content_at: 0, number: 0 }
    }

    /// Receives more. Returns false at the end of the body.
    async fn receive(&mut self) -> Result<bool, Error> {
        match self.body.next().await {
            Some(Ok(piece)) => self.buffer.extend_from_slice(&piece),
            Some(Err(error)) => return Err(Error::BodyInterrupted(error.into())),
            None => self.is_ended = true,
        }
        Ok(!self.is_ended)
    }

    async fn next(&mut self) -> Result<Option<NextLine>, Failure> {
        self.number += 1;
        self.split_line().await
    }

    async fn split_line(&mut self) -> Result<Option<NextLine>, Failure> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let end = searched + at;
                if end <= MAX_LINE_BYTES {
                    let mut line = self.buffer.split_to(end + 1);
                    line.truncate(end);
                    return Ok(Some(NextLine::Whole(line)));
                }
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                let head = &self.buffer[..MAX_LINE_BYTES];
                let too_long = || {
                    let reason =
                        format!("has more than {MAX_LINE_BYTES} bytes and is no file with its content");
                    wrong_line(self.number, reason)
                };
                self.content_at = content_start(head).ok_or_else(too_long)?;
                return Ok(Some(NextLine::Content));
            }
            searched = self.buffer.len();
            if !self.receive().await? {
                let line = self.buffer.split();
                return Ok((!line.is_empty()).then_some(NextLine::Whole(line)));
            }
        }
    }

    /// The line up to the content.
    fn take_head(&mut self) -> BytesMut {
        self.buffer.split_to(self.content_at)
    }

    /// The next piece of the content, and whether it is the last.
    async fn content_piece(&mut self) -> Result<(BytesMut, bool), Failure> {
        if self.buffer.is_empty() && !self.receive().await? {
            return Err(wrong_line(self.number, "ends within the content of a file").into());
        }
        match self.buffer.iter().position(|byte| *byte == b'"') {
            Some(end) => Ok((self.buffer.split_to(end), true)),
            None => Ok((self.buffer.split(), false)),
        }
    }

    /// What follows the content.
    async fn rest_of_line(&mut self) -> Result<BytesMut, Failure> {
        match self.split_line().await {
            Ok(Some(NextLine::Whole(rest))) => Ok(rest),
            Ok(None) => Ok(BytesMut::new()),
            Ok(Some(NextLine::Content)) | Err(Failure::Commit(CommitError::Line { .. })) => {
                let reason = format!("has more than {MAX_LINE_BYTES} bytes besides the content of a file");
                Err(wrong_line(self.number, reason).into())
            }
            Err(error) => Err(error),
        }
    }
}

/// Where the value of the key `content` begins, after its quote.
fn content_start(line: &[u8]) -> Option<usize> {
    const KEY: &[u8] = b"\"content\"";
    let mut at = 0;
    while let Some(found) = line[at..].windows(KEY.len()).position(|window| window == KEY) {
        at += found + KEY.len();
        let mut rest = line[at..].iter().enumerate().filter(|(_, byte)| !byte.is_ascii_whitespace());
        if let (Some((_, b':')), Some((quote, b'"'))) = (rest.next(), rest.next()) {
            return Some(at + quote + 1);
        }
    }
    None
}
