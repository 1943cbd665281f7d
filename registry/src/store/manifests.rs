//! Manifests of a repository, their references, and the referrers of a subject. A link, a manifest and its
//! references change in one transaction, so that the collection never sees a part of the change.

use std::collections::{BTreeMap, HashSet};

use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository, Tag};

use super::manifest_row::ManifestRow;
use super::read_cache::CachedValue;
use super::{Store, Tx, bigint, digest_list, parse_stored, query, size};
use crate::Error;
use crate::time::now_ms;

#[derive(sqlx_macros::FromRow)]
struct ManifestColumns {
    digest: String,
    media_type: String,
    bytes: Vec<u8>,
}

impl TryFrom<ManifestColumns> for ManifestRow {
    type Error = Error;

    fn try_from(row: ManifestColumns) -> Result<ManifestRow, Error> {
        Ok(ManifestRow {
            digest: parse_stored("digest", &row.digest)?,
            media_type: row.media_type,
            bytes: row.bytes.into(),
        })
    }
}

/// A manifest to record.
#[derive(Clone, Copy)]
pub(crate) struct NewManifest<'a> {
    pub(crate) digest: &'a Digest,
    pub(crate) media_type: &'a str,
    pub(crate) artifact_type: Option<&'a str>,
    pub(crate) bytes: &'a [u8],
}

/// The referrers of a subject to list, in digest order.
#[derive(Clone, Copy)]
pub(crate) struct ReferrerQuery<'a> {
    pub(crate) subject: &'a Digest,
    pub(crate) artifact_type: Option<&'a str>,
    pub(crate) after: Option<&'a Digest>,
    pub(crate) limit: u32,
}

#[derive(Clone, Debug, sqlx_macros::FromRow)]
pub(crate) struct ReferrerRow {
    pub(crate) digest: String,
    pub(crate) media_type: String,
    pub(crate) size_bytes: i64,
    pub(crate) artifact_type: Option<String>,
    pub(crate) annotations: Option<String>,
}

/// The references of a manifest, by kind and by whether they must exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct ManifestReferences {
    pub(crate) blobs: Vec<Digest>,
    /// Blobs that may be absent.
    pub(crate) optional_blobs: Vec<Digest>,
    pub(crate) children: Vec<Digest>,
    pub(crate) optional_children: Vec<Digest>,
}

impl Store {
    pub(crate) async fn manifest_read(
        &self,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<ManifestRow>, Error> {
        let key = match reference {
            Reference::Digest(digest) => format!("{repository}@{digest}"),
            Reference::Tag(tag) => format!("{repository}:{tag}"),
        };
        let from = |known| if let CachedValue::Manifest(row) = known { Some(row) } else { None };
        self.read_cached(key, self.manifest_find(repository, reference), CachedValue::Manifest, from).await
    }

    /// Reads the manifest from the database, without the cache.
    pub(crate) async fn manifest_find(
        &self,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<ManifestRow>, Error> {
        let row: Option<ManifestColumns> = match reference {
            Reference::Digest(digest) => query!(self.read(), c => sqlx::query_as(
                "select digest, media_type, bytes from manifests where repository = $1 and digest = $2")
                .bind(repository.as_str()).bind(digest.as_str()).fetch_optional(c).await)?,
            Reference::Tag(tag) => query!(self.read(), c => sqlx::query_as(
                "select m.digest, m.media_type, m.bytes from tags t
                 join manifests m on m.repository = t.repository and m.digest = t.digest
                 where t.repository = $1 and t.name = $2")
                .bind(repository.as_str()).bind(tag.as_str()).fetch_optional(c).await)?,
        };
        row.map(ManifestRow::try_from).transpose()
    }

    pub(crate) async fn repository_exists(&self, repository: &Repository) -> Result<bool, Error> {
        let (exists,): (bool,) = query!(self.read(), c => sqlx::query_as(
            "select exists (select 1 from repositories where name = $1)")
            .bind(repository.as_str()).fetch_one(c).await)?;
        Ok(exists)
    }

    /// The sizes of those of these blobs that the repository links.
    pub(crate) async fn link_sizes(
        &self,
        repository: &Repository,
        digests: &[&Digest],
    ) -> Result<BTreeMap<Digest, u64>, Error> {
        let rows: Vec<(String, i64)> = query!(self.read(), c => sqlx::query_as(
            "select l.digest, b.size_bytes from links l join blobs b on b.digest = l.digest
             where l.repository = $1 and l.digest in (select value from json_each($2))")
            .bind(repository.as_str()).bind(digest_list(digests.iter().copied())).fetch_all(c).await)?;
        rows.iter().map(|(text, bytes)| Ok((parse_stored("digest", text)?, size(*bytes)?))).collect()
    }

    /// Those of these manifests that the repository does not have.
    pub(crate) async fn manifests_missing(
        &self,
        repository: &Repository,
        digests: &[Digest],
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(MANIFESTS_MISSING)
            .bind(repository.as_str()).bind(digest_list(digests)).fetch_all(c).await)?;
        rows.iter().map(|(text,)| parse_stored("digest", text)).collect()
    }

    /// The referrer of this artifact type that was pushed last.
    pub(crate) async fn referrer_newest(
        &self,
        repository: &Repository,
        subject: &Digest,
        artifact_type: &str,
    ) -> Result<Option<Digest>, Error> {
        let row: Option<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select digest from referrers where repository = $1 and subject = $2 and artifact_type = $3
             order by created_at desc, digest limit 1")
            .bind(repository.as_str()).bind(subject.as_str()).bind(artifact_type).fetch_optional(c).await)?;
        row.map(|(digest,)| parse_stored("digest", &digest)).transpose()
    }

    /// Those manifests that have a signature: a referrer whose type says so, or the tag with which cosign names the
    /// signatures of a digest.
    pub(crate) async fn manifests_signed(
        &self,
        repository: &Repository,
        digests: &[Digest],
    ) -> Result<HashSet<Digest>, Error> {
        let tag = |digest: &Digest| format!("{}.sig", digest.as_str().replace(':', "-"));
        let tags = serde_json::Value::from_iter(digests.iter().map(tag)).to_string();
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(MANIFESTS_SIGNED)
            .bind(repository.as_str()).bind(digest_list(digests)).bind(&tags).fetch_all(c).await)?;
        let found: HashSet<String> = rows.into_iter().map(|(text,)| text).collect();
        let is_signed = |digest: &&Digest| found.contains(digest.as_str()) || found.contains(&tag(digest));
        Ok(digests.iter().filter(is_signed).cloned().collect())
    }

    pub(crate) async fn referrer_list(
        &self,
        repository: &Repository,
        query: ReferrerQuery<'_>,
    ) -> Result<Vec<ReferrerRow>, Error> {
        let ReferrerQuery { subject, artifact_type, after, limit } = query;
        Ok(query!(self.read(), c => sqlx::query_as(
            "select digest, media_type, size_bytes, artifact_type, annotations from referrers
             where repository = $1 and subject = $2 and digest > $3 and (artifact_type = $4 or $4 is null)
             order by digest limit $5")
            .bind(repository.as_str()).bind(subject.as_str()).bind(after.map_or("", Digest::as_str))
            .bind(artifact_type).bind(i64::from(limit)).fetch_all(c).await)?)
    }
}

const LINKS_MISSING: &str = "select distinct value from json_each($2)
     where value not in (select digest from links where repository = $1 and digest in (select value from json_each($2)))";
const MANIFESTS_SIGNED: &str = "select subject from referrers
     where repository = $1 and subject in (select value from json_each($2))
       and (artifact_type like '%signature%' or artifact_type like '%sigstore%' or artifact_type like '%cosign%.sig%')
     union select name from tags where repository = $1 and name in (select value from json_each($3))";
const MANIFESTS_MISSING: &str = "select distinct value from json_each($2)
     where value not in (select digest from manifests where repository = $1 and digest in (select value from json_each($2)))";

impl Tx {
    /// Marks links as named by a manifest, and returns those that do not exist. The links stay locked.
    pub(crate) async fn links_reference(
        &mut self,
        repository: &Repository,
        digests: &[Digest],
    ) -> Result<Vec<Digest>, Error> {
        let mark = "update links set unreferenced_at = null
             where repository = $1 and digest in (select value from json_each($2))";
        self.mark_referenced(repository, digests, mark, LINKS_MISSING).await
    }

    /// Marks manifests as named by an index, and returns those that do not exist. The manifests stay locked.
    pub(crate) async fn manifests_reference(
        &mut self,
        repository: &Repository,
        digests: &[Digest],
    ) -> Result<Vec<Digest>, Error> {
        let mark = "update manifests set unreferenced_at = null
             where repository = $1 and digest in (select value from json_each($2))";
        self.mark_referenced(repository, digests, mark, MANIFESTS_MISSING).await
    }

    async fn mark_referenced(
        &mut self,
        repository: &Repository,
        digests: &[Digest],
        mark: &'static str,
        missing: &'static str,
    ) -> Result<Vec<Digest>, Error> {
        if digests.is_empty() {
            return Ok(Vec::new());
        }
        let list = digest_list(digests);
        query!(self.conn(), c => sqlx::query(mark)
            .bind(repository.as_str()).bind(&list[..]).execute(c).await.map(drop))?;
        let rows: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(missing)
            .bind(repository.as_str()).bind(&list[..]).fetch_all(c).await)?;
        rows.iter().map(|(text,)| parse_stored("digest", text)).collect()
    }

    /// Records a manifest whose blob is linked, and queues it to be read as a model.
    pub(crate) async fn manifest_insert(
        &mut self,
        repository: &Repository,
        manifest: NewManifest<'_>,
    ) -> Result<(), Error> {
        let NewManifest { digest, media_type, artifact_type, bytes } = manifest;
        query!(self.conn(), c => sqlx::query(
            "insert into manifests (repository, digest, media_type, artifact_type, bytes, created_at)
             values ($1, $2, $3, $4, $5, $6)
             on conflict (repository, digest) do update
             set media_type = excluded.media_type, artifact_type = excluded.artifact_type, unreferenced_at = null,
                 untagged_at = excluded.created_at")
            .bind(repository.as_str()).bind(digest.as_str()).bind(media_type).bind(artifact_type)
            .bind(bytes).bind(now_ms()).execute(c).await.map(drop))?;
        query!(self.conn(), c => sqlx::query("update links set unreferenced_at = null where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).execute(c).await.map(drop))?;
        self.index_enqueue(repository, digest).await
    }

    /// Replaces the recorded references of a manifest.
    pub(crate) async fn references_replace(
        &mut self,
        repository: &Repository,
        manifest: &Digest,
        named: &ManifestReferences,
    ) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query("delete from manifest_blobs where repository = $1 and manifest = $2")
            .bind(repository.as_str()).bind(manifest.as_str()).execute(c).await.map(drop))?;
        let groups = [
            (&named.blobs, "blob", 1_i64),
            (&named.optional_blobs, "blob", 0),
            (&named.children, "child", 1),
            (&named.optional_children, "child", 0),
        ];
        for (digests, kind, required) in groups {
            if digests.is_empty() {
                continue;
            }
            query!(self.conn(), c => sqlx::query(
                "insert into manifest_blobs (repository, manifest, digest, kind, required)
                 select distinct $1, $2, value, $4, cast($5 as bigint) from json_each($3) where true
                 on conflict (repository, manifest, digest, kind) do nothing")
                .bind(repository.as_str()).bind(manifest.as_str()).bind(digest_list(digests))
                .bind(kind).bind(required).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    pub(crate) async fn referrer_replace(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        subject: Option<(&Digest, &ReferrerRow)>,
    ) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query("delete from referrers where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).execute(c).await.map(drop))?;
        let Some((subject, row)) = subject else { return Ok(()) };
        query!(self.conn(), c => sqlx::query(
            "insert into referrers (repository, subject, digest, media_type, size_bytes, artifact_type, annotations, created_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8)")
            .bind(repository.as_str()).bind(subject.as_str()).bind(digest.as_str())
            .bind(&row.media_type[..]).bind(row.size_bytes).bind(row.artifact_type.as_deref())
            .bind(row.annotations.as_deref()).bind(now_ms()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// The tags of a manifest, and of every index that lists it, directly or through others. The repository is
    /// locked.
    pub(crate) async fn tags_above(
        &mut self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Vec<Tag>, Error> {
        // `union` visits each manifest once. `required` is always 0 or 1: its condition makes SQLite search by
        // digest, because the primary key alone does not have the column.
        let rows: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "with recursive above (digest) as (
                 select digest from manifests where repository = $1 and digest = $2
                 union
                 select n.manifest from above a join manifest_blobs n
                     on n.repository = $1 and n.digest = a.digest and n.kind = 'child' and n.required >= 0)
             select name from tags where repository = $1 and digest in (select digest from above)")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_all(c).await)?;
        rows.iter().map(|(name,)| parse_stored("tag", name)).collect()
    }

    /// Starts the grace period of a manifest that lost a tag, if no other tag names it.
    pub(crate) async fn manifest_mark_untagged(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        at: i64,
    ) -> Result<(), Error> {
        self.manifests_mark_untagged(repository, [digest], at).await
    }

    /// Like `manifest_mark_untagged`, for several manifests.
    pub(super) async fn manifests_mark_untagged(
        &mut self,
        repository: &Repository,
        digests: impl IntoIterator<Item = &Digest>,
        at: i64,
    ) -> Result<(), Error> {
        let list = digest_list(digests);
        query!(self.conn(), c => sqlx::query(
            "update manifests set unreferenced_at = $3, untagged_at = $3
             where repository = $1 and digest in (select value from json_each($2))
               and not exists (select 1 from tags t where t.repository = $1 and t.digest = manifests.digest)")
            .bind(repository.as_str()).bind(list).bind(at).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl ReferrerRow {
    pub(crate) fn new(manifest: NewManifest<'_>, annotations: Option<String>) -> Self {
        ReferrerRow {
            digest: manifest.digest.as_str().to_owned(),
            media_type: manifest.media_type.to_owned(),
            size_bytes: bigint(manifest.bytes.len() as u64),
            artifact_type: manifest.artifact_type.map(str::to_owned),
            annotations,
        }
    }
}
