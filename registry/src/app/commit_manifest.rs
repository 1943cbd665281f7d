//! The manifest of the files of a commit. This is where it is decided how they are stored: files that the planner of
//! `lode create` can import become a model, with a blob for each tensor; all others are stored as they are. The next
//! commit decides again, so that a checkpoint that arrives in several commits becomes a model with the last of them.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt, TryStreamExt};
use lode_model::digest::Digest;
use lode_model::import::{FinishError, ImportError, plain_files};
use lode_model::manifest::Descriptor;
use lode_model::modelfile::DerivedModel;
use lode_model::reference::Repository;

use super::commit::Files;
use super::commit_error::CommitError;
use super::create::StoredBase;
use super::model_files::ModelFiles;
use super::{Body, CreateError, CreateStep, ManifestFile, Registry};
use crate::BodyError;
use crate::auth::Caller;
use crate::error::chain;

impl Registry {
    /// Makes the manifest of files that replace those of `base`. Also returns notices for the user. With
    /// `must_be_model`, files that cannot be imported are an error.
    pub(super) async fn commit_manifest(
        &self,
        caller: &Caller,
        repository: &Repository,
        base: Option<&StoredBase>,
        files: Files,
        must_be_model: bool,
    ) -> Result<(DerivedModel, Vec<String>), CommitError> {
        if files.is_empty() {
            return Ok((plain_files([], &[])?, Vec::new()));
        }
        // 1. Keep what was added to the model that the base is, such as its prompt template.
        let mut edits = base.map(StoredBase::additions).unwrap_or_default();
        edits.layers.retain(|layer| match layer.file_path() {
            Some(path) => files.get(path).and_then(ManifestFile::as_blob) == Some(&layer.digest),
            None => true,
        });
        let is_added = |path: &str| edits.layers.iter().any(|layer| layer.file_path() == Some(path));
        // 2. Import the files as a model, if they are one.
        let own = files.iter().filter(|(path, _)| !is_added(path));
        let sources: BTreeMap<_, _> = own.map(|(path, file)| (path.clone(), file.stored.clone())).collect();
        let sources = Arc::new(ModelFiles::of(self, caller, repository.clone(), sources));
        let notices = Mutex::new(Vec::new());
        let note = |step| {
            if let CreateStep::Notice(notice) = step {
                notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
            }
        };
        match self.files_import(caller, repository, None, &sources, &edits, &note).await {
            Ok(made) => Ok((made, notices.into_inner().unwrap_or_else(PoisonError::into_inner))),
            Err(error) if !must_be_model && is_no_model(&error) => {
                let reason = chain(&error);
                tracing::debug!(%repository, reason, "files of a commit are stored as they are");
                let made = self.commit_plain(caller, repository, &files, &edits.layers).await?;
                Ok((made, vec![format!("stored as plain files, not as a model: {reason}")]))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the manifest of files that are stored as they are.
    async fn commit_plain(
        &self,
        caller: &Caller,
        repository: &Repository,
        files: &Files,
        added: &[Descriptor],
    ) -> Result<DerivedModel, CommitError> {
        let mut whole = Vec::with_capacity(files.len());
        for (path, file) in files {
            // It is among those that were added.
            if added.iter().any(|layer| layer.file_path() == Some(path.as_str())) {
                continue;
            }
            let digest = self.commit_whole(caller, repository, file).await?;
            whole.push((path.clone(), digest, file.size));
        }
        Ok(plain_files(whole, added)?)
    }

    /// The blob of a whole file. A file that is stored in parts is assembled.
    async fn commit_whole(
        &self,
        caller: &Caller,
        repository: &Repository,
        file: &ManifestFile,
    ) -> Result<Digest, CommitError> {
        if let Some(digest) = file.as_blob() {
            return Ok(digest.clone());
        }
        let bytes = self.file_stream(caller, repository, file, 0..file.size).await?;
        let body: Body = bytes.map_err(BodyError::from).boxed();
        Ok(self.blob_put_produced(caller, repository, file.size, body).await?.digest)
    }
}

/// Whether files cannot be imported because of what they are: they are no model, an incomplete or a malformed one.
fn is_no_model(error: &CreateError) -> bool {
    match error {
        CreateError::Import(ImportError::Read { source, .. }) => {
            matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
        }
        CreateError::Import(_) => true,
        CreateError::Finish(FinishError::ManifestTooLarge { .. }) => true,
        _ => false,
    }
}
