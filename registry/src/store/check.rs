//! What `fsck` asks of the index: every blob in digest order, and references that lead nowhere.

use super::collect::{Doomed, doomed};
use super::{Store, on};
use crate::Error;

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

/// A reference that leads nowhere: `digest` is what is missing, `from` is what names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dangling {
    pub(crate) kind: DanglingKind,
    pub(crate) repository: String,
    pub(crate) from: String,
    pub(crate) digest: String,
}

impl Store {
    /// Live blobs in digest order after `after`.
    pub(crate) async fn blobs_live(&self, after: &str, limit: i64) -> Result<Vec<Doomed>, Error> {
        let rows: Vec<(String, i64, String)> = on!(self.read(), c => sqlx::query_as(
            "select digest, size_bytes, store_key from blobs
             where state = 'live' and digest > $1 order by digest limit $2")
            .bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(doomed).collect()
    }

    pub(crate) async fn dangling(&self) -> Result<Vec<Dangling>, Error> {
        use DanglingKind::{Link, ManifestBlob, ManifestChild, ManifestLink, Tag};
        const QUERIES: [(DanglingKind, &str); 5] = [
            (ManifestBlob, "select n.repository, n.manifest, n.digest from manifest_blobs n
                where n.kind = 'blob' and n.required = 1 and not exists
                    (select 1 from links l where l.repository = n.repository and l.digest = n.digest)"),
            (ManifestChild, "select n.repository, n.manifest, n.digest from manifest_blobs n
                where n.kind = 'child' and n.required = 1 and not exists
                    (select 1 from manifests m where m.repository = n.repository and m.digest = n.digest)"),
            (ManifestLink, "select m.repository, m.digest, m.digest from manifests m
                where not exists (select 1 from links l where l.repository = m.repository and l.digest = m.digest)"),
            (Link, "select l.repository, l.repository, l.digest from links l
                where not exists (select 1 from blobs b where b.digest = l.digest and b.state = 'live')"),
            (Tag, "select t.repository, t.name, t.digest from tags t
                where not exists (select 1 from manifests m where m.repository = t.repository and m.digest = t.digest)"),
        ];
        let mut found = Vec::new();
        for (kind, query) in QUERIES {
            let rows: Vec<(String, String, String)> =
                on!(patiently self.read(), c => sqlx::query_as(query).fetch_all(c).await)?;
            found.extend(rows.into_iter().map(|(repository, from, digest)| Dangling {
                kind,
                repository,
                from,
                digest,
            }));
        }
        Ok(found)
    }
}
