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
    connect::Target,
    error::{Failure, Outcome},
    files::{self, FileContent, LocalFile},
    ui,
};

const MAX_CONCURRENT_OFFERS: usize = 16;
const MAX_CONCURRENT_UPLOADS: usize = 6;
/// Maximum number of blobs in progress.
const MAX_BLOBS_IN_PROGRESS: usize = 24;
/// Maximum number of blobs in progress that occupy temporary space from building to upload.
const MAX_SPOOLED_BLOBS: usize = 8;
const HASH_BYTES: usize = 1 << 20;
/// Content of at least this size may be uploaded before its digest is known. While a smaller blob is
/// uploaded, other blobs are hashed.
const MIN_UNHASHED_BYTES: u64 = 64 << 20;

/// Content with a known digest.
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) content: Arc<dyn Content>,
}

/// Upload statistics: blobs that were uploaded, and blobs that the registry had already.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct UploadStats {
    pub(crate) sent_blobs: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) shared_blobs: u64,
    pub(crate) shared_bytes: u64,
    /// Bytes of the uploaded blobs that an earlier run had uploaded.
    pub(crate) resumed_bytes: u64,
}

impl UploadStats {
    /// Adds the statistics of another step.
    pub(crate) fn add(&mut self, other: UploadStats) {
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
            bytes => format!(" ({} more were uploaded earlier)", ui::format_size(bytes)),
        };
        if self.shared_blobs == 0 {
            return format!(
                "sent {} in {}{resumed}",
                ui::format_size(self.sent_bytes),
                ui::counted(self.sent_blobs, "blob")
            );
        }
        let saved = if total == 0 { 100.0 } else { self.shared_bytes as f64 * 100.0 / total as f64 };
        let share = format!(", which saved {saved:.1}%");
        let share = if share.ends_with(" 0.0%") { "" } else { &share };
        format!(
            "sent {} in {}{resumed}; {} in {} were there already{share}",
            ui::format_size(self.sent_bytes),
            ui::counted(self.sent_blobs, "blob"),
            ui::format_size(self.shared_bytes),
            ui::counted(self.shared_blobs, "blob"),
        )
    }
}

/// Uploads the blobs that the target's repository lacks.
pub(crate) async fn send_blobs(target: &Target, blobs: Vec<Blob>) -> Outcome<UploadStats> {
    let sender = Sender::new(target, ui::Meter::bytes("sending", 0));
    futures::stream::iter(blobs)
        .map(|blob| sender.upload_if_absent(blob))
        .buffer_unordered(MAX_BLOBS_IN_PROGRESS)
        .try_collect::<Vec<()>>()
        .await
        .map_err(|failure| failure.of_uploads(&target.registry))?;
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

/// Builds the blob of each item (`make` runs on all cores) and uploads the blobs that the repository lacks. The
/// first ones are uploaded while later ones are built. Returns the digests in the order of the items.
pub(crate) async fn make_and_send<I: Send + 'static>(
    target: &Target,
    work: Work,
    items: Vec<Item<I>>,
    make: impl Fn(I, &ui::Meter) -> Outcome<Blob> + Send + Sync + 'static,
) -> Outcome<(Vec<Digest>, UploadStats)> {
    let (what, at_once) = match work {
        Work::Hashing => ("hashing", MAX_BLOBS_IN_PROGRESS),
        Work::Quantising => ("quantising", MAX_SPOOLED_BLOBS),
    };
    let meter = ui::Meter::bytes(what, items.iter().map(|item| item.work_bytes).sum());
    let sender = Sender::new(target, ui::Meter::bytes("sending", 0));
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
                    Some(content) if sender.should_upload_unhashed(content.size()).await => {
                        sender.upload_unhashed(content, making).await?
                    }
                    _ => {
                        let blob = making.await?;
                        let digest = blob.digest.clone();
                        sender.upload_if_absent(blob).await?;
                        digest
                    }
                };
                Ok::<_, Failure>((at, digest))
            }
        })
        .buffer_unordered(at_once)
        .try_collect()
        .await
        .map_err(|failure| failure.of_uploads(&target.registry))?;
    made.sort_unstable_by_key(|(at, _)| *at);
    Ok((made.into_iter().map(|(_, digest)| digest).collect(), sender.sent()))
}

/// Hashes files and uploads those that the repository lacks. Returns the digests in the order of the files.
pub(crate) async fn send_files(target: &Target, found: &[LocalFile]) -> Outcome<(Vec<Digest>, UploadStats)> {
    let item = |file: &LocalFile| Item {
        what: file.clone(),
        work_bytes: file.size,
        content: Some(Arc::new(FileContent { path: file.path.clone(), size: file.size })),
    };
    let items = found.iter().map(item).collect();
    make_and_send(target, Work::Hashing, items, |file: LocalFile, meter| {
        let failed = |error| Failure::with_source(format!("cannot read {}", file.path.display()), &error);
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
    sent: Mutex<UploadStats>,
}

impl<'a> Sender<'a> {
    fn new(target: &'a Target, meter: Arc<ui::Meter>) -> Sender<'a> {
        Sender {
            registry: &target.registry,
            repository: &target.repository,
            meter,
            offers: Semaphore::new(MAX_CONCURRENT_OFFERS),
            sends: Semaphore::new(MAX_CONCURRENT_UPLOADS),
            seen: Mutex::default(),
            sizes: Mutex::default(),
            sent: Mutex::default(),
        }
    }

    /// Uploads a blob if the repository lacks it. The second of two equal blobs returns at once; it is
    /// present when the first one is.
    async fn upload_if_absent(&self, blob: Blob) -> Outcome {
        let Blob { digest, size, content } = blob;
        if !self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(digest.clone()) {
            return Ok(());
        }
        let offering = self.offers.acquire().await;
        let offer = self.registry.blob_offer(self.repository, &digest, size, None).await?;
        drop(offering);
        match offer {
            Offer::Present => {
                self.count(UploadStats { shared_blobs: 1, shared_bytes: size, ..UploadStats::default() });
            }
            Offer::Needed(upload) => {
                self.meter.expect(size);
                let (sent_bytes, resumed_bytes) = (size - upload.offset, upload.offset);
                let _sending = self.sends.acquire().await;
                self.registry.upload_send(upload, content, self.meter.clone()).await?;
                self.count(UploadStats {
                    sent_blobs: 1,
                    sent_bytes,
                    resumed_bytes,
                    ..UploadStats::default()
                });
            }
        }
        Ok(())
    }

    /// Whether to upload content of this size before its digest is known: it must be large, and certain to be
    /// absent from the registry. A second blob of the same size is excluded, because it might equal the
    /// first.
    async fn should_upload_unhashed(&self, size: u64) -> bool {
        size >= MIN_UNHASHED_BYTES
            && self.sizes.lock().unwrap_or_else(PoisonError::into_inner).insert(size)
            && !self.registry.may_have_blob(self.repository, size).await
    }

    /// Uploads content while its blob is hashed.
    async fn upload_unhashed(
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
        let digest = self.registry.push_unhashed(self.repository, content, self.meter.clone(), named).await?;
        self.count(UploadStats { sent_blobs: 1, sent_bytes: size, ..UploadStats::default() });
        Ok(digest)
    }

    fn count(&self, moved: UploadStats) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).add(moved);
    }

    fn sent(&self) -> UploadStats {
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
                progress.transferred(read as u64);
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
    fn the_summary_counts_shared_blobs() {
        let sent = UploadStats {
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
        let all = UploadStats { sent_blobs: 2, sent_bytes: 10, ..UploadStats::default() };
        assert_eq!(all.summary(), "sent 10 B in 2 blobs");
        let resumed = UploadStats { resumed_bytes: 5000, ..all };
        assert_eq!(resumed.summary(), "sent 10 B in 2 blobs (5.0 kB more were uploaded earlier)");
    }
}
