//! Uploads: ranges, cuts, two writers, both algorithms, a full disk.

use lode_model::digest::{Algorithm, Digest};
use proptest::prelude::*;

use super::*;

#[tokio::test]
async fn a_blob_in_one_body() {
    each_engine(async |f: Fixture| {
        for bytes in [Vec::new(), b"{}".to_vec(), noise(3_500_000)] {
            let digest = f.push("team/model", &bytes).await;
            assert_eq!(f.pull("team/model", &digest).await.unwrap(), bytes);
            assert!(f.holds(&digest).await);
            // Other repositories do not have it, even for clients that know the digest.
            assert!(matches!(f.pull("other", &digest).await, Err(Error::BlobUnknown { .. })));
        }
        f.assert_sound().await;
        assert_eq!(f.leftovers().await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn parts_of_a_blob() {
    each_engine(async |f: Fixture| {
        let bytes = noise(700_000);
        let digest = f.push("r", &bytes).await;
        for range in [0..1, 0..700_000, 262_143..262_145, 699_999..700_000, 5..500_000] {
            let requested = Some(range.start as u64..range.end as u64);
            let (info, part) = f.registry.blob_open(&CALLER, &repo("r"), &digest, requested).await.unwrap();
            assert_eq!(info.size_bytes, 700_000);
            assert_eq!(collect_bytes(part).await, &bytes[range]);
        }
        let (_, rest) =
            f.registry.blob_open(&CALLER, &repo("r"), &digest, Some(600_000..u64::MAX)).await.unwrap();
        assert_eq!(collect_bytes(rest).await, &bytes[600_000..]);
        for outside in [700_000..700_001, 9..9] {
            let result = f.registry.blob_open(&CALLER, &repo("r"), &digest, Some(outside)).await;
            assert!(matches!(result, Err(Error::RangeUnsatisfiable { size_bytes: 700_000 })));
        }
    })
    .await;
}

#[tokio::test]
async fn chunks_in_order_only() {
    each_engine(async |f: Fixture| {
        let id = f.upload("r").await;
        assert_eq!(f.offset("r", id).await.unwrap(), 0);
        assert_eq!(f.append("r", id, Some((0, 4)), body(b"hello")).await.unwrap(), 5);
        // A repetition, a gap, an overlap: the error has the offset, and nothing changes.
        for range in [(0, 4), (6, 7), (3, 6), (u64::MAX, u64::MAX), (0, u64::MAX)] {
            let result = f.append("r", id, Some(range), body(b"xxxxx")).await;
            assert!(matches!(result, Err(Error::UploadConflict { offset: 5, .. })), "{range:?} {result:?}");
        }
        // A range with more or fewer bytes than the body.
        for (range, bytes) in [((5, 9), &b"abc"[..]), ((5, 6), b"abc"), ((5, 4), b"a"), ((5, 4), b"")] {
            let result = f.append("r", id, Some(range), body(bytes)).await;
            let fine = range == (5, 4) && bytes.is_empty();
            assert!(
                fine || matches!(result, Err(Error::RangeMismatch { offset: 5, .. })),
                "{range:?} {result:?}"
            );
            assert_eq!(f.offset("r", id).await.unwrap(), 5);
        }
        // A length that differs from the body's.
        for length in [2, 4] {
            let chunk = ChunkRange { range: None, length: Some(length) };
            let result = f.registry.upload_append(&CALLER, &repo("r"), id, chunk, body(b"abc")).await;
            assert!(matches!(result, Err(Error::SizeMismatch { .. })), "{result:?}");
            let chunk = ChunkRange { range: Some((5, 7)), length: Some(length) };
            let result = f.registry.upload_append(&CALLER, &repo("r"), id, chunk, body(b"abc")).await;
            assert!(matches!(result, Err(Error::RangeMismatch { .. })), "{result:?}");
        }
        assert_eq!(f.append("r", id, None, body(b" world")).await.unwrap(), 11);
        // The last chunk may be out of order too; the upload stays.
        let digest = Digest::sha256(b"hello world!");
        let chunk = ChunkRange { range: Some((12, 12)), length: Some(1) };
        let result = f.registry.upload_finish(&CALLER, &repo("r"), id, chunk, body(b"!"), &digest).await;
        assert!(matches!(result, Err(Error::UploadConflict { offset: 11, .. })));
        assert_eq!(f.finish("r", id, body(b"!"), &digest).await.unwrap(), 12);
        assert_eq!(f.pull("r", &digest).await.unwrap(), b"hello world!");
        // The upload no longer exists, and other repositories do not see uploads of this one.
        assert!(matches!(f.finish("r", id, body(b""), &digest).await, Err(Error::UploadUnknown { .. })));
        let other = f.upload("r").await;
        assert!(matches!(f.offset("elsewhere", other).await, Err(Error::UploadUnknown { .. })));
    })
    .await;
}

#[tokio::test]
async fn content_under_a_wrong_name_is_refused() {
    each_engine(async |f: Fixture| {
        let id = f.upload("r").await;
        f.append("r", id, None, body(b"abc")).await.unwrap();
        let wrong = Digest::sha256(b"abd");
        let result = f.finish("r", id, body(b""), &wrong).await;
        assert!(matches!(result, Err(Error::DigestMismatch { .. })));
        assert!(matches!(f.pull("r", &wrong).await, Err(Error::BlobUnknown { .. })));
        assert!(matches!(f.pull("r", &Digest::sha256(b"abc")).await, Err(Error::BlobUnknown { .. })));
        assert!(matches!(f.offset("r", id).await, Err(Error::UploadUnknown { .. })));
        let chunk = ChunkRange { range: None, length: Some(4) };
        let result = f.registry.blob_put(&CALLER, &repo("r"), &wrong, chunk, body(b"abd")).await;
        assert!(matches!(result, Err(Error::SizeMismatch { expected: 4, got: 3 })));
        f.assert_sound().await;
        assert_eq!(f.leftovers().await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn sha512_announced_or_not() {
    each_engine(async |f: Fixture| {
        let bytes = noise(2_500_000);
        let digest = sha512(&bytes);
        for algorithm in [None, Some(Algorithm::Sha512), Some(Algorithm::Sha256)] {
            let id = f.registry.upload_create(&CALLER, &repo("r"), algorithm).await.unwrap().id;
            f.append("r", id, None, body(&bytes[..1_000_000])).await.unwrap();
            assert_eq!(f.finish("r", id, body(&bytes[1_000_000..]), &digest).await.unwrap(), 2_500_000);
        }
        assert_eq!(f.pull("r", &digest).await.unwrap(), bytes);
        // Each digest is a separate blob.
        assert!(matches!(f.pull("r", &Digest::sha256(&bytes)).await, Err(Error::BlobUnknown { .. })));
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn an_interrupted_body_keeps_its_received_bytes() {
    each_engine(async |f: Fixture| {
        let bytes = noise(3_000_000);
        let digest = Digest::sha256(&bytes);
        let id = f.upload("r").await;
        let result = f.append("r", id, None, cut(&bytes[..1_234_567])).await;
        assert!(matches!(result, Err(Error::BodyInterrupted(_))));
        assert_eq!(f.offset("r", id).await.unwrap(), 1_234_567);
        // An interrupted final PUT leaves the upload open too.
        let result = f.finish("r", id, cut(&bytes[1_234_567..2_000_000]), &digest).await;
        assert!(matches!(result, Err(Error::BodyInterrupted(_))));
        let f = f.restart().await;
        assert_eq!(f.offset("r", id).await.unwrap(), 2_000_000);
        let range = Some((2_000_000, 2_999_999));
        assert_eq!(f.append("r", id, range, body(&bytes[2_000_000..])).await.unwrap(), 3_000_000);
        f.finish("r", id, body(b""), &digest).await.unwrap();
        assert_eq!(f.pull("r", &digest).await.unwrap(), bytes);
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_returning_client_takes_over_its_upload() {
    each_engine(async |f: Fixture| {
        let bytes = noise(100_000);
        let id = f.upload("r").await;
        // A connection that died unnoticed: its request hangs within the body.
        let hung = f.append("r", id, Some((0, 99_999)), hanging(&bytes[..60_000]));
        tokio::pin!(hung);
        assert!(futures::poll!(&mut hung).is_pending());
        while !f.is_written(id).await {
            assert!(futures::poll!(&mut hung).is_pending());
            tokio::task::yield_now().await;
        }
        // A request with a wrong offset does not disturb it.
        let result = f.append("r", id, Some((7, 8)), body(b"xx")).await;
        assert!(matches!(result, Err(Error::UploadConflict { offset: 0, .. })));
        // One with the right offset wins, and the old one fails.
        assert_eq!(f.append("r", id, Some((0, 99_999)), body(&bytes)).await.unwrap(), 100_000);
        let lost = hung.await;
        assert!(matches!(lost, Err(Error::UploadConflict { .. })), "{lost:?}");
        f.finish("r", id, body(b""), &Digest::sha256(&bytes)).await.unwrap();
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn concurrent_writers_never_mix() {
    each_engine(async |f: Fixture| {
        let bytes = noise(500_000);
        let digest = Digest::sha256(&bytes);
        let id = f.upload("r").await;
        let writers = (0..8).map(|_| f.append("r", id, Some((0, 499_999)), body(&bytes)));
        let results = futures::future::join_all(writers).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        assert!(
            results.iter().all(|a| matches!(a, Ok(500_000) | Err(Error::UploadConflict { .. }))),
            "{results:?}"
        );
        f.finish("r", id, body(b""), &digest).await.unwrap();
        assert_eq!(f.pull("r", &digest).await.unwrap(), bytes);
        // The same content, pushed by many at once and again later, is one blob.
        let pushes = (0..8).map(|n| {
            let f = &f;
            async move { f.push(&format!("r{n}"), b"the same").await }
        });
        futures::future::join_all(pushes).await;
        f.push("again", b"the same").await;
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_dropped_loses_nothing() {
    each_engine(async |f: Fixture| {
        let bytes = noise(50_000);
        let id = f.upload("r").await;
        {
            let request = f.append("r", id, None, body(&bytes));
            tokio::pin!(request);
            assert!(futures::poll!(&mut request).is_pending());
        }
        while f.offset("r", id).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        f.finish("r", id, body(b""), &Digest::sha256(&bytes)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn cancelling_stops_the_writer_and_frees_the_bytes() {
    each_engine(async |f: Fixture| {
        let id = f.upload("r").await;
        let hung = f.append("r", id, None, hanging(b"some bytes"));
        tokio::pin!(hung);
        while !f.is_written(id).await {
            assert!(futures::poll!(&mut hung).is_pending());
            tokio::task::yield_now().await;
        }
        f.registry.upload_cancel(&CALLER, &repo("r"), id).await.unwrap();
        assert!(hung.await.is_err());
        for result in [f.offset("r", id).await, f.append("r", id, None, body(b"x")).await] {
            assert!(matches!(result, Err(Error::UploadUnknown { .. })));
        }
        let result = f.registry.upload_cancel(&CALLER, &repo("r"), id).await;
        assert!(matches!(result, Err(Error::UploadUnknown { .. })));
        assert_eq!(f.leftovers().await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_acknowledges_nothing_and_serves_reads() {
    const LIMIT: u64 = 3_000_000;
    each_folder_with(&|_| {}, WriteLimit(Some(LIMIT)), async |f: Fixture| {
        let small = f.push("r", b"fits").await;
        let bytes = noise(4_000_000);
        let id = f.upload("r").await;
        assert_eq!(f.append("r", id, None, body(&bytes[..2_000_000])).await.unwrap(), 2_000_000);
        let result = f.append("r", id, None, body(&bytes[2_000_000..])).await;
        assert!(matches!(result, Err(Error::StorageFull)), "{result:?}");
        // Acknowledged bytes are kept, the others are freed.
        assert_eq!(f.offset("r", id).await.unwrap(), 2_000_000);
        assert_eq!(std::fs::metadata(f.path(&format!("uploads/{id}"))).unwrap().len(), 2_000_000);
        let digest = Digest::sha256(&bytes);
        let result =
            f.registry.blob_put(&CALLER, &repo("r"), &digest, ChunkRange::default(), body(&bytes)).await;
        assert!(matches!(result, Err(Error::StorageFull)));
        assert!(matches!(f.pull("r", &digest).await, Err(Error::BlobUnknown { .. })));
        assert_eq!(f.pull("r", &small).await.unwrap(), b"fits");
        // It continues at its offset as soon as space is available.
        assert_eq!(f.append("r", id, None, body(&bytes[2_000_000..2_500_000])).await.unwrap(), 2_500_000);
        f.finish("r", id, body(b""), &Digest::sha256(&bytes[..2_500_000])).await.unwrap();
        f.assert_sound().await;
    })
    .await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any way of splitting a blob into chunks, with invalid ones in between, gives the blob.
    #[test]
    fn any_chunks_give_the_blob(steps in prop::collection::vec((0_u64..5, 0_usize..40_000), 1..12)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let f = Fixture::start(None, None, &|_| {}, WriteLimit::default()).await;
            let bytes = noise(12 * 40_000);
            let id = f.upload("r").await;
            let mut offset = 0_usize;
            for (step, len) in steps {
                let chunk = &bytes[offset..offset + len];
                let range = (len > 0).then(|| (offset as u64, (offset + len) as u64 - 1));
                match step {
                    0 => { f.append("r", id, range, pieces(chunk, 777)).await.unwrap(); offset += len; }
                    1 => { f.append("r", id, None, pieces(chunk, 65_536)).await.unwrap(); offset += len; }
                    2 => { assert!(f.append("r", id, None, cut(chunk)).await.is_err()); offset += len; }
                    3 => { assert!(f.append("r", id, Some((offset as u64 + 1, (offset + len) as u64 + 1)), body(chunk)).await.is_err()); }
                    _ => { assert!(f.append("r", id, range.map(|(a, b)| (a, b + 1)).or(Some((offset as u64, offset as u64))), body(chunk)).await.is_err()); }
                }
                assert_eq!(f.offset("r", id).await.unwrap(), offset as u64);
            }
            let digest = Digest::sha256(&bytes[..offset]);
            f.finish("r", id, body(b""), &digest).await.unwrap();
            assert_eq!(f.pull("r", &digest).await.unwrap(), &bytes[..offset]);
        });
    }
}
