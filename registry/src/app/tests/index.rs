//! Pushed manifests are indexed from a queue: by a bounded number of readers, again after a crash, by any
//! replica; or by a request that needs its own manifest.

use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::media_type;
use serde_json::json;

use super::*;
use crate::app::{IndexLimits, ModelState};
use crate::blobs::testing::Fault;
use crate::store::{IndexState, ListFilter, Store};

/// Manifests are indexed only when a request needs them, and listings do not wait.
const NONE: IndexLimits = IndexLimits { at_once: 0, list_wait: Duration::ZERO };

async fn start(database: Option<Url>, storage: Option<Url>, index: IndexLimits) -> Fixture {
    let limits = Limits { index, ..Limits::default() };
    Fixture::start_limited(database, storage, &|_| {}, limits).await
}

/// Pushes a model of one tensor as `repository:latest`, and returns its manifest's digest.
async fn push_model(f: &Fixture, repository: &str, seed: u8) -> Digest {
    let header = json!({"t": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[seed; 8]].concat();
    let (config, layer) = (f.push(repository, b"{}").await, f.push(repository, &bytes).await);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type::DOCKER_MANIFEST,
        "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": config, "size": 2},
        "layers": [{"mediaType": media_type::OLLAMA_TENSOR, "digest": layer, "size": bytes.len(), "name": "t"}],
    });
    f.put(repository, "latest", &manifest).await.unwrap().digest
}

async fn listed(f: &Fixture) -> Vec<(String, ModelState)> {
    let models = f.registry.model_list_all(&CALLER).await.unwrap();
    models.into_iter().map(|model| (model.repository.to_string(), model.state)).collect()
}

async fn is_queued(store: &Store, digest: &Digest) -> bool {
    let rows = store.tagged_list(&ListFilter::All, None, 100).await.unwrap();
    let row = rows.into_iter().find(|row| row.digest == *digest).unwrap();
    matches!(row.state, IndexState::Queued { .. })
}

async fn until_indexed(f: &Fixture, digest: &Digest) {
    while f.registry.store().model_find(digest).await.unwrap().is_none() {
        tokio::task::yield_now().await;
    }
}

async fn each_database(test: impl AsyncFn(Option<Url>)) {
    test(None).await;
    if let Some(database) = crate::store::postgres_for_test().await {
        test(Some(database)).await;
    }
}

#[tokio::test]
async fn a_listing_marks_pending_models_and_indexes_none() {
    each_database(async |database| {
        let f = start(database, None, NONE).await;
        let digest = push_model(&f, "a", 1).await;
        push_model(&f, "b", 2).await;
        let pending = ModelState::Pending { problem: None };
        assert_eq!(listed(&f).await, [("a".into(), pending.clone()), ("b".into(), pending.clone())]);

        // A request that names a model indexes it.
        let tensors = f.registry.tensor_list(&CALLER, &repo("a"), &reference_of("latest")).await.unwrap();
        assert_eq!(tensors.unwrap().len(), 1);
        assert!(!is_queued(f.registry.store(), &digest).await);
        let states = listed(&f).await;
        assert!(matches!(&states[0].1, ModelState::Indexed(summary) if summary.tensor_count == 1));
        assert_eq!(states[1].1, pending);

        // A page ends with the name after which the next one starts.
        let page = f.registry.model_list(&CALLER, None, 1).await.unwrap();
        let (repository, tag) = page.next.unwrap();
        assert_eq!((page.models.len(), repository.as_str()), (1, "a"));
        let page = f.registry.model_list(&CALLER, Some((&repository, &tag)), 1).await.unwrap();
        assert_eq!((page.models[0].repository.as_str(), page.next), ("b", None));
    })
    .await;
}

#[tokio::test]
async fn a_manifest_of_an_older_version_is_queued_by_the_listing() {
    let f = start(None, None, NONE).await;
    let digest = push_model(&f, "a", 1).await;
    let claim = f.registry.store().index_claim(Duration::ZERO).await.unwrap().unwrap();
    f.registry.store().index_finish(&claim).await.unwrap();
    assert!(!is_queued(f.registry.store(), &digest).await);
    assert_eq!(listed(&f).await, [("a".into(), ModelState::Pending { problem: None })]);
    assert!(is_queued(f.registry.store(), &digest).await);
}

#[tokio::test]
async fn the_queue_survives_a_crash() {
    each_database(async |database| {
        let f = start(database, None, NONE).await;
        let digest = push_model(&f, "a", 1).await;
        // It was claimed before: the lease of a process that died ends, on SQLite with its process.
        f.registry.store().index_claim(Duration::ZERO).await.unwrap().unwrap();
        let f = f.restart().await;
        until_indexed(&f, &digest).await;
    })
    .await;
}

#[tokio::test]
async fn replicas_share_the_queue() {
    each_database(async |database| {
        let f = start(database, None, NONE).await;
        let (one, two) = (push_model(&f, "a", 1).await, push_model(&f, "b", 2).await);
        let other = Store::open(f.config.database.as_ref(), &f.config.data).await.unwrap();
        let lease = Duration::from_secs(600);
        let first = f.registry.store().index_claim(lease).await.unwrap().unwrap();
        let second = other.index_claim(lease).await.unwrap().unwrap();
        let mut claimed = [&first.digest, &second.digest];
        claimed.sort();
        let mut pushed = [&one, &two];
        pushed.sort();
        assert_eq!(claimed, pushed);
        assert!(other.index_claim(lease).await.unwrap().is_none());
        // An expired lease, as of a replica that died, is taken over; its previous holder can change nothing.
        f.registry.store().index_renew(&first, Duration::ZERO).await.unwrap();
        let again = other.index_claim(lease).await.unwrap().unwrap();
        assert_eq!((&again.digest, again.attempts), (&first.digest, 2));
        f.registry.store().index_finish(&first).await.unwrap();
        assert!(is_queued(&other, &again.digest).await);
        other.index_finish(&again).await.unwrap();
        assert!(!is_queued(&other, &again.digest).await);
    })
    .await;
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_and_shown() {
    let (storage, url) = memory_for_test();
    let index = IndexLimits { at_once: 1, list_wait: Duration::ZERO };
    let f = start(None, Some(url), index).await;
    storage.fail("get", Fault::Refused, usize::MAX);
    let digest = push_model(&f, "a", 1).await;
    while !matches!(&listed(&f).await[0].1, ModelState::Pending { problem: Some(_) }) {
        tokio::task::yield_now().await;
    }
    storage.release();
    until_indexed(&f, &digest).await;
}

#[tokio::test]
async fn a_backlog_is_read_a_few_at_a_time() {
    let (storage, url) = memory_for_test();
    let f = start(None, Some(url), IndexLimits { at_once: 2, list_wait: Duration::ZERO }).await;
    storage.fail("get", Fault::BlockedBefore, usize::MAX);
    let mut pushed = Vec::new();
    for n in 0..6_u8 {
        pushed.push(push_model(&f, &format!("m{n}"), n).await);
    }
    let begun = async || {
        let rows = f.registry.store().tagged_list(&ListFilter::All, None, 100).await.unwrap();
        rows.iter().filter(|row| matches!(row.state, IndexState::Queued { attempts: 1.., .. })).count()
    };
    while begun().await < 2 {
        tokio::task::yield_now().await;
    }
    // A listing and a deletion wait for none of them.
    assert_eq!(listed(&f).await.len(), 6);
    f.delete("m5", pushed[5].as_str()).await.unwrap();
    assert_eq!(begun().await, 2);
    storage.release();
    for digest in &pushed[..5] {
        until_indexed(&f, digest).await;
    }
}
