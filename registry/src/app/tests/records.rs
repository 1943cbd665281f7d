//! Records of removals expire in batches, after the collection has deleted bytes. The long form has a million
//! of each kind.

use std::time::Instant;

use super::*;
use crate::report::{env_number, figure};
use crate::store::{Store, long_query, query};

/// How many records of each kind: LODE_GC_REMOVALS, which the long form sets.
fn records() -> i64 {
    env_number("LODE_GC_REMOVALS", 2_500).cast_signed()
}

/// Adds expired records of removed manifests, and of a blob that each keeps.
async fn fill(store: &Store, count: i64) {
    const NUMBERS: &str = "with recursive numbers (i) as
        (select cast(1 as bigint) union all select i + 1 from numbers where i < $1)";
    let removals = format!(
        "{NUMBERS} insert into removals (id, kind, repository, digest, reason, removed_at, undo_until)
         select 'r' || i, 'manifest', 'r', 'sha256:' || i, 'deleted', i, i + 1 from numbers"
    );
    let blobs = format!(
        "{NUMBERS} insert into removal_blobs (digest, removal, undo_until)
         select 'sha256:' || i, 'r' || i, i + 1 from numbers"
    );
    for text in [removals, blobs] {
        let text = sqlx::AssertSqlSafe(text);
        long_query!(store.write(), c => sqlx::query(text).bind(count).execute(c).await.map(drop)).unwrap();
    }
}

async fn count(store: &Store) -> (i64, i64) {
    query!(store.read(), c => sqlx::query_as(
        "select (select count(*) from removals), (select count(*) from removal_blobs)").fetch_one(c).await)
    .unwrap()
}

#[tokio::test]
async fn records_expire_in_batches_and_others_write_in_between() {
    each_folder(async |f: Fixture| {
        let (store, all) = (f.registry.store(), records());
        fill(store, all).await;
        let recent = f.push("r", b"recent").await;
        f.registry.blob_delete(&CALLER, &repo("r"), &recent).await.unwrap();

        let started = Instant::now();
        let (mut batches, mut deleted, mut longest) = (0, 0, 0);
        store
            .removals_expire(1_000_000_000, |rows| {
                batches += 1;
                deleted += rows;
                longest = longest.max(rows);
            })
            .await
            .unwrap();
        let took = started.elapsed();
        assert_eq!((deleted, count(store).await), (2 * all as u64, (1, 0)));
        assert!(longest <= 1000 && batches >= 2 * all / 1000, "{batches} of {longest}");
        let engine = if f.config.database.is_some() { "PostgreSQL" } else { "SQLite" };
        figure(
            &format!("expiry of {all} removals and as many kept blobs, {engine}"),
            &format!("{took:.1?}, {batches} statements"),
        );
    })
    .await;
}

#[tokio::test]
async fn bytes_are_deleted_even_if_records_cannot_be() {
    each_folder_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let store = f.registry.store();
        if f.config.database.is_some() {
            // The trigger below is in SQLite's dialect.
            return;
        }
        fill(store, 10).await;
        query!(store.write(), c => sqlx::query(
            "create trigger no_expiry before delete on removal_blobs begin select raise(abort, 'held'); end")
            .execute(c).await.map(drop))
        .unwrap();
        let digest = f.push("r", b"to be deleted").await;
        f.registry.blob_delete(&CALLER, &repo("r"), &digest).await.unwrap();
        assert!(f.registry.gc_run(&CALLER, false).await.is_err());
        assert!(!f.holds(&digest).await);
        query!(store.write(), c => sqlx::query("drop trigger no_expiry").execute(c).await.map(drop)).unwrap();
        let report = f.registry.gc_run(&CALLER, false).await.unwrap();
        assert_eq!((report.records, count(store).await.1), (20, 0));
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_collection_of_several_batches_removes_what_a_dry_run_lists() {
    // More than one batch of manifests, links and blobs, in three repositories. Every fiftieth manifest has a
    // tag.
    const MANIFESTS: i64 = 1_300;
    const TAGGED: u64 = 26;
    each_folder_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let store = f.registry.store();
        let zeros = "0".repeat(64);
        let digest = format!("'sha256:' || substr('{zeros}', 1, 64 - length(cast(i as text))) || i");
        let numbers = "with recursive numbers (i) as
            (select cast(1 as bigint) union all select i + 1 from numbers where i < $1)";
        let texts = [
            format!(
                "{numbers} insert into blobs (digest, size_bytes, store_key, created_at, released_at)
                 select {digest}, 2, 'blobs/none/' || i, 1, 1 from numbers"
            ),
            format!("{numbers} insert into repositories (name, created_at) select 'r' || (i - 1), 1 from numbers where i < 4"),
            format!(
                "{numbers} insert into links (repository, digest, leased_until)
                 select 'r' || (i % 3), {digest}, 0 from numbers"
            ),
            format!(
                "{numbers} insert into manifests (repository, digest, media_type, bytes, created_at, unreferenced_at)
                 select 'r' || (i % 3), {digest}, 'x', $2, 1, 1 from numbers"
            ),
            format!(
                "{numbers} insert into tags (repository, name, digest, updated_at)
                 select 'r' || (i % 3), 't' || i, {digest}, 1 from numbers where i % 50 = 0"
            ),
        ];
        for text in texts {
            let has_bytes = text.contains("$2");
            let text = sqlx::AssertSqlSafe(text);
            query!(store.write(), c => {
                let query = sqlx::query(text).bind(MANIFESTS);
                let query = if has_bytes { query.bind(&b"{}"[..]) } else { query };
                query.execute(c).await.map(drop)
            })
            .unwrap();
        }
        let dry = f.registry.gc_run(&CALLER, true).await.unwrap();
        let report = f.registry.gc_run(&CALLER, false).await.unwrap();
        let gone = MANIFESTS as u64 - TAGGED;
        for report in [dry, report] {
            assert_eq!((report.manifests, report.links, report.blobs), (gone, gone, gone));
        }
        let (manifests, candidates): (i64, i64) = query!(store.read(), c => sqlx::query_as(
            "select count(*), count(unreferenced_at) from manifests").fetch_one(c).await)
        .unwrap();
        // A tag keeps them, and they are no longer candidates of a collection.
        assert_eq!((manifests as u64, candidates), (TAGGED, 0));
    })
    .await;
}
