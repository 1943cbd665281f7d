//! The files of a model as the source of an import: files that were uploaded before, or those of a stored model,
//! read from the blobs that contain them. Reading blocks: it must run on blocking threads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use lode_model::digest::Digest;
use lode_model::files_view::{FileEntry, FileView, FileViewError, Segment, check_path};
use lode_model::import::{LayerPart, PlannedLayer, ReadAt, Source, SourceFile};
use lode_model::manifest::Manifest;
use lode_model::recognise::{Artifact, Role};
use lode_model::reference::Repository;
use moka::sync::Cache;
use tokio::runtime::Handle;

use super::Registry;
use super::stored_file::StoredFile;
use crate::Error;
use crate::auth::Caller;
use crate::error::chain;

/// The name of a GGUF file that was pushed without one.
const GGUF_NAME: &str = "model.gguf";
/// How many blobs of one source are open at a time.
const MAX_OPEN_BLOBS: u64 = 64;

/// The files of a model, all of whose blobs one repository has.
pub(super) struct ModelFiles {
    blobs: Arc<Blobs>,
    files: BTreeMap<String, StoredFile>,
}

impl ModelFiles {
    /// Files that are one blob each.
    pub(super) fn whole(
        registry: &Registry,
        caller: &Caller,
        repository: Repository,
        files: impl IntoIterator<Item = (String, Digest, u64)>,
    ) -> ModelFiles {
        let entries = files.into_iter().map(|(path, digest, size)| FileEntry::whole(path, digest, size));
        ModelFiles::new(registry, caller, repository, entries)
    }

    /// The files of a stored model: those of its file view, or else the layers that are files. `view` is the
    /// content of the layer that [`FileView::find`] finds.
    pub(super) fn stored(
        registry: &Registry,
        caller: &Caller,
        repository: Repository,
        manifest: &Manifest,
        config: &[u8],
        view: Option<&[u8]>,
    ) -> Result<ModelFiles, FileViewError> {
        let entries = match view {
            Some(view) => {
                let view = FileView::parse(view)?;
                view.check_layers(manifest)?;
                view.files
            }
            None => layer_files(manifest, config)?,
        };
        Ok(ModelFiles::new(registry, caller, repository, entries))
    }

    fn new(
        registry: &Registry,
        caller: &Caller,
        repository: Repository,
        entries: impl IntoIterator<Item = FileEntry>,
    ) -> ModelFiles {
        let files = entries.into_iter().map(|entry| (entry.path.clone(), StoredFile::new(entry)));
        ModelFiles::of(registry, caller, repository, files.collect())
    }

    /// Files by path.
    pub(super) fn of(
        registry: &Registry,
        caller: &Caller,
        repository: Repository,
        files: BTreeMap<String, StoredFile>,
    ) -> ModelFiles {
        let blobs = Blobs {
            registry: registry.clone(),
            caller: caller.clone(),
            repository,
            runtime: Handle::current(),
            open: Cache::new(MAX_OPEN_BLOBS),
        };
        ModelFiles { blobs: Arc::new(blobs), files }
    }

    /// The repository whose blobs are read.
    pub(super) fn repository(&self) -> &Repository {
        &self.blobs.repository
    }

    /// The blob that has the bytes of a layer, because the files that the layer copies are stored as parts of it.
    /// The blob may be longer. Reads only the bytes of the layer that no file has.
    pub(super) fn layer_blob(&self, layer: &PlannedLayer) -> Option<Digest> {
        let (mut found, mut literals, mut at) = (None, Vec::new(), 0_u64);
        for part in layer.content.parts()? {
            let (path, offset, length) = match part {
                LayerPart::Bytes(bytes) => {
                    literals.push((at, bytes));
                    at += bytes.len() as u64;
                    continue;
                }
                LayerPart::Range { path, offset, length } => (path, offset, length),
            };
            let file = self.files.get(path)?;
            for (number, within) in file.parts(offset..offset.checked_add(length)?) {
                let Segment::Blob { digest, offset, .. } = &file.segments[number].1 else { return None };
                if offset + within.start != at || found.get_or_insert(digest) != &digest {
                    return None;
                }
                at += within.end - within.start;
            }
        }
        let is_same = |(at, bytes): &(u64, &[u8])| {
            let mut stored = vec![0; bytes.len()];
            found.is_some_and(|blob| self.blobs.read_at(blob, *at, &mut stored).is_ok()) && stored == *bytes
        };
        (at == layer.size && literals.iter().all(is_same)).then(|| found.cloned()).flatten()
    }

    /// The digest of a whole file, where it is known.
    pub(super) fn digest(&self, path: &str) -> Option<&Digest> {
        self.files.get(path)?.digest.as_ref()
    }
}

impl Source for ModelFiles {
    fn files(&self) -> Vec<SourceFile> {
        let listed =
            |(path, file): (&String, &StoredFile)| SourceFile { path: path.clone(), size: file.size };
        self.files.iter().map(listed).collect()
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let file = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        let (blobs, segments) = (self.blobs.clone(), file.segments.clone());
        Ok(Box::new(FileReader { blobs, segments, size: file.size }))
    }
}

/// The layers that are files of the model itself, whichever tool pushed them.
fn layer_files(manifest: &Manifest, config: &[u8]) -> Result<Vec<FileEntry>, FileViewError> {
    let artifact = Artifact::read(manifest, Some(config));
    let mut entries: BTreeMap<String, FileEntry> = BTreeMap::new();
    for file in artifact.files.into_iter().filter(|file| file.is_layer()) {
        if !matches!(file.role, Role::Safetensors | Role::Gguf | Role::Onnx | Role::File) {
            continue;
        }
        let is_gguf = file.role == Role::Gguf;
        let named = file.path.filter(|path| !path.is_empty());
        let Some(path) = named.or(is_gguf.then(|| GGUF_NAME.to_owned())) else { continue };
        check_path(&path)?;
        let whole = FileEntry::whole(path.clone(), file.layer.digest.clone(), file.layer.size);
        if entries.insert(path.clone(), whole).is_some() {
            return Err(FileViewError::Duplicate { path });
        }
    }
    Ok(entries.into_values().collect())
}

/// Reads a file from the blobs of its segments.
struct FileReader {
    blobs: Arc<Blobs>,
    segments: Arc<[(u64, Segment)]>,
    size: u64,
}

impl ReadAt for FileReader {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let mut at = self.segments.partition_point(|(start, segment)| start + segment.len() <= offset);
        while !buf.is_empty() {
            let (start, segment) = self.segments.get(at).ok_or(io::ErrorKind::UnexpectedEof)?;
            let within = offset - start;
            let length = (buf.len() as u64).min(segment.len() - within);
            let (part, rest) = buf.split_at_mut(length as usize);
            match segment {
                Segment::Inline { inline } => part.copy_from_slice(&inline[within as usize..][..part.len()]),
                Segment::Blob { digest, offset, .. } => self.blobs.read_at(digest, offset + within, part)?,
            }
            buf = rest;
            offset += length;
            at += 1;
        }
        Ok(())
    }
}

/// The blobs of a repository, read at any offset on behalf of a caller.
struct Blobs {
    registry: Registry,
    caller: Caller,
    repository: Repository,
    runtime: Handle,
    /// The blobs that were read last. Without a file: a blob in object storage, of which each part is fetched.
    open: Cache<Digest, Option<Arc<File>>>,
}

impl Blobs {
    fn read_at(&self, digest: &Digest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let opened = self.open.try_get_with_by_ref(digest, || self.open(digest));
        let Some(file) = opened.map_err(|error| hide_cause(&error, digest))? else {
            let range = offset..offset.saturating_add(buf.len() as u64);
            let part = self.registry.blob_part(&self.caller, &self.repository, digest, range);
            let bytes = self.runtime.block_on(part).map_err(|error| hide_cause(&error, digest))?;
            if bytes.len() != buf.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buf.copy_from_slice(&bytes);
            return Ok(());
        };
        file.read_exact_at(buf, offset)
    }

    fn open(&self, digest: &Digest) -> Result<Option<Arc<File>>, Error> {
        self.runtime.block_on(async {
            let blob = self.registry.blob_visible(&self.caller, &self.repository, digest).await?;
            Ok(self.registry.blob_file(&blob).await?.map(Arc::new))
        })
    }
}

/// Logs the cause, which names places in the storage, and returns an error that the caller may see.
fn hide_cause(error: &Error, digest: &Digest) -> io::Error {
    tracing::error!(%digest, error = chain(error), "failed to read a blob of a model");
    io::Error::other("the storage failed to read it; the server's log has the reason")
}
