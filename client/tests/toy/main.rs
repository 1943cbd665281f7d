//! Tests of the client against a small registry that fails on demand: truncated bodies, transient failures,
//! wrong bytes, ignored ranges, redirects, logins.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod server;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use http::StatusCode;
use lode_client::{
    BlobInfo, Client, ClientOptions, Content, CredentialFile, CredentialKey, Credentials, Error, Login,
    NoProgress, Offer, Progress, PushOutcome, RetryPolicy,
};
use lode_model::{
    digest::{Algorithm, Digest},
    reference::{Reference, Repository},
};

use server::{Auth, Faults, TestServer, serve};

fn repository() -> Repository {
    "team/x".parse().unwrap()
}

/// Pseudo-random bytes.
fn noise(length: usize) -> Bytes {
    let mut state = 88172645463325252u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect::<Vec<u8>>()
        .into()
}

/// Counts the reported progress.
#[derive(Default)]
struct CountingProgress(AtomicU64);

impl Progress for CountingProgress {
    fn transferred(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn retracted(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Pulls a blob; returns the result, the written file and the counted bytes.
async fn pull(
    serving: &TestServer,
    digest: &Digest,
    size: usize,
) -> (Result<(), Error>, Option<Vec<u8>>, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blob");
    let counted = Arc::new(CountingProgress::default());
    let blob = BlobInfo { digest: digest.clone(), size_bytes: size as u64 };
    let outcome = serving.registry().blob_pull_to_file(&repository(), &blob, &path, counted.clone()).await;
    let written = std::fs::read(&path).ok();
    if written.is_some() {
        let left: HashSet<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 1, "files are left: {left:?}");
    }
    (outcome, written, counted.0.load(Ordering::Relaxed))
}

#[tokio::test]
async fn blobs_arrive_whole_whatever_happens_on_the_way() {
    let cases = [
        ("nothing", Faults::default()),
        ("refused", Faults { refuse_reads: 3, ..Faults::default() }),
        ("cut", Faults { cut_reads: 7, ..Faults::default() }),
        ("no ranges", Faults { ignore_ranges: true, ..Faults::default() }),
        ("no ranges and cut", Faults { ignore_ranges: true, cut_reads: 2, ..Faults::default() }),
    ];
    for (what, faults) in cases {
        for size in [0, 1, 1000, 64 << 10, (64 << 10) + 1, 1_000_000] {
            let serving = serve(faults.clone()).await;
            let bytes = noise(size);
            let digest = serving.put(&bytes);
            let (outcome, written, counted) = pull(&serving, &digest, size).await;
            outcome.unwrap_or_else(|error| panic!("{what}, {size}: {error}"));
            assert!(written.as_deref() == Some(&bytes[..]), "{what}, {size}");
            assert_eq!(counted, size as u64, "{what}, {size}: wrong progress");

            let stream = serving.registry().blob_read(&repository(), &digest, size as u64);
            let read: Vec<Bytes> = stream.map(|chunk| chunk.unwrap()).collect().await;
            assert!(read.concat() == bytes, "{what}, {size}");
            let read = serving.registry().blob_bytes(&repository(), &digest, size as u64).await.unwrap();
            assert!(read == bytes, "{what}, {size}");
            if size > 10 {
                let part = serving.registry().blob_range(&repository(), &digest, 3..9).await.unwrap();
                assert_eq!(part, bytes.slice(3..9), "{what}, {size}");
            }
        }
    }
}

#[tokio::test]
async fn all_failures_of_a_read_into_memory_count_together() {
    let cases = [
        Faults { refuse_reads: 100, ..Faults::default() },
        Faults { cut_reads: 100, ..Faults::default() },
        Faults { refuse_reads: 3, cut_reads: 100, ..Faults::default() },
    ];
    for faults in cases {
        let serving = serve(faults).await;
        let digest = serving.put(&noise(1000));
        let retry =
            RetryPolicy { attempts: 5, base: Duration::from_millis(1), cap: Duration::from_millis(2) };
        let registry = serving.registry_with(ClientOptions { retry, ..ClientOptions::default() });
        registry.blob_bytes(&repository(), &digest, 1000).await.unwrap_err();
        assert_eq!(serving.count_requests("GET", digest.as_str()), 5);
    }
}

#[tokio::test]
async fn a_range_has_as_many_requests_as_attempts_and_one_if_retries_are_forbidden() {
    let serving = serve(Faults { refuse_reads: 1000, ..Faults::default() }).await;
    let digest = serving.put(&noise(1000));
    let (registry, repository) = (serving.registry(), repository());
    let requests = || serving.count_requests("GET", digest.as_str());
    registry.blob_range(&repository, &digest, 100..900).await.unwrap_err();
    assert_eq!(requests(), 5);
    // A server may say that a repetition fails in the same way.
    serving.set(|faults| faults.forbid_retries = true);
    let forbidden = registry.blob_range(&repository, &digest, 100..900).await.unwrap_err();
    assert!(!forbidden.is_transient(), "{forbidden}");
    assert_eq!(requests(), 6);
    let stream = registry.blob_read(&repository, &digest, 1000);
    assert_eq!(stream.filter_map(async |chunk| chunk.err()).count().await, 1);
    assert_eq!(requests(), 7);
    let (outcome, written, _) = pull(&serving, &digest, 1000).await;
    assert!(outcome.is_err() && written.is_none(), "{outcome:?}");
    assert_eq!(requests(), 8);
}

#[tokio::test]
async fn wrong_bytes_never_get_a_name() {
    for size in [1000, 300_000] {
        let serving = serve(Faults { corrupt: true, ..Faults::default() }).await;
        let digest = serving.put(&noise(size));
        let (outcome, written, _) = pull(&serving, &digest, size).await;
        assert!(matches!(outcome, Err(Error::DigestMismatch { .. })), "{outcome:?}");
        assert_eq!(written, None);
        let last =
            serving.registry().blob_read(&repository(), &digest, size as u64).collect::<Vec<_>>().await;
        assert!(matches!(last.last(), Some(Err(Error::DigestMismatch { .. }))));
        let read = serving.registry().blob_bytes(&repository(), &digest, size as u64).await;
        assert!(matches!(read, Err(Error::DigestMismatch { .. })));
    }
}

#[tokio::test]
async fn wrong_sizes_and_absent_blobs_are_errors() {
    let serving = serve(Faults::default()).await;
    let digest = serving.put(&noise(200_000));
    for wrong in [199_999, 200_001, 10] {
        let (outcome, written, _) = pull(&serving, &digest, wrong).await;
        assert!(matches!(outcome, Err(Error::SizeMismatch { .. })), "{wrong}: {outcome:?}");
        assert_eq!(written, None);
    }
    let absent = Digest::of(Algorithm::Sha256, b"absent");
    let (outcome, _, _) = pull(&serving, &absent, 10).await;
    assert!(matches!(outcome, Err(Error::BlobUnknown { .. })), "{outcome:?}");
    assert!(serving.registry().blob_head(&repository(), &absent).await.unwrap().is_none());
    let known = serving.registry().blob_head(&repository(), &digest).await.unwrap().unwrap();
    assert_eq!(known.size_bytes, 200_000);
    let limited = serving.registry().blob_bytes(&repository(), &digest, 1000).await;
    assert!(matches!(limited, Err(Error::SizeMismatch { .. })), "{limited:?}");
}

#[tokio::test]
async fn a_download_resumes_after_a_crash() {
    let serving = serve(Faults::default()).await;
    let size = 640 << 10;
    let bytes = noise(size);
    let digest = serving.put(&bytes);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blob");
    let blob = BlobInfo { digest: digest.clone(), size_bytes: size as u64 };
    let pull = async || {
        serving.registry().blob_pull_to_file(&repository(), &blob, &path, Arc::new(NoProgress)).await
    };
    // The state after a crash: nine of ten ranges are written.
    let mut left = bytes.to_vec();
    left[128 << 10..192 << 10].fill(0);
    std::fs::write(folder.path().join("blob.part"), &left).unwrap();
    let state = format!(
        "{{\"digest\":\"{digest}\",\"size_bytes\":{size},\"landed\":[[0,{}],[{},{size}]]}}",
        128 << 10,
        192 << 10
    );
    std::fs::write(folder.path().join("blob.part.state"), &state).unwrap();
    pull().await.unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert_eq!(serving.count_requests("GET", "/blobs/"), 1, "fetched more than the missing range");

    // A damaged part file is detected and fetched again.
    std::fs::write(folder.path().join("blob.part"), vec![0; size]).unwrap();
    std::fs::write(folder.path().join("blob.part.state"), &state).unwrap();
    pull().await.unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);

    // An invalid state file is ignored.
    for nonsense in ["", "{", "{\"digest\":\"x\"}", &state.replace(&size.to_string(), "5")] {
        std::fs::write(folder.path().join("blob.part"), [1, 2, 3]).unwrap();
        std::fs::write(folder.path().join("blob.part.state"), nonsense).unwrap();
        pull().await.unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
    }

    let held = std::fs::File::create(folder.path().join("blob.part")).unwrap();
    held.lock().unwrap();
    assert!(matches!(pull().await, Err(Error::Busy { .. })));
}

#[tokio::test]
async fn retries_end_if_a_server_stays_broken() {
    let serving = serve(Faults { refuse_reads: 1000, ..Faults::default() }).await;
    let digest = serving.put(&noise(100));
    let (outcome, _, counted) = pull(&serving, &digest, 100).await;
    assert!(
        matches!(outcome, Err(Error::Refused { status: StatusCode::SERVICE_UNAVAILABLE, .. })),
        "{outcome:?}"
    );
    assert_eq!(counted, 0);
    // A server that never responded is retried only once. With all retries this would take days.
    let cap = Duration::from_secs(24 * 3600);
    let retry = RetryPolicy { attempts: 40, base: Duration::from_millis(10), cap };
    let patient = Client::new(ClientOptions { retry, ..ClientOptions::default() }).unwrap();
    let nobody = patient.registry("127.0.0.1:1").unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(120), nobody.ping()).await.expect("in time");
    assert!(matches!(outcome, Err(Error::Connect { .. })), "{outcome:?}");
}

/// Each byte is progress, but a client must not wait for days.
#[tokio::test]
async fn a_server_that_sends_single_bytes_has_stalled() {
    let serving = serve(Faults { trickle: Some(Duration::from_millis(20)), ..Faults::default() }).await;
    let size = 100_000;
    let digest = serving.put(&noise(size));
    let options = ClientOptions { idle_timeout: Duration::from_millis(200), ..ClientOptions::default() };
    let registry = serving.registry_with(options);
    let stream = registry.blob_read(&repository(), &digest, size as u64);
    let reading = stream.filter_map(async |chunk| chunk.err()).collect::<Vec<_>>();
    let failed = tokio::time::timeout(Duration::from_secs(60), reading).await.expect("in time");
    assert!(matches!(failed[..], [Error::Stalled { .. }]), "{failed:?}");

    let folder = tempfile::tempdir().unwrap();
    let blob = BlobInfo { digest, size_bytes: size as u64 };
    let repository = repository();
    let path = folder.path().join("blob");
    let pulling = registry.blob_pull_to_file(&repository, &blob, &path, Arc::new(NoProgress));
    let outcome = tokio::time::timeout(Duration::from_secs(60), pulling).await.expect("in time");
    assert!(matches!(outcome, Err(Error::Stalled { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_server_that_closes_after_single_bytes_is_not_retried_without_end() {
    let serving = serve(Faults { single_bytes: true, ..Faults::default() }).await;
    let size = 100_000;
    let digest = serving.put(&noise(size));
    let registry = serving.registry();
    let stream = registry.blob_read(&repository(), &digest, size as u64);
    let failed: Vec<Error> = stream.filter_map(async |chunk| chunk.err()).collect().await;
    assert!(matches!(failed[..], [Error::Transport { .. }]), "{failed:?}");
    assert_eq!(serving.count_requests("GET", "/blobs/"), 5, "one request for each attempt");

    let part = registry.blob_range(&repository(), &digest, 0..size as u64).await;
    assert!(matches!(part, Err(Error::Transport { .. })), "{part:?}");
    let (outcome, written, _) = pull(&serving, &digest, size).await;
    assert!(matches!(outcome, Err(Error::Transport { .. })), "{outcome:?}");
    assert_eq!(written, None);
    serving.set(|faults| faults.ignore_ranges = true);
    let (outcome, ..) = pull(&serving, &digest, size).await;
    assert!(matches!(outcome, Err(Error::Transport { .. })), "{outcome:?}");
}

#[tokio::test]
async fn pushes_arrive_whole_whatever_happens_on_the_way() {
    let cases = [
        ("nothing", Faults::default()),
        ("cut", Faults { cut_writes: 3, ..Faults::default() }),
        ("answers lost", Faults { lose_commits: 1, ..Faults::default() }),
        ("sessions lost", Faults { cut_writes: 1, forget_sessions: true, ..Faults::default() }),
    ];
    for (what, faults) in cases {
        for size in [0, 1, 1000, 100_000, 100_001, 1_000_000] {
            let serving = serve(faults.clone()).await;
            let bytes = noise(size);
            let digest = Digest::of(Algorithm::Sha256, &bytes);
            let counted = Arc::new(CountingProgress::default());
            let content: Arc<dyn Content> = Arc::new(bytes.clone());
            let pushed = serving.registry().blob_push(&repository(), &digest, content, counted.clone()).await;
            assert_eq!(pushed.unwrap_or_else(|error| panic!("{what}, {size}: {error}")), PushOutcome::Sent);
            assert!(serving.has(&digest) == Some(bytes), "{what}, {size}");
            assert_eq!(counted.0.load(Ordering::Relaxed), size as u64, "{what}, {size}: wrong progress");
        }
    }
}

/// Waits until the server has received this many bytes.
async fn arrived(serving: &TestServer, bytes: usize) {
    while serving.toy.bytes_received.load(Ordering::Relaxed) < bytes {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn content_is_sent_before_its_digest_is_known() {
    let size = 1_000_000;
    let cases = [
        ("nothing", size, Faults::default()),
        ("named early", 1, Faults::default()),
        ("cut", 100_000, Faults { cut_writes: 3, ..Faults::default() }),
        ("answers lost", size, Faults { lose_commits: 1, ..Faults::default() }),
        ("sessions lost", 100_000, Faults { cut_writes: 1, forget_sessions: true, ..Faults::default() }),
    ];
    for (what, before, faults) in cases {
        let serving = serve(faults).await;
        let bytes = noise(size);
        let digest = Digest::of(Algorithm::Sha256, &bytes);
        let counted = Arc::new(CountingProgress::default());
        // The digest waits for the upload: it would wait for ever if the upload waited for the digest.
        let named = async {
            arrived(&serving, before).await;
            Ok::<_, Error>(digest.clone())
        };
        let pushed = serving
            .registry()
            .push_unhashed(&repository(), Arc::new(bytes.clone()), counted.clone(), named)
            .await;
        assert_eq!(pushed.unwrap_or_else(|error| panic!("{what}: {error}")), digest);
        assert!(serving.has(&digest) == Some(bytes), "{what}");
        assert_eq!(counted.0.load(Ordering::Relaxed), size as u64, "{what}: wrong progress");
    }
}

#[tokio::test]
async fn a_failed_digest_cancels_the_session() {
    let serving = serve(Faults::default()).await;
    let named = async {
        arrived(&serving, 1).await;
        Err::<Digest, _>(Error::Stalled { server: "somewhere else".into(), seconds: 1 })
    };
    let pushed = serving
        .registry()
        .push_unhashed(&repository(), Arc::new(noise(1_000_000)), Arc::new(NoProgress), named)
        .await;
    assert!(matches!(pushed, Err(Error::Stalled { .. })), "{pushed:?}");
    assert!(serving.toy.uploads.lock().unwrap().is_empty());
    assert!(serving.toy.blobs.lock().unwrap().is_empty());
}

#[tokio::test]
async fn only_absent_sizes_may_be_sent_unhashed() {
    for (size_known, expect) in [(None, true), (Some(true), true), (Some(false), false)] {
        let serving = serve(Faults { size_known, ..Faults::default() }).await;
        assert_eq!(serving.registry().may_have_blob(&repository(), 5).await, expect, "{size_known:?}");
    }
}

#[tokio::test]
async fn a_cut_push_sends_only_what_is_missing() {
    let serving = serve(Faults { cut_writes: 1, ..Faults::default() }).await;
    let bytes = noise(1_000_000);
    let digest = Digest::of(Algorithm::Sha256, &bytes);
    serving
        .registry()
        .blob_push(&repository(), &digest, Arc::new(bytes), Arc::new(NoProgress))
        .await
        .unwrap();
    let received = serving.toy.bytes_received.load(Ordering::Relaxed);
    assert_eq!(received, 1_050_000, "more than half a chunk was sent again");
}

#[tokio::test]
async fn present_blobs_are_not_sent() {
    let serving = serve(Faults::default()).await;
    let bytes = noise(2 << 20);
    let digest = Digest::of(Algorithm::Sha256, &bytes);
    serving.toy.elsewhere.lock().unwrap().insert(digest.to_string(), bytes.clone());
    let registry = serving.registry();
    let push = async || {
        registry.blob_push(&repository(), &digest, Arc::new(bytes.clone()), Arc::new(NoProgress)).await
    };
    assert_eq!(push().await.unwrap(), PushOutcome::Present);
    assert!(serving.has(&digest).is_some());
    // Without mounts, a HEAD request finds the blob, and the opened session is cancelled.
    serving.set(|faults| faults.no_mounts = true);
    assert_eq!(push().await.unwrap(), PushOutcome::Present);
    assert!(serving.toy.uploads.lock().unwrap().is_empty());
    assert_eq!(serving.count_requests("PUT", ""), 0);
    let absent = Digest::of(Algorithm::Sha256, b"absent");
    assert!(!registry.blob_mount(&repository(), &absent, None).await.unwrap());
    assert!(serving.toy.uploads.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_unhashed_push_is_remembered_with_its_digest() {
    /// Content that is readable only while its session is remembered.
    struct GatedContent(Bytes, std::path::PathBuf);
    impl Content for GatedContent {
        fn size(&self) -> u64 {
            self.0.len() as u64
        }
        fn reader(&self, offset: u64) -> std::io::Result<Box<dyn std::io::Read + Send + '_>> {
            while std::fs::read_dir(&self.1).map_or(0, Iterator::count) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.0.reader(offset)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("uploads");
    let serving = serve(Faults::default()).await;
    let options = ClientOptions { upload_sessions_folder: Some(notes.clone()), ..ClientOptions::default() };
    let bytes = noise(17 << 20);
    let digest = Digest::of(Algorithm::Sha256, &bytes);
    let content = Arc::new(GatedContent(bytes.clone(), notes.clone()));
    let named = async { Ok::<_, Error>(digest.clone()) };
    let registry = serving.registry_with(options);
    registry.push_unhashed(&repository(), content, Arc::new(NoProgress), named).await.unwrap();
    assert!(serving.has(&digest) == Some(bytes));
    assert_eq!(std::fs::read_dir(notes).unwrap().count(), 0, "the session is still remembered");
}

#[tokio::test]
async fn a_repeated_push_resumes_the_first_session() {
    let folder = tempfile::tempdir().unwrap();
    let serving = serve(Faults { size_known: Some(false), ..Faults::default() }).await;
    let options = ClientOptions {
        upload_sessions_folder: Some(folder.path().join("uploads")),
        ..ClientOptions::default()
    };
    let bytes = noise(17 << 20);
    let digest = Digest::of(Algorithm::Sha256, &bytes);

    // The first attempt fails part-way: its content becomes unreadable.
    struct FailingContent(Bytes);
    impl Content for FailingContent {
        fn size(&self) -> u64 {
            self.0.len() as u64
        }
        fn reader(&self, offset: u64) -> std::io::Result<Box<dyn std::io::Read + Send + '_>> {
            if offset > 8 << 20 {
                return Err(std::io::Error::other("gone"));
            }
            self.0.reader(offset)
        }
    }
    let first = serving
        .registry_with(options.clone())
        .blob_push(&repository(), &digest, Arc::new(FailingContent(bytes.clone())), Arc::new(NoProgress))
        .await;
    assert!(matches!(first, Err(Error::Content { .. })), "{first:?}");
    let before = serving.toy.bytes_received.load(Ordering::Relaxed);
    assert!(before > 8 << 20);

    let registry = serving.registry_with(options);
    assert!(registry.may_have_blob(&repository(), 17 << 20).await, "part of it is there");
    assert!(!registry.may_have_blob(&repository(), 17 << 19).await);
    let Offer::Needed(upload) = registry.blob_offer(&repository(), &digest, 17 << 20, None).await.unwrap()
    else {
        panic!("the blob is already present");
    };
    assert!(upload.offset > 8 << 20);
    registry.upload_send(upload, Arc::new(bytes.clone()), Arc::new(NoProgress)).await.unwrap();
    assert!(serving.has(&digest) == Some(bytes));
    assert_eq!(serving.toy.bytes_received.load(Ordering::Relaxed), 17 << 20, "some bytes were sent twice");
    assert_eq!(
        std::fs::read_dir(folder.path().join("uploads")).unwrap().count(),
        0,
        "the session is still remembered"
    );
}

#[tokio::test]
async fn content_that_changed_is_refused_by_the_server() {
    let serving = serve(Faults::default()).await;
    let digest = Digest::of(Algorithm::Sha256, b"something else");
    let outcome = serving
        .registry()
        .blob_push(&repository(), &digest, Arc::new(noise(5000)), Arc::new(NoProgress))
        .await;
    let Err(Error::Refused { status, entries, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((status.as_u16(), entries[0].code.as_str()), (400, "DIGEST_INVALID"));
}

#[tokio::test]
async fn manifests_are_verified() {
    let serving = serve(Faults::default()).await;
    let registry = serving.registry();
    let tag: Reference = "v1".parse().unwrap();
    let bytes = Bytes::from_static(b"{\"schemaVersion\":2}");
    let unknown = registry.manifest_get(&repository(), &tag).await;
    assert!(matches!(unknown, Err(Error::ManifestUnknown { .. })), "{unknown:?}");
    assert!(registry.manifest_head(&repository(), &tag).await.unwrap().is_none());
    let put = registry.manifest_put(&repository(), &tag, "application/x+json", bytes.clone()).await.unwrap();
    let digest = Digest::of(Algorithm::Sha256, &bytes);
    assert_eq!((put.digest, put.subject), (digest.clone(), None));
    for reference in [tag, Reference::Digest(digest.clone())] {
        serving.set(|faults| faults.corrupt = false);
        let got = registry.manifest_get(&repository(), &reference).await.unwrap();
        assert_eq!(
            (got.bytes.clone(), got.media_type.as_str(), &got.digest),
            (bytes.clone(), "application/x+json", &digest)
        );
        serving.set(|faults| faults.corrupt = true);
        let spoilt = registry.manifest_get(&repository(), &reference).await;
        assert!(matches!(spoilt, Err(Error::DigestMismatch { .. })), "{spoilt:?}");
    }
}

#[tokio::test]
async fn authorization_is_not_sent_to_redirect_targets() {
    let basic = "Basic YW5uOnNlY3JldA==";
    let storage = serve(Faults::default()).await;
    let serving = serve(Faults {
        password: Some(Auth::Basic(basic)),
        redirect: Some(storage.address.clone()),
        ..Faults::default()
    })
    .await;
    let bytes = noise(300_000);
    let digest = serving.put(&bytes);
    storage.put(&bytes);
    let anonymous = serving.registry().ping().await;
    assert!(matches!(anonymous, Err(Error::Unauthorized { .. })), "{anonymous:?}");

    let server = serving.registry().credential_key();
    let login = Login { username: "ann".into(), password: "secret".into() };
    let options =
        ClientOptions { credentials: Credentials::fixed(server, login), ..ClientOptions::default() };
    let registry = serving.registry_with(options);
    registry.ping().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blob");
    let blob = BlobInfo { digest, size_bytes: 300_000 };
    registry.blob_pull_to_file(&repository(), &blob, &path, Arc::new(NoProgress)).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert!(serving.count_requests("GET", basic) > 0);
    assert!(storage.count_requests("GET", "/storage/") > 0);
    assert_eq!(storage.count_requests("GET", "Basic"), 0, "the login was sent to the storage");
}

#[tokio::test]
async fn a_login_for_https_is_not_sent_over_http() {
    let basic = "Basic YW5uOnNlY3JldA==";
    let serving = serve(Faults { password: Some(Auth::Basic(basic)), ..Faults::default() }).await;
    let mut tls = serving.registry().url().clone();
    tls.set_scheme("https").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = CredentialFile::at(folder.path().join("credentials.json"));
    let login = Login { username: "ann".into(), password: "secret".into() };
    file.set(&CredentialKey::of(&tls), login.clone()).unwrap();
    let credentials = Credentials::from_file(file.clone());
    let registry = serving.registry_with(ClientOptions { credentials, ..ClientOptions::default() });
    let refused = registry.ping().await;
    assert!(matches!(refused, Err(Error::Unauthorized { .. })), "{refused:?}");
    assert_eq!(serving.count_requests("GET", basic), 0);

    file.set(&registry.credential_key(), login).unwrap();
    registry.ping().await.unwrap();
    assert_eq!(serving.count_requests("GET", basic), 1);
}

#[tokio::test]
async fn tokens_are_fetched_once_and_used() {
    let basic = "Basic YW5uOnNlY3JldA==";
    let serving = serve(Faults {
        password: Some(Auth::Bearer { token: "t0ken", login: Some(basic) }),
        ..Faults::default()
    })
    .await;
    let bytes = noise(300_000);
    let digest = serving.put(&bytes);
    let anonymous = serving.registry().blob_head(&repository(), &digest).await;
    assert!(matches!(anonymous, Err(Error::Unauthorized { .. })), "{anonymous:?}");

    let login = Login { username: "ann".into(), password: "secret".into() };
    let credentials = Credentials::fixed(serving.registry().credential_key(), login);
    let registry = serving.registry_with(ClientOptions { credentials, ..ClientOptions::default() });
    for _ in 0..3 {
        let read = registry.blob_bytes(&repository(), &digest, 300_000).await.unwrap();
        assert!(read == bytes);
    }
    assert_eq!(
        serving.count_requests("GET", "/token?service=toy&scope=repository%3Ateam%2Fx%3Apull&account=ann"),
        1
    );
    let content = noise(50);
    let pushed = Digest::of(Algorithm::Sha256, &content);
    registry.blob_push(&repository(), &pushed, Arc::new(content), Arc::new(NoProgress)).await.unwrap();
    assert_eq!(serving.count_requests("GET", "scope=repository%3Ateam%2Fx%3Apull%2Cpush"), 1);
}
