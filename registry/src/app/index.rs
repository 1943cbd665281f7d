//! The model index: reads the headers of a manifest's layers by range, and records the tensors.
//! `jobs::index_models` runs it for queued manifests; a request that needs its own manifest does not wait for
//! the queue. Running it twice changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::Digest;
use lode_model::index::{self, ArtifactFiles, ModelSummary};
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::read_at::{ReadAt, Window};
use lode_model::recognise::{Artifact, ModelFile, tar};
use lode_model::reference::{Reference, Repository};
use lode_model::tensor::{self, TensorInfo};
use tokio::sync::OwnedSemaphorePermit;

use super::Registry;
use super::model_facts::Parts;
use crate::Error;
use crate::auth::Caller;
use crate::error::chain;
use crate::store::{FactsRow, IndexClaim, ModelRow, TensorRow};

/// How long reading one manifest may take.
const READ_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a request waits for its own manifest. Reading continues afterwards, and a later request uses the
/// result.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How many layers of one manifest are read at a time.
const MAX_CONCURRENT_LAYERS: usize = 4;

/// The most tensors of one model. An untrusted file may list more; the rest is not recorded.
pub(super) const MAX_TENSORS: u32 = 250_000;

/// The most bytes in the names of one model's tensors. An untrusted file may have long names in long folders.
const MAX_TENSOR_NAME_BYTES: u64 = 64 * 1024 * 1024;

/// A longer config.json is ignored.
const MAX_CONFIG_BYTES: u64 = 16 * 1024 * 1024;

impl Registry {
    /// Queues a stored manifest that has become readable.
    pub(super) async fn model_enqueue(&self, repository: &Repository, digest: &Digest) -> Result<(), Error> {
        self.store().index_enqueue(repository, digest).await?;
        self.indexing.queued.notify_one();
        Ok(())
    }

    /// The index entry of a manifest, which is created now if it is still queued.
    pub(super) async fn model_index(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<ModelRow, Error> {
        if let Some(row) = self.store().model_find(digest).await? {
            return Ok(row);
        }
        let reading = async {
            let permit = self.indexing.requests.clone().acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            self.model_read_once(repository, digest, Some(permit)).await
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, reading).await {
            Ok(read) => read?,
            Err(_) => return Err(read_timeout(repository, digest, REQUEST_TIMEOUT)),
        }
        let row = self.store().model_find(digest).await?;
        // It may have been deleted meanwhile.
        row.ok_or_else(|| Error::ManifestUnknown { reference: Reference::Digest(digest.clone()) })
    }

    /// Reads the manifest of a claim.
    pub(crate) async fn model_index_claimed(&self, claim: &IndexClaim) -> Result<(), Error> {
        match &claim.repository {
            Some(repository) => self.model_read_once(repository, &claim.digest, None).await,
            None => Ok(()),
        }
    }

    /// Indexes a manifest, unless it was indexed without a problem: the next push may fix a problem.
    /// Concurrent callers share the outcome; the permit is held until the end.
    async fn model_read_once(
        &self,
        repository: &Repository,
        digest: &Digest,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Error> {
        let (this, repository, digest) = (self.clone(), repository.clone(), digest.clone());
        let key = digest.to_string();
        let read = async move |repository: &Repository, digest: &Digest| {
            if let Some(row) = this.store().model_find(digest).await?
                && row.problem.is_none()
                && this.store().facts_are_current(digest).await?
            {
                // A repository that was given the manifest meanwhile may not have seen the model.
                return this.store().search_refresh_tagging(digest).await;
            }
            let reference = Reference::Digest(digest.clone());
            let stored = this.manifest_get(&Caller::INTERNAL, repository, &reference).await?;
            let manifest = stored.parse()?;
            let reading = tokio::time::timeout(READ_TIMEOUT, this.model_read(repository, &manifest));
            let (row, facts, tensors) =
                reading.await.map_err(|_| read_timeout(repository, digest, READ_TIMEOUT))??;
            this.store().model_put(digest, &row, &facts, &tensors).await
        };
        let reading = async move {
            let _permit = permit;
            let outcome = read(&repository, &digest).await;
            if let Err(error) = &outcome {
                tracing::warn!(%repository, %digest, error = chain(error), "failed to index a manifest");
            }
            outcome
        };
        self.indexing.flights.join(key, reading).await
    }

    async fn model_read(
        &self,
        repository: &Repository,
        manifest: &Manifest,
    ) -> Result<(ModelRow, FactsRow, Vec<TensorRow>), Error> {
        // 1. List its files, including those inside uncompressed tars.
        let config = self.text(repository, manifest.config.as_ref()).await?;
        let artifact = Artifact::read(manifest, config.as_deref());
        let (artifact, mut problem) = self.expand_archives(repository, artifact).await?;

        // 2. List the tensors of each weight file, in the manifest's order.
        let places = ArtifactFiles::new(&artifact);
        let weights: BTreeSet<usize> = artifact.weights().into_iter().collect();
        let holding: Vec<(usize, ModelFile)> =
            artifact.files.iter().cloned().enumerate().filter(|(_, file)| file.kind().is_some()).collect();
        let mut read = stream::iter(holding)
            .map(|(at, file)| {
                let (registry, repository) = (self.clone(), repository.clone());
                async move {
                    let listed = registry.file_inspect(&repository, &file, {
                        let file = file.clone();
                        move |bytes: &dyn ReadAt| {
                            index::list_tensors(&file, bytes).map_err(|error| chain(&error))
                        }
                    });
                    Ok::<_, Error>((at, listed.await?))
                }
            })
            .buffered(MAX_CONCURRENT_LAYERS);
        let (mut files, mut tensor_count, mut name_bytes) = (Vec::new(), 0, 0u64);
        while let Some((at, listed)) = read.try_next().await? {
            let file = &artifact.files[at];
            match listed {
                Ok(listed) if tensor_count + listed.tensors.len() > MAX_TENSORS as usize => {
                    problem = Some(format!("it has more than {MAX_TENSORS} tensors"));
                    break;
                }
                Ok(listed) => {
                    tensor_count += listed.tensors.len();
                    name_bytes = name_bytes.saturating_add(places.name_bytes(file, &listed));
                    if name_bytes > MAX_TENSOR_NAME_BYTES {
                        let limit = MAX_TENSOR_NAME_BYTES >> 20;
                        problem = Some(format!("the names of its tensors have more than {limit} MiB"));
                        break;
                    }
                    files.push(places.index(file, weights.contains(&at), listed));
                }
                Err(reason) => problem = problem.or(Some(format!("{}: {reason}", file.label()))),
            }
        }
        drop(read);

        // 3. Read its config, and the checkpoint's config.
        let checkpoint = match artifact.find("config.json").or_else(|| artifact.find("model_index.json")) {
            Some(file) if file.size <= MAX_CONFIG_BYTES => {
                let range = file.offset..file.offset + file.size;
                none_if_absent(
                    self.blob_part(&Caller::INTERNAL, repository, &file.layer.digest, range).await,
                )?
            }
            _ => None,
        };
        // Separate scales are attached to their weights. Matching them needs the tensors of all files.
        let mut lists: Vec<&mut Vec<TensorInfo>> = files.iter_mut().map(|file| &mut file.tensors).collect();
        tensor::scaled::attach_scales(&mut lists, checkpoint.as_deref());
        let tensor_count = files.iter().map(|file| file.tensors.len()).sum::<usize>();
        let summary = index::summarise(manifest, &artifact, config.as_deref(), checkpoint.as_deref(), &files);
        if let (None, Some(packed), true) =
            (&problem, artifact.first_packed(), tensor_count == 0 && summary.is_some())
        {
            let (kind, label) = (&packed.layer.media_type, packed.label());
            problem = Some(format!(
                "{label}: a layer of type `{kind}` is compressed, so its content cannot be listed"
            ));
        }

        // 4. Read what it says about itself.
        let (config, checkpoint) = (config.as_deref(), checkpoint.as_deref());
        let parts = Parts { manifest, artifact: &artifact, config, checkpoint, files: &files };
        let facts = self.facts_read(repository, &parts).await?;
        let summary = summary.unwrap_or_default();
        let facts = facts.row(&summary);

        // 5. Build one row for the model, and one for each tensor.
        let rows = files.iter().flat_map(|file| &file.tensors).map(TensorRow::from).collect();
        let size_bytes =
            manifest.config.iter().chain(&manifest.layers).fold(0, |sum: u64, d| sum.saturating_add(d.size));
        let ModelSummary { format, architecture, parameters, quantization } = summary;
        let tensor_count = tensor_count as u64;
        Ok((
            ModelRow { format, architecture, parameters, quantization, size_bytes, tensor_count, problem },
            facts,
            rows,
        ))
    }

    /// Replaces uncompressed tars by the files inside them. Also returns why some of them could not be
    /// listed.
    pub(super) async fn expand_archives(
        &self,
        repository: &Repository,
        artifact: Artifact,
    ) -> Result<(Artifact, Option<String>), Error> {
        let (mut members, mut problem, mut left) = (BTreeMap::new(), None, tar::MAX_MEMBERS);
        for (at, file) in artifact.archives() {
            if left == 0 {
                break;
            }
            let listed = self.file_inspect(repository, file, move |bytes: &dyn ReadAt| {
                tar::list_members(bytes, left).map_err(|e| chain(&e))
            });
            match listed.await? {
                Ok(listed) => {
                    left -= listed.len();
                    members.insert(at, listed);
                }
                Err(reason) => problem = problem.or(Some(format!("{}: {reason}", file.label()))),
            }
        }
        Ok((artifact.replace_tars(members), problem))
    }

    /// Runs `look` on a file's bytes. Returns its result, or why it failed: an unreadable file is not an
    /// error of the server. `look` blocks, so it runs off the threads that serve requests.
    pub(super) async fn file_inspect<T: Send + 'static>(
        &self,
        repository: &Repository,
        file: &ModelFile,
        look: impl FnOnce(&dyn ReadAt) -> Result<T, String> + Send + 'static,
    ) -> Result<Result<T, String>, Error> {
        let Some(blob) = self.blob_reader(&Caller::INTERNAL, repository, &file.layer.digest).await? else {
            return Ok(Err("its blob is not stored here".to_owned()));
        };
        // The blob's real length is used rather than the manifest's.
        let (offset, size) = if file.is_layer() { (0, blob.len()) } else { (file.offset, file.size) };
        let work = tokio::task::spawn_blocking(move || {
            let looked = look(&Window::new(&blob, offset, size));
            // A failure of the storage is not a problem of the file.
            match blob.failed() {
                Some(error) => Err(error),
                None => Ok(looked),
            }
        });
        work.await.map_err(|_| Error::Interrupted)?
    }

    async fn text(
        &self,
        repository: &Repository,
        blob: Option<&Descriptor>,
    ) -> Result<Option<Vec<u8>>, Error> {
        match blob {
            Some(blob) => self.blob_text(&Caller::INTERNAL, repository, blob).await,
            None => Ok(None),
        }
    }

    /// Reads a range of a blob into memory.
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

/// Turns an absent blob or range into `None`.
fn none_if_absent(read: Result<Vec<u8>, Error>) -> Result<Option<Vec<u8>>, Error> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::BlobUnknown { .. } | Error::RangeUnsatisfiable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_timeout(repository: &Repository, digest: &Digest, limit: Duration) -> Error {
    let reason = format!("not read within {} s", limit.as_secs());
    Error::Unavailable { what: format!("the tensors of `{repository}@{digest}`"), source: reason.into() }
}

impl From<&TensorInfo> for TensorRow {
    fn from(tensor: &TensorInfo) -> TensorRow {
        let detail = serde_json::to_string(tensor).expect("strings and numbers serialise to JSON");
        TensorRow { name: tensor.name.clone(), blob: tensor.digest.clone(), detail }
    }
}
