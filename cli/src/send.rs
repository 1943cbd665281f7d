//! Uploads local content to a registry. Blobs are built and hashed on all cores, offered to the registry, and
//! uploaded only if it lacks them; the steps of different blobs overlap. Used by `create`, `push` and the
//! demo.

use std::{
    collections::HashSet,
    io::{self, Read},
    sync::{Arc, Mutex, PoisonError},
};

use futures::{StreamExt, TryStreamExt};
use lode_client::{Content, Offer, Progress, Registry};
use lode_model::{
    digest::{Algorithm, Digest, Hasher},
    reference::Repository,
};
use tokio::sync::Semaphore;

use crate::{
    error::{Failure, Outcome},
    files::{self, FileContent, Found},
    ui,
};

const OFFERS_AT_ONCE: usize = 16;
const SENT_AT_ONCE: usize = 6;
/// Maximum number of blobs in progress.
const BLOBS_AT_ONCE: usize = 24;
/// Maximum number of blobs in progress that occupy temporary space from building to upload.
const MADE_AT_ONCE: usize = 8;
const HASH_BYTES: usize = 1 << 20;
/// Content of at least this size may be uploaded before its digest is known. While a smaller blob is
/// uploaded, other blobs are hashed.
const AHEAD_BYTES: u64 = 64 << 20;

/// Content with a known digest.
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) content: Arc<dyn Content>,
}

/// Upload statistics: blobs that were uploaded, and blobs that the registry had already.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) sent_blobs: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) shared_blobs: u64,
    pub(crate) shared_bytes: u64,
    /// Bytes of the uploaded blobs that an earlier run had uploaded.
    pub(crate) resumed_bytes: u64,
}

impl Sent {
    /// Adds the statistics of another step.
    pub(crate) fn add(&mut self, other: Sent) {
        self.sent_blobs += other.sent_blobs;
        self.sent_bytes += other.sent_bytes;
        self.shared_blobs += other.shared_blobs;
        self.shared_bytes += other.shared_bytes;
        self.resumed_bytes += other.resumed_bytes;
    }

    pub(crate) fn summary(&self) -> String {
        let total = self.sent_bytes + self.shared_bytes;
        let resumed = match self.resumed_bytes {
            0 => String::new(),
            bytes => format!(" ({} more were uploaded earlier)", ui::size(bytes)),
        };
        if self.shared_blobs == 0 {
            return format!("sent {} in {}{resumed}", ui::size(self.sent_bytes), blobs(self.sent_blobs));
        }
        let saved = if total == 0 { 100.0 } else { self.shared_bytes as f64 * 100.0 / total as f64 };
        format!(
            "sent {} in {}{resumed}; {} in {} were there already, which saved {saved:.1}%",
            ui::size(self.sent_bytes),
            blobs(self.sent_blobs),
            ui::size(self.shared_bytes),
            blobs(self.shared_blobs),
        )
    }
}

fn blobs(count: u64) -> String {
    if count == 1 { "1 blob".to_owned() } else { format!("{count} blobs") }
}

/// Uploads the blobs that `repository` lacks.
pub(crate) async fn send_blobs(
    registry: &Registry,
    repository: &Repository,
    blobs: Vec<Blob>,
) -> Outcome<Sent> {
    let meters = ui::Meters::new();
    let sender = Sender::new(registry, repository, meters.bytes("sending", 0));
    futures::stream::iter(blobs)
        .map(|blob| sender.bring(blob))
        .buffer_unordered(BLOBS_AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(sender.sent())
}

/// How items are turned into blobs.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Hashing,
    /// The result is expensive to build and is kept in a file until it is uploaded.
    Quantising,
}

/// An item to turn into a blob.
pub(crate) struct Item<I> {
    pub(crate) what: I,
    /// Bytes of work, for the progress bar.
    pub(crate) work_bytes: u64,
    /// The content, if it is available before the work is done.
    pub(crate) content: Option<Arc<dyn Content>>,
}

/// Builds the blob of each item (`make` runs on all cores) and uploads the blobs that `repository` lacks. The
/// first ones are uploaded while later ones are built. Returns the digests in the order of the items.
pub(crate) async fn make_and_send<I: Send + 'static>(
    registry: &Registry,
    repository: &Repository,
    work: Work,
    items: Vec<Item<I>>,
    make: impl Fn(I, &ui::Meter) -> Outcome<Blob> + Send + Sync + 'static,
) -> Outcome<(Vec<Digest>, Sent)> {
    let (what, at_once) = match work {
        Work::Hashing => ("hashing", BLOBS_AT_ONCE),
        Work::Quantising => ("quantising", MADE_AT_ONCE),
    };
    let meters = ui::Meters::new();
    let meter = meters.bytes(what, items.iter().map(|item| item.work_bytes).sum());
    let sender = Sender::new(registry, repository, meters.bytes("sending", 0));
    let cores = Semaphore::new(files::cores());
    let make = Arc::new(make);
    let mut made: Vec<(usize, Digest)> = futures::stream::iter(items.into_iter().enumerate())
        .map(|(at, Item { what, content, .. })| {
            let (make, meter, sender, cores) = (make.clone(), meter.clone(), &sender, &cores);
            let making = async move {
                let _core = cores.acquire().await;
                files::blocking(move || make(what, &meter)).await
            };
            async move {
                let digest = match content {
                    Some(content) if sender.goes_ahead(content.size()).await => {
                        sender.bring_ahead(content, making).await?
                    }
                    _ => {
                        let blob = making.await?;
                        let digest = blob.digest.clone();
                        sender.bring(blob).await?;
                        digest
                    }
                };
                Ok::<_, Failure>((at, digest))
            }
        })
        .buffer_unordered(at_once)
        .try_collect()
        .await?;
    made.sort_unstable_by_key(|(at, _)| *at);
    Ok((made.into_iter().map(|(_, digest)| digest).collect(), sender.sent()))
}

/// Hashes files and uploads those that `repository` lacks. Returns the digests in the order of the files.
pub(crate) async fn send_files(
    registry: &Registry,
    repository: &Repository,
    found: &[Found],
) -> Outcome<(Vec<Digest>, Sent)> {
    let item = |file: &Found| Item {
        what: file.clone(),
        work_bytes: file.size,
        content: Some(Arc::new(FileContent { path: file.path.clone(), size: file.size })),
    };
    let items = found.iter().map(item).collect();
    make_and_send(registry, repository, Work::Hashing, items, |file: Found, meter| {
        let failed = |error| Failure::because(format!("cannot read {}", file.path.display()), &error);
        let mut reader = std::fs::File::open(&file.path).map_err(failed)?;
        let (digest, size) = hash_reader(&mut reader, Algorithm::Sha256, meter).map_err(failed)?;
        if size != file.size {
            return Err(Failure::new(format!("{} changed while being read", file.path.display())));
        }
        Ok(Blob { digest, size, content: Arc::new(FileContent { path: file.path, size }) })
    })
    .await
}

/// Uploads blobs to one repository.
struct Sender<'a> {
    registry: &'a Registry,
    repository: &'a Repository,
    meter: Arc<ui::Meter>,
    offers: Semaphore,
    sends: Semaphore,
    /// Digests that are uploaded or being uploaded.
    seen: Mutex<HashSet<Digest>>,
    /// Sizes of the blobs that were uploaded before their digest was known.
    sizes: Mutex<HashSet<u64>>,
    sent: Mutex<Sent>,
}

impl<'a> Sender<'a> {
    fn new(registry: &'a Registry, repository: &'a Repository, meter: Arc<ui::Meter>) -> Sender<'a> {
        Sender {
            registry,
            repository,
            meter,
            offers: Semaphore::new(OFFERS_AT_ONCE),
            sends: Semaphore::new(SENT_AT_ONCE),
            seen: Mutex::default(),
            sizes: Mutex::default(),
            sent: Mutex::default(),
        }
    }

    /// Uploads a blob if the repository lacks it. The second of two equal blobs returns at once; it is
    /// present when the first one is.
    async fn bring(&self, blob: Blob) -> Outcome {
        let Blob { digest, size, content } = blob;
        if !self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(digest.clone()) {
            return Ok(());
        }
        let offering = self.offers.acquire().await;
        let offer = self.registry.blob_offer(self.repository, &digest, size, None).await?;
        drop(offering);
        match offer {
            Offer::Present => {
                self.count(Sent { shared_blobs: 1, shared_bytes: size, ..Sent::default() });
            }
            Offer::Wanted(upload) => {
                self.meter.expect(size);
                let (sent_bytes, resumed_bytes) = (size - upload.offset, upload.offset);
                let _sending = self.sends.acquire().await;
                self.registry.upload_send(upload, content, self.meter.clone()).await?;
                self.count(Sent { sent_blobs: 1, sent_bytes, resumed_bytes, ..Sent::default() });
            }
        }
        Ok(())
    }

    /// Whether to upload content of this size before its digest is known: it must be large, and certain to be
    /// absent from the registry. A second blob of the same size is excluded, because it might equal the
    /// first.
    async fn goes_ahead(&self, size: u64) -> bool {
        size >= AHEAD_BYTES
            && self.sizes.lock().unwrap_or_else(PoisonError::into_inner).insert(size)
            && !self.registry.blob_may_be_there(self.repository, size).await
    }

    /// Uploads content while its blob is hashed.
    async fn bring_ahead(
        &self,
        content: Arc<dyn Content>,
        making: impl Future<Output = Outcome<Blob>>,
    ) -> Outcome<Digest> {
        let size = content.size();
        self.meter.expect(size);
        let _sending = self.sends.acquire().await;
        let named = async {
            let digest = making.await?.digest;
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(digest.clone());
            Ok::<_, Failure>(digest)
        };
        let digest =
            self.registry.blob_push_ahead(self.repository, content, self.meter.clone(), named).await?;
        self.count(Sent { sent_blobs: 1, sent_bytes: size, ..Sent::default() });
        Ok(digest)
    }

    fn count(&self, moved: Sent) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).add(moved);
    }

    fn sent(&self) -> Sent {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes everything that `reader` yields; returns the digest and the number of bytes.
pub(crate) fn hash_reader(
    reader: &mut dyn Read,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> io::Result<(Digest, u64)> {
    let mut hasher = Hasher::new(algorithm);
    let mut buffer = vec![0; HASH_BYTES];
    let mut size = 0;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finish(), size)),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                size += read as u64;
                progress.moved(read as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_told() {
        let sent = Sent {
            sent_blobs: 1,
            sent_bytes: 2_000_000,
            shared_blobs: 3,
            shared_bytes: 6_000_000,
            resumed_bytes: 0,
        };
        assert_eq!(
            sent.summary(),
            "sent 2.0 MB in 1 blob; 6.0 MB in 3 blobs were there already, which saved 75.0%"
        );
        let all = Sent { sent_blobs: 2, sent_bytes: 10, ..Sent::default() };
        assert_eq!(all.summary(), "sent 10 B in 2 blobs");
        let resumed = Sent { resumed_bytes: 5000, ..all };
        assert_eq!(resumed.summary(), "sent 10 B in 2 blobs (5.0 kB more were uploaded earlier)");
    }
}
