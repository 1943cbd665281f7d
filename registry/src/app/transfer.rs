//! This server as a client of another registry: `/api/pull`, `/api/push` and jobs that copy from it. Blobs
//! that the target already has are not transferred. Received content is verified and stored like any push, and
//! a name changes only once all its content is stored.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use lode_client::{
    Client, ClientOptions, Content, CredentialKey, Credentials, Egress, Login, Offer, PlainHttp, Progress,
    RawManifest, RetryPolicy,
};
use lode_model::digest::Digest;
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::reference::{Reference, Repository};
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use url::Url;

use super::walk::{Walk, blobs_of};
use super::{BlobStream, Body, ChunkRange, Registry};
use crate::auth::{Action, Caller, Target};
use crate::{BodyError, Error};

/// How long another registry may take to begin a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a request is repeated for a caller who waits for it.
pub(crate) const INTERACTIVE_RETRY: RetryPolicy =
    RetryPolicy { attempts: 4, base: Duration::from_millis(200), cap: Duration::from_secs(5) };
/// How many blobs are transferred at a time.
const MAX_CONCURRENT_BLOBS: usize = 4;

/// The bytes of another server's blob as the body of an upload, and a guard that ends it. An upload continues if
/// its caller is dropped, but its body must not: it would keep the connection to the other server for as long as that
/// one lets it wait. The upload of a body that ended early is refused for its length.
pub(super) fn body_while_held(
    bytes: impl Stream<Item = Result<Bytes, lode_client::Error>> + Send + 'static,
) -> (Body, DropGuard) {
    let held = CancellationToken::new();
    let body = bytes.map_err(BodyError::from).take_until(held.clone().cancelled_owned()).boxed();
    (body, held.drop_guard())
}

/// The name of a model on another registry.
#[derive(Clone, Debug)]
pub struct RemoteModel {
    pub registry: lode_client::Registry,
    pub repository: Repository,
    pub reference: Reference,
}

impl RemoteModel {
    pub(super) async fn manifest(&self) -> Result<RawManifest, TransferError> {
        match self.registry.manifest_get(&self.repository, &self.reference).await {
            Err(error) if error.is_not_found() => Err(self.unknown()),
            raw => raw.map_err(TransferError::Remote),
        }
    }

    fn unknown(&self) -> TransferError {
        let RemoteModel { registry, repository, reference } = self.clone();
        TransferError::RemoteUnknown { registry: registry.host(), repository, reference }
    }
}

/// A progress report of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferEvent {
    Manifest,
    Blob { digest: Digest, total: u64, completed: u64 },
    AllBlobs,
}

/// Receives progress reports; called often.
pub type TransferSink = Arc<dyn Fn(TransferEvent) + Send + Sync>;

/// Why a model cannot be pulled or pushed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error("model '{name}' not found")]
    Unknown { name: String },
    /// The wording of ollama.
    #[error("pull model manifest: file does not exist ({registry} has no {repository}:{reference})")]
    RemoteUnknown { registry: String, repository: Repository, reference: Reference },
    /// The source contains text from the other registry, and is only for the log.
    #[error("{}", .0.summary())]
    Remote(#[source] lode_client::Error),
    /// Like `RemoteModel`.
    #[error("the registry at {registry} sent a manifest that cannot be used")]
    Manifest {
        registry: String,
        #[source]
        source: lode_model::manifest::ManifestError,
    },
}

impl Registry {
    /// The egress policy for a request that names the server at `url`. If all callers are on this machine, they
    /// may name a server on it. That server may not name another.
    pub(super) fn egress_to(&self, url: &Url) -> Egress {
        let is_local = url.host_str().is_some_and(lode_client::is_loopback_host);
        match is_local && !self.is_known_closed() && self.config().is_on_loopback() {
            true => self.egress().with_permitted(url),
            false => self.egress().clone(),
        }
    }

    /// A client of the registry at `address` (a base URL or `host[:port]`), for a request that names it.
    pub(crate) fn remote_registry(
        &self,
        address: &str,
        login: Option<Login>,
        retry: RetryPolicy,
    ) -> Result<lode_client::Registry, TransferError> {
        let url = lode_client::base_url(address, PlainHttp::default()).map_err(TransferError::Remote)?;
        let credentials = match login {
            Some(login) => Credentials::fixed(CredentialKey::of(&url), login),
            None => Credentials::none(),
        };
        let options = ClientOptions {
            credentials,
            retry,
            response_timeout: RESPONSE_TIMEOUT,
            egress: Some(self.egress_to(&url)),
            ..ClientOptions::default()
        };
        let client = Client::new(options).map_err(TransferError::Remote)?;
        client.registry(url.as_str()).map_err(TransferError::Remote)
    }

    /// Pulls a model and stores it under a local name.
    pub async fn model_pull(
        &self,
        caller: &Caller,
        remote: &RemoteModel,
        (repository, reference): (&Repository, &Reference),
        report_event: &TransferSink,
    ) -> Result<Digest, TransferError> {
        self.check_push_manifest(caller, repository).await?;
        // 1. Fetch its manifest, and the manifests of an index.
        report_event(TransferEvent::Manifest);
        let manifests = self.manifests_fetch(remote).await?;
        // 2. Fetch the missing blobs.
        self.blobs_fetch(caller, remote, repository, blobs_of(&manifests), report_event).await?;
        report_event(TransferEvent::AllBlobs);
        // 3. Store the manifests.
        Ok(self.manifests_store(caller, &manifests, (repository, reference)).await?)
    }

    /// Stores fetched manifests, children first: a name is visible only when it is complete. Returns the digest
    /// of the last one, which gets the name.
    async fn manifests_store(
        &self,
        caller: &Caller,
        manifests: &[(RawManifest, Manifest)],
        (repository, reference): (&Repository, &Reference),
    ) -> Result<Digest, Error> {
        let Some(((raw, manifest), children)) = manifests.split_last() else {
            return Err(Error::Interrupted);
        };
        let caller = &self.children_store(caller, children, repository).await?;
        let kind = Some(manifest.media_type.as_str());
        Ok(self.manifest_put(caller, repository, reference, kind, raw.bytes.clone(), &[]).await?.digest)
    }

    /// Stores the fetched manifests below an index. Also returns the caller with the rights that it has now: they may
    /// have ended while the blobs were fetched.
    pub(super) async fn children_store(
        &self,
        caller: &Caller,
        children: &[(RawManifest, Manifest)],
        repository: &Repository,
    ) -> Result<Caller, Error> {
        let caller = self.caller_recheck(caller, repository, None).await?;
        for (raw, manifest) in children {
            let (reference, kind) = (Reference::Digest(raw.digest.clone()), manifest.media_type.as_str());
            self.manifest_put(&caller, repository, &reference, Some(kind), raw.bytes.clone(), &[]).await?;
        }
        Ok(caller)
    }

    /// Fetches a manifest and all manifests below it. Each follows what it lists. A sparse index lists absent
    /// manifests, and is copied as a sparse one if this server accepts it.
    pub(super) async fn manifests_fetch(
        &self,
        remote: &RemoteModel,
    ) -> Result<Vec<(RawManifest, Manifest)>, TransferError> {
        let mut walk = Walk::from(remote.reference.clone());
        while let Some(reference) = walk.next() {
            let one = RemoteModel { reference, ..remote.clone() };
            let raw = match one.manifest().await {
                Err(TransferError::RemoteUnknown { .. }) if walk.is_below() && self.config().allow_sparse => {
                    continue;
                }
                raw => raw?,
            };
            let kind = Some(raw.media_type.as_str()).filter(|kind| !kind.is_empty());
            let manifest = Manifest::parse(kind, &raw.bytes)
                .map_err(|source| TransferError::Manifest { registry: remote.registry.server(), source })?;
            let len = raw.bytes.len();
            walk.found(raw, manifest, len)?;
        }
        Ok(walk.done)
    }

    /// Fetches those of the blobs that are not stored yet. Returns their number and size.
    pub(super) async fn blobs_fetch(
        &self,
        caller: &Caller,
        remote: &RemoteModel,
        repository: &Repository,
        blobs: Vec<Descriptor>,
        report_event: &TransferSink,
    ) -> Result<(u64, u64), TransferError> {
        stream::iter(blobs)
            .map(|blob| async move {
                let size = blob.size;
                let was_fetched = self.blob_fetch(caller, remote, repository, blob, report_event).await?;
                Ok(if was_fetched { (1, size) } else { (0, 0) })
            })
            .buffer_unordered(MAX_CONCURRENT_BLOBS)
            .try_fold((0, 0), |(count, bytes), (one, size)| async move { Ok((count + one, bytes + size)) })
            .await
    }

    /// Fetches a blob. Returns false if it was stored already.
    async fn blob_fetch(
        &self,
        caller: &Caller,
        remote: &RemoteModel,
        repository: &Repository,
        blob: Descriptor,
        report_event: &TransferSink,
    ) -> Result<bool, TransferError> {
        let Descriptor { digest, size, .. } = blob;
        let report =
            |completed| report_event(TransferEvent::Blob { digest: digest.clone(), total: size, completed });
        report(0);
        // 1. The blob may be stored, in this repository or in another one that the caller may read.
        let is_here = match self.blob_stat(caller, repository, &digest).await {
            Ok(_) => true,
            Err(Error::BlobUnknown { .. }) => {
                self.blob_mount(caller, repository, &digest, None).await?.is_some()
            }
            Err(error) => return Err(error.into()),
        };
        if is_here {
            report(size);
            return Ok(false);
        }
        // 2. Otherwise it is fetched as an upload, which checks its length and digest.
        let (report_event, counted) = (report_event.clone(), digest.clone());
        let mut completed = 0;
        let bytes = remote.registry.blob_read(&remote.repository, &digest, size).inspect_ok(move |piece| {
            completed += piece.len() as u64;
            report_event(TransferEvent::Blob { digest: counted.clone(), total: size, completed });
        });
        let (body, _held) = body_while_held(bytes);
        let chunk = ChunkRange { range: None, length: Some(size) };
        match self.blob_put(caller, repository, &digest, chunk, body).await {
            Ok(_) => Ok(true),
            Err(Error::BodyInterrupted(reason)) => Err(match reason.downcast::<lode_client::Error>() {
                Ok(error) => TransferError::Remote(*error),
                Err(reason) => Error::BodyInterrupted(reason).into(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Pushes a model to another registry.
    pub async fn model_push(
        &self,
        caller: &Caller,
        (repository, reference): (&Repository, &Reference),
        remote: &RemoteModel,
        report_event: &TransferSink,
    ) -> Result<Digest, TransferError> {
        // 1. Collect its manifests. A sparse index lists absent manifests, and is pushed as a sparse one.
        let unknown = || TransferError::Unknown { name: format!("{repository}:{reference}") };
        let manifests = match self.manifests_below(caller, repository, reference).await {
            Err(Error::ManifestUnknown { .. } | Error::NameUnknown { .. }) => return Err(unknown()),
            manifests => manifests?,
        };
        let (named, _) = manifests.last().ok_or_else(unknown)?;
        self.audit_pull(caller, repository, &named.digest);
        // 2. Send the missing blobs.
        stream::iter(blobs_of(&manifests))
            .map(|blob| self.blob_send(caller, repository, remote, blob, report_event))
            .buffer_unordered(MAX_CONCURRENT_BLOBS)
            .try_collect::<Vec<()>>()
            .await?;
        // 3. Push the manifests, children first, if the caller may still read them.
        report_event(TransferEvent::AllBlobs);
        let caller = self.caller_refresh(caller).await?;
        self.authorize(&caller, Action::Pull, Target::Repository(repository)).await?;
        let mut digest = None;
        for (at, (stored, _)) in manifests.iter().enumerate() {
            let by_digest = Reference::Digest(stored.digest.clone());
            let name = if at + 1 == manifests.len() { &remote.reference } else { &by_digest };
            let put = remote
                .registry
                .manifest_put(&remote.repository, name, &stored.media_type, stored.bytes.clone())
                .await
                .map_err(TransferError::Remote)?;
            digest = Some(put.digest);
        }
        digest.ok_or_else(unknown)
    }

    async fn blob_send(
        &self,
        caller: &Caller,
        repository: &Repository,
        remote: &RemoteModel,
        blob: Descriptor,
        report_event: &TransferSink,
    ) -> Result<(), TransferError> {
        let Descriptor { digest, size, .. } = blob;
        // The rights may have ended while other blobs were sent.
        let caller = &self.caller_refresh(caller).await?;
        let report_event = report_event.clone();
        report_event(TransferEvent::Blob { digest: digest.clone(), total: size, completed: 0 });
        let offer = remote.registry.blob_offer(&remote.repository, &digest, size, None).await;
        match offer.map_err(TransferError::Remote)? {
            Offer::Present => report_event(TransferEvent::Blob { digest, total: size, completed: size }),
            Offer::Needed(upload) => {
                // Checked here, so that a caller without permission gets the error.
                self.blob_find(caller, repository, &digest).await?;
                let content = Arc::new(StoredContent {
                    registry: self.clone(),
                    caller: caller.clone(),
                    repository: repository.clone(),
                    digest: digest.clone(),
                    size,
                    runtime: Handle::current(),
                });
                let progress =
                    Arc::new(SendProgress { digest, size, completed: AtomicU64::new(0), report_event });
                remote
                    .registry
                    .upload_send(upload, content, progress)
                    .await
                    .map_err(TransferError::Remote)?;
            }
        }
        Ok(())
    }
}

/// A stored blob that is being sent.
struct StoredContent {
    registry: Registry,
    caller: Caller,
    repository: Repository,
    digest: Digest,
    size: u64,
    runtime: Handle,
}

impl Content for StoredContent {
    fn size(&self) -> u64 {
        self.size
    }

    fn reader(&self, offset: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        if offset >= self.size {
            return Ok(Box::new(io::empty()));
        }
        let range = Some(offset..self.size);
        let opened = self.registry.blob_open(&self.caller, &self.repository, &self.digest, range);
        let (_, bytes) = self.runtime.block_on(opened).map_err(io::Error::other)?;
        Ok(Box::new(Reader { bytes, piece: Bytes::new(), runtime: self.runtime.clone() }))
    }
}

/// Reads a stream on a blocking thread.
struct Reader {
    bytes: BlobStream,
    piece: Bytes,
    runtime: Handle,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.runtime.block_on(self.bytes.next()) {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let read = buf.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buf[..read]);
        Ok(read)
    }
}

struct SendProgress {
    digest: Digest,
    size: u64,
    completed: AtomicU64,
    report_event: TransferSink,
}

impl SendProgress {
    fn report_completed(&self, completed: u64) {
        (self.report_event)(TransferEvent::Blob { digest: self.digest.clone(), total: self.size, completed });
    }
}

impl Progress for SendProgress {
    fn transferred(&self, bytes: u64) {
        self.report_completed(self.completed.fetch_add(bytes, Ordering::Relaxed) + bytes);
    }

    fn retracted(&self, bytes: u64) {
        self.report_completed(self.completed.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes));
    }
}
