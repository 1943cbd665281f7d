//! Garbage collection: which content is deleted, which is kept, and for how long.

use super::*;
use crate::app::GcReport;
use crate::time::{millis, now_ms};

async fn gc(f: &Fixture) -> GcReport {
    f.registry.gc_run(&CALLER, false).await.unwrap()
}

#[tokio::test]
async fn unreferenced_content_is_deleted() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let (kept, kept_blobs) = f.image("r", "keep", "shared").await;
        let (gone, gone_blobs) = f.image("r", "t", "1").await;
        let loose = f.push("loose", b"never referenced").await;
        f.put("r", "by-both", &image(&kept_blobs[0], &[&gone_blobs[1]])).await.unwrap();
        f.delete("r", gone.as_str()).await.unwrap();

        let dry = f.registry.gc_run(&CALLER, true).await.unwrap();
        assert!(f.pull("r", &gone_blobs[0]).await.is_ok());
        let report = gc(&f).await;
        assert_eq!(report, GcReport { dry_run: false, removals: Vec::new(), ..dry });
        // Its own bytes, its config, and the blob that was never referenced; not the shared layer.
        assert_eq!((report.links, report.blobs), (3, 3));
        for digest in [&gone, &gone_blobs[0]] {
            assert!(matches!(f.pull("r", digest).await, Err(Error::BlobUnknown { .. })));
            assert!(!f.holds(digest).await);
        }
        assert!(!f.holds(&loose).await);
        for digest in kept_blobs.iter().chain([&kept, &gone_blobs[1]]) {
            assert!(f.pull("r", digest).await.is_ok());
        }
        // An empty repository is unknown, no matter how it lost its content.
        let emptied = f.push("emptied", b"deleted outright").await;
        f.registry.blob_delete(&CALLER, &repo("emptied"), &emptied).await.unwrap();
        gc(&f).await;
        for repository in ["loose", "emptied"] {
            let result = f.registry.tag_list(&CALLER, &repo(repository), None, None).await;
            assert!(matches!(result, Err(Error::NameUnknown { .. })));
        }
        assert_eq!(gc(&f).await, GcReport::default());
        f.assert_sound().await;
        // Deleted content can be pushed again.
        f.image("r", "t", "1").await;
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_deleted_tag_releases_its_manifest_if_unreferenced() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let (alone, _) = f.image("r", "alone", "1").await;
        let (two_tags, _) = f.image("r", "first", "2").await;
        f.image("r", "second", "2").await;
        let (child, _) = f.image("r", "child", "3").await;
        let (grandchild, _) = f.image("r", "grandchild", "4").await;
        let inner = f.put("r", "inner", &index(&[&grandchild])).await.unwrap().digest;
        let outer = f.put("r", "outer", &index(&[&child, &inner])).await.unwrap().digest;
        // Pushed by digest and never tagged: no client deleted it.
        let config = f.push("r", b"{}").await;
        let manifest = f.sized(image(&config, &[])).await;
        let digest = Digest::sha256(&serde_json::to_vec(&manifest).unwrap());
        f.put("r", digest.as_str(), &manifest).await.unwrap();

        for tag in ["alone", "first", "child", "grandchild", "inner"] {
            f.delete("r", tag).await.unwrap();
        }
        assert_eq!(gc(&f).await.manifests, 1);
        assert!(matches!(f.get("r", alone.as_str()).await, Err(Error::ManifestUnknown { .. })));
        for kept in [&two_tags, &child, &grandchild, &inner, &outer, &digest] {
            assert!(f.get("r", kept.as_str()).await.is_ok());
        }
        // An index without a tag is removed, with the content that only it referenced.
        f.delete("r", "outer").await.unwrap();
        assert_eq!(f.registry.gc_run(&CALLER, true).await.unwrap().manifests, 4);
        assert_eq!(gc(&f).await.manifests, 4);
        for gone in [&child, &grandchild, &inner, &outer] {
            assert!(f.get("r", gone.as_str()).await.is_err());
        }
        assert!(f.get("r", digest.as_str()).await.is_ok());
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_blob_pushed_after_its_manifest_is_kept_with_it() {
    let sparse = |config: &mut Config| {
        no_grace(config);
        config.allow_sparse = true;
    };
    each_engine_with(&sparse, WriteLimit::default(), async |f: Fixture| {
        let (config, layer) = (f.push("r", b"{}").await, Digest::sha256(b"late"));
        let manifest = f.put("r", "t", &image(&config, &[&layer])).await.unwrap().digest;
        f.push("r", b"late").await;
        for _ in 0..2 {
            assert_eq!(gc(&f).await, GcReport::default());
        }
        f.delete("r", manifest.as_str()).await.unwrap();
        assert_eq!(gc(&f).await.links, 3);
        assert!(!f.holds(&layer).await);
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn leases_and_grace_periods_keep_content() {
    let leased = |config: &mut Config| config.gc_grace = Duration::ZERO;
    each_engine_with(&leased, WriteLimit::default(), async |f: Fixture| {
        // Uploaded, mounted, and checked with HEAD: each is kept for the lease.
        let digest = f.push("r", b"leased").await;
        f.registry.blob_mount(&CALLER, &repo("mounted"), &digest, Some(&repo("r"))).await.unwrap();
        assert_eq!(gc(&f).await, GcReport::default());
        assert!(f.registry.blob_stat(&CALLER, &repo("r"), &digest).await.is_ok());
        assert!(f.pull("mounted", &digest).await.is_ok());
        // An explicit deletion ignores the lease in this repository; other repositories keep the blob.
        f.registry.blob_delete(&CALLER, &repo("r"), &digest).await.unwrap();
        assert!(f.registry.blob_stat(&CALLER, &repo("r"), &digest).await.is_err());
        gc(&f).await;
        assert!(f.pull("mounted", &digest).await.is_ok());
    })
    .await;
    let graceful = |config: &mut Config| config.upload_lease = Duration::ZERO;
    each_engine_with(&graceful, WriteLimit::default(), async |f: Fixture| {
        let (manifest, blobs) = f.image("r", "t", "1").await;
        f.delete("r", manifest.as_str()).await.unwrap();
        f.registry.blob_delete(&CALLER, &repo("r"), &blobs[0]).await.unwrap();
        assert_eq!(gc(&f).await, GcReport::default());
        // Within the grace period the bytes exist, and a push reuses them.
        assert!(f.holds(&blobs[0]).await);
        f.image("r", "t", "1").await;
        assert_eq!(f.get("r", "t").await.unwrap(), manifest);
    })
    .await;
}

#[tokio::test]
async fn the_grace_counts_from_the_last_reference_anywhere() {
    let brief = |config: &mut Config| {
        config.upload_lease = Duration::ZERO;
        config.gc_grace = Duration::from_millis(1000);
    };
    each_engine_with(&brief, WriteLimit::default(), async |f: Fixture| {
        let digest = f.push("early", b"shared").await;
        f.push("late", b"shared").await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        // One repository released it long ago, the other only now.
        let let_go = std::time::Instant::now();
        f.registry.blob_delete(&CALLER, &repo("late"), &digest).await.unwrap();
        let mut taken = gc(&f).await;
        assert_eq!(taken.links, 1);
        // On a slow machine too, it is deleted only after the grace period.
        while taken.blobs == 0 {
            taken = gc(&f).await;
        }
        assert!(let_go.elapsed() > Duration::from_millis(900));
        assert!(!f.holds(&digest).await);
    })
    .await;
}

#[tokio::test]
async fn a_head_renews_the_lease() {
    let leased = |config: &mut Config| config.gc_grace = Duration::ZERO;
    each_engine_with(&leased, WriteLimit::default(), async |f: Fixture| {
        // Links whose leases expired before the HEAD.
        let (looked_at, forgotten) =
            (f.push("other", b"looked at").await, f.push("other", b"forgotten").await);
        let mut tx = f.registry.store().begin().await.unwrap();
        for digest in [&looked_at, &forgotten] {
            tx.blob_lock(digest).await.unwrap().unwrap();
            tx.link(&repo("r"), digest, -1).await.unwrap();
        }
        tx.commit().await.unwrap();
        f.registry.blob_stat(&CALLER, &repo("r"), &looked_at).await.unwrap();
        assert_eq!(gc(&f).await.links, 1);
        assert!(f.pull("r", &looked_at).await.is_ok());
        assert!(f.pull("r", &forgotten).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn pushes_race_with_the_collection_and_win() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let collecting = async {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                gc(&f).await;
                tokio::task::yield_now().await;
            }
        };
        let pushing = async {
            for round in 0..20 {
                // Without a lease, a blob may be deleted before its manifest arrives: the client gets an
                // error and pushes again.
                let (config, layer) = (b"config".as_slice(), b"layer".as_slice());
                let manifest = image(&Digest::sha256(config), &[&Digest::sha256(layer)]);
                loop {
                    f.push("r", config).await;
                    f.push("r", layer).await;
                    match f.put("r", "t", &manifest).await {
                        Ok(_) => break,
                        Err(Error::ManifestBlobsUnknown(_)) => {}
                        Err(other) => panic!("round {round}: {other}"),
                    }
                }
                // Acknowledged: from now on it is not deleted.
                for _ in 0..3 {
                    assert!(f.get("r", "t").await.is_ok());
                    assert_eq!(f.pull("r", &Digest::sha256(layer)).await.unwrap(), layer);
                    tokio::task::yield_now().await;
                }
                f.delete("r", "t").await.unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        };
        tokio::join!(collecting, pushing);
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn content_without_references_is_counted_while_it_waits() {
    each_engine(async |f: Fixture| {
        let waiting = async || f.registry.gc_waiting(&CALLER).await.unwrap();
        let (_, [_, layer]) = f.image("team/app", "v1", "kept").await;
        let (digest, _) = f.image("team/app", "v2", "released").await;
        let found = waiting().await;
        assert_eq!((found.manifests, found.blobs, found.first_at), (0, 0, None));
        let grace_ms = millis(f.config.gc_grace);
        assert_eq!(found.grace_seconds * 1000, u64::try_from(grace_ms).unwrap());

        let before = now_ms();
        f.delete("team/app", "v2").await.unwrap();
        let found = waiting().await;
        // The manifest is a blob, too.
        assert_eq!((found.manifests, found.links, found.blobs), (1, 0, 3));
        assert!(found.size_bytes > ("config released".len() + "layer released".len()) as u64, "{found:?}");
        let first = found.first_at.unwrap();
        assert!(first >= before + grace_ms && first <= now_ms() + grace_ms, "{found:?}");
        // Another repository needs the layer of the kept image, and a new tag needs the manifest again.
        assert!(f.get("team/app", "v1").await.is_ok() && f.pull("team/app", &layer).await.is_ok());
        f.image("team/app", "v3", "released").await;
        let found = waiting().await;
        assert_eq!((found.manifests, found.blobs, found.first_at), (0, 0, None), "{digest}");
    })
    .await;
}

#[tokio::test]
async fn waiting_content_is_counted_up_to_a_bound() {
    each_engine(async |f: Fixture| {
        for number in 0..45 {
            f.push("team/app", format!("layer {number}").as_bytes()).await;
            if number == 30 {
                let found = f.registry.gc_waiting(&CALLER).await.unwrap();
                assert_eq!((found.links, found.blobs, found.is_partial), (31, 31, false));
            }
        }
        let found = f.registry.gc_waiting(&CALLER).await.unwrap();
        assert_eq!((found.links, found.blobs, found.is_partial), (40, 40, true));
    })
    .await;
}
