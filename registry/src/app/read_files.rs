//! Reads the files of stored manifests: lists them, and streams their bytes in bounded pieces out of the blobs that contain
//! them. An imported checkpoint gives its original files, although its tensors are blobs of their own.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use lode_model::files_view::{FileView, MAX_VIEW_BYTES, Segment};
use lode_model::recognise::{Artifact, files};
use lode_model::reference::Repository;

use super::manifest_files::{FilesError, ManifestFile, ManifestFiles};
use super::{BlobStream, Registry, StoredManifest};
use crate::Error;
use crate::auth::Caller;
use crate::error::chain;
use crate::store::StoredBlob;

impl Registry {
    /// The files of a manifest that the caller has read.
    pub(super) async fn manifest_files(
        &self,
        caller: &Caller,
        repository: &Repository,
        stored: &StoredManifest,
        revision: &str,
    ) -> Result<Arc<ManifestFiles>, FilesError> {
        let key = (repository.clone(), stored.digest.clone());
        if let Some(known) = self.file_lists.known.get(&key) {
            return Ok(known);
        }
        let _permit = self.file_lists.reads.acquire().await.map_err(|_| Error::Interrupted)?;
        if let Some(known) = self.file_lists.known.get(&key) {
            return Ok(known);
        }
        let manifest = stored.parse()?;
        if manifest.is_index() {
            let manifests = manifest.manifests.len();
            return Err(FilesError::Index { revision: revision.to_owned(), manifests });
        }
        let (mut is_complete, view) = (true, FileView::find(&manifest));
        let entries = match view {
            Some(view) if view.size > MAX_VIEW_BYTES => {
                return Err(FilesError::ViewTooLarge { size: view.size });
            }
            Some(view) => {
                let part = self.blob_part(caller, repository, &view.digest, 0..view.size);
                let (bytes, manifest) = (part.await?, manifest);
                let parsed = tokio::task::spawn_blocking(move || {
                    FileView::parse(&bytes).and_then(|view| files::from_view(view, &manifest))
                });
                parsed.await.map_err(|_| Error::Interrupted)?.map_err(FilesError::Invalid)?
            }
            None => {
                let config = match &manifest.config {
                    Some(config) => self.blob_text(caller, repository, config).await?,
                    None => None,
                };
                let mut artifact = Artifact::read(&manifest, config.as_deref());
                // Some tools write an empty name for a layer that is no file.
                for file in &mut artifact.files {
                    file.path.take_if(|path| path.is_empty());
                }
                let (artifact, problem) = self.expand_archives(repository, artifact).await?;
                is_complete = problem.is_none();
                let name = repository.as_str();
                let stem = name.rsplit_once('/').map_or(name, |(_, last)| last);
                files::from_names(&artifact, stem).map_err(FilesError::Invalid)?
            }
        };
        let list = Arc::new(ManifestFiles::new(entries));
        if is_complete {
            self.file_lists.known.insert(key, list.clone());
        }
        Ok(list)
    }

    /// A range of a file's bytes. The first part is opened at once, so that missing bytes are an error; each further
    /// blob is opened when the one before has been sent.
    pub(crate) async fn file_stream(
        &self,
        caller: &Caller,
        repository: &Repository,
        file: &ManifestFile,
        range: Range<u64>,
    ) -> Result<BlobStream, Error> {
        let (segments, parts) = (file.stored.segments.clone(), file.stored.parts(range));
        let mut parts = parts.into_iter();
        let Some((at, within)) = parts.next() else { return Ok(stream::empty().boxed()) };
        let first = self.segment_stream(caller, repository, &segments[at].1, within).await?;
        let (registry, caller, repository) = (self.clone(), caller.clone(), repository.clone());
        let rest = stream::iter(parts).then(move |(at, within)| {
            let (registry, caller, repository) = (registry.clone(), caller.clone(), repository.clone());
            let segments = segments.clone();
            async move {
                let opened = registry.segment_stream(&caller, &repository, &segments[at].1, within).await;
                opened.map_err(|error| {
                    tracing::error!(%repository, error = chain(&error), "failed to read a file of a model");
                    io::Error::other("the storage failed to read it")
                })
            }
        });
        Ok(first.chain(rest.try_flatten()).boxed())
    }

    /// Reads a range of a file's bytes, of which the caller knows that it is small.
    pub(super) async fn file_part(
        &self,
        caller: &Caller,
        repository: &Repository,
        file: &ManifestFile,
        range: Range<u64>,
    ) -> Result<Vec<u8>, Error> {
        let bytes = self.file_stream(caller, repository, file, range).await?;
        let all = bytes.try_fold(Vec::new(), async |mut all, bytes| {
            all.extend_from_slice(&bytes);
            Ok(all)
        });
        all.await.map_err(|error| Error::io("a file of a model", error))
    }

    async fn segment_stream(
        &self,
        caller: &Caller,
        repository: &Repository,
        segment: &Segment,
        within: Range<u64>,
    ) -> Result<BlobStream, Error> {
        match segment {
            Segment::Inline { inline } => {
                let bytes = Bytes::copy_from_slice(&inline[within.start as usize..within.end as usize]);
                Ok(stream::iter([Ok(bytes)]).boxed())
            }
            Segment::Blob { digest, offset, .. } => {
                let range = offset + within.start..offset + within.end;
                Ok(self.blob_open(caller, repository, digest, Some(range)).await?.1)
            }
        }
    }

    /// The blob of a file that is a whole blob, if the caller may read it.
    pub(crate) async fn file_blob(
        &self,
        caller: &Caller,
        repository: &Repository,
        file: &ManifestFile,
    ) -> Result<Option<StoredBlob>, Error> {
        match file.as_blob() {
            Some(digest) => self.blob_visible(caller, repository, digest).await.map(Some),
            None => Ok(None),
        }
    }
}
