//! Manifests of a repository, what they name, and the listing of a subject's referrers.
//! A link, a manifest and what it names change in one transaction, so that the collection never sees half of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};

use super::recent::Known;
use super::removals::Why;
use super::{Store, Tx, bigint, digest_list, now_ms, on, parsed, size};
use crate::Error;

#[derive(Clone, Debug)]
pub(crate) struct ManifestRow {
    pub(crate) digest: Digest,
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub(crate) struct ReferrerRow {
    pub(crate) digest: String,
    pub(crate) media_type: String,
    pub(crate) size_bytes: i64,
    pub(crate) artifact_type: Option<String>,
    pub(crate) annotations: Option<String>,
}

/// What a manifest names, by how it has to be there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
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
        let from = |known| if let Known::Manifest(row) = known { Some(row) } else { None };
        self.recent(key, self.manifest_find(repository, reference), Known::Manifest, from).await
    }

    /// As the index has it now.
    pub(crate) async fn manifest_find(
        &self,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<ManifestRow>, Error> {
        let row: Option<(String, String, Vec<u8>)> = match reference {
            Reference::Digest(digest) => on!(self.read(), c => sqlx::query_as(
                "select digest, media_type, bytes from manifests where repository = $1 and digest = $2")
                .bind(repository.as_str()).bind(digest.as_str()).fetch_optional(c).await)?,
            Reference::Tag(tag) => on!(self.read(), c => sqlx::query_as(
                "select m.digest, m.media_type, m.bytes from tags t
                 join manifests m on m.repository = t.repository and m.digest = t.digest
                 where t.repository = $1 and t.name = $2")
                .bind(repository.as_str()).bind(tag.as_str()).fetch_optional(c).await)?,
        };
        row.map(|(digest, media_type, bytes)| {
            Ok(ManifestRow { digest: parsed("digest", &digest)?, media_type, bytes: bytes.into() })
        })
        .transpose()
    }

    pub(crate) async fn repository_exists(&self, repository: &Repository) -> Result<bool, Error> {
        let (count,): (i64,) = on!(self.read(), c => sqlx::query_as(
            "select count(*) from repositories where name = $1")
            .bind(repository.as_str()).fetch_one(c).await)?;
        Ok(count > 0)
    }

    /// The sizes of those of these blobs that the repository links.
    pub(crate) async fn link_sizes(
        &self,
        repository: &Repository,
        digests: &[&Digest],
    ) -> Result<BTreeMap<Digest, u64>, Error> {
        let rows: Vec<(String, i64)> = on!(self.read(), c => sqlx::query_as(
            "select l.digest, b.size_bytes from links l join blobs b on b.digest = l.digest
             where l.repository = $1 and l.digest in (select value from json_each($2))")
            .bind(repository.as_str()).bind(digest_list(digests.iter().copied())).fetch_all(c).await)?;
        rows.iter().map(|(text, bytes)| Ok((parsed("digest", text)?, size(*bytes)?))).collect()
    }

    /// Which of these manifests the repository does not have.
    pub(crate) async fn manifests_missing(
        &self,
        repository: &Repository,
        digests: &[Digest],
    ) -> Result<Vec<Digest>, Error> {
        let rows: Vec<(String,)> = on!(self.read(), c => sqlx::query_as(MANIFESTS_MISSING)
            .bind(repository.as_str()).bind(digest_list(digests)).fetch_all(c).await)?;
        rows.iter().map(|(text,)| parsed("digest", text)).collect()
    }

    /// Referrers of a subject in digest order, after `after`.
    pub(crate) async fn referrer_list(
        &self,
        repository: &Repository,
        subject: &Digest,
        artifact_type: Option<&str>,
        after: Option<&Digest>,
        limit: u32,
    ) -> Result<Vec<ReferrerRow>, Error> {
        Ok(on!(self.read(), c => sqlx::query_as(
            "select digest, media_type, size_bytes, artifact_type, annotations from referrers
             where repository = $1 and subject = $2 and digest > $3 and (artifact_type = $4 or $4 is null)
             order by digest limit $5")
            .bind(repository.as_str()).bind(subject.as_str()).bind(after.map_or("", Digest::as_str))
            .bind(artifact_type).bind(i64::from(limit)).fetch_all(c).await)?)
    }
}

const LINKS_MISSING: &str = "select distinct value from json_each($2)
     where value not in (select digest from links where repository = $1 and digest in (select value from json_each($2)))";
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
        self.reference(repository, digests, mark, LINKS_MISSING).await
    }

    /// Marks manifests as named by an index, and returns those that do not exist. The manifests stay locked.
    pub(crate) async fn manifests_reference(
        &mut self,
        repository: &Repository,
        digests: &[Digest],
    ) -> Result<Vec<Digest>, Error> {
        let mark = "update manifests set unreferenced_at = null
             where repository = $1 and digest in (select value from json_each($2))";
        self.reference(repository, digests, mark, MANIFESTS_MISSING).await
    }

    async fn reference(
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
        on!(self.conn(), c => sqlx::query(mark)
            .bind(repository.as_str()).bind(&list[..]).execute(c).await.map(drop))?;
        let rows: Vec<(String,)> = on!(self.conn(), c => sqlx::query_as(missing)
            .bind(repository.as_str()).bind(&list[..]).fetch_all(c).await)?;
        rows.iter().map(|(text,)| parsed("digest", text)).collect()
    }

    /// Records a manifest whose blob is linked, and queues it to be read as a model.
    pub(crate) async fn manifest_insert(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        media_type: &str,
        artifact_type: Option<&str>,
        bytes: &[u8],
    ) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "insert into manifests (repository, digest, media_type, artifact_type, bytes, created_at)
             values ($1, $2, $3, $4, $5, $6)
             on conflict (repository, digest) do update
             set media_type = excluded.media_type, artifact_type = excluded.artifact_type, unreferenced_at = null,
                 untagged_at = excluded.created_at")
            .bind(repository.as_str()).bind(digest.as_str()).bind(media_type).bind(artifact_type)
            .bind(bytes).bind(now_ms()).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query("update links set unreferenced_at = null where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).execute(c).await.map(drop))?;
        self.index_enqueue(repository, digest).await
    }

    /// Records what a manifest names, in place of what it was recorded to name before.
    pub(crate) async fn named_replace(
        &mut self,
        repository: &Repository,
        manifest: &Digest,
        named: &Named,
    ) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query("delete from manifest_blobs where repository = $1 and manifest = $2")
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
            on!(self.conn(), c => sqlx::query(
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
        on!(self.conn(), c => sqlx::query("delete from referrers where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).execute(c).await.map(drop))?;
        let Some((subject, row)) = subject else { return Ok(()) };
        on!(self.conn(), c => sqlx::query(
            "insert into referrers (repository, subject, digest, media_type, size_bytes, artifact_type, annotations)
             values ($1, $2, $3, $4, $5, $6, $7)")
            .bind(repository.as_str()).bind(subject.as_str()).bind(digest.as_str())
            .bind(&row.media_type[..]).bind(row.size_bytes).bind(row.artifact_type.as_deref())
            .bind(row.annotations.as_deref()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Removes a manifest with its tags, says why, and starts the grace (at `at`) of what it alone named. False if it was not
    /// there. The repository is locked.
    pub(crate) async fn manifest_delete(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        at: i64,
        why: &Why,
    ) -> Result<bool, Error> {
        // 1. Children of an index may now be alone, and so may the blobs; keep their names past the cascade.
        let named: Vec<(String, String)> = on!(self.conn(), c => sqlx::query_as(
            "select digest, kind from manifest_blobs where repository = $1 and manifest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_all(c).await)?;
        // 2. The manifest goes with its tags; what it names and its place among referrers go by cascade.
        let (found,): (i64,) = on!(self.conn(), c => sqlx::query_as(
            "select count(*) from manifests where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_one(c).await)?;
        if found == 0 {
            return Ok(false);
        }
        let tags: Vec<(String,)> = on!(self.conn(), c => sqlx::query_as(
            "delete from tags where repository = $1 and digest = $2 returning name")
            .bind(repository.as_str()).bind(digest.as_str()).fetch_all(c).await)?;
        for (tag,) in tags {
            self.tag_removed(repository, &tag, digest, why).await?;
        }
        self.manifest_removed(repository, digest, why).await?;
        on!(self.conn(), c => sqlx::query("delete from manifests where repository = $1 and digest = $2")
            .bind(repository.as_str()).bind(digest.as_str()).execute(c).await.map(drop))?;
        // 3. An index that lists it goes on without it.
        on!(self.conn(), c => sqlx::query(
            "update manifest_blobs set required = 0 where repository = $1 and digest = $2 and kind = 'child'")
            .bind(repository.as_str()).bind(digest.as_str()).execute(c).await.map(drop))?;
        // 4. What nothing names any more starts its grace.
        let of_kind = |wanted: &str| -> Vec<&str> {
            named.iter().filter(|(_, kind)| kind == wanted).map(|(digest, _)| digest.as_str()).collect()
        };
        let children = serde_json::Value::from(of_kind("child")).to_string();
        on!(self.conn(), c => sqlx::query(
            "update manifests set unreferenced_at = $3
             where repository = $1 and digest in (select value from json_each($2)) and unreferenced_at is null
               and not exists (select 1 from manifest_blobs n
                   where n.repository = $1 and n.digest = manifests.digest and n.kind = 'child')
               and not exists (select 1 from tags t where t.repository = $1 and t.digest = manifests.digest)")
            .bind(repository.as_str()).bind(children).bind(at).execute(c).await.map(drop))?;
        let mut links = of_kind("blob");
        links.extend(of_kind("child"));
        links.push(digest.as_str());
        let links = serde_json::Value::from(links).to_string();
        on!(self.conn(), c => sqlx::query(
            "update links set unreferenced_at = $3
             where repository = $1 and digest in (select value from json_each($2)) and unreferenced_at is null
               and not exists (select 1 from manifest_blobs n where n.repository = $1 and n.digest = links.digest)
               and not exists (select 1 from manifests m where m.repository = $1 and m.digest = links.digest)")
            .bind(repository.as_str()).bind(links).bind(at).execute(c).await.map(drop))?;
        // 5. What was read out of it as a model, if no other repository has it.
        on!(self.conn(), c => sqlx::query(
            "delete from models where digest = $1 and not exists (select 1 from manifests where digest = $1)")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        on!(self.conn(), c => sqlx::query(
            "delete from index_queue where digest = $1 and not exists (select 1 from manifests where digest = $1)")
            .bind(digest.as_str()).execute(c).await.map(drop))?;
        Ok(true)
    }

    /// Starts the grace of a manifest that lost a tag, if nothing else names it.
    pub(crate) async fn manifest_untagged(
        &mut self,
        repository: &Repository,
        digest: &Digest,
        at: i64,
    ) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "update manifests set unreferenced_at = $3, untagged_at = $3
             where repository = $1 and digest = $2
               and not exists (select 1 from tags t where t.repository = $1 and t.digest = $2)")
            .bind(repository.as_str()).bind(digest.as_str()).bind(at).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl ReferrerRow {
    pub(crate) fn new(
        digest: &Digest,
        media_type: &str,
        size_bytes: u64,
        artifact_type: Option<&str>,
        annotations: Option<String>,
    ) -> Self {
        ReferrerRow {
            digest: digest.as_str().to_owned(),
            media_type: media_type.to_owned(),
            size_bytes: bigint(size_bytes),
            artifact_type: artifact_type.map(str::to_owned),
            annotations,
        }
    }
}
