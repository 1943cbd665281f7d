//! Content that has lost its references and waits for its deletion. Only reads, for people; the collection
//! checks every condition itself.

use sqlx::AssertSqlSafe;

use super::{Store, query, size};
use crate::Error;
use crate::time::now_ms;

/// How many objects of each kind are examined: those that lost their references first.
const MAX_EXAMINED: i64 = if cfg!(test) { 40 } else { 10_000 };
/// The most blobs that are counted.
const MAX_BLOBS: i64 = 10 * MAX_EXAMINED;

/// Whether the collection will delete the manifest `m`: no tag and no index names it, and it describes no other
/// manifest.
const WAITS: &str = "(m.unreferenced_at is not null
    and not exists (select 1 from tags t where t.repository = m.repository and t.digest = m.digest)
    and not exists (select 1 from manifest_blobs parent where parent.repository = m.repository
                    and parent.digest = m.digest and parent.kind = 'child')
    and not exists (select 1 from referrers r
                    join manifests s on s.repository = r.repository and s.digest = r.subject
                    where r.repository = m.repository and r.digest = m.digest))";

/// What waits, and when the first of it may be deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitingContent {
    pub(crate) manifests: u64,
    /// Of repositories to blobs that none of their manifests names.
    pub(crate) links: u64,
    pub(crate) blobs: u64,
    pub(crate) size_bytes: u64,
    /// In milliseconds since 1970.
    pub(crate) first_at: Option<i64>,
    /// There are more objects than were examined.
    pub(crate) is_partial: bool,
}

/// The oldest rows of a table that wait, by their index.
fn oldest(table: &str, columns: &str, since: &str) -> String {
    format!(
        "(select {columns}, {since} from {table} where {since} is not null order by {since}, {columns} limit {MAX_EXAMINED})"
    )
}

impl Store {
    /// Content without references, which the collection deletes `grace_ms` after it lost the last one.
    pub(crate) async fn waiting_content(&self, grace_ms: i64) -> Result<WaitingContent, Error> {
        let manifests = oldest("manifests", "repository, digest", "unreferenced_at");
        let links = oldest("links", "repository, digest", "unreferenced_at");
        let blobs = oldest("blobs", "digest", "unlinked_at");
        let text = AssertSqlSafe(format!(
            "select count(*), min(case when m.unreferenced_at + cast($1 as bigint) > l.leased_until
                                  then m.unreferenced_at + cast($1 as bigint) else l.leased_until end)
             from {manifests} m join links l on l.repository = m.repository and l.digest = m.digest
             where {WAITS}"
        ));
        let (waiting_manifests, first_manifest): (i64, Option<i64>) =
            query!(self.read(), c => sqlx::query_as(text).bind(grace_ms).fetch_one(c).await)?;
        let text = AssertSqlSafe(format!(
            "select count(*), min(case when o.unreferenced_at + cast($1 as bigint) > l.leased_until
                                  then o.unreferenced_at + cast($1 as bigint) else l.leased_until end)
             from {links} o join links l on l.repository = o.repository and l.digest = o.digest
             where not exists (select 1 from manifest_blobs n
                               where n.repository = l.repository and n.digest = l.digest)
               and not exists (select 1 from manifests m
                               where m.repository = l.repository and m.digest = l.digest)"
        ));
        let (waiting_links, first_link): (i64, Option<i64>) =
            query!(self.read(), c => sqlx::query_as(text).bind(grace_ms).fetch_one(c).await)?;
        // A removed manifest keeps its blobs until it can no longer be restored.
        let text = AssertSqlSafe(format!(
            "select min(case when b.undo_until > b.due then b.undo_until else b.due end) from (
                 select u.unlinked_at + cast($1 as bigint) as due,
                        coalesce((select max(k.undo_until) from removal_blobs k where k.digest = u.digest), 0)
                            as undo_until
                 from {blobs} o join blobs u on u.digest = o.digest where u.state = 'live') b"
        ));
        let (first_blob,): (Option<i64>,) =
            query!(self.read(), c => sqlx::query_as(text).bind(grace_ms).fetch_one(c).await)?;
        let text = AssertSqlSafe(format!(
            "with candidates as (
                 select digest from (
                     select n.digest from {manifests} m join manifest_blobs n
                         on n.repository = m.repository and n.manifest = m.digest and n.kind = 'blob'
                     where {WAITS}
                     union select m.digest from {manifests} m where {WAITS}
                     union select l.digest from {links} l
                     union select u.digest from {blobs} u) c limit {MAX_BLOBS})
             select count(*), cast(coalesce(sum(b.size_bytes), 0) as bigint)
             from candidates c join blobs b on b.digest = c.digest and b.state = 'live'
             where not exists (select 1 from links l where l.digest = c.digest and (
                 exists (select 1 from manifest_blobs n
                         join manifests m on m.repository = n.repository and m.digest = n.manifest
                         where n.repository = l.repository and n.digest = l.digest and not {WAITS})
                 or exists (select 1 from manifests m
                            where m.repository = l.repository and m.digest = l.digest and not {WAITS})))"
        ));
        let (waiting_blobs, size_bytes): (i64, i64) =
            query!(self.read(), c => sqlx::query_as(text).fetch_one(c).await)?;
        let text = AssertSqlSafe(format!(
            "select (select count(*) from {manifests} m) = {MAX_EXAMINED}
                 or (select count(*) from {links} l) = {MAX_EXAMINED}
                 or (select count(*) from {blobs} b) = {MAX_EXAMINED}"
        ));
        let (is_partial,): (bool,) = query!(self.read(), c => sqlx::query_as(text).fetch_one(c).await)?;
        let first = [first_manifest, first_link, first_blob].into_iter().flatten().min();
        Ok(WaitingContent {
            manifests: size(waiting_manifests)?,
            links: size(waiting_links)?,
            blobs: size(waiting_blobs)?,
            size_bytes: size(size_bytes)?,
            // What is due already is deleted by the next collection.
            first_at: first.map(|first| first.max(now_ms())),
            is_partial: is_partial || waiting_blobs >= MAX_BLOBS,
        })
    }
}
