//! The model index: reads the headers of a manifest's layers by range, and records the tensors it finds.
//! It runs after a push or within the first request that asks; running it twice changes nothing.

use std::fmt::Display;
use std::ops::Range;

use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::Digest;
use lode_model::index::{self, ModelSummary};
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::reference::{Reference, Repository};
use lode_model::tensor::TensorInfo;

use super::{Registry, models};
use crate::Error;
use crate::auth::Caller;
use crate::error::chain;
use crate::store::{ModelRow, TensorRow};

/// Most headers of tensor blobs are shorter than this, and come with the first read.
const FIRST_READ_BYTES: u64 = 4096;

/// How many layers of one manifest are read at a time.
const LAYERS_AT_ONCE: usize = 4;

/// A header longer than this is parsed off the threads that serve requests.
const LONG_HEADER_BYTES: usize = 256 * 1024;

/// No model has so many; what a stranger's files list beyond it is left out.
const MAX_TENSORS: usize = 250_000;

impl Registry {
    /// Looks at a manifest in the background. Whether that works changes nothing for the push.
    pub(crate) fn model_index_later(&self, repository: &Repository, digest: &Digest) {
        let (registry, repository, digest) = (self.clone(), repository.clone(), digest.clone());
        self.start(async move {
            if let Err(error) = registry.model_look(&repository, &digest).await {
                tracing::warn!(%repository, %digest, error = chain(&error), "manifest not indexed");
            }
        });
    }

    /// What a manifest is, looked at now if nobody has.
    pub(super) async fn model_index(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<ModelRow, Error> {
        match self.store().model_find(digest).await? {
            Some(row) => Ok(row),
            None => self.model_look(repository, digest).await,
        }
    }

    /// Looks at a manifest, unless somebody did and found no problem: a problem may be gone with the next push.
    async fn model_look(&self, repository: &Repository, digest: &Digest) -> Result<ModelRow, Error> {
        let _permit = self.indexing.acquire().await.map_err(|_| Error::Interrupted)?;
        if let Some(row) = self.store().model_find(digest).await?
            && row.problem.is_none()
        {
            return Ok(row);
        }
        let reference = Reference::Digest(digest.clone());
        let stored = self.manifest_get(&Caller::Internal, repository, &reference).await?;
        let (row, tensors) = self.model_read(repository, &models::parse(&stored)?).await?;
        self.store().model_put(digest, &row, &tensors).await?;
        Ok(row)
    }

    async fn model_read(
        &self,
        repository: &Repository,
        manifest: &Manifest,
    ) -> Result<(ModelRow, Vec<TensorRow>), Error> {
        // 1. The tensors of each layer that can hold some, in the manifest's order.
        let layers: Vec<Descriptor> =
            manifest.layers.iter().filter(|layer| index::holds_tensors(layer)).cloned().collect();
        let mut read = stream::iter(layers)
            .map(|layer| {
                let (registry, repository) = (self.clone(), repository.clone());
                async move { registry.layer_tensors(&repository, layer).await }
            })
            .buffered(LAYERS_AT_ONCE);
        let (mut tensors, mut problem) = (Vec::new(), None);
        while let Some(layer) = read.try_next().await? {
            match layer {
                Ok(found) if tensors.len() + found.len() > MAX_TENSORS => {
                    problem = Some(format!("it has more than {MAX_TENSORS} tensors"));
                    break;
                }
                Ok(found) => tensors.extend(found),
                Err(reason) => problem = problem.or(Some(reason)),
            }
        }
        // 2. What its config says.
        let config = self.text(repository, manifest.config.as_ref()).await?;
        let checkpoint = self.text(repository, index::config_layer(manifest)).await?;
        let summary = index::summary(manifest, config.as_deref(), checkpoint.as_deref(), &tensors);

        // 3. One row for the model, and one a tensor.
        let rows = tensors.iter().map(TensorRow::from).collect();
        let size_bytes =
            manifest.config.iter().chain(&manifest.layers).fold(0, |sum: u64, d| sum.saturating_add(d.size));
        let ModelSummary { format, architecture, parameters, quantization } = summary.unwrap_or_default();
        let tensor_count = tensors.len() as u64;
        Ok((
            ModelRow { format, architecture, parameters, quantization, size_bytes, tensor_count, problem },
            rows,
        ))
    }

    /// The tensors of one layer, or why its header cannot be read: a stranger's file is no failure of ours.
    async fn layer_tensors(
        &self,
        repository: &Repository,
        layer: Descriptor,
    ) -> Result<Result<Vec<TensorInfo>, String>, Error> {
        let name = layer.name.as_deref().or(layer.file_path()).unwrap_or(layer.digest.as_str()).to_owned();
        let refused = |reason: &dyn Display| Ok(Err(format!("{name}: {reason}")));
        let size_bytes = match self.blob_find(&Caller::Internal, repository, &layer.digest).await {
            Ok(info) => info.size_bytes,
            Err(Error::BlobUnknown { .. }) => return refused(&"the blob is not here"),
            Err(error) => return Err(error),
        };
        let part = async |range| self.blob_part(&Caller::Internal, repository, &layer.digest, range).await;
        let mut header = part(0..size_bytes.min(FIRST_READ_BYTES)).await?;
        let length = match header.first_chunk().map(|prefix| index::header_len(*prefix, size_bytes)) {
            Some(Ok(length)) => length,
            Some(Err(error)) => return refused(&error),
            None => return refused(&"it is too short to have a header"),
        };
        if length > header.len() as u64 {
            header.extend(part(header.len() as u64..length).await?);
        }
        header.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        let tensors = if header.len() > LONG_HEADER_BYTES {
            let parse = move || index::tensors_of_layer(&layer, &header, size_bytes);
            tokio::task::spawn_blocking(parse).await.map_err(|_| Error::Interrupted)?
        } else {
            index::tensors_of_layer(&layer, &header, size_bytes)
        };
        match tensors {
            Ok(tensors) => Ok(Ok(tensors)),
            Err(error) => refused(&error),
        }
    }

    async fn text(
        &self,
        repository: &Repository,
        blob: Option<&Descriptor>,
    ) -> Result<Option<Vec<u8>>, Error> {
        match blob {
            Some(blob) => self.blob_text(&Caller::Internal, repository, blob).await,
            None => Ok(None),
        }
    }

    /// Some bytes of a blob, in memory.
    pub(super) async fn blob_part(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
        range: Range<u64>,
    ) -> Result<Vec<u8>, Error> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let (_, bytes) = self.blob_open(caller, repository, digest, Some(range)).await?;
        let all = bytes.try_fold(Vec::new(), async |mut all, bytes| {
            all.extend_from_slice(&bytes);
            Ok(all)
        });
        all.await.map_err(|error| Error::io(digest.as_str(), error))
    }
}

impl From<&TensorInfo> for TensorRow {
    fn from(tensor: &TensorInfo) -> TensorRow {
        let detail = serde_json::to_string(tensor).expect("texts and numbers are JSON");
        TensorRow { name: tensor.name.clone(), blob: tensor.digest.clone(), detail }
    }
}
