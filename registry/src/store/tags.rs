//! Listings of tags and repositories, in byte order.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::read_cache::CachedValue;
use super::removals::RemovalCause;
use super::tag_moves::NewTagMove;
use super::{ListFilter, Store, Tx, parse_stored, query};
use crate::Error;
use crate::time::now_ms;

impl Store {
    /// Tags after `after` (exclusive), at most `limit`.
    pub(crate) async fn tag_page(
        &self,
        repository: &Repository,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Tag>, Error> {
        // No repository or tag has a `?` in its name.
        let key = format!("{repository}?{limit}?{after}");
        let query = async { self.tag_list(repository, after, limit).await.map(Some) };
        let from = |known| if let CachedValue::Tags(tags) = known { Some(tags) } else { None };
        Ok(self.read_cached(key, query, CachedValue::Tags, from).await?.unwrap_or_default())
    }

    async fn tag_list(&self, repository: &Repository, after: &str, limit: i64) -> Result<Vec<Tag>, Error> {
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select name from tags where repository = $1 and name > $2 order by name limit $3")
            .bind(repository.as_str()).bind(after).bind(limit).fetch_all(c).await)?;
        rows.iter().map(|(name,)| parse_stored("tag", name)).collect()
    }

    /// The tag `latest` of a repository, else the one that was moved last.
    pub(crate) async fn default_tag(&self, repository: &Repository) -> Result<Option<Tag>, Error> {
        let row: Option<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select name from tags where repository = $1
             order by case when name = 'latest' then 0 else 1 end, updated_at desc, name limit 1")
            .bind(repository.as_str()).fetch_optional(c).await)?;
        row.map(|(tag,)| parse_stored("tag", &tag)).transpose()
    }

    /// Repositories after `after` (exclusive), at most `limit`.
    pub(crate) async fn repository_list(
        &self,
        filter: &ListFilter,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Repository>, Error> {
        let text = AssertSqlSafe(format!(
            "select name from repositories where name > $1 and {} order by name limit $2",
            self.is_listed("name", 3)
        ));
        let (all, visibility, subjects, targets) = filter.parameters();
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(text)
            .bind(after).bind(limit).bind(all).bind(visibility).bind(subjects).bind(targets)
            .fetch_all(c).await)?;
        rows.iter().map(|(name,)| parse_stored("repository", name)).collect()
    }
}

impl Tx {
    /// Points a tag at a manifest of this repository, and returns its previous target. `message`: that of a commit.
    /// The repository is locked.
    pub(crate) async fn tag_put(
        &mut self,
        repository: &Repository,
        tag: &Tag,
        digest: &Digest,
        actor: &str,
        message: Option<&str>,
    ) -> Result<Option<Digest>, Error> {
        let now = now_ms();
        let before: Option<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "select digest from tags where repository = $1 and name = $2")
            .bind(repository.as_str()).bind(tag.as_str()).fetch_optional(c).await)?;
        query!(self.conn(), c => sqlx::query(
            "insert into tags (repository, name, digest, updated_at, actor) values ($1, $2, $3, $4, $5)
             on conflict (repository, name) do update set
                 digest = excluded.digest, updated_at = excluded.updated_at, actor = excluded.actor")
            .bind(repository.as_str()).bind(tag.as_str()).bind(digest.as_str()).bind(now).bind(actor)
            .execute(c).await.map(drop))?;
        let before: Option<Digest> = before.map(|(text,)| parse_stored("digest", &text)).transpose()?;
        if let Some(left) = before.as_ref().filter(|before| *before != digest) {
            query!(self.conn(), c => sqlx::query(
                "update manifests set untagged_at = $3 where repository = $1 and digest = $2")
                .bind(repository.as_str()).bind(left.as_str()).bind(now).execute(c).await.map(drop))?;
        }
        if before.as_ref() != Some(digest) {
            let (from, to) = (before.as_ref().map(Digest::as_str), Some(digest.as_str()));
            let moved = NewTagMove { tag: tag.as_str(), from, to, message };
            self.tag_moves_put(repository.as_str(), &[moved], actor, now).await?;
        }
        self.search_refresh(repository).await?;
        Ok(before)
    }

    /// Removes a tag, records the reason, and returns its target. The repository is locked.
    pub(crate) async fn tag_delete(
        &mut self,
        repository: &Repository,
        tag: &Tag,
        why: &RemovalCause,
    ) -> Result<Option<Digest>, Error> {
        let row: Option<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "delete from tags where repository = $1 and name = $2 returning digest")
            .bind(repository.as_str()).bind(tag.as_str()).fetch_optional(c).await)?;
        let Some((digest,)) = row else { return Ok(None) };
        let digest = parse_stored("digest", &digest)?;
        self.removal_put_tag(repository, tag.as_str(), &digest, why).await?;
        let moved = NewTagMove { tag: tag.as_str(), from: Some(digest.as_str()), to: None, message: None };
        self.tag_moves_put(repository.as_str(), &[moved], &why.actor, why.at).await?;
        self.search_refresh(repository).await?;
        Ok(Some(digest))
    }
}
