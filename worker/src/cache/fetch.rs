//! Fetches a model to this machine by repository and digest: manifest, recognition, blobs. The scheduler
//! calls it before every load; for a cached model it costs a few file lookups.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use lode_client::Registry;
use lode_model::config::ModelConfig;
use lode_model::digest::Digest;
use lode_model::gguf;
use lode_model::manifest::{Descriptor, MAX_MANIFEST_BYTES, Manifest};
use lode_model::read_at::{ReadAt, Window};
use lode_model::recognise::ModelFile;
use lode_model::recognise::tar::{self, Member};
use lode_model::reference::{Reference, Repository};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::Semaphore;

use super::recognise::{Archives, RecognisedModel, Recognition, TensorLayer};
use super::store::{Cache, Lease};
use crate::error::Error;
use crate::files::blob_name;
use crate::runner::protocol::{Extent, ModelSpec, SmallFile, TensorFile};

/// How many blobs of one model are pulled at the same time.
const PARALLEL_BLOBS: usize = 4;
/// Size limit for small files that are read into memory here.
const MAX_SMALL_BYTES: u64 = 4 << 20;
/// Size limit of a GGUF file's header. One with a vocabulary of 262,144 tokens and their merges has some 16 MiB.
const MAX_GGUF_HEADER_BYTES: u64 = 96 << 20;
/// GGUF headers take some times their size in memory, so they are read one after the other.
static GGUF_HEADER: Semaphore = Semaphore::const_new(1);

/// A model whose blobs are all on this machine. They are leased until this value is dropped.
#[derive(Debug)]
pub struct Model {
    pub repository: Repository,
    /// Digest of the requested manifest.
    pub digest: Digest,
    pub spec: ModelSpec,
    /// Bytes of tensors.
    pub tensor_bytes: u64,
    /// The checkpoint's config.json.
    pub config: Value,
    /// Details from the manifest's config, for display.
    pub details: ModelConfig,
    /// The system prompt and the default options from a Modelfile.
    pub system: Option<String>,
    pub params: serde_json::Map<String, Value>,
    /// Messages at the beginning of every conversation with it.
    pub messages: Vec<Value>,
    _leases: Vec<Lease>,
}

/// Fetches models, and remembers which ones are complete on this machine.
pub struct Models {
    cache: Arc<Cache>,
    registry: Registry,
    complete: Mutex<CompleteModels>,
}

/// Manifests whose blobs were all seen on this machine.
#[derive(Default)]
struct CompleteModels {
    /// Each manifest with the blobs that it needs.
    manifests: HashMap<Digest, Vec<Digest>>,
    /// The result of the last check of the files, and its time.
    last_check: Option<(Instant, Vec<Digest>)>,
}

/// How long the result of a check of the files is reused: every heartbeat asks for it.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

impl Models {
    /// Loads the manifests that an earlier run saved. Blocks.
    pub fn open(cache: Arc<Cache>, registry: Registry) -> io::Result<Models> {
        let mut complete = HashMap::new();
        for entry in std::fs::read_dir(cache.manifests())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Ok(digest) = name.replace('-', ":").parse::<Digest>() else { continue };
            match read_needed_blobs(&path, &digest) {
                Some(blobs) => drop(complete.insert(digest, blobs)),
                // The file was truncated by a crash, or its blobs are known only after reading tar files.
                None => drop(std::fs::remove_file(&path)),
            }
        }
        let complete = CompleteModels { manifests: complete, last_check: None };
        Ok(Models { cache, registry, complete: Mutex::new(complete) })
    }

    /// The manifests whose blobs are all on this machine. Checks files, so it blocks briefly.
    pub fn cached(&self) -> Vec<Digest> {
        let mut complete = self.complete.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((at, there)) = &complete.last_check
            && at.elapsed() < RECHECK_INTERVAL
        {
            return there.clone();
        }
        complete.manifests.retain(|digest, blobs| {
            let there = blobs.iter().all(|blob| self.cache.contains(blob));
            if !there {
                // If removing the file fails, the next start finds it incomplete again.
                let _ = std::fs::remove_file(self.manifest_path(digest));
            }
            there
        });
        let there: Vec<Digest> = complete.manifests.keys().cloned().collect();
        complete.last_check = Some((Instant::now(), there.clone()));
        there
    }

    /// Fetches a model to this machine. Errors here and in the runner name it by its manifest's digest,
    /// because requests by several names can share it. Each response replaces the digest with its request's
    /// name (`http/error.rs`). A model whose tensors are larger than `memory_bytes` is refused before they are
    /// pulled.
    pub async fn fetch(
        &self,
        repository: &Repository,
        digest: &Digest,
        memory_bytes: u64,
    ) -> Result<Model, Error> {
        let (model, files) = self.fetch_files(repository, digest, memory_bytes).await?;
        let unsupported = |what: &str| Error::Unsupported(format!("cannot run {digest}: {what}"));
        let details = files.read(model.config.as_ref()).await?;
        let details = details.and_then(|bytes| ModelConfig::parse(&bytes).ok()).unwrap_or_default();
        let small_files = model.files.iter().map(|(name, file)| Ok((name.clone(), files.small(file)?)));
        let template = model.template.as_ref().map(|blob| files.path(blob));
        let spec = ModelSpec {
            name: digest.to_string(),
            files: small_files.collect::<Result<_, Error>>()?,
            tensors: model.tensors.iter().map(|layer| files.tensor(layer)).collect::<Result<_, Error>>()?,
            template: template.transpose()?.map(SmallFile::from),
            has_renderer: !details.renderer.is_empty() || !details.parser.is_empty(),
        };
        let json = |what: &str, bytes: Option<Vec<u8>>| -> Result<Value, Error> {
            let value = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
            value.map(Option::unwrap_or_default).map_err(|error| unsupported(&format!("{what}: {error}")))
        };
        let config = match model.files.get("config.json") {
            Some(file) => Some(read_small(files.path(&file.layer)?, file.offset, file.size).await?),
            None => None,
        };
        let config = match spec.is_gguf() {
            true => gguf_config(spec.tensors.clone()).await.map_err(|reason| unsupported(&reason))?,
            false => json("config.json", config)?,
        };
        let params = json("its parameters", files.read(model.params.as_ref()).await?)?;
        let messages = json("its messages", files.read(model.messages.as_ref()).await?)?;
        let system = files.read(model.system.as_ref()).await?;
        Ok(Model {
            repository: repository.clone(),
            digest: digest.clone(),
            spec,
            tensor_bytes: model.tensor_bytes(),
            config,
            details,
            system: system.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            params: match params {
                Value::Object(params) => params,
                _ => serde_json::Map::new(),
            },
            messages: match messages {
                Value::Array(messages) => messages,
                _ => Vec::new(),
            },
            _leases: files.leases.into_values().collect(),
        })
    }

    /// Recognises a model and pulls the blobs that this machine lacks.
    async fn fetch_files(
        &self,
        repository: &Repository,
        digest: &Digest,
        memory_bytes: u64,
    ) -> Result<(RecognisedModel, LocalFiles), Error> {
        let (manifest, bytes) = self.manifest(repository, digest).await?;
        let unsupported =
            |error: &dyn std::error::Error| Error::Unsupported(format!("cannot run {digest}: {error}"));
        let mut leases = HashMap::new();
        let model = match Recognition::read(&manifest).map_err(|error| unsupported(&error))? {
            Recognition::Known(model) => *model,
            Recognition::Packed(archives) => {
                let members = self.list_archive_members(repository, &archives, &mut leases).await?;
                archives.open(members).map_err(|error| unsupported(&error))?
            }
        };
        if model.tensor_bytes() > memory_bytes {
            return Err(Error::TooLarge { needed: model.tensor_bytes(), total: memory_bytes });
        }
        // Several layers may have the same blob.
        let wanted: HashMap<Digest, u64> =
            model.blobs().map(|blob| (blob.digest.clone(), blob.size)).collect();
        let mut pulls = futures::stream::iter(wanted)
            .map(|(digest, size)| async move {
                let lease = self.cache.fetch(&self.registry, repository, &digest, size).await?;
                Ok::<_, Error>((digest, lease))
            })
            .buffer_unordered(PARALLEL_BLOBS);
        while let Some((digest, lease)) = pulls.try_next().await? {
            leases.insert(digest, lease);
        }
        drop(pulls);
        self.store_manifest(digest, &model, bytes).await;
        Ok((model, LocalFiles { leases }))
    }

    /// Lists the members of a model's tar files. Pulls the tar files, since they will be mapped anyway.
    async fn list_archive_members(
        &self,
        repository: &Repository,
        archives: &Archives,
        leases: &mut HashMap<Digest, Lease>,
    ) -> Result<BTreeMap<usize, Vec<Member>>, Error> {
        let (mut found, mut left) = (BTreeMap::new(), tar::MAX_MEMBERS);
        for (at, layer) in archives.layers() {
            let lease = self.cache.fetch(&self.registry, repository, &layer.digest, layer.size).await?;
            let path = lease.path().to_owned();
            let listed = tokio::task::spawn_blocking(move || members(&path, left)).await;
            let listed = listed.map_err(|error| Error::Cache(io::Error::other(error)))?;
            let label = &layer.digest;
            let listed = listed
                .map_err(|reason| Error::Unsupported(format!("layer {label} is not a tar file: {reason}")))?;
            left -= listed.len();
            found.insert(at, listed);
            leases.insert(layer.digest.clone(), lease);
        }
        Ok(found)
    }

    /// The image manifest for a digest; for an index, the one child that is a model.
    async fn manifest(&self, repository: &Repository, model: &Digest) -> Result<(Manifest, Vec<u8>), Error> {
        let mut digest = model.clone();
        for _ in 0..3 {
            let raw = match self.registry.manifest_get(repository, &Reference::Digest(digest.clone())).await {
                Ok(raw) => raw,
                Err(error) if error.is_not_found() => return Err(Error::ModelUnknown(model.to_string())),
                Err(source) => {
                    return Err(Error::Pull { repository: repository.clone(), source: Box::new(source) });
                }
            };
            let manifest = Manifest::parse(Some(&raw.media_type), &raw.bytes)
                .map_err(|error| Error::Unsupported(format!("cannot run {model}: {error}")))?;
            if !manifest.is_index() {
                return Ok((manifest, raw.bytes.to_vec()));
            }
            // Signatures and attestations are listed with an unknown platform.
            let is_model = |child: &&Descriptor| {
                child.platform.as_ref().and_then(|platform| platform.get("os")).and_then(Value::as_str)
                    != Some("unknown")
            };
            let child = manifest.children().find(is_model);
            digest = child
                .ok_or_else(|| Error::Unsupported(format!("cannot run {model}: its index is empty")))?
                .digest
                .clone();
        }
        Err(Error::Unsupported(format!("cannot run {model}: its index lists indexes")))
    }

    async fn store_manifest(&self, digest: &Digest, model: &RecognisedModel, bytes: Vec<u8>) {
        let blobs = model.blobs().map(|blob| blob.digest.clone()).collect();
        {
            let mut complete = self.complete.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if complete.manifests.insert(digest.clone(), blobs).is_none() {
                complete.last_check = None;
            }
        }
        if Digest::of(digest.algorithm(), &bytes) == *digest
            && bytes.len() <= MAX_MANIFEST_BYTES
            && let Err(error) = tokio::fs::write(self.manifest_path(digest), bytes).await
        {
            tracing::warn!(%digest, %error, "failed to store a manifest in the cache");
        }
    }

    fn manifest_path(&self, digest: &Digest) -> PathBuf {
        self.cache.manifests().join(digest.to_string().replace(':', "-"))
    }
}

/// The files of a model's blobs on this machine.
struct LocalFiles {
    leases: HashMap<Digest, Lease>,
}

impl LocalFiles {
    fn path(&self, blob: &Descriptor) -> Result<PathBuf, Error> {
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, format!("blob {} was not fetched", blob.digest));
        let lease = self.leases.get(&blob.digest).ok_or_else(|| Error::Cache(missing()))?;
        Ok(lease.path().to_owned())
    }

    fn small(&self, file: &ModelFile) -> Result<SmallFile, Error> {
        Ok(SmallFile { path: self.path(&file.layer)?, extent: extent(file) })
    }

    fn tensor(&self, layer: &TensorLayer) -> Result<TensorFile, Error> {
        Ok(TensorFile {
            path: self.path(&layer.file.layer)?,
            // The file name of a whole file is only used in messages.
            name: match layer.whole_file {
                true => Some(layer.file.label().to_owned()),
                false => layer.file.layer.name.clone(),
            },
            whole_file: layer.whole_file,
            format: layer.format,
            extent: extent(&layer.file),
        })
    }

    async fn read(&self, blob: Option<&Descriptor>) -> Result<Option<Vec<u8>>, Error> {
        match blob {
            Some(blob) => read_small(self.path(blob)?, 0, blob.size).await.map(Some),
            None => Ok(None),
        }
    }
}

/// The range of its blob that a file consists of; `None` for the whole blob.
fn extent(file: &ModelFile) -> Option<Extent> {
    (!file.is_layer()).then_some(Extent { offset: file.offset, size: file.size })
}

/// The blobs that a remembered manifest needs. Blocks.
fn read_needed_blobs(path: &Path, digest: &Digest) -> Option<Vec<Digest>> {
    let bytes = std::fs::read(path).ok()?;
    if Digest::of(digest.algorithm(), &bytes) != *digest {
        return None;
    }
    match Recognition::read(&Manifest::parse(None, &bytes).ok()?).ok()? {
        Recognition::Known(model) => Some(model.blobs().map(|blob| blob.digest.clone()).collect()),
        Recognition::Packed(_) => None,
    }
}

async fn read_small(path: PathBuf, offset: u64, size: u64) -> Result<Vec<u8>, Error> {
    if size > MAX_SMALL_BYTES {
        return Err(Error::Unsupported(format!(
            "a small file of the model has {size} bytes, more than the {MAX_SMALL_BYTES} allowed"
        )));
    }
    let mut file = tokio::fs::File::open(path).await.map_err(Error::Cache)?;
    file.seek(io::SeekFrom::Start(offset)).await.map_err(Error::Cache)?;
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes).await.map_err(Error::Cache)?;
    Ok(bytes)
}

/// The configuration from the first GGUF file that has one. The later parts of a split model have none.
async fn gguf_config(files: Vec<TensorFile>) -> Result<Value, String> {
    let read = move || {
        for TensorFile { path, extent, name, .. } in files {
            let label = || name.clone().unwrap_or_else(|| blob_name(&path));
            let opened = open(&path).map_err(|error| error.to_string())?;
            let whole = Extent { offset: 0, size: opened.len };
            let Extent { offset, size } = extent.unwrap_or(whole);
            let window = Window::new(&opened, offset, size);
            let header = gguf::Header::read_up_to(&window, MAX_GGUF_HEADER_BYTES)
                .map_err(|error| format!("{} is not a GGUF file: {error}", label()))?;
            if header.metadata.architecture().is_some() {
                let config = crate::arch::gguf::config(&header.metadata, &header);
                return config.map(Value::Object).map_err(|error| format!("{}: {error}", label()));
            }
        }
        Err("none of its GGUF files has `general.architecture`".to_owned())
    };
    let turn = GGUF_HEADER.acquire().await.map_err(|error| error.to_string())?;
    // The work owns the permit, because it continues when the caller disconnects.
    let read = move || (read(), turn).0;
    tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?
}

fn open(path: &Path) -> io::Result<CacheFile> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    Ok(CacheFile { file, len })
}

/// A cache file with random access.
struct CacheFile {
    file: File,
    len: u64,
}

impl ReadAt for CacheFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

/// Blocks.
fn members(path: &Path, most: usize) -> Result<Vec<Member>, String> {
    let failed = |error: io::Error| error.to_string();
    tar::list_members(&open(path).map_err(failed)?, most).map_err(|error| error.to_string())
}
