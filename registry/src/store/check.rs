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
