//! The queries of a dry-run collection, one object at a time. All of them only read.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};

use super::{Store, parse_stored, query, size};
use crate::Error;
use crate::time::now_ms;

/// References and leases that keep a manifest.
pub(crate) struct ManifestHolders {
    pub(crate) exists: bool,
    pub(crate) tags: Vec<Tag>,
    /// Indexes that list it.
    pub(crate) indexes: Vec<Digest>,
    /// Its subject, if the repository has it.
    pub(crate) subject: Option<Digest>,
    pub(crate) leased: bool,
}

/// References and leases that keep a link.
pub(crate) struct LinkHolders {
    pub(crate) manifests: Vec<Digest>,
    pub(crate) is_manifest: bool,
    pub(crate) leased: bool,
}

/// References that keep a blob.
pub(crate) struct BlobHolders {
    pub(crate) size_bytes: u64,
    pub(crate) released_at: i64,
    pub(crate) repositories: Vec<Repository>,
    /// Kept for an undo.
    pub(crate) kept_for_undo: bool,
}

#[derive(sqlx_macros::FromRow)]
struct LinkColumns {
    leased_until: i64,
    is_manifest: bool,
}

#[derive(sqlx_macros::FromRow)]
struct BlobColumns {
    size_bytes: i64,
    released_at: i64,
    kept_for_undo: bool,
}

impl Store {
    pub(crate) async fn manifest_holders(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<ManifestHolders, Error> {
        let tags: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select name from tags where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_all(c).await)?;
        let indexes: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select manifest from manifest_blobs where repository = $1 and digest = $2 and kind = 'child'")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_all(c).await)?;
        let subject: Option<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select r.subject from referrers r join manifests m on m.repository = r.repository and m.digest = r.subject
             where r.repository = $1 and r.digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_optional(c).await)?;
        let link = self.link_holders(repository, digest).await?;
        Ok(ManifestHolders {
            tags: tags.iter().map(|(name,)| parse_stored("tag", name)).collect::<Result<_, _>>()?,
            indexes: indexes
                .iter()
                .map(|(digest,)| parse_stored("digest", digest))
                .collect::<Result<_, _>>()?,
            subject: subject.map(|(digest,)| parse_stored("digest", &digest)).transpose()?,
            exists: link.as_ref().is_some_and(|link| link.is_manifest),
            leased: link.is_some_and(|link| link.leased),
        })
    }

    /// The references of a manifest: blobs, and the manifests of an index.
    pub(crate) async fn manifest_references(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<(Vec<Digest>, Vec<Digest>), Error> {
        let rows: Vec<(String, String)> = query!(self.read(), c => sqlx::query_as(
            "select digest, kind from manifest_blobs where repository = $1 and manifest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_all(c).await)?;
        let (mut blobs, mut children) = (Vec::new(), Vec::new());
        for (digest, kind) in rows {
            let list = if kind == "child" { &mut children } else { &mut blobs };
            list.push(parse_stored("digest", &digest)?);
        }
        Ok((blobs, children))
    }

    /// `None` if the repository does not link it.
    pub(crate) async fn link_holders(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<LinkHolders>, Error> {
        let link: Option<LinkColumns> = query!(self.read(), c => sqlx::query_as(
            "select leased_until,
                 exists (select 1 from manifests m where m.repository = $1 and m.digest = $2) as is_manifest
             from links where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_optional(c).await)?;
        let Some(link) = link else { return Ok(None) };
        let named: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select manifest from manifest_blobs where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_all(c).await)?;
        Ok(Some(LinkHolders {
            manifests: named
                .iter()
                .map(|(digest,)| parse_stored("digest", digest))
                .collect::<Result<_, _>>()?,
            is_manifest: link.is_manifest,
            leased: link.leased_until > now_ms(),
        }))
    }

    /// `None` if it is not live.
    pub(crate) async fn blob_holders(&self, digest: &Digest) -> Result<Option<BlobHolders>, Error> {
        let row: Option<BlobColumns> = query!(self.read(), c => sqlx::query_as(
            "select size_bytes, released_at,
                 exists (select 1 from removal_blobs k where k.digest = $1 and k.undo_until > $2) as kept_for_undo
             from blobs where digest = $1 and state = 'live'")
            .bind(digest.as_str()).bind(now_ms()).fetch_optional(c).await)?;
        let Some(row) = row else { return Ok(None) };
        let links: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select repository from links where digest = $1").bind(digest.as_str()).fetch_all(c).await)?;
        Ok(Some(BlobHolders {
            size_bytes: size(row.size_bytes)?,
            released_at: row.released_at,
            repositories: links
                .iter()
                .map(|(name,)| parse_stored("repository", name))
                .collect::<Result<_, _>>()?,
            kept_for_undo: row.kept_for_undo,
        }))
    }
}
