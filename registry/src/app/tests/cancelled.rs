//! Requests that time out or whose client disconnects, while file or storage operations that they started
//! continue.

use std::time::Duration;

use super::shared::{assert_tidy, each_pair};
use super::*;
use crate::app::UploadTimeouts;
use crate::blobs::testing::Fault;
use crate::blobs::testing_folder::hold;

/// Long enough for an operation that does not wait for a lock.
const WHILE: Duration = Duration::from_millis(300);

/// Runs a test once for each database, with a folder.
async fn each_folder_limited(limits: Limits, test: impl AsyncFn(Fixture)) {
    test(Fixture::start_limited(None, None, &no_grace, limits).await).await;
    if let Some(database) = crate::store::postgres_for_test().await {
        test(Fixture::start_limited(Some(database), None, &no_grace, limits).await).await;
    }
}

/// The canonical path of a blob.
fn real_path(f: &Fixture, digest: &Digest) -> std::path::PathBuf {
    let path = f.blob_path(digest);
    path.parent().unwrap().canonicalize().unwrap().join(path.file_name().unwrap())
}

/// Releases `held` once `work` has ended, or has had enough time to end without waiting.
async fn release_during<T>(
    held: crate::blobs::testing_folder::HeldFileWork,
    work: impl Future<Output = T>,
) -> T {
    let mut work = Box::pin(work);
    if let Ok(done) = tokio::time::timeout(WHILE, &mut work).await {
        held.release();
        // The removal runs now; without its lock it would remove what `work` stored.
        tokio::time::sleep(WHILE).await;
        return done;
    }
    held.release();
    work.await
}

#[tokio::test]
async fn a_removal_that_a_cancel_did_not_wait_for_keeps_its_digest_locked() {
    let timeouts = UploadTimeouts { deletion: Duration::from_millis(10), ..UploadTimeouts::default() };
    each_folder_limited(Limits { timeouts, ..Limits::default() }, async |f: Fixture| {
        let digest = Digest::sha256(b"cancelled");
        let id = f.upload("r").await;
        f.append("r", id, None, body(b"cancelled")).await.unwrap();
        // The state after a crash in the middle of a commit.
        std::fs::hard_link(f.path(&format!("uploads/{id}")), f.blob_path(&digest)).unwrap();
        let removal = hold(&real_path(&f, &digest));
        let cancelled = f.registry.upload_cancel(&CALLER, &repo("r"), id).await;
        assert!(matches!(cancelled, Err(Error::Unavailable { .. })), "{cancelled:?}");
        removal.reached().await;

        release_during(removal, f.push("r", b"cancelled")).await;
        assert_eq!(f.pull("r", &digest).await.unwrap(), b"cancelled");
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_manifest_is_stored_although_its_client_disconnects() {
    each_folder_limited(Limits::default(), async |f: Fixture| {
        let config = f.push("r", b"{}").await;
        let manifest = f.sized(image(&config, &[])).await;
        let digest = Digest::sha256(&serde_json::to_vec(&manifest).unwrap());
        let writing = hold(&real_path(&f, &digest));
        {
            let mut put = Box::pin(f.put("r", "t", &manifest));
            tokio::select! {
                _ = &mut put => panic!("the write is held"),
                () = writing.reached() => {}
            }
        }
        writing.release();
        let stored = async {
            while f.get("r", "t").await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), stored).await.expect("the manifest is stored");
        assert_eq!(f.pull("r", &digest).await.unwrap(), serde_json::to_vec(&manifest).unwrap());
        while !f.leftovers().await.is_empty() {
            tokio::task::yield_now().await;
        }
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_manifest_that_is_taken_back_keeps_its_digest_locked() {
    each_folder_limited(Limits::default(), async |f: Fixture| {
        let config = f.push("r", b"a config that goes").await;
        let manifest = f.sized(image(&config, &[])).await;
        let digest = Digest::sha256(&serde_json::to_vec(&manifest).unwrap());
        let (writing, removal) = (hold(&real_path(&f, &digest)), hold(&real_path(&f, &digest)));
        {
            let mut put = Box::pin(f.put("r", "t", &manifest));
            tokio::select! {
                _ = &mut put => panic!("the write is held"),
                () = writing.reached() => {}
            }
            // A blob of the manifest is deleted between the check and the commit, so that the manifest's
            // bytes are removed again.
            f.registry.blob_delete(&CALLER, &repo("r"), &config).await.unwrap();
            writing.release();
            tokio::select! {
                _ = &mut put => panic!("the removal is held"),
                () = removal.reached() => {}
            }
        }
        f.push("r", b"a config that goes").await;
        release_during(removal, f.put("r", "t", &manifest)).await.unwrap();
        assert_eq!(f.get("r", "t").await.unwrap(), digest);
        assert_eq!(f.pull("r", &digest).await.unwrap(), serde_json::to_vec(&manifest).unwrap());
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn an_upload_that_one_replica_ends_cannot_be_continued_on_another() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        let bytes = noise(2000);
        let digest = Digest::sha256(&bytes);
        let id = a.upload("r").await;
        a.append("r", id, None, body(&bytes[..1000])).await.unwrap();
        storage.fail("list", Fault::BlockedBefore, 1);
        let registry = a.registry.clone();
        let cancel = tokio::spawn(async move { registry.upload_cancel(&CALLER, &repo("r"), id).await });
        while storage.held() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The client continues on the other replica before the first one has listed the objects to delete.
        let finished = b.finish("r", id, body(&bytes[1000..]), &digest).await;
        storage.release();
        cancel.await.unwrap().unwrap();
        match finished {
            Ok(_) => {}
            Err(Error::UploadUnknown { .. }) => drop(b.push("r", &bytes).await),
            Err(other) => panic!("{other}"),
        }
        assert_eq!(a.pull("r", &digest).await.unwrap(), bytes);
        assert_tidy(&storage, &b).await;
    })
    .await;
}
