//! The files of a manifest, whichever tool pushed it, and their bytes. A checkpoint whose tensors are blobs of their
//! own shows the files that it was imported from.

use std::collections::BTreeSet;
use std::ops::Range;

use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::Digest;
use lode_model::files_view::{FileView, MAX_FILES, MAX_VIEW_BYTES, Segment, check_path};
use lode_model::manifest::Manifest;
use lode_model::recognise::{Artifact, Role};
use lode_model::reference::Repository;

use super::{BlobStream, Registry};
use crate::Error;
use crate::auth::Caller;

/// A file of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TreeFile {
    /// Relative, with plain names between slashes.
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    /// The digest of the whole file, where it is known.
    pub(crate) digest: Option<Digest>,
    /// What the layer is, for files whose name does not say it.
    pub(crate) media_type: Option<String>,
    segments: Vec<Segment>,
}

/// The files of a manifest, and its content as a model.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) artifact: Artifact,
    /// In the order of their paths.
    pub(crate) files: Vec<TreeFile>,
    /// The files of the manifest that could not be listed.
    pub(crate) unlisted: usize,
}

impl Tree {
    pub(crate) fn find(&self, path: &str) -> Option<&TreeFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl Registry {
    /// The files of a manifest that the caller has been given.
    pub(crate) async fn tree(
        &self,
        caller: &Caller,
        repository: &Repository,
        manifest: &Manifest,
    ) -> Result<Tree, Error> {
        let config = match &manifest.config {
            Some(config) => self.blob_text(caller, repository, config).await?,
            None => None,
        };
        let artifact = Artifact::read(manifest, config.as_deref());
        let (artifact, _) = self.expand_archives(repository, artifact).await?;
        let view = self.file_view(caller, repository, manifest).await?;
        let view = view.filter(|view| view.check_layers(manifest).is_ok());
        Ok(list_files(artifact, view))
    }

    /// The file view of a manifest. `None` if it has none, or one that is absent, invalid or too large.
    async fn file_view(
        &self,
        caller: &Caller,
        repository: &Repository,
        manifest: &Manifest,
    ) -> Result<Option<FileView>, Error> {
        let Some(layer) = FileView::find(manifest).filter(|layer| layer.size <= MAX_VIEW_BYTES) else {
            return Ok(None);
        };
        let _permit = self.file_lists.reads.acquire().await.map_err(|_| Error::Interrupted)?;
        let bytes = match self.blob_part(caller, repository, &layer.digest, 0..layer.size).await {
            Ok(bytes) => bytes,
            Err(Error::BlobUnknown { .. } | Error::RangeUnsatisfiable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let parsed = tokio::task::spawn_blocking(move || FileView::parse(&bytes).ok());
        parsed.await.map_err(|_| Error::Interrupted)
    }

    /// The bytes of a file of the manifest, or the first ones.
    pub(crate) async fn tree_open(
        &self,
        caller: &Caller,
        repository: &Repository,
        file: &TreeFile,
        limit: Option<u64>,
    ) -> Result<BlobStream, Error> {
        let mut left = limit.unwrap_or(file.size_bytes).min(file.size_bytes);
        let mut parts = Vec::with_capacity(file.segments.len());
        for segment in &file.segments {
            let length = segment.len().min(left);
            left -= length;
            if length > 0 {
                parts.push(FilePart::of(segment, length));
            }
        }
        // The policy and the first blob are checked before the response begins.
        if let Some(FilePart::Blob(digest, _)) = parts.iter().find(|part| matches!(part, FilePart::Blob(..)))
        {
            self.blob_find(caller, repository, digest).await?;
        }
        let (registry, caller, repository) = (self.clone(), caller.clone(), repository.clone());
        let opened = stream::iter(parts).then(move |part| {
            let (registry, caller, repository) = (registry.clone(), caller.clone(), repository.clone());
            async move {
                match part {
                    FilePart::Inline(bytes) => Ok(stream::once(async move { Ok(bytes.into()) }).boxed()),
                    FilePart::Blob(digest, range) => {
                        let opened = registry.blob_open(&caller, &repository, &digest, Some(range)).await;
                        opened.map(|(_, bytes)| bytes).map_err(std::io::Error::other)
                    }
                }
            }
        });
        Ok(opened.try_flatten().boxed())
    }

    /// The first bytes of a file of the manifest.
    pub(crate) async fn tree_read(
        &self,
        caller: &Caller,
        repository: &Repository,
        file: &TreeFile,
        limit: u64,
    ) -> Result<Vec<u8>, Error> {
        let bytes = self.tree_open(caller, repository, file, Some(limit)).await?;
        let all = bytes.try_fold(Vec::new(), async |mut all, bytes| {
            all.extend_from_slice(&bytes);
            Ok(all)
        });
        all.await.map_err(|error| Error::io(&file.path, error))
    }
}

/// A run of bytes of a file.
enum FilePart {
    Inline(Vec<u8>),
    Blob(Digest, Range<u64>),
}

impl FilePart {
    /// The first bytes of a segment.
    fn of(segment: &Segment, length: u64) -> FilePart {
        match segment {
            Segment::Inline { inline } => FilePart::Inline(
                inline.iter().copied().take(usize::try_from(length).unwrap_or(usize::MAX)).collect(),
            ),
            Segment::Blob { digest, offset, .. } => {
                FilePart::Blob(digest.clone(), *offset..offset.saturating_add(length))
            }
        }
    }
}

fn list_files(artifact: Artifact, view: Option<FileView>) -> Tree {
    let (mut files, mut taken, mut unlisted) = (Vec::new(), BTreeSet::new(), 0);
    let has_view = view.is_some();
    for entry in view.into_iter().flat_map(|view| view.files) {
        taken.insert(entry.path.clone());
        files.push(TreeFile {
            path: entry.path,
            size_bytes: entry.size,
            digest: entry.digest,
            media_type: None,
            segments: entry.segments,
        });
    }
    for file in &artifact.files {
        // The view names the files that tensors and texts came from.
        if has_view && (file.role == Role::Tensor || file.path.is_some()) {
            continue;
        }
        if files.len() >= MAX_FILES {
            unlisted += 1;
            continue;
        }
        let name = match &file.path {
            Some(path) if check_path(path).is_ok() => path.clone(),
            Some(_) => {
                unlisted += 1;
                continue;
            }
            None => role_name(file.role, &file.layer.digest),
        };
        // Several layers may have one name, for instance two licences.
        let path = match taken.contains(&name) {
            true => format!("{name}-{}", short(&file.layer.digest)),
            false => name,
        };
        if !taken.insert(path.clone()) {
            unlisted += 1;
            continue;
        }
        files.push(TreeFile {
            path,
            size_bytes: file.size,
            digest: file.is_layer().then(|| file.layer.digest.clone()),
            media_type: Some(file.layer.media_type.clone()),
            segments: vec![Segment::Blob {
                digest: file.layer.digest.clone(),
                offset: file.offset,
                length: file.size,
            }],
        });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Tree { artifact, files, unlisted }
}

/// The name of a layer without a path.
fn role_name(role: Role, digest: &Digest) -> String {
    match role {
        Role::Gguf => "model.gguf".to_owned(),
        Role::Safetensors => "model.safetensors".to_owned(),
        Role::Onnx => "model.onnx".to_owned(),
        Role::Template => "template".to_owned(),
        Role::System => "system".to_owned(),
        Role::Params => "params.json".to_owned(),
        Role::Messages => "messages.json".to_owned(),
        Role::License => "license".to_owned(),
        Role::Adapter => format!("adapter-{}", short(digest)),
        Role::Projector => format!("projector-{}", short(digest)),
        Role::Draft => format!("draft-{}", short(digest)),
        Role::Tensor => format!("tensor-{}", short(digest)),
        Role::File => format!("layer-{}", short(digest)),
    }
}

fn short(digest: &Digest) -> String {
    let hex = digest.as_str().split_once(':').map_or(digest.as_str(), |(_, hex)| hex);
    hex.chars().take(12).collect()
}
