//! Backups taken during pushes, deletions and collections, then restored into an empty folder and fully
//! verified.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lode_client::{NoProgress, Progress};
use lode_model::digest::Digest;
use tempfile::TempDir;

use super::App;
use crate::auth::Caller;
use crate::{BackupMode, BackupReport, Config, OpenError, backup, open, router};

fn no_progress(_bytes: u64) -> Arc<dyn Progress> {
    Arc::new(NoProgress)
}

/// A server on a copy of a backup.
async fn restore(from: &Path) -> App {
    let data = tempfile::tempdir().unwrap();
    copy_folder(from, data.path());
    let registry = open(Config { data: data.path().to_owned(), ..Config::default() }).await.unwrap();
    App { router: router(registry.clone()).unwrap(), registry, _data: data }
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

async fn take(app: &App, to: &TempDir, how: BackupMode) -> BackupReport {
    backup(app.registry.config(), to.path(), how, no_progress).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn backup_during_pushes_and_collections() {
    // Without a grace period, blobs are removed between the database copy and their own copy.
    let config = Config { gc_grace: Duration::ZERO, upload_lease: Duration::ZERO, ..Config::default() };
    let app = Arc::new(App::with(config).await);
    for n in 0..20 {
        app.push_image("stays", &format!("v{n}"), &format!("layer {n}")).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let (app, stop) = (app.clone(), stop.clone());
        tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                app.push_blob("comes", format!("blob {n}")).await;
                app.push_image("goes", "latest", "one and the same").await;
                app.delete("/v2/goes/manifests/latest").await;
                app.registry.gc_run(&Caller::INTERNAL, false).await.unwrap();
                n += 1;
            }
            n
        })
    };
    let to = tempfile::tempdir().unwrap();
    let first = take(&app, &to, BackupMode::Copy).await;
    assert!(first.blobs >= 40 && first.blobs_copied >= first.blobs, "{first:?}");
    for _ in 0..3 {
        // Into the same folder again: existing blobs are not copied again.
        let again = take(&app, &to, BackupMode::Link).await;
        assert!(again.blobs_copied < 40, "{again:?}");
        let restored = restore(to.path()).await;
        let report = restored.registry.fsck(&Caller::INTERNAL, true).await.unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
        assert_eq!(report.blobs, again.blobs);
        for n in 0..20 {
            let manifest = restored.get(&format!("/v2/stays/manifests/v{n}")).await.json();
            let layer = manifest["layers"][0]["digest"].as_str().unwrap().to_owned();
            assert_eq!(restored.get(&format!("/v2/stays/blobs/{layer}")).await.text(), format!("layer {n}"));
        }
        // The restored registry accepts pushes.
        restored.push_image("new", "latest", "after the restore").await;
        restored.registry.close().await;
    }
    stop.store(true, Ordering::SeqCst);
    assert!(busy.await.unwrap() > 0);
}

#[tokio::test]
async fn removed_blobs_are_pruned_and_damage_fails_the_backup() {
    let config = Config { gc_grace: Duration::ZERO, upload_lease: Duration::ZERO, ..Config::default() };
    let app = App::with(config).await;
    let digest = app.push_image("a", "latest", "kept").await;
    app.push_blob("a", "dropped").await;
    app.upload("a").await;
    let to = tempfile::tempdir().unwrap();
    assert_eq!(take(&app, &to, BackupMode::Copy).await.blobs, 4);
    app.registry.gc_run(&Caller::INTERNAL, false).await.unwrap();
    let report = take(&app, &to, BackupMode::Copy).await;
    assert_eq!((report.blobs, report.blobs_copied, report.blobs_removed), (3, 0, 1));

    // A row without its bytes is damage; the previous backup stays unchanged.
    let path = app._data.path().join("blobs/sha256").join(digest.hex());
    std::fs::remove_file(path).unwrap();
    let fresh = tempfile::tempdir().unwrap();
    let failed =
        backup(app.registry.config(), fresh.path(), BackupMode::Copy, no_progress).await.unwrap_err();
    assert!(failed.to_string().contains(digest.as_str()), "{failed}");
    assert!(!fresh.path().join("lode.db").exists());
    let restored = restore(to.path()).await;
    assert!(restored.registry.fsck(&Caller::INTERNAL, true).await.unwrap().is_sound());

    // Never into a folder that is being served, and only from a SQLite file.
    let own = backup(app.registry.config(), app._data.path(), BackupMode::Copy, no_progress).await;
    assert!(matches!(own, Err(OpenError::FolderInUse { .. })), "{own:?}");
    let inside = app._data.path().join("backup/today");
    let refused = backup(app.registry.config(), &inside, BackupMode::Copy, no_progress).await;
    assert!(matches!(refused, Err(OpenError::Config { setting: "--to", .. })), "{refused:?}");
    assert!(!app._data.path().join("backup").exists());
    let elsewhere = Config { database: Some("postgres://db/lode".parse().unwrap()), ..Config::default() };
    let refused = backup(&elsewhere, to.path(), BackupMode::Copy, no_progress).await;
    assert!(matches!(refused, Err(OpenError::Config { setting: "database", .. })), "{refused:?}");
}

#[tokio::test]
async fn it_never_overwrites_a_registry() {
    let app = App::new().await;
    app.push_image("a", "latest", "here").await;
    let to = tempfile::tempdir().unwrap();
    take(&app, &to, BackupMode::Copy).await;

    // A backup that was served has become a registry, even when it is no longer served.
    let other = restore(to.path()).await;
    other.push_image("b", "latest", "there").await;
    let data = other.close().await;
    let refused = backup(app.registry.config(), data.path(), BackupMode::Copy, no_progress).await;
    assert!(matches!(refused, Err(OpenError::Config { setting: "--to", .. })), "{refused:?}");
    let other = restore(data.path()).await;
    assert_eq!(other.get("/v2/b/manifests/latest").await.status, 200);
    // A folder with a backup is still accepted.
    take(&app, &to, BackupMode::Copy).await;
}

#[tokio::test]
async fn an_interrupted_backup_leaves_a_complete_one() {
    let config = Config { gc_grace: Duration::ZERO, upload_lease: Duration::ZERO, ..Config::default() };
    let app = App::with(config).await;
    app.push_image("a", "latest", "kept").await;
    for n in 0..8 {
        app.push_blob("a", format!("dropped {n}")).await;
    }
    let to = tempfile::tempdir().unwrap();
    take(&app, &to, BackupMode::Copy).await;
    app.registry.gc_run(&Caller::INTERNAL, false).await.unwrap();
    // An entry that cannot be removed makes the next backup fail while it prunes unlisted blobs.
    let stuck = Digest::sha256(b"stuck");
    std::fs::create_dir(to.path().join("blobs/sha256").join(stuck.hex())).unwrap();
    backup(app.registry.config(), to.path(), BackupMode::Copy, no_progress).await.unwrap_err();
    std::fs::remove_dir(to.path().join("blobs/sha256").join(stuck.hex())).unwrap();
    let restored = restore(to.path()).await;
    let report = restored.registry.fsck(&Caller::INTERNAL, true).await.unwrap();
    assert!(report.is_sound() && report.blobs == 3, "{report:?}");
}
