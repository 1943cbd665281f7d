//! Remembers the upload session of each unfinished blob in a small file, so that a repeated push resumes
//! after a crash.

use std::path::{Path, PathBuf};

use lode_model::{
    digest::{Algorithm, Digest},
    reference::Repository,
};
use serde::{Deserialize, Serialize};
use url::Url;

/// Minimum size of a blob whose session is remembered.
pub(crate) const MIN_REMEMBERED_BYTES: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
struct SavedSession {
    repository: Repository,
    digest: Digest,
    #[serde(default)]
    size_bytes: u64,
    location: Url,
}

impl SavedSession {
    async fn read(path: &Path) -> Option<SavedSession> {
        serde_json::from_slice(&tokio::fs::read(path).await.ok()?).ok()
    }
}

/// The file that remembers one session. Does nothing if no folder is configured.
pub(crate) struct SessionFile {
    path: Option<PathBuf>,
}

impl SessionFile {
    pub(crate) fn of(
        folder: Option<&PathBuf>,
        base: &Url,
        repository: &Repository,
        digest: &Digest,
    ) -> SessionFile {
        let path = folder.map(|folder| {
            let key = Digest::of(Algorithm::Sha256, format!("{base} {repository} {digest}").as_bytes());
            folder.join(format!("{}.json", key.hex()))
        });
        SessionFile { path }
    }

    /// Returns the URL of the session, if it is on the current registry.
    pub(crate) async fn load(&self, base: &Url) -> Option<Url> {
        let remembered = SavedSession::read(self.path.as_ref()?).await?;
        (remembered.location.origin() == base.origin()).then_some(remembered.location)
    }

    /// Whether any session for a blob of this size is remembered. Which blob it is for is known only with the
    /// digest.
    pub(crate) async fn has_session_of_size(
        folder: Option<&PathBuf>,
        base: &Url,
        repository: &Repository,
        size_bytes: u64,
    ) -> bool {
        let Some(folder) = folder else { return false };
        let Ok(mut notes) = tokio::fs::read_dir(folder).await else { return false };
        while let Ok(Some(note)) = notes.next_entry().await {
            if let Some(remembered) = SavedSession::read(&note.path()).await
                && remembered.size_bytes == size_bytes
                && remembered.repository == *repository
                && remembered.location.origin() == base.origin()
            {
                return true;
            }
        }
        false
    }

    /// Remembers a session. A failed write only prevents a later resume.
    pub(crate) async fn remember(
        &self,
        repository: &Repository,
        digest: &Digest,
        size_bytes: u64,
        location: &Url,
    ) {
        let Some(path) = &self.path else { return };
        let note = SavedSession {
            repository: repository.clone(),
            digest: digest.clone(),
            size_bytes,
            location: location.clone(),
        };
        let written = async {
            if let Some(folder) = path.parent() {
                tokio::fs::create_dir_all(folder).await?;
            }
            tokio::fs::write(path, serde_json::to_vec(&note)?).await
        };
        if let Err(error) = written.await {
            tracing::debug!(%error, path = %path.display(), "failed to remember an upload session");
        }
    }

    pub(crate) async fn forget(&self) {
        if let Some(path) = &self.path {
            let _absent = tokio::fs::remove_file(path).await;
        }
    }
}
