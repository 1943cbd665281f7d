//! Cards that are attached to a manifest, as referrers of it. The last one counts; earlier ones stay, as its history.

use bytes::Bytes;
use lode_model::digest::Digest;
use lode_model::import;
use lode_model::manifest::Descriptor;
use lode_model::media_type;
use lode_model::reference::{Reference, Repository};

use super::Registry;
use super::commit_error::CommitError;
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::time::{now_ms, rfc3339};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachedCard {
    /// The manifest of the card.
    pub(crate) digest: Digest,
    /// The blob with its text.
    pub(crate) blob: Digest,
    /// Of the blob, in bytes.
    pub(crate) size: u64,
}

impl Registry {
    /// The card that was attached last. `None` without one that has a text.
    pub(super) async fn attached_card(
        &self,
        caller: &Caller,
        repository: &Repository,
        subject: &Digest,
    ) -> Result<Option<AttachedCard>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let newest = self.store().referrer_newest(repository, subject, media_type::LODE_CARD).await?;
        let Some(digest) = newest else { return Ok(None) };
        let reference = Reference::Digest(digest.clone());
        let manifest = match self.manifest_get(caller, repository, &reference).await {
            Ok(stored) => stored.parse()?,
            // It was deleted meanwhile.
            Err(Error::ManifestUnknown { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let layer = import::card_layer(&manifest);
        Ok(layer.map(|layer| AttachedCard { digest, blob: layer.digest.clone(), size: layer.size }))
    }

    /// Attaches a card to a manifest.
    pub(super) async fn attach_card(
        &self,
        caller: &Caller,
        repository: &Repository,
        subject: &Digest,
        text: &str,
    ) -> Result<(), CommitError> {
        let stored = self.manifest_get(caller, repository, &Reference::Digest(subject.clone())).await?;
        let size = stored.bytes.len() as u64;
        let subject = Descriptor::new(&stored.media_type, stored.digest, size);
        let card = import::attached_card(&subject, text, &rfc3339(now_ms()));
        for blob in card.blobs {
            self.commit_bytes(caller, repository, Bytes::from(blob.bytes)).await?;
        }
        let (reference, bytes) = (Reference::Digest(card.digest), Bytes::from(card.manifest));
        self.manifest_put(caller, repository, &reference, Some(&card.media_type), bytes, &[]).await?;
        Ok(())
    }
}
