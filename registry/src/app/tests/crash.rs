//! Crashes and damage: the state after a restart, and the findings of `fsck`.

use super::replicas::test_cause;
use super::*;
use crate::app::Damage;
use crate::store::TimeCursor;
use crate::time::now_ms;

#[tokio::test]
async fn a_folder_has_one_server() {
    each_folder(async |f: Fixture| {
        let second = crate::open(f.config.clone()).await;
        assert!(matches!(second, Err(OpenError::FolderInUse { .. })));
        assert!(f.registry.ready().await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn everything_acknowledged_survives_a_restart() {
    each_folder(async |f: Fixture| {
        let (manifest, blobs) = f.image("team/model", "t", "1").await;
        let id = f.upload("team/model").await;
        f.append("team/model", id, None, body(b"half of ")).await.unwrap();
        // Bytes after the saved offset, as a kill leaves them.
        let path = f.path(&format!("uploads/{id}"));
        std::fs::write(&path, b"half of garbage").unwrap();
        let f = f.restart().await;
        assert_eq!(f.get("team/model", "t").await.unwrap(), manifest);
        assert!(f.pull("team/model", &blobs[1]).await.is_ok());
        assert_eq!(f.offset("team/model", id).await.unwrap(), 8);
        f.finish("team/model", id, body(b"it"), &Digest::sha256(b"half of it")).await.unwrap();
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_commit_interrupted_before_its_row_is_harmless() {
    each_folder(async |f: Fixture| {
        let digest = Digest::sha256(b"content");
        let id = f.upload("r").await;
        f.append("r", id, None, body(b"content")).await.unwrap();
        // The file has its final name, but the row was not written.
        std::fs::hard_link(f.path(&format!("uploads/{id}")), f.blob_path(&digest)).unwrap();
        let report = f.registry.fsck(&CALLER, true).await.unwrap();
        assert!(report.is_sound());
        assert_eq!((report.orphans.len(), report.uploads.len()), (1, 1));
        assert!(matches!(f.pull("r", &digest).await, Err(Error::BlobUnknown { .. })));
        // The upload continues, and removes the final name, which the database does not list.
        f.append("r", id, None, body(b" and more")).await.unwrap();
        assert!(!f.blob_path(&digest).exists());
        f.finish("r", id, body(b""), &Digest::sha256(b"content and more")).await.unwrap();
        std::fs::write(f.blob_path(&digest), b"torn").unwrap();
        assert_eq!(f.push("r", b"content").await, digest);
        assert_eq!(f.pull("r", &digest).await.unwrap(), b"content");
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn leftovers_of_an_interrupted_commit_are_deleted() {
    let brief = |config: &mut Config| config.upload_expiry = Duration::from_secs(1);
    each_folder_with(&brief, WriteLimit::default(), async |f: Fixture| {
        let kept = f.push("r", b"kept").await;
        let linked = |from: &str, digest: &Digest| {
            let long_ago = std::time::SystemTime::now() - Duration::from_secs(2 * 60 * 60);
            let file = std::fs::File::open(f.path(from)).unwrap();
            file.set_modified(long_ago).unwrap();
            if !f.blob_path(digest).exists() {
                std::fs::hard_link(f.path(from), f.blob_path(digest)).unwrap();
            }
        };
        // An upload whose client never returned, a manifest without its row, and one with its row.
        let (upload, manifest) = (Digest::sha256(b"upload"), Digest::sha256(b"manifest"));
        let id = f.upload("r").await;
        f.append("r", id, None, body(b"upload")).await.unwrap();
        linked(&format!("uploads/{id}"), &upload);
        std::fs::write(f.path("uploads/a.tmp"), b"manifest").unwrap();
        linked("uploads/a.tmp", &manifest);
        std::fs::hard_link(f.blob_path(&kept), f.path("uploads/b.tmp")).unwrap();
        linked("uploads/b.tmp", &kept);
        while std::fs::read_dir(f.path("uploads")).unwrap().count() > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!f.blob_path(&upload).exists() && !f.blob_path(&manifest).exists());
        assert_eq!(f.pull("r", &kept).await.unwrap(), b"kept");
        assert!(f.registry.fsck(&CALLER, true).await.unwrap().orphans.is_empty());
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn an_interrupted_deletion_is_finished_or_cancelled() {
    each_folder_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        let finished = f.push("r", b"finished later").await;
        let taken_back = f.push("r", b"pushed again").await;
        for digest in [&finished, &taken_back] {
            f.registry.blob_delete(&CALLER, &repo("r"), digest).await.unwrap();
        }
        // The process died after it had created the tombstones; the bytes of one are already deleted.
        let doomed =
            f.registry.store().blobs_unlinked(now_ms(), &TimeCursor::default(), 10).await.unwrap().found;
        let mut tx = f.registry.store().begin().await.unwrap();
        assert_eq!(tx.blobs_tombstone(&doomed, now_ms(), &test_cause()).await.unwrap().len(), 2);
        tx.commit().await.unwrap();
        std::fs::remove_file(f.blob_path(&taken_back)).unwrap();

        f.push("r", b"pushed again").await;
        f.registry.gc_run(&CALLER, true).await.unwrap();
        f.assert_sound().await;
        assert_eq!(f.pull("r", &taken_back).await.unwrap(), b"pushed again");
        assert!(f.blob_path(&finished).exists());
        f.registry.blob_stat(&CALLER, &repo("r"), &taken_back).await.unwrap();
        f.put("r", "t", &image(&taken_back, &[])).await.unwrap();
        f.registry.gc_run(&CALLER, false).await.unwrap();
        assert!(!f.blob_path(&finished).exists());
        assert!(f.blob_path(&taken_back).exists());
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn damage_is_found_and_a_push_repairs_it() {
    each_folder(async |f: Fixture| {
        let (manifest, [config, layer]) = f.image("r", "t", "1").await;
        let other = f.push("r", b"0123456789").await;
        std::fs::remove_file(f.blob_path(&config)).unwrap();
        std::fs::write(f.blob_path(&layer), b"short").unwrap();
        std::fs::write(f.blob_path(&other), b"012345678X").unwrap();
        std::fs::write(f.path("blobs/sha256/stray"), b"?").unwrap();
        let quick = f.registry.fsck(&CALLER, false).await.unwrap();
        assert_eq!(quick.damage.len(), 2, "{quick:?}");
        let full = f.registry.fsck(&CALLER, true).await.unwrap();
        assert_eq!(full.damage.len(), 3, "{full:?}");
        assert_eq!(full.orphans, ["blobs/sha256/stray"]);
        assert!(
            full.damage
                .iter()
                .any(|d| matches!(d, Damage::Missing { digest, .. } if digest == config.as_str()))
        );
        assert!(
            full.damage
                .iter()
                .any(|d| matches!(d, Damage::WrongSize { digest, got: 5, .. } if digest == layer.as_str()))
        );
        assert!(
            full.damage
                .iter()
                .any(|d| matches!(d, Damage::WrongDigest { digest, .. } if digest == other.as_str()))
        );
        assert!(f.pull("r", &config).await.is_err());

        std::fs::remove_file(f.path("blobs/sha256/stray")).unwrap();
        std::fs::remove_file(f.blob_path(&other)).unwrap();
        std::fs::remove_file(f.blob_path(&manifest)).unwrap();
        f.push("r", b"0123456789").await;
        f.image("r", "t", "1").await;
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn abandoned_uploads_expire() {
    let brief = |config: &mut Config| config.upload_expiry = Duration::from_secs(1);
    each_engine_with(&brief, WriteLimit::default(), async |f: Fixture| {
        let id = f.upload("r").await;
        f.append("r", id, None, body(b"abandoned")).await.unwrap();
        // The expiry job runs every second; wait for its effect.
        while f.offset("r", id).await.is_ok() || !f.leftovers().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        f.assert_sound().await;
    })
    .await;
}
