//! The cards of repositories.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Store, Tx, parse_stored, query};
use crate::Error;
use crate::time::now_ms;

/// The card of a repository.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryCardRow {
    /// Of the text.
    pub(crate) digest: Digest,
    pub(crate) text: String,
    pub(crate) updated_at: i64,
}

impl Store {
    pub(crate) async fn repository_card_find(
        &self,
        repository: &Repository,
    ) -> Result<Option<RepositoryCardRow>, Error> {
        let row: Option<(String, String, i64)> = query!(self.read(), c => sqlx::query_as(
            "select digest, text, updated_at from repository_cards where repository = $1")
            .bind(repository.as_str()).fetch_optional(c).await)?;
        let decode = |(digest, text, updated_at): (String, String, i64)| {
            Ok(RepositoryCardRow { digest: parse_stored("digest", &digest)?, text, updated_at })
        };
        row.map(decode).transpose()
    }
}

impl Tx {
    /// The digest of the text of a repository's card.
    pub(crate) async fn repository_card_digest(
        &mut self,
        repository: &Repository,
    ) -> Result<Option<Digest>, Error> {
        let row: Option<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "select digest from repository_cards where repository = $1")
            .bind(repository.as_str()).fetch_optional(c).await)?;
        row.map(|(digest,)| parse_stored("digest", &digest)).transpose()
    }

    /// Replaces the card of a repository. `words`: those of the text, split for the search. The repository is locked.
    pub(crate) async fn repository_card_put(
        &mut self,
        repository: &Repository,
        (digest, text, words): (&Digest, &str, &str),
    ) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(
            "insert into repository_cards (repository, digest, text, words, updated_at) values ($1, $2, $3, $4, $5)
             on conflict (repository) do update set
                 digest = excluded.digest, text = excluded.text, words = excluded.words, updated_at = excluded.updated_at")
            .bind(repository.as_str()).bind(digest.as_str()).bind(text).bind(words).bind(now_ms())
            .execute(c).await.map(drop))?;
        self.search_refresh(repository).await
    }

    /// Deletes the card of a repository. Returns whether it had one. The repository is locked.
    pub(crate) async fn repository_card_delete(&mut self, repository: &Repository) -> Result<bool, Error> {
        let deleted = query!(self.conn(), c => sqlx::query("delete from repository_cards where repository = $1")
            .bind(repository.as_str()).execute(c).await.map(|done| done.rows_affected()))?;
        self.search_refresh(repository).await?;
        Ok(deleted > 0)
    }
}
