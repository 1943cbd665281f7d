//! Blob store in object storage, which any number of servers share. Nothing here keeps state between two
//! requests: an upload's state is in its row, and no two servers ever write the same key.

mod notes;
mod open;
mod part_sizes;
pub(super) mod parts;
#[cfg(test)]
pub(crate) mod testing;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::{self, BoxStream, StreamExt};
use lode_client::TlsProblem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::sync::Semaphore;
use url::Url;
use uuid::Uuid;

use crate::blobs::key;
use crate::blobs::object::{BlobStream, ListedObject};
use crate::blobs::upload::StoredUpload;
use crate::config::Switch;
use crate::metrics::measure_storage;
use crate::{Config, Error, OpenError};

/// Memory for parts being sent, over all uploads, beyond one part for each.
const POOL_BYTES: usize = 64 * 1024 * 1024;
/// Short, because readiness probes time out soon.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses before retries of a write that conflicted with another operation.
const CONFLICT_PAUSES: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
];

#[derive(Clone)]
pub(crate) struct Remote(Arc<Inner>);

struct Inner {
    store: Arc<dyn ObjectStore>,
    multipart: Arc<dyn MultipartStore>,
    /// Signs URLs for redirects to the storage.
    signer: Option<Arc<dyn Signer>>,
    /// Prefix of every key.
    prefix: Path,
    /// The bucket and the prefix, for messages.
    place: String,
    /// Memory for parts, in units of 1 MiB.
    pool: Arc<Semaphore>,
}

impl Remote {
    pub(super) fn open(url: &Url, config: &Config) -> Result<Remote, OpenError> {
        let clients = open::open(url, config)?;
        let redirect = match config.redirect {
            Switch::Auto => clients.is_s3,
            Switch::On => true,
            Switch::Off => false,
        };
        Ok(Remote(Arc::new(Inner {
            store: clients.store,
            multipart: clients.multipart,
            signer: clients.signer.filter(|_| redirect),
            prefix: Path::from_url_path(url.path())
                .map_err(|error| OpenError::Config { setting: "storage", reason: error.to_string() })?,
            place: place(url),
            pool: Arc::new(Semaphore::new(POOL_BYTES >> 20)),
        })))
    }

    fn path(&self, key: &str) -> Path {
        Path::from_iter(self.0.prefix.parts().chain(Path::from(key).parts()))
    }

    pub(super) async fn check(&self) -> Result<(), OpenError> {
        let mut listed = self.0.store.list(Some(&self.path(key::UPLOADS)));
        match tokio::time::timeout(PING_TIMEOUT, listed.next()).await {
            Ok(None | Some(Ok(_))) => {}
            Ok(Some(Err(error))) => {
                let reason = one_line_reason(&error);
                if is_refusal(&error) {
                    let reason = format!("{}: {reason}", self.0.place);
                    return Err(OpenError::Config { setting: "storage", reason });
                }
                tracing::warn!(error = reason, "object storage is not reachable yet");
            }
            Err(_) => tracing::warn!("object storage is not reachable yet"),
        }
        Ok(())
    }

    pub(super) async fn ping(&self) -> Result<(), Error> {
        let listed = async { self.list(key::UPLOADS).next().await.transpose() };
        match tokio::time::timeout(PING_TIMEOUT, listed).await {
            Ok(result) => result.map(drop),
            Err(elapsed) => Err(Error::Unavailable {
                what: "object storage did not respond".to_owned(),
                source: elapsed.into(),
            }),
        }
    }

    pub(super) async fn read(&self, key: &str, range: Range<u64>) -> Result<BlobStream, Error> {
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let result = self.0.store.get_opts(&self.path(key), options).await;
        let result = result.map_err(|error| storage_error(format!("failed to read {key}"), error))?;
        if result.range != range {
            let short = format!("only {:?} is stored", result.range);
            let short = io::Error::new(io::ErrorKind::UnexpectedEof, short);
            return Err(Error::io(format!("failed to read {key}"), short));
        }
        Ok(result.into_stream().map_err(io::Error::from).boxed())
    }

    pub(super) async fn signed_url(&self, key: &str, valid: Duration) -> Result<Option<Url>, Error> {
        let Some(signer) = &self.0.signer else { return Ok(None) };
        let signed = signer.signed_url(http::Method::GET, &self.path(key), valid).await;
        signed.map(Some).map_err(|error| storage_error(format!("failed to sign a URL for {key}"), error))
    }

    pub(super) async fn size(&self, key: &str) -> Result<Option<u64>, Error> {
        match self.0.store.head(&self.path(key)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(storage_error(format!("failed to stat {key}"), error)),
        }
    }

    pub(super) fn list(&self, prefix: &str) -> BoxStream<'static, Result<ListedObject, Error>> {
        let before = match self.0.prefix.as_ref() {
            "" => 0,
            prefix => prefix.len() + 1,
        };
        self.0
            .store
            .list(Some(&self.path(prefix)))
            .map_ok(move |meta| ListedObject {
                key: meta.location.as_ref().get(before..).unwrap_or_default().to_owned(),
                size_bytes: meta.size,
                modified_ms: meta.last_modified.timestamp_millis(),
            })
            .map_err(|error| storage_error("failed to list the storage".to_owned(), error))
            .boxed()
    }

    pub(super) async fn remove(&self, keys: Vec<String>) -> Result<(), Error> {
        let paths: Vec<_> = keys.iter().map(|key| Ok(self.path(key))).collect();
        let mut removed = self.0.store.delete_stream(stream::iter(paths).boxed());
        while let Some(result) = removed.next().await {
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(storage_error("failed to remove objects".to_owned(), error)),
            }
        }
        Ok(())
    }

    /// Writes an object whole, replacing one that an earlier attempt of the same writer may have left.
    async fn put(&self, key: &str, payload: PutPayload) -> Result<(), Error> {
        let path = self.path(key);
        let put =
            measure_storage("put", retry_on_conflict(|| self.0.store.put(&path, payload.clone()))).await;
        put.map(drop).map_err(|error| storage_error(format!("failed to write {key}"), error))
    }

    /// Writes the one object of an upload.
    pub(super) async fn put_whole(&self, id: Uuid, bytes: Bytes) -> Result<String, Error> {
        let key = key::object(id, 0);
        self.put(&key, bytes.into()).await?;
        Ok(key)
    }

    /// Removes an upload's objects, except the one that became a blob.
    pub(super) async fn clear(&self, upload: &StoredUpload, keep: Option<&str>) -> Result<(), Error> {
        if let Some((key, id)) = notes::multipart_of(upload)?
            && keep != Some(&key)
        {
            match self.0.multipart.abort_multipart(&self.path(&key), &id).await {
                // It was completed or aborted before.
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => {
                    return Err(storage_error(
                        format!("failed to abort the multipart upload of {key}"),
                        error,
                    ));
                }
            }
        }
        let mut keys = Vec::new();
        for prefix in [key::objects(upload.id), format!("{}/{}", key::UPLOADS, upload.id)] {
            let mut listed = self.list(&prefix);
            while let Some(object) = listed.try_next().await? {
                keys.extend(Some(object.key).filter(|key| keep != Some(key)));
            }
        }
        if keys.is_empty() { Ok(()) } else { self.remove(keys).await }
    }
}

/// Some storages return 409 for a write that conflicts with another operation, such as a deletion that
/// empties the same folder.
async fn retry_on_conflict<T, F: Future<Output = object_store::Result<T>>>(
    mut write: impl FnMut() -> F,
) -> object_store::Result<T> {
    for pause in CONFLICT_PAUSES {
        match write().await {
            Err(object_store::Error::AlreadyExists { .. }) => tokio::time::sleep(pause).await,
            outcome => return outcome,
        }
    }
    write().await
}

/// Converts an error of the storage: missing bytes are damage; any other failure is temporary unavailability.
fn storage_error(
    what: String,
    error: impl std::borrow::Borrow<object_store::Error> + Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    match error.borrow() {
        object_store::Error::NotFound { .. } => {
            Error::io(what, io::Error::new(io::ErrorKind::NotFound, error))
        }
        other if is_full(other) => Error::StorageFull,
        other => Error::Unavailable { what, source: one_line_reason(other).into() },
    }
}

/// Whether the error of a list is permanent, such as no bucket of that name, or no access with these credentials.
fn is_refusal(error: &object_store::Error) -> bool {
    use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
    const TEMPORARY: [&str; 2] = ["408", "429"];
    const OTHER_REGION: &str = "incorrectly configured region";
    let text = crate::error::chain(error);
    let status = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)).unwrap_or_default();
    matches!(error, NotFound { .. } | PermissionDenied { .. } | Unauthenticated { .. })
        || status.starts_with('4') && !TEMPORARY.contains(&status)
        || text.contains(OTHER_REGION)
        || TlsProblem::of(error) == Some(TlsProblem::NotTls)
}

/// The reason of a failure on one line: the code and the message of the XML document that the storage sent, or the
/// whole text.
fn one_line_reason(error: &object_store::Error) -> String {
    if TlsProblem::of(error) == Some(TlsProblem::NotTls) {
        return "the endpoint does not use https on this port: write http:// in its URL".to_owned();
    }
    let text = crate::error::chain(error);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(content, _)| content.trim())
    };
    match (element("Code"), element("Message")) {
        (Some(code), Some(message)) if !message.is_empty() => {
            let message = decode_entities(message);
            format!("the object storage refused the request: {code}: {message}")
        }
        (Some(code), _) => format!("the object storage refused the request: {code}"),
        (None, _) => text.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// A text of an XML document. The ampersand is decoded last, so that nothing is decoded twice.
fn decode_entities(text: &str) -> String {
    const ENTITIES: [(&str, &str); 7] = [
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ];
    ENTITIES.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// The bucket and the prefix of object storage.
pub(super) fn place(url: &Url) -> String {
    format!("{}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

/// Whether the storage is full. Providers have no common code for it, so this checks the HTTP status and the
/// texts of MinIO, Ceph and others.
fn is_full(error: &object_store::Error) -> bool {
    const WORDS: [&str; 5] =
        ["507 Insufficient", "QuotaExceeded", "XMinioStorageFull", "no space left", "StorageFull"];
    let text = crate::error::chain(error);
    WORDS.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::{is_refusal, one_line_reason};

    fn error(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.into() }
    }

    #[test]
    fn permanent_refusals_are_recognised() {
        let status = "Server returned non-2xx status code:";
        for permanent in [
            "404 Not Found: <Error><Code>XAdminUserNotFound</Code></Error>",
            "403 Forbidden: <Error><Code>InvalidAccessKeyId</Code></Error>",
            "400 Bad Request: <Error><Code>AuthorizationHeaderMalformed</Code></Error>",
        ] {
            assert!(is_refusal(&error(&format!("{status} {permanent}"))), "{permanent}");
        }
        assert!(is_refusal(&error(
            "Received redirect without LOCATION, this normally indicates an incorrectly configured region"
        )));
        for temporary in ["503 Service Unavailable: SlowDown", "429 Too Many Requests", "408 Request Timeout"]
        {
            assert!(!is_refusal(&error(&format!("{status} {temporary}"))), "{temporary}");
        }
        assert!(!is_refusal(&error("tcp connect error: Connection refused")));
    }

    #[test]
    fn a_reason_is_one_line() {
        let reason = |text: &str| one_line_reason(&error(text));
        let s3 = "Error performing GET http://127.0.0.1:9000/b?list-type=2 in 3ms - Server returned non-2xx status code: 403 Forbidden: <?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>InvalidAccessKeyId</Code><Message>The access key ID you provided does not exist in our records.</Message><Resource></Resource></Error>";
        assert_eq!(
            reason(s3),
            "the object storage refused the request: InvalidAccessKeyId: The access key ID you provided does not exist in our records."
        );
        assert_eq!(
            reason(
                "400: <Code>A</Code><Message>expecting &#34;us-east-1&#34; &amp;amp; not &lt;x&gt;</Message>"
            ),
            "the object storage refused the request: A: expecting \"us-east-1\" &amp; not <x>"
        );
        assert_eq!(
            reason("403: <Error>\n<Code>AccessDenied</Code></Error>"),
            "the object storage refused the request: AccessDenied"
        );
        assert_eq!(reason("no such\n  bucket"), "Generic S3 error: no such bucket");
    }
}
