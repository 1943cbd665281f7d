//! Imports local files into a registry as a model: plans the layers, uploads them, then pushes the manifest.
//! Used by `create` and by the demo.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use lode_client::Content;
use lode_model::{
    convert::ConvertError,
    digest::{Algorithm, Digest},
    import::{self, Conversion, FinishError, ImportError, Options, Plan, PlannedLayer, Source},
    modelfile::Edits,
};

use crate::{
    connect::Target,
    derived,
    error::{Failure, Outcome},
    files,
    replaced::put_manifest,
    send::{self, Blob, Item, UploadStats, Work, send_blobs},
    spool::{self, Spooled},
    ui,
};

/// The result of an import.
pub(crate) struct Imported {
    pub(crate) digest: Digest,
    pub(crate) sent: UploadStats,
    pub(crate) notices: Vec<String>,
    pub(crate) tensors: u64,
    pub(crate) parameters: u64,
}

/// Imports a checkpoint as `target`. Layers are built, hashed and uploaded concurrently.
pub(crate) async fn model(
    target: &Target,
    source: Arc<dyn Source>,
    conversion: Option<Conversion>,
    edits: &Edits,
) -> Outcome<Imported> {
    let options = Options { conversion };
    let planning = source.clone();
    let plan = files::blocking(move || import::plan(&*planning, &options))
        .await
        .map_err(|error| import_error(&error))?;

    let cannot = |error: FinishError| Failure::with_source("cannot import this", &error);
    plan.check(edits).map_err(cannot)?;
    let sending = send_layers(target, &plan, &source);
    let ((digests, mut sent), split) = tokio::try_join!(sending, hash_split_files(&plan, &source))?;
    let model = plan.model(&digests, &split, edits).map_err(cannot)?;
    sent.add(send_blobs(target, model.blobs.iter().map(derived::blob).collect()).await?);
    let digest = put_manifest(target, &model.media_type, model.manifest.into()).await?;
    Ok(Imported { digest, sent, notices: plan.notices, tensors: plan.tensors, parameters: plan.parameters })
}

/// Uploads the layers that the repository lacks, and uploads the first ones while later ones are still read.
/// Returns the digests in plan order.
async fn send_layers(
    target: &Target,
    plan: &Plan,
    source: &Arc<dyn Source>,
) -> Outcome<(Vec<Digest>, UploadStats)> {
    let mut encoded = build_encoded_layers(plan, source).await?;
    let work = match plan.layers.iter().any(|layer| layer.is_computed() && !layer.is_encoded()) {
        true => Work::Quantising,
        false => Work::Hashing,
    };
    let items = plan.layers.iter().enumerate().map(|(at, layer)| {
        let made = encoded.remove(&at);
        Item {
            // Already counted when the layer was built.
            work_bytes: if made.is_some() { 0 } else { layer.size },
            content: (!layer.is_computed()).then(|| content_of(layer, source)),
            what: (layer.clone(), made),
        }
    });
    let source = source.clone();
    send::make_and_send(target, work, items.collect(), move |(layer, made), meter| {
        let size = layer.size;
        if let Some((digest, spooled)) = made {
            return Ok(Blob { digest, size, content: Arc::new(spooled) });
        }
        if layer.is_computed() {
            let (digest, spooled) = spool::spool_in_order(&layer, &source, meter)?;
            return Ok(Blob { digest, size, content: Arc::new(spooled) });
        }
        let name = layer.name.as_deref().unwrap_or("a layer");
        let hashed = send::hash_reader(&mut layer.checked_reader(&source), Algorithm::Sha256, meter);
        let (digest, read) =
            hashed.map_err(|error| Failure::with_source(format!("cannot read {name}"), &error))?;
        if read != size {
            return Err(Failure::new(format!(
                "{name} has {read} bytes, expected {size}: did the file change?"
            )));
        }
        Ok(Blob { digest, size, content: content_of(&layer, &source) })
    })
    .await
}

/// Hashes the files that are not stored as one layer. Each file is read sequentially, so half of the cores
/// are left for the layers.
async fn hash_split_files(plan: &Plan, source: &Arc<dyn Source>) -> Outcome<BTreeMap<String, Digest>> {
    let split: Vec<String> = plan.files_to_hash().map(str::to_owned).collect();
    futures::stream::iter(split)
        .map(|path| {
            let source = source.clone();
            files::blocking(move || {
                let digest = import::hash_file(&*source, &path)
                    .map_err(|error| Failure::with_source(format!("cannot read {path}"), &error))?;
                Ok((path, digest))
            })
        })
        .buffer_unordered(files::cores().div_ceil(2))
        .try_collect()
        .await
}

/// Builds the layers that are encoded on all cores, by layer index.
async fn build_encoded_layers(
    plan: &Plan,
    source: &Arc<dyn Source>,
) -> Outcome<BTreeMap<usize, (Digest, Spooled)>> {
    if !plan.layers.iter().any(PlannedLayer::is_encoded) {
        return Ok(BTreeMap::new());
    }
    let encoded = || plan.layers.iter().enumerate().filter(|(_, layer)| layer.is_encoded());
    let meter = ui::Meter::bytes("converting", encoded().map(|(_, layer)| layer.size).sum());
    let mut made = BTreeMap::new();
    for (at, layer) in encoded() {
        let (digest, spooled) = spool::spool(layer.clone(), source.clone(), &meter).await?;
        made.insert(at, (digest, spooled));
    }
    meter.end();
    Ok(made)
}

fn import_error(error: &ImportError) -> Failure {
    let failure = Failure::with_source("cannot import this", error);
    match error {
        ImportError::MissingShard { .. }
        | ImportError::MissingPart { .. }
        | ImportError::Split(_)
        | ImportError::OnnxData { .. } => failure.hint("is the download complete?"),
        ImportError::Pointer { .. } => failure.hint("`git lfs pull` in its folder fetches the file"),
        ImportError::Path(_) => failure.hint("rename it"),
        ImportError::NoModel => failure.hint("`lode push FOLDER NAME` stores arbitrary files"),
        ImportError::ConvertGguf { .. } => failure
            .hint("a float GGUF can be quantised to GGUF types only, such as q8_0 or q4_K_M: see `lode create --help`"),
        ImportError::AlreadyGguf { .. } => failure.hint("add --type, such as f16 or q8_0"),
        ImportError::AlreadyQuantised { .. }
        | ImportError::Scaled { .. }
        | ImportError::Blocks(_)
        | ImportError::Convert(ConvertError::Quantised { .. })
        | ImportError::ConvertOnnx { .. } => failure.hint("omit --quantize"),
        _ => failure,
    }
}

fn content_of(layer: &PlannedLayer, source: &Arc<dyn Source>) -> Arc<dyn Content> {
    Arc::new(LayerContent { layer: layer.clone(), source: source.clone() })
}

/// A layer that is produced while it is uploaded.
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
