//! The card of a repository, for manifests without a card of their own. It stays when tags move.

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde_json::Value;

use super::Registry;
use super::card::{CardError, check_card};
use super::model_facts::card_words;
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::RepositoryCardRow;

fn changed(repository: &Repository) -> CardError {
    CardError::Changed { card: format!("the card of {repository}") }
}

impl Registry {
    /// The card of a repository. `None`: it has none.
    pub(crate) async fn repository_card(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<Option<RepositoryCardRow>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let card = self.store().repository_card_find(repository).await?;
        self.check_repository_exists(repository, card.is_none()).await?;
        Ok(card)
    }

    /// Saves the card of a repository, if its text still has the digest `base`; `None`: it has no card. Returns the digest
    /// of the new text.
    pub(crate) async fn repository_card_save(
        &self,
        caller: &Caller,
        repository: &Repository,
        (base, text): (Option<&Digest>, &str),
    ) -> Result<Digest, CardError> {
        self.check_push_manifest(caller, repository).await?;
        check_card(text)?;
        let text = text.to_owned();
        let read = tokio::task::spawn_blocking(move || {
            let (digest, words) = (Digest::sha256(text.as_bytes()), card_words(&text));
            (text, digest, words)
        });
        let (text, digest, words) = read.await.map_err(|_| Error::Interrupted)?;
        let mut tx = self.store().begin().await?;
        tx.repository_lock(repository).await?;
        if tx.manifest_digests(repository, 1).await?.is_empty() {
            return Err(Error::NameUnknown { repository: repository.clone() }.into());
        }
        let stored = tx.repository_card_digest(repository).await?;
        if stored.as_ref() == Some(&digest) {
            // The client has sent it again.
            return Ok(digest);
        }
        if stored.as_ref() != base {
            return Err(changed(repository));
        }
        tx.repository_card_put(repository, (&digest, &text, &words)).await?;
        let detail = serde_json::json!({ "digest": digest });
        self.audit(&mut tx, caller, "card.set", repository.to_string(), detail).await?;
        tx.commit().await?;
        Ok(digest)
    }

    /// Deletes the card of a repository, if it has one. With `base`, only if its text still has this digest.
    pub(crate) async fn repository_card_delete(
        &self,
        caller: &Caller,
        repository: &Repository,
        base: Option<&Digest>,
    ) -> Result<(), CardError> {
        self.check_push_manifest(caller, repository).await?;
        let mut tx = self.store().begin().await?;
        tx.repository_lock(repository).await?;
        let stored = tx.repository_card_digest(repository).await?;
        if base.is_some() && stored.is_some() && stored.as_ref() != base {
            return Err(changed(repository));
        }
        if tx.repository_card_delete(repository).await? {
            self.audit(&mut tx, caller, "card.remove", repository.to_string(), Value::Null).await?;
        }
        Ok(tx.commit().await?)
    }
}
