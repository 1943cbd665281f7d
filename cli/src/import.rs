//! Bytes of this machine into a registry: hashed, offered, and sent only where they are wanted. `create`, `push` and the demo go through here.

use std::{
    collections::{BTreeMap, HashSet},
    io::{self, Read},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use lode_client::{Content, Offer, Progress, Registry};
use lode_model::{
    convert::ConvertError,
    digest::{Algorithm, Digest, Hasher},
    import::{self, Finished, ImportError, Options, PlannedLayer, Quantize, Source},
    manifest::Manifest,
    media_type,
    modelfile::{Base, Derived, Edits, derive},
    reference::Repository,
};

use crate::{
    connect::Target,
    derived,
    error::{Failure, Outcome},
    files,
    spool::{self, Spooled},
    ui,
};

const OFFERS_AT_ONCE: usize = 16;
const SENT_AT_ONCE: usize = 6;
const HASH_BYTES: usize = 1 << 20;

/// Content whose digest is known.
pub(crate) struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) content: Arc<dyn Content>,
}

/// What had to be sent, and what the registry had.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) sent_blobs: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) shared_blobs: u64,
    pub(crate) shared_bytes: u64,
    /// Of the blobs that were sent, what had arrived before this run.
    pub(crate) resumed_bytes: u64,
}

impl Sent {
    /// Counts what another step moved as well.
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
            bytes => format!(" ({} more had arrived before)", ui::size(bytes)),
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

/// Makes every blob present in `repository`: all are offered at once, then the missing ones are sent side by side.
pub(crate) async fn send_blobs(
    registry: &Registry,
    repository: &Repository,
    blobs: Vec<Blob>,
) -> Outcome<Sent> {
    let mut seen = HashSet::new();
    let unique: Vec<Blob> = blobs.into_iter().filter(|blob| seen.insert(blob.digest.clone())).collect();

    let asking = ui::Meter::count("asking", unique.len() as u64);
    let offered: Vec<(Blob, Offer)> = futures::stream::iter(unique)
        .map(|blob| async {
            let offer = registry.blob_offer(repository, &blob.digest, blob.size, None).await;
            asking.moved(1);
            offer.map(|offer| (blob, offer))
        })
        .buffer_unordered(OFFERS_AT_ONCE)
        .try_collect()
        .await?;
    asking.end();

    let mut sent = Sent::default();
    let mut wanted = Vec::new();
    for (blob, offer) in offered {
        match offer {
            Offer::Present => {
                sent.shared_blobs += 1;
                sent.shared_bytes += blob.size;
            }
            Offer::Wanted(upload) => {
                sent.sent_blobs += 1;
                sent.sent_bytes += blob.size - upload.offset;
                sent.resumed_bytes += upload.offset;
                wanted.push((blob, upload));
            }
        }
    }
    let meter = ui::Meter::bytes("sending", sent.sent_bytes + sent.resumed_bytes);
    futures::stream::iter(wanted)
        .map(|(blob, upload)| registry.upload_send(upload, blob.content, meter.clone()))
        .buffer_unordered(SENT_AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    meter.end();
    Ok(sent)
}

/// What an import made.
pub(crate) struct Imported {
    pub(crate) digest: Digest,
    pub(crate) sent: Sent,
    pub(crate) notices: Vec<String>,
    pub(crate) tensors: u64,
    pub(crate) parameters: u64,
}

/// Imports a checkpoint as `target`: planned, hashed on all cores, sent as far as it is missing, and visible only with its manifest.
pub(crate) async fn model(
    target: &Target,
    source: Arc<dyn Source>,
    quantize: Option<Quantize>,
    edits: &Edits,
) -> Outcome<Imported> {
    let options = Options { quantize, architectures: lode_worker::arch::SUPPORTED };
    let planning = source.clone();
    let plan = files::blocking(move || import::plan(&*planning, &options))
        .await
        .map_err(|error| not_importable(&error))?;

    let made = make_layers(&plan, &source).await?;
    let rest: Vec<_> = plan.layers.iter().enumerate().filter(|(at, _)| !made.contains_key(at)).collect();
    let meter = ui::Meter::bytes("hashing", rest.iter().map(|(_, layer)| layer.size).sum());
    let (reading, progress) = (source.clone(), meter.clone());
    let layers: Vec<PlannedLayer> = rest.into_iter().map(|(_, layer)| layer.clone()).collect();
    let hashed = files::on_all_cores(layers, move |layer| {
        let name = layer.name.as_deref().unwrap_or("a layer");
        let hashed = hash_reader(&mut layer.checked_reader(&reading), Algorithm::Sha256, &*progress);
        let (digest, size) =
            hashed.map_err(|error| Failure::because(format!("cannot read {name}"), &error))?;
        if size != layer.size {
            return Err(Failure::new(format!(
                "{name} has {size} bytes, expected {}: did it change?",
                layer.size
            )));
        }
        Ok(digest)
    })
    .await?;
    let mut hashed = hashed.into_iter();
    let digests: Vec<Digest> = (0..plan.layers.len())
        .filter_map(|at| made.get(&at).map(|(digest, _)| digest.clone()).or_else(|| hashed.next()))
        .collect();
    let reading = source.clone();
    let split: Vec<String> = plan.files_to_hash().map(str::to_owned).collect();
    let whole: BTreeMap<String, Digest> = files::on_all_cores(split, move |path| {
        let digest = import::hash_file(&*reading, &path)
            .map_err(|error| Failure::because(format!("cannot read {path}"), &error))?;
        Ok((path, digest))
    })
    .await?
    .into_iter()
    .collect();
    meter.end();
    let finished =
        plan.finish(&digests, &whole).map_err(|error| Failure::because("cannot import this", &error))?;

    let planned = plan.layers.iter().enumerate().zip(digests).map(|((at, layer), digest)| {
        let content: Arc<dyn Content> = match made.get(&at) {
            Some((_, spooled)) => spooled.clone(),
            None => Arc::new(LayerContent { layer: layer.clone(), source: source.clone() }),
        };
        Blob { digest, size: layer.size, content }
    });
    let derived = say_about(&finished, edits)?;
    let small = [&finished.config, &finished.files].into_iter().chain(&derived.blobs).map(derived::blob);
    let sent = send_blobs(&target.registry, &target.repository, planned.chain(small).collect()).await?;
    let digest = derived::publish(target, derived).await?;
    Ok(Imported { digest, sent, notices: plan.notices, tensors: plan.tensors, parameters: plan.parameters })
}

/// What was imported, with what is said about it.
fn say_about(finished: &Finished, edits: &Edits) -> Outcome<Derived> {
    if edits.is_empty() {
        return Ok(Derived {
            blobs: Vec::new(),
            media_type: media_type::DOCKER_MANIFEST.to_owned(),
            manifest: finished.manifest.clone(),
            digest: finished.manifest_digest.clone(),
        });
    }
    let cannot = |error: &dyn std::error::Error| Failure::because("cannot make this", error);
    let manifest = Manifest::parse(None, &finished.manifest).map_err(|error| cannot(&error))?;
    let base = Base { manifest: &manifest, config: &finished.config.bytes, params: None, named: None };
    derive(&base, edits).map_err(|error| cannot(&error))
}

/// Makes the layers that should be made once, by their number.
async fn make_layers(
    plan: &import::Plan,
    source: &Arc<dyn Source>,
) -> Outcome<BTreeMap<usize, (Digest, Arc<Spooled>)>> {
    let encoded = || plan.layers.iter().enumerate().filter(|(_, layer)| layer.is_encoded());
    let meter = ui::Meter::bytes("quantising", encoded().map(|(_, layer)| layer.size).sum());
    let mut made = BTreeMap::new();
    for (at, layer) in encoded() {
        let (digest, spooled) = spool::spool(layer.clone(), source.clone(), &meter).await?;
        made.insert(at, (digest, Arc::new(spooled)));
    }
    meter.end();
    Ok(made)
}

fn not_importable(error: &ImportError) -> Failure {
    let failure = Failure::because("cannot import this", error);
    match error {
        ImportError::MissingShard { .. } | ImportError::Split(_) | ImportError::OnnxData { .. } => {
            failure.hint("is the download complete?")
        }
        ImportError::AlreadyQuantised { .. }
        | ImportError::Convert(ConvertError::Quantised { .. })
        | ImportError::QuantizeGguf { .. }
        | ImportError::QuantizeOnnx { .. } => failure.hint("leave --quantize out"),
        _ => failure,
    }
}

/// A layer that is made as it is sent.
struct LayerContent {
    layer: PlannedLayer,
    source: Arc<dyn Source>,
}

impl Content for LayerContent {
    fn size(&self) -> u64 {
        self.layer.size
    }

    fn reader(&self, offset: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        Ok(Box::new(self.layer.reader_from(&self.source, offset)))
    }
}

/// The digest of everything that `reader` gives, and how much that was.
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
        assert_eq!(resumed.summary(), "sent 10 B in 2 blobs (5.0 kB more had arrived before)");
    }
}
