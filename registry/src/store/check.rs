//! The queries of `fsck`: every blob in digest order, and dangling references.

use super::collect::BlobLocationColumns;
use super::{Store, long_query, query};
use crate::Error;
use crate::blobs::BlobLocation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DanglingKind {
    /// A manifest names a blob that its repository does not link.
    ManifestBlob,
    /// An index names a manifest that its repository does not have.
    ManifestChild,
    /// A manifest that its repository does not link as a blob.
    ManifestLink,
    /// A link to a blob that is not live.
    Link,
    /// A tag that points at no manifest.
    Tag,
}

impl DanglingKind {
    pub(crate) const ALL: [DanglingKind; 5] = [
        DanglingKind::ManifestBlob,
        DanglingKind::ManifestChild,
        DanglingKind::ManifestLink,
        DanglingKind::Link,
        DanglingKind::Tag,
    ];
}

/// A dangling reference: `digest` is missing, `from` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dangling {
    pub(crate) kind: DanglingKind,
    pub(crate) repository: String,
    pub(crate) from: String,
    pub(crate) digest: String,
}

/// The columns of a dangling reference; its kind is that of the query.
#[derive(sqlx_macros::FromRow)]
struct DanglingColumns {
    repository: String,
    named_by: String,
    digest: String,
}

impl Store {
    /// Live blobs in digest order after `after`.
    pub(crate) async fn blobs_live(&self, after: &str, limit: i64) -> Result<Vec<BlobLocation>, Error> {
        let rows: Vec<BlobLocationColumns> = query!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key from blobs
             where state = 'live' and digest > $1 order by digest limit $2")
            .bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(BlobLocation::try_from).collect()
    }

    /// The repositories that link a blob, at most `limit`.
    pub(crate) async fn linking_repositories(&self, digest: &str, limit: i64) -> Result<Vec<String>, Error> {
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select repository from links where digest = $1 order by repository limit $2")
            .bind(digest).bind(limit).fetch_all(c).await)?;
        Ok(rows.into_iter().map(|(repository,)| repository).collect())
    }

    /// The tags in these repositories of a manifest, of the manifests that name a blob, and of the indexes that name
    /// those: repository and tag, at most `limit`.
    pub(crate) async fn tags_using(
        &self,
        digest: &str,
        repositories: &[String],
        limit: i64,
    ) -> Result<Vec<(String, String)>, Error> {
        let repositories = serde_json::Value::from(repositories).to_string();
        let rows: Vec<(String, String)> = query!(self.read(), c => sqlx::query_as(
            "select repository, name from tags
             where digest = $1 and repository in (select value from json_each($2))
             union
             select t.repository, t.name from manifest_blobs n
             join tags t on t.repository = n.repository and t.digest = n.manifest
             where n.digest = $1 and n.repository in (select value from json_each($2))
             union
             select t.repository, t.name from manifest_blobs n
             join manifest_blobs i on i.repository = n.repository and i.digest = n.manifest
             join tags t on t.repository = i.repository and t.digest = i.manifest
             where n.digest = $1 and n.repository in (select value from json_each($2))
             order by repository, name limit $3")
            .bind(digest).bind(&repositories).bind(limit).fetch_all(c).await)?;
        Ok(rows)
    }

    /// Dangling references of one kind after `after`, ordered by repository, `from` and digest.
    pub(crate) async fn dangling(
        &self,
        kind: DanglingKind,
        after: Option<&Dangling>,
        limit: i64,
    ) -> Result<Vec<Dangling>, Error> {
        let query = match kind {
            DanglingKind::ManifestBlob => {
                "select n.repository, n.manifest as named_by, n.digest from manifest_blobs n
                 where n.kind = 'blob' and n.required = 1 and (n.repository, n.manifest, n.digest) > ($1, $2, $3) and not exists
                     (select 1 from links l where l.repository = n.repository and l.digest = n.digest)
                 order by n.repository, n.manifest, n.digest limit $4"
            }
            DanglingKind::ManifestChild => {
                "select n.repository, n.manifest as named_by, n.digest from manifest_blobs n
                 where n.kind = 'child' and n.required = 1 and (n.repository, n.manifest, n.digest) > ($1, $2, $3) and not exists
                     (select 1 from manifests m where m.repository = n.repository and m.digest = n.digest)
                 order by n.repository, n.manifest, n.digest limit $4"
            }
            DanglingKind::ManifestLink => {
                "select m.repository, m.digest as named_by, m.digest from manifests m
                 where (m.repository, m.digest, m.digest) > ($1, $2, $3) and not exists
                     (select 1 from links l where l.repository = m.repository and l.digest = m.digest)
                 order by m.repository, m.digest limit $4"
            }
            DanglingKind::Link => {
                "select l.repository, l.repository as named_by, l.digest from links l
                 where (l.repository, l.repository, l.digest) > ($1, $2, $3) and not exists
                     (select 1 from blobs b where b.digest = l.digest and b.state = 'live')
                 order by l.repository, l.digest limit $4"
            }
            DanglingKind::Tag => {
                "select t.repository, t.name as named_by, t.digest from tags t
                 where (t.repository, t.name, t.digest) > ($1, $2, $3) and not exists
                     (select 1 from manifests m where m.repository = t.repository and m.digest = t.digest)
                 order by t.repository, t.name limit $4"
            }
        };
        let (repository, from, digest) =
            after.map_or(("", "", ""), |last| (&last.repository[..], &last.from[..], &last.digest[..]));
        let rows: Vec<DanglingColumns> = long_query!(self.read(), c => sqlx::query_as(query)
            .bind(repository).bind(from).bind(digest).bind(limit).fetch_all(c).await)?;
        let read = |row: DanglingColumns| Dangling {
            kind,
            repository: row.repository,
            from: row.named_by,
            digest: row.digest,
        };
        Ok(rows.into_iter().map(read).collect())
    }
}
