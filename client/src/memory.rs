//! Which upload session a blob was being sent to when this process ended. One small file a session, so that a push that is repeated goes on where it stopped.

use std::path::{Path, PathBuf};

use lode_model::{
    digest::{Algorithm, Digest},
    reference::Repository,
};
use serde::{Deserialize, Serialize};
use url::Url;

/// Sessions are worth remembering only for blobs that take a while.
pub(crate) const WORTH_REMEMBERING: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
struct Remembered {
    repository: Repository,
    digest: Digest,
    #[serde(default)]
    size_bytes: u64,
    location: Url,
}

impl Remembered {
    async fn read(path: &Path) -> Option<Remembered> {
        serde_json::from_slice(&tokio::fs::read(path).await.ok()?).ok()
    }
}

/// The place of one session's note; nothing happens where no folder is configured.
pub(crate) struct Memory {
    path: Option<PathBuf>,
}

impl Memory {
    pub(crate) fn of(
        folder: Option<&PathBuf>,
        base: &Url,
        repository: &Repository,
        digest: &Digest,
    ) -> Memory {
        let path = folder.map(|folder| {
            let key = Digest::of(Algorithm::Sha256, format!("{base} {repository} {digest}").as_bytes());
            folder.join(format!("{}.json", key.hex()))
        });
        Memory { path }
    }

    /// The session's address, if it is on the registry that is asked now.
    pub(crate) async fn recall(&self, base: &Url) -> Option<Url> {
        let remembered = Remembered::read(self.path.as_ref()?).await?;
        (remembered.location.origin() == base.origin()).then_some(remembered.location)
    }

    /// Is there a session for some blob of this size? Which one shows once its digest is known.
    pub(crate) async fn is_any_of(
        folder: Option<&PathBuf>,
        base: &Url,
        repository: &Repository,
        size_bytes: u64,
    ) -> bool {
        let Some(folder) = folder else { return false };
        let Ok(mut notes) = tokio::fs::read_dir(folder).await else { return false };
        while let Ok(Some(note)) = notes.next_entry().await {
            if let Some(remembered) = Remembered::read(&note.path()).await
                && remembered.size_bytes == size_bytes
                && remembered.repository == *repository
                && remembered.location.origin() == base.origin()
            {
                return true;
            }
        }
        false
    }

    /// A note that cannot be written costs a resume and nothing else.
    pub(crate) async fn remember(
        &self,
        repository: &Repository,
        digest: &Digest,
        size_bytes: u64,
        location: &Url,
    ) {
        let Some(path) = &self.path else { return };
        let note = Remembered {
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
            tracing::debug!(%error, path = %path.display(), "cannot remember an upload");
        }
    }

    pub(crate) async fn forget(&self) {
        if let Some(path) = &self.path {
            let _absent = tokio::fs::remove_file(path).await;
        }
    }
}
