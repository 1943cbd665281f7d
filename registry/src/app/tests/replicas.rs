//! Races between replicas, each in both orders. The test holds the lock that decides the race, in place of
//! the other replica.

use std::time::Duration;

use super::*;
use crate::blobs::BlobLocation;
use crate::store::{NewManifest, RemovalCause, RemovalReason, Store, Tx, UnreferencedContent, query};
use crate::time::{millis, now_ms};

/// Long enough for an operation that does not wait for a lock.
const GRACE_TIME: Duration = Duration::from_millis(300);

pub(super) fn test_cause() -> RemovalCause {
    let actor = Caller::INTERNAL.actor();
    RemovalCause { reason: RemovalReason::Unreferenced, actor, at: now_ms(), undo_until: 0 }
}

/// The store of another replica.
async fn other(f: &Fixture) -> Store {
    Store::open(f.config.database.as_ref(), &f.config.data).await.unwrap()
}

/// Drives `work` for a while and asserts that it does not end.
async fn assert_blocked<T>(work: &mut (impl Future<Output = T> + Unpin)) {
    assert!(tokio::time::timeout(GRACE_TIME, work).await.is_err(), "it did not wait for the lock");
}

async fn insert(store: &Store, digest: &Digest, key: &str, damaged: Option<&str>) -> bool {
    let mut tx = store.begin().await.unwrap();
    let ours = tx.blob_insert(digest, 7, key, damaged).await.unwrap();
    tx.commit().await.unwrap();
    ours
}

async fn condemn(tx: &mut Tx, digest: &Digest, key: &str) -> usize {
    let doomed = BlobLocation { digest: digest.clone(), size_bytes: 7, store_key: key.to_owned() };
    tx.blobs_tombstone(&[doomed], now_ms(), &test_cause()).await.unwrap().len()
}

async fn tombstones(store: &Store) -> Vec<String> {
    store.tombstones("", 10).await.unwrap().into_iter().map(|doomed| doomed.store_key).collect()
}

#[tokio::test]
async fn every_key_of_a_digest_is_deleted_once_and_the_newest_stays() {
    each_engine(async |f: Fixture| {
        let (store, digest) = (f.registry.store(), Digest::sha256(b"x"));
        assert!(insert(store, &digest, "k1", None).await);
        // Another replica stored the same blob at the same time: the first one wins.
        assert!(!insert(store, &digest, "k2", None).await);
        assert_eq!(store.blob_live(&digest).await.unwrap().unwrap().1, "k1");

        let mut tx = store.begin().await.unwrap();
        assert_eq!(condemn(&mut tx, &digest, "k1").await, 1);
        tx.commit().await.unwrap();
        assert!(store.blob_live(&digest).await.unwrap().is_none());
        // A push during the deletion stores new bytes, and the old ones are still deleted.
        assert!(insert(store, &digest, "k3", None).await);
        assert_eq!(tombstones(store).await, ["k1"]);
        let old = store.tombstones("", 1).await.unwrap().remove(0);
        let mut tx = store.begin().await.unwrap();
        tx.tombstones_delete(&[old]).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(store.blob_live(&digest).await.unwrap().unwrap().1, "k3");
        // Damaged bytes are replaced and deleted.
        assert!(insert(store, &digest, "k4", Some("k3")).await);
        assert_eq!(tombstones(store).await, ["k3"]);
        assert!(store.has_key("k3").await.unwrap() && store.has_key("k4").await.unwrap());
        // Under the same key, as in the folder, the deletion is cancelled.
        let mut tx = store.begin().await.unwrap();
        assert_eq!(condemn(&mut tx, &digest, "k4").await, 1);
        tx.commit().await.unwrap();
        assert!(insert(store, &digest, "k4", None).await);
        assert_eq!(tombstones(store).await, ["k3"]);
    })
    .await;
}

#[tokio::test]
async fn one_replica_collects_at_a_time() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        if f.config.database.is_none() {
            return;
        }
        let store = other(&f).await;
        let turn = store.replica_lock("collection").await.unwrap();
        // A scheduled collection leaves it to the other replica; a requested one waits.
        f.registry.gc_scheduled().await.unwrap();
        let mut collection = Box::pin(f.registry.gc_run(&CALLER, false));
        assert_blocked(&mut collection).await;
        drop(turn);
        collection.await.unwrap();
        // A dropped lock is released a moment later.
        store.replica_lock("collection").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_replica_lock_is_not_an_idle_transaction() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (
        Store::open(Some(&database), folder.path()).await.unwrap(),
        Store::open(Some(&database), folder.path()).await.unwrap(),
    );
    let turn = one.replica_lock_try("test").await.unwrap().unwrap();
    assert!(two.replica_lock_try("test").await.unwrap().is_none());
    let (open,): (bool,) = query!(two.read(), c => sqlx::query_as(
        "select exists (select 1 from pg_locks l join pg_stat_activity a on a.pid = l.pid
             where l.locktype = 'advisory' and l.objid = cast(cast(hashtext(current_schema()) as bigint) & 4294967295 as oid)
               and a.state like 'idle in transaction%')")
        .fetch_one(c).await)
    .unwrap();
    assert!(!open);
    drop(turn);
    two.replica_lock("test").await.unwrap();
}

#[tokio::test]
async fn links_of_one_repository_are_made_side_by_side() {
    each_engine(async |f: Fixture| {
        if f.config.database.is_none() {
            return;
        }
        let store = other(&f).await;
        let (one, two) = (f.push("source", b"one").await, f.push("source", b"two").await);
        f.push("r", b"the repository exists").await;
        let mut tx = store.begin().await.unwrap();
        tx.blob_lock(&one).await.unwrap().unwrap();
        tx.link(&repo("r"), &one, millis(Duration::from_secs(60))).await.unwrap();
        // While the link is uncommitted, others mount and push into the repository; if they waited, they
        // would time out.
        f.registry.blob_mount(&CALLER, &repo("r"), &two, None).await.unwrap().unwrap();
        f.push("r", b"three").await;
        // A collection leaves the repository alone.
        f.registry.gc_run(&CALLER, false).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(f.pull("r", &one).await.unwrap(), b"one");
        assert_eq!(f.pull("r", &two).await.unwrap(), b"two");
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn several_start_on_an_empty_database_at_once() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let opening = (0..4).map(|_| Store::open(Some(&database), folder.path()));
    for opened in futures::future::join_all(opening).await {
        opened.unwrap().ping().await.unwrap();
    }
}

#[tokio::test]
async fn a_blob_is_linked_before_the_collection_comes_to_it() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let store = other(&f).await;
        let digest = f.push("r", b"wanted").await;
        f.registry.blob_delete(&CALLER, &repo("r"), &digest).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        tx.blob_lock(&digest).await.unwrap().unwrap();
        tx.link(&repo("other"), &digest, millis(Duration::from_secs(60))).await.unwrap();
        let mut collecting = Box::pin(f.registry.gc_run(&CALLER, false));
        if f.config.database.is_some() {
            // It skips a blob that a push has locked, and does not wait for it.
            assert_eq!(collecting.await.unwrap().blobs, 0);
            tx.commit().await.unwrap();
        } else {
            assert_blocked(&mut collecting).await;
            tx.commit().await.unwrap();
            assert_eq!(collecting.await.unwrap().blobs, 0);
        }
        assert_eq!(f.pull("other", &digest).await.unwrap(), b"wanted");
        f.registry.gc_run(&CALLER, false).await.unwrap();
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_blob_is_pushed_while_the_collection_has_it() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let store = other(&f).await;
        let digest = f.push("r", b"wanted").await;
        f.registry.blob_delete(&CALLER, &repo("r"), &digest).await.unwrap();
        let (_, key) = store.blob_live(&digest).await.unwrap().unwrap();
        let mut tx = store.begin().await.unwrap();
        assert_eq!(condemn(&mut tx, &digest, &key).await, 1);
        let mut pushing = Box::pin(f.push("r", b"wanted"));
        assert_blocked(&mut pushing).await;
        tx.commit().await.unwrap();
        // It finds no live blob, and stores its own bytes.
        pushing.await;
        f.put("r", "t", &image(&digest, &[])).await.unwrap();
        f.registry.gc_run(&CALLER, false).await.unwrap();
        assert_eq!(f.pull("r", &digest).await.unwrap(), b"wanted");
        assert_eq!(tombstones(&store).await, Vec::<String>::new());
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_mount_during_the_deletion_of_its_blob_finds_none() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let store = other(&f).await;
        let digest = f.push("r", b"wanted").await;
        let (_, key) = store.blob_live(&digest).await.unwrap().unwrap();
        let mut tx = store.begin().await.unwrap();
        tx.blob_lock(&digest).await.unwrap();
        tx.unlink(&repo("r"), &digest).await.unwrap();
        assert_eq!(condemn(&mut tx, &digest, &key).await, 1);
        let (target, source) = (repo("other"), repo("r"));
        let mut mounting = Box::pin(f.registry.blob_mount(&CALLER, &target, &digest, Some(&source)));
        assert_blocked(&mut mounting).await;
        tx.commit().await.unwrap();
        // There is nothing to mount: the client pushes.
        assert!(mounting.await.unwrap().is_none());
        f.registry.gc_run(&CALLER, false).await.unwrap();
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn the_last_manifest_of_a_layer_goes_while_another_arrives() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let store = other(&f).await;
        let (old, [_, layer]) = f.image("r", "old", "1").await;
        let config = f.push("r", b"config of the new one").await;
        let mut tx = store.begin().await.unwrap();
        tx.repository_lock(&repo("r")).await.unwrap();
        let manifest =
            UnreferencedContent { repository: repo("r"), digest: old.clone(), unreferenced_at: now_ms() };
        assert_eq!(tx.manifests_delete(&[manifest], &test_cause()).await.unwrap().len(), 1);
        let manifest = image(&config, &[&layer]);
        let mut putting = Box::pin(f.put("r", "new", &manifest));
        assert_blocked(&mut putting).await;
        tx.commit().await.unwrap();
        putting.await.unwrap();
        f.registry.gc_run(&CALLER, false).await.unwrap();
        assert_eq!(f.pull("r", &layer).await.unwrap(), b"layer 1");
        assert!(f.get("r", "new").await.is_ok() && f.get("r", "old").await.is_err());
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_manifest_arrives_while_the_last_one_of_its_layer_goes() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let store = other(&f).await;
        let (old, [_, layer]) = f.image("r", "old", "1").await;
        let config = f.push("r", b"config of the new one").await;
        let manifest = image(&config, &[&layer]);
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let digest = f.push("r", &bytes).await;
        // The rows of a push, up to its commit.
        let mut tx = store.begin().await.unwrap();
        tx.blob_lock(&digest).await.unwrap().unwrap();
        tx.blobs_lock_shared(&[&config, &layer]).await.unwrap();
        tx.repository_lock_or_create(&repo("r")).await.unwrap();
        tx.link(&repo("r"), &digest, 0).await.unwrap();
        let named =
            crate::store::ManifestReferences { blobs: vec![config, layer.clone()], ..Default::default() };
        assert!(tx.links_reference(&repo("r"), &named.blobs).await.unwrap().is_empty());
        let (media_type, artifact_type) = (media_type::OCI_MANIFEST, None);
        let new = NewManifest { digest: &digest, media_type, artifact_type, bytes: &bytes };
        tx.manifest_insert(&repo("r"), new).await.unwrap();
        tx.references_replace(&repo("r"), &digest, &named).await.unwrap();
        tx.tag_put(&repo("r"), &"new".parse().unwrap(), &digest, "server", None).await.unwrap();

        let mut deleting = Box::pin(f.delete("r", old.as_str()));
        assert_blocked(&mut deleting).await;
        tx.commit().await.unwrap();
        deleting.await.unwrap();
        f.registry.gc_run(&CALLER, false).await.unwrap();
        assert_eq!(f.pull("r", &layer).await.unwrap(), b"layer 1");
        assert!(f.get("r", "new").await.is_ok() && f.get("r", "old").await.is_err());
        f.assert_sound().await;
    })
    .await;
}
