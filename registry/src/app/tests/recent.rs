//! The cache of recent reads: it never returns a state older than an acknowledged write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_sees_every_acknowledged_write() {
    each_engine(async |f: Fixture| {
        let layer = f.push("r", b"layer").await;
        let mut manifests = Vec::new();
        for i in 0..4 {
            let config = f.push("r", format!("{{\"n\":{i}}}").as_bytes()).await;
            manifests.push(image(&config, &[&layer]));
        }
        // 1. Readers that run all the time, so that results are cached whenever possible.
        let over = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (registry, over) = (f.registry.clone(), over.clone());
                tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        let _ = registry.manifest_get(&CALLER, &repo("r"), &reference_of("moving")).await;
                        let _ = registry.tag_list(&CALLER, &repo("r"), None, None).await;
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        // 2. A tag that moves, and one that comes and goes.
        for round in 0..40 {
            let put = f.put("r", "moving", &manifests[round % manifests.len()]).await.unwrap();
            assert_eq!(f.get("r", "moving").await.unwrap(), put.digest, "round {round}");
            f.put("r", "fleeting", &manifests[0]).await.unwrap();
            assert_eq!(tags(&f).await, ["fleeting", "moving"]);
            tokio::task::yield_now().await;
            f.delete("r", "fleeting").await.unwrap();
            assert!(matches!(f.get("r", "fleeting").await, Err(Error::ManifestUnknown { .. })));
            assert_eq!(tags(&f).await, ["moving"]);
        }
        over.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.await.unwrap();
        }
        // 3. Deleting a manifest deletes its tags.
        let last = f.get("r", "moving").await.unwrap();
        f.delete("r", last.as_str()).await.unwrap();
        assert!(matches!(f.get("r", "moving").await, Err(Error::ManifestUnknown { .. })));
        assert!(matches!(f.get("r", last.as_str()).await, Err(Error::ManifestUnknown { .. })));
    })
    .await;
}

/// A client may disconnect in the middle of a commit; the cache then still agrees with the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_abandoned_write_leaves_no_stale_cache_entry() {
    let mut f = Fixture::start(None, None, &|_| {}, WriteLimit::default()).await;
    let layer = f.push("r", b"layer").await;
    let mut manifests = Vec::new();
    for i in 0..2 {
        let config = f.push("r", format!("{{\"n\":{i}}}").as_bytes()).await;
        manifests.push(image(&config, &[&layer]));
        f.put("r", &format!("kept-{i}"), manifests.last().unwrap()).await.unwrap();
    }
    for round in 0..30_u64 {
        let put = f.put("r", "moving", &manifests[(round % 2) as usize]);
        let timeout = Duration::from_micros(100 * (round % 15 + 1));
        let _ = tokio::time::timeout(timeout, put).await;
        for _ in 0..20 {
            let _ = f.get("r", "moving").await;
            tokio::task::yield_now().await;
        }
        if round % 10 == 9 {
            // The abandoned write has ended once another write has succeeded.
            f.put("r", "after", &manifests[0]).await.unwrap();
            let seen = f.get("r", "moving").await.ok();
            f = f.restart().await;
            assert_eq!(f.get("r", "moving").await.ok(), seen, "round {round}");
        }
    }
}

async fn tags(f: &Fixture) -> Vec<String> {
    let page = f.registry.tag_list(&CALLER, &repo("r"), None, None).await.unwrap();
    page.items.iter().map(|tag| tag.as_str().to_owned()).collect()
}
