//! The queries of retention rules: the tags of a repository by age, and manifests without a tag.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};

use super::removals::RemovalCause;
use super::{Store, Tx, digest_list, now_ms, on, parse_stored};
use crate::Error;

/// A tag with the columns that retention rules use.
#[derive(Clone, Debug)]
pub(crate) struct AgedTag {
    pub(crate) name: Tag,
    pub(crate) digest: Digest,
    pub(crate) updated_at: i64,
}

#[derive(sqlx::FromRow)]
struct AgedTagColumns {
    name: String,
    digest: String,
    updated_at: i64,
}

impl TryFrom<AgedTagColumns> for AgedTag {
    type Error = Error;

    fn try_from(row: AgedTagColumns) -> Result<AgedTag, Error> {
        Ok(AgedTag {
            name: parse_stored("tag", &row.name)?,
            digest: parse_stored("digest", &row.digest)?,
            updated_at: row.updated_at,
        })
    }
}

/// Selects each manifest `m` that has no tag, no index that lists it, no subject in the repository and no
/// lease.
macro_rules! untagged {
    ($select:literal, $and:literal) => {
        concat!(
            $select,
            " from manifests m where m.repository = $1 and coalesce(m.untagged_at, m.created_at) <= $2
                and not exists (select 1 from tags t where t.repository = m.repository and t.digest = m.digest)
                and not exists (select 1 from manifest_blobs n
                    where n.repository = m.repository and n.digest = m.digest and n.kind = 'child')
                and not exists (select 1 from referrers r
                    join manifests s on s.repository = r.repository and s.digest = r.subject
                    where r.repository = m.repository and r.digest = m.digest)
                and not exists (select 1 from links l
                    where l.repository = m.repository and l.digest = m.digest and l.leased_until > $3)",
            $and
        )
    };
}

impl Store {
    /// The tags of a repository, newest first.
    pub(crate) async fn tags_by_age(&self, repository: &Repository) -> Result<Vec<AgedTag>, Error> {
        let rows: Vec<AgedTagColumns> = on!(patiently self.read(), c => sqlx::query_as(
            "select name, digest, updated_at from tags where repository = $1 order by updated_at desc, name desc")
            .bind(repository.as_str()).fetch_all(c).await)?;
        rows.into_iter().map(AgedTag::try_from).collect()
    }

    /// Manifests that no tag, index or subject has kept since before `cutoff`, in digest order after `after`.
    pub(crate) async fn manifests_untagged(
        &self,
        repository: &Repository,
        cutoff: i64,
        after: &str,
        limit: i64,
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = on!(patiently self.read(), c => sqlx::query_as(
            untagged!("select m.digest", " and m.digest > $4 order by m.digest limit $5"))
            .bind(repository.as_str()).bind(cutoff).bind(now_ms()).bind(after).bind(limit).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parse_stored("digest", digest)).collect()
    }
}

impl Tx {
    /// Those of these manifests that are still untagged. The repository is locked.
    pub(crate) async fn manifests_recheck_untagged(
        &mut self,
        repository: &Repository,
        digests: &[Digest],
        cutoff: i64,
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = on!(self.conn(), c => sqlx::query_as(
            untagged!("select m.digest", " and m.digest in (select value from json_each($4))"))
            .bind(repository.as_str()).bind(cutoff).bind(now_ms()).bind(digest_list(digests)).fetch_all(c).await)?;
        rows.iter().map(|(digest,)| parse_stored("digest", digest)).collect()
    }

    /// Removes a tag, unless it was moved since it was read. The repository is locked.
    pub(crate) async fn tag_delete_unchanged(
        &mut self,
        repository: &Repository,
        tag: &AgedTag,
        why: &RemovalCause,
    ) -> Result<bool, Error> {
        let rows = on!(self.conn(), c => sqlx::query(
            "delete from tags where repository = $1 and name = $2 and digest = $3 and updated_at = $4")
            .bind(repository.as_str()).bind(tag.name.as_str()).bind(tag.digest.as_str()).bind(tag.updated_at)
            .execute(c).await.map(|r| r.rows_affected()))?;
        if rows == 0 {
            return Ok(false);
        }
        self.removal_put_tag(repository, tag.name.as_str(), &tag.digest, why).await?;
        self.manifest_mark_untagged(repository, &tag.digest, why.at).await?;
        Ok(true)
    }
}
