//! Object storage that several servers share, and the state of an upload after a server dies or the storage
//! fails at any step. `a` and `b` are two servers with one database and one storage.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::app::UploadTimeouts;
use crate::blobs::UploadProgress;
use crate::blobs::testing::Fault;
use crate::time::now_ms;

const MIB: usize = 1024 * 1024;

pub(super) async fn each_pair(test: impl AsyncFn(Arc<Storage>, Fixture, Fixture)) {
    each_pair_with(&|_| {}, Limits::default(), test).await;
}

/// `limits` are those of `a`.
async fn each_pair_with(
    change: &dyn Fn(&mut Config),
    limits: Limits,
    test: impl AsyncFn(Arc<Storage>, Fixture, Fixture),
) {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("index.db").display()).parse().unwrap();
    for database in [Some(sqlite), crate::store::postgres_for_test().await].into_iter().flatten() {
        let (storage, url) = memory_for_test();
        let start = async |limits| {
            Fixture::start_limited(Some(database.clone()), Some(url.clone()), change, limits).await
        };
        let (a, b) = (start(limits).await, start(Limits::default()).await);
        test(storage, a, b).await;
    }
}

/// In pieces, as they arrive from a connection.
fn body(bytes: &[u8]) -> Body {
    pieces(bytes, 64 * 1024)
}

/// Drives `work` until the storage holds a request. Returns its result if it ended before.
async fn until_held<T>(storage: &Storage, work: impl Future<Output = T>) -> Option<T> {
    let held = async {
        while storage.held() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        done = work => Some(done),
        () = held => None,
    }
}

/// Acts as a client that lost its server: it reads the upload's offset and continues there, or starts again.
async fn resume_upload(f: &Fixture, id: Uuid, bytes: &[u8], digest: &Digest) {
    loop {
        let gone_on = async {
            let offset = f.offset("r", id).await?;
            let rest = &bytes[usize::try_from(offset).unwrap()..];
            // Sends its offset, because the other server may still save its bytes.
            let range = rest.len().checked_sub(1).map(|last| (offset, offset + last as u64));
            let chunk = ChunkRange { range, length: None };
            Ok(f.registry.upload_finish(&CALLER, &repo("r"), id, chunk, body(rest), digest).await?.size_bytes)
        };
        match gone_on.await {
            Ok(len) => return assert_eq!(len, bytes.len() as u64),
            // The other server was still alive.
            Err(Error::UploadConflict { .. }) => {}
            Err(Error::UploadUnknown { .. }) => {
                if f.registry.blob_stat(&CALLER, &repo("r"), digest).await.is_err() {
                    f.push("r", bytes).await;
                }
                return;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Asserts that the storage has no objects which only a search of the whole storage would find.
pub(super) async fn assert_tidy(storage: &Storage, f: &Fixture) {
    f.assert_sound().await;
    let lost: Vec<String> =
        f.leftovers().await.into_iter().filter(|key| key.starts_with("objects/")).collect();
    assert_eq!(lost, Vec::<String>::new());
    assert_eq!(storage.unfinished_parts(), 0);
}

#[tokio::test]
async fn an_upload_alternates_between_two_servers() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        let bytes = noise(23 * MIB + 17);
        for cuts in
            [&[1, 2, 3][..], &[5 * MIB], &[7 * MIB, 7 * MIB + 1, 20 * MIB], &[10 * MIB, 23 * MIB + 17]]
        {
            let id = a.upload("r").await;
            let mut start = 0;
            for (turn, end) in cuts.iter().enumerate() {
                let f = if turn % 2 == 0 { &b } else { &a };
                assert_eq!(
                    f.append("r", id, None, pieces(&bytes[start..*end], 100_000)).await.unwrap(),
                    *end as u64
                );
                start = *end;
            }
            assert_eq!(a.offset("r", id).await.unwrap(), start as u64);
            let digest = Digest::sha256(&bytes[..start + (bytes.len() - start) / 2]);
            let rest = pieces(&bytes[start..start + (bytes.len() - start) / 2], 100_000);
            a.finish("r", id, rest, &digest).await.unwrap();
            assert_eq!(Digest::sha256(&b.pull("r", &digest).await.unwrap()), digest);
            assert_tidy(&storage, &b).await;
        }
        assert_eq!(a.leftovers().await, Vec::<String>::new());
        assert_eq!(storage.unfinished(), 0);
    })
    .await;
}

#[tokio::test]
async fn two_servers_finish_an_upload_while_the_storage_assembles_it() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        let bytes = noise(11 * MIB);
        let digest = Digest::sha256(&bytes);
        let id = a.upload("r").await;
        a.append("r", id, None, body(&bytes)).await.unwrap();
        storage.fail("assemble", Fault::BlockedBefore, 1);
        let (first, second, ()) = tokio::join!(
            a.finish("r", id, body(b""), &digest),
            async {
                // It begins while the storage has neither the upload nor the object.
                while storage.held() == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                b.finish("r", id, body(b""), &digest).await
            },
            async {
                while storage.held() == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
                storage.release();
            }
        );
        assert!(first.is_ok() || second.is_ok(), "{first:?} {second:?}");
        assert_eq!(b.pull("r", &digest).await.unwrap(), bytes);
        assert_tidy(&storage, &b).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_may_die_at_any_step() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        let bytes = noise(11 * MIB);
        for (sizes, patched) in [((11 * MIB), 6 * MIB), (100_000, 40_000)] {
            for fault in [Fault::BlockedBefore, Fault::BlockedAfter] {
                for step in 0.. {
                    // Different content for each.
                    let bytes = [&bytes[..sizes], format!("{fault:?} {step}").as_bytes()].concat();
                    let digest = Digest::sha256(&bytes);
                    let id = a.upload("r").await;
                    storage.fail_at(step, fault);
                    let push = async {
                        a.append("r", id, None, body(&bytes[..patched])).await.unwrap();
                        a.finish("r", id, body(&bytes[patched..]), &digest).await.unwrap()
                    };
                    let done = until_held(&storage, push).await;
                    storage.forget_plan();
                    resume_upload(&b, id, &bytes, &digest).await;
                    assert_eq!(b.pull("r", &digest).await.unwrap(), bytes, "{fault:?} {step}");
                    assert_tidy(&storage, &b).await;
                    if done.is_some() {
                        assert!(step > 2, "{fault:?} {step}");
                        break;
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn storage_responses_may_be_lost_and_requests_refused() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        let bytes = noise(11 * MIB);
        for (number, kind) in ["put", "create", "part", "complete", "head", "delete"].into_iter().enumerate()
        {
            for fault in [Fault::ResponseLost, Fault::Refused] {
                let bytes = [&bytes[..], format!("{fault:?} {kind}").as_bytes()].concat();
                let digest = Digest::sha256(&bytes);
                let id = a.upload("r").await;
                storage.fail(kind, fault, 1);
                let pushed = async {
                    a.append("r", id, None, body(&bytes[..(6 + number % 2) * MIB])).await?;
                    let offset = usize::try_from(a.offset("r", id).await?).unwrap();
                    a.finish("r", id, body(&bytes[offset..]), &digest).await
                };
                match pushed.await {
                    Ok(_) => {}
                    Err(Error::Unavailable { .. }) => {
                        assert!(a.pull("r", &digest).await.is_err(), "{fault:?} {kind}");
                        resume_upload(&b, id, &bytes, &digest).await;
                    }
                    Err(other) => panic!("{fault:?} {kind}: {other}"),
                }
                // The blob exists once the push has succeeded.
                storage.release();
                assert_eq!(a.pull("r", &digest).await.unwrap(), bytes, "{fault:?} {kind}");
                assert_tidy(&storage, &b).await;
            }
        }
        storage.fail("complete", Fault::ResponseLost, 1);
        a.push("r", &noise(6 * MIB)).await;
        assert_tidy(&storage, &a).await;
    })
    .await;
}

#[tokio::test]
async fn the_registry_recovers_after_a_storage_outage() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, _b: Fixture| {
        let held = a.push("r", b"held").await;
        let bytes = noise(7 * MIB);
        let id = a.upload("r").await;
        a.append("r", id, None, body(&bytes[..6 * MIB])).await.unwrap();
        storage.fail("any", Fault::Refused, usize::MAX);
        assert_eq!(a.registry.ready().await.unwrap_err(), ["the storage does not respond"]);
        let away = |error: &Error| matches!(error, Error::Unavailable { .. });
        assert!(away(&a.pull("r", &held).await.unwrap_err()));
        assert!(away(&a.append("r", id, None, body(b"x")).await.unwrap_err()));
        assert!(away(&a.finish("r", id, body(b""), &Digest::sha256(&bytes[..6 * MIB])).await.unwrap_err()));
        let (digest, chunk) = (Digest::sha256(b"new"), ChunkRange::default());
        let result = a.registry.blob_put(&CALLER, &repo("r"), &digest, chunk, body(b"new")).await;
        assert!(away(&result.unwrap_err()));
        assert!(away(&a.put("r", "t", &image(&held, &[])).await.unwrap_err()));
        assert!(away(&a.registry.fsck(&CALLER, false).await.unwrap_err()));
        // The offset of an upload is still available.
        assert_eq!(a.offset("r", id).await.unwrap(), 6 * MIB as u64);

        storage.release();
        a.registry.ready().await.unwrap();
        assert_eq!(a.pull("r", &held).await.unwrap(), b"held");
        a.finish("r", id, body(&bytes[6 * MIB..]), &Digest::sha256(&bytes)).await.unwrap();
        a.put("r", "t", &image(&held, &[])).await.unwrap();
        a.push("r", b"new").await;
        // Sessions that failed with the storage are deleted like other abandoned ones.
        for row in a.registry.store().uploads_idle(now_ms() + 1, 100).await.unwrap() {
            assert!(a.registry.upload_remove(row).await.unwrap());
        }
        assert_tidy(&storage, &a).await;
    })
    .await;
}

#[tokio::test]
async fn a_writer_that_was_replaced_changes_nothing() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        // The old writer is cut off from the storage at each write operation. Its request arrives much too
        // late, with other bytes than those of the client's new request.
        let (old, new) = (vec![7; 11 * MIB], noise(11 * MIB));
        for (kind, len) in [("part", 11 * MIB), ("put", 50_000), ("complete", 11 * MIB), ("create", 11 * MIB)]
        {
            for early in [false, true] {
                // Both contents are new, even if the old writer won the round before: content that is already
                // live is only linked.
                let round = format!("{kind} {early}");
                let (old, new) =
                    ([&old[..len], round.as_bytes()].concat(), [&new[..len], round.as_bytes()].concat());
                let (old_digest, digest) = (Digest::sha256(&old), Digest::sha256(&new));
                let id = a.upload("r").await;
                storage.fail(kind, Fault::BlockedBefore, 1);
                let stale = a.finish("r", id, body(&old), &old_digest);
                tokio::pin!(stale);
                let done = until_held(&storage, &mut stale).await;
                assert!(done.is_none(), "{round} {done:?}");
                storage.forget_plan();
                let offset = b.offset("r", id).await.unwrap();
                let fresh = b.finish("r", id, body(&new[usize::try_from(offset).unwrap()..]), &digest);
                let (stale, fresh) = if early {
                    let release = async {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        storage.release();
                    };
                    let (stale, fresh, ()) = tokio::join!(stale, fresh, release);
                    (stale, fresh)
                } else {
                    let fresh = fresh.await;
                    storage.release();
                    (stale.await, fresh)
                };
                // At most one of the two succeeds, and its blob has the right bytes.
                assert!(!(stale.is_ok() && fresh.is_ok()), "{round} {stale:?} {fresh:?}");
                for (outcome, digest, bytes) in [(&stale, &old_digest, &old), (&fresh, &digest, &new)] {
                    match outcome {
                        Ok(_) => assert_eq!(b.pull("r", digest).await.unwrap(), *bytes, "{kind} {early}"),
                        Err(error) => assert!(
                            matches!(
                                error,
                                Error::UploadConflict { .. }
                                    | Error::UploadUnknown { .. }
                                    | Error::UploadLost { .. }
                                    | Error::DigestMismatch { .. }
                            ),
                            "{kind} {early} {error}"
                        ),
                    }
                }
                // The client starts again if necessary.
                b.push("r", &new).await;
                assert_eq!(b.pull("r", &digest).await.unwrap(), new);
                if let Ok(Some(row)) = b.registry.store().upload_find_any(id).await {
                    assert!(b.registry.upload_remove(row).await.unwrap());
                }
                assert_tidy(&storage, &b).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn the_same_content_at_once_is_one_blob() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        for len in [6 * MIB, 1000] {
            let bytes = noise(len);
            let kind = if len > 5 * MIB { "complete" } else { "put" };
            storage.fail(kind, Fault::BlockedBefore, 1);
            let slow = a.push("slow", &bytes);
            tokio::pin!(slow);
            assert!(until_held(&storage, &mut slow).await.is_none());
            storage.forget_plan();
            let digest = b.push("fast", &bytes).await;
            storage.release();
            assert_eq!(slow.await, digest);
            for repository in ["slow", "fast"] {
                assert_eq!(b.pull(repository, &digest).await.unwrap(), bytes);
            }
            assert_eq!(b.leftovers().await, Vec::<String>::new());
            assert_tidy(&storage, &b).await;
        }
        // The same for a manifest.
        let config = a.push("r", b"{}").await;
        storage.fail("put", Fault::BlockedBefore, 1);
        let manifest = image(&config, &[]);
        let slow = a.put("r", "slow", &manifest);
        tokio::pin!(slow);
        assert!(until_held(&storage, &mut slow).await.is_none());
        storage.forget_plan();
        let fast = b.put("r", "fast", &manifest).await.unwrap().digest;
        storage.release();
        assert_eq!(slow.await.unwrap().digest, fast);
        assert_eq!(b.get("r", "slow").await.unwrap(), fast);
        assert_eq!(b.leftovers().await, Vec::<String>::new());
        assert_tidy(&storage, &b).await;
    })
    .await;
}

#[tokio::test]
async fn abandoned_uploads_leave_nothing() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        let bytes = noise(12 * MIB);
        // Cancelled uploads, wrong digests of either algorithm, and content that already exists.
        let id = a.upload("r").await;
        a.append("r", id, None, body(&bytes)).await.unwrap();
        b.registry.upload_cancel(&CALLER, &repo("r"), id).await.unwrap();
        for wrong in [Digest::sha256(b"wrong"), sha512(b"wrong")] {
            let id = a.upload("r").await;
            a.append("r", id, None, body(&bytes[..6 * MIB])).await.unwrap();
            let result = b.finish("r", id, body(&bytes[6 * MIB..]), &wrong).await;
            assert!(matches!(result, Err(Error::DigestMismatch { .. })), "{result:?}");
        }
        assert_eq!((a.leftovers().await, storage.unfinished()), (Vec::new(), 0));
        let digest = a.push("r", &bytes).await;
        b.push("other", &bytes).await;
        assert_eq!((a.leftovers().await, storage.unfinished()), (Vec::new(), 0));
        // The announced algorithm differs: the bytes are read again, and the digest is right.
        let id = a.upload("r").await;
        a.finish("r", id, body(&bytes), &sha512(&bytes)).await.unwrap();
        assert_eq!(b.pull("r", &sha512(&bytes)).await.unwrap(), bytes);
        assert_eq!(b.pull("other", &digest).await.unwrap(), bytes);
        assert_eq!((a.leftovers().await, storage.unfinished()), (Vec::new(), 0));
        a.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_read_overtaken_by_a_collection_retries() {
    each_pair_with(&no_grace, Limits::default(), async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        for pushed_again in [false, true] {
            let digest = a.push("r", b"content").await;
            storage.fail("get", Fault::BlockedBefore, 1);
            let read = a.pull("r", &digest);
            tokio::pin!(read);
            assert!(until_held(&storage, &mut read).await.is_none());
            storage.forget_plan();
            b.registry.gc_run(&CALLER, false).await.unwrap();
            assert!(!b.holds(&digest).await);
            if pushed_again {
                b.push("r", b"content").await;
            }
            storage.release();
            match read.await {
                Ok(bytes) => assert!(pushed_again && bytes == b"content"),
                Err(error) => assert!(!pushed_again && matches!(error, Error::BlobUnknown { .. }), "{error}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_manifest_whose_server_dies_leaves_nothing() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
        let config = a.push("r", b"{}").await;
        let manifest = image(&config, &[]);
        storage.fail("put", Fault::BlockedAfter, 1);
        let put = a.put("r", "t", &manifest);
        tokio::pin!(put);
        assert!(until_held(&storage, &mut put).await.is_none());
        assert_eq!(b.leftovers().await.len(), 1);
        for row in b.registry.store().uploads_idle(now_ms() + 1, 10).await.unwrap() {
            assert!(b.registry.upload_remove(row).await.unwrap());
        }
        assert_eq!(b.leftovers().await, Vec::<String>::new());
        // If the server was only slow, the push fails instead of referencing deleted bytes.
        storage.release();
        assert!(put.await.is_err());
        assert!(b.get("r", "t").await.is_err());
        b.put("r", "t", &manifest).await.unwrap();
        assert_tidy(&storage, &b).await;
    })
    .await;
}

#[tokio::test]
async fn servers_without_local_state_share_a_folder() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let (_, storage) = memory_for_test();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let config =
        Config { data: data.clone(), database: Some(database), storage: Some(storage), ..Config::default() };
    let (one, two) = (crate::open(config.clone()).await.unwrap(), crate::open(config).await.unwrap());
    assert!(!data.exists());
    one.close().await;
    two.close().await;
}

#[tokio::test]
async fn a_cancel_does_not_wait_for_an_unresponsive_storage() {
    let (moment, default) = (Duration::from_secs(1), UploadTimeouts::default());
    // First a writer of the same server is held in the storage, then the cancellation itself. Only the limit
    // that is tested is short.
    let cases = [
        (&["part"][..], UploadTimeouts { cancel_writer_lock: moment, ..default }),
        (&["abort", "list", "delete"], UploadTimeouts { deletion: moment, ..default }),
    ];
    for (kinds, timeouts) in cases {
        let limits = Limits { timeouts, ..Limits::default() };
        each_pair_with(&|_| {}, limits, async |storage: Arc<Storage>, a: Fixture, b: Fixture| {
            let bytes = noise(11 * MIB);
            for &kind in kinds {
                let id = a.upload("r").await;
                a.append("r", id, None, body(&bytes[..6 * MIB])).await.unwrap();
                storage.fail(kind, Fault::BlockedBefore, usize::MAX);
                let write = a.append("r", id, None, body(&bytes[6 * MIB..]));
                tokio::pin!(write);
                if kind == "part" {
                    assert!(until_held(&storage, &mut write).await.is_none());
                }
                let repository = repo("r");
                // Held during the whole wait: without its limit it would never end.
                let cancelled = a.registry.upload_cancel(&CALLER, &repository, id).await;
                storage.release();
                if kind == "part" {
                    cancelled.unwrap();
                    assert!(write.await.is_err());
                } else {
                    assert!(matches!(cancelled, Err(Error::Unavailable { .. })), "{kind}: {cancelled:?}");
                    // The client cancels again, on any server. The first deletion, which continues, may end
                    // before this one.
                    match b.registry.upload_cancel(&CALLER, &repository, id).await {
                        Ok(()) | Err(Error::UploadUnknown { .. }) => {}
                        Err(other) => panic!("{kind}: {other}"),
                    }
                }
                assert!(matches!(b.offset("r", id).await, Err(Error::UploadUnknown { .. })), "{kind}");
                assert_tidy(&storage, &b).await;
            }
            assert_eq!(a.leftovers().await, Vec::<String>::new());
        })
        .await;
    }
}

#[tokio::test]
async fn a_failed_deletion_does_not_block_others() {
    each_pair_with(&no_grace, Limits::default(), async |storage: Arc<Storage>, a: Fixture, _: Fixture| {
        for seed in ["1", "2", "3"] {
            let digest = a.push("r", seed.as_bytes()).await;
            a.registry.blob_delete(&CALLER, &repo("r"), &digest).await.unwrap();
        }
        // The batch fails, and then one of its blobs alone.
        storage.fail("delete", Fault::Refused, 2);
        let failed = a.registry.gc_run(&CALLER, false).await;
        assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
        let left = a.registry.blobs().list(key::OBJECTS).count().await;
        assert_eq!(left, 1);
        assert_eq!(a.registry.gc_run(&CALLER, false).await.unwrap().blobs, 1);
        assert_tidy(&storage, &a).await;
    })
    .await;
}

#[tokio::test]
async fn a_failed_upload_expiry_does_not_block_others() {
    let brief = |config: &mut Config| config.upload_expiry = Duration::from_secs(1);
    each_pair_with(&brief, Limits::default(), async |_: Arc<Storage>, a: Fixture, _: Fixture| {
        let (store, progress) = (
            a.registry.store(),
            UploadProgress { multipart_id: None, parts: Some("not a list of parts".to_owned()) },
        );
        // The expiry job may come first.
        let bad = loop {
            let id = a.upload("r").await;
            if store.upload_record_location(id, 0, &progress).await.unwrap() {
                break id;
            }
        };
        let good = a.upload("r").await;
        while store.upload_find_any(good).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(store.upload_find_any(bad).await.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
async fn a_check_ends_when_its_caller_disconnects() {
    each_pair(async |storage: Arc<Storage>, a: Fixture, _: Fixture| {
        a.push("r", b"content").await;
        storage.fail("head", Fault::BlockedBefore, 1);
        assert!(until_held(&storage, a.registry.fsck(&CALLER, true)).await.is_none());
        // The collection that waited for it continues.
        a.registry.gc_run(&CALLER, false).await.unwrap();
        storage.release();
    })
    .await;
}
