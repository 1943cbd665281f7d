//! Failures of the database: it rejects connections, is cut off, stops responding, or its response to a
//! finished commit is lost. A proxy in front of Postgres simulates each. Runs where LODE_TEST_POSTGRES names
//! a server.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use crate::store::{PostgresOptions, Store};

/// Longer than any limit of a database operation, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    /// Connections break, and new ones are rejected.
    Cut,
    /// Responses do not arrive.
    Silent,
    /// The next commit reaches the database, but its response does not arrive.
    LoseCommit,
    /// The next statement with this id reaches the database, but its response does not arrive.
    LoseStatement(Uuid),
}

impl Mode {
    /// Whether a request to the database is the one whose response is lost.
    fn loses(self, request: &[u8]) -> bool {
        let contains = |text: &[u8]| request.windows(text.len()).any(|part| part == text);
        match self {
            Mode::LoseCommit => contains(b"COMMIT"),
            Mode::LoseStatement(id) => contains(id.to_string().as_bytes()),
            Mode::Pass | Mode::Cut | Mode::Silent => false,
        }
    }
}

struct Proxy {
    url: Url,
    mode: watch::Sender<Mode>,
}

impl Proxy {
    /// Starts a proxy in front of the tests' Postgres, if there is one.
    async fn start(mode: Mode) -> Option<Proxy> {
        let mut url = crate::store::postgres_for_test().await?;
        let upstream = (url.host_str().unwrap().to_owned(), url.port().unwrap_or(5432));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let mode = watch::Sender::new(mode);
        let modes = mode.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *modes.borrow() == Mode::Cut {
                    continue;
                }
                let server = TcpStream::connect((&upstream.0[..], upstream.1)).await.unwrap();
                tokio::spawn(pass(client, server, modes.clone()));
            }
        });
        Some(Proxy { url, mode })
    }

    fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn pass(client: TcpStream, server: TcpStream, modes: watch::Sender<Mode>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let mut cut = modes.subscribe();
    let (up_mode, mut down_mode) = (modes.clone(), modes.subscribe());
    let up = async {
        let mut buffer = [0; 8192];
        while let Ok(n @ 1..) = from_client.read(&mut buffer).await {
            let mode = *up_mode.borrow();
            if mode.loses(&buffer[..n]) {
                up_mode.send_replace(Mode::Silent);
            }
            to_server.write_all(&buffer[..n]).await.unwrap();
        }
    };
    let down = async {
        let mut buffer = [0; 8192];
        while let Ok(n @ 1..) = from_server.read(&mut buffer).await {
            if *down_mode.borrow() == Mode::Silent {
                // The response of this connection is lost.
                std::future::pending::<()>().await;
            }
            down_mode.mark_unchanged();
            to_client.write_all(&buffer[..n]).await.unwrap();
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = cut.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

/// Waits until the index job has committed the manifest.
async fn indexed(f: &Fixture, digest: &Digest) {
    while f.registry.store().model_find(digest).await.unwrap().is_none() {
        tokio::task::yield_now().await;
    }
}

fn unavailable<T: std::fmt::Debug>(outcome: &Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
}

#[tokio::test]
async fn the_registry_recovers_after_a_database_outage() {
    let Some(proxy) = Proxy::start(Mode::Pass).await else { return };
    let f = Fixture::start(Some(proxy.url.clone()), None, &no_grace, WriteLimit::default()).await;
    let (manifest, blobs) = f.image("r", "t", "1").await;
    for mode in [Mode::Cut, Mode::Silent] {
        proxy.set(mode);
        let started = Instant::now();
        unavailable(&f.get("r", "t").await);
        assert!(started.elapsed() < SOON);
        let (other, repository) = (image(&blobs[0], &[]), repo("r"));
        let (put, upload, deletion, collection) = tokio::join!(
            f.put("r", "other", &other),
            f.registry.upload_create(&CALLER, &repository, None),
            f.delete("r", "t"),
            f.registry.gc_run(&CALLER, false),
        );
        unavailable(&put);
        unavailable(&upload);
        unavailable(&deletion);
        unavailable(&collection);
        assert!(f.registry.ready().await.is_err());
        // The registry recovers without a restart.
        proxy.set(Mode::Pass);
        assert_eq!(f.get("r", "t").await.unwrap(), manifest);
        assert!(f.get("r", "other").await.is_err());
        assert!(f.registry.ready().await.is_ok());
        f.registry.gc_run(&CALLER, false).await.unwrap();
    }
    f.assert_sound().await;
}

#[tokio::test]
async fn a_commit_whose_response_is_lost_can_be_repeated() {
    let Some(proxy) = Proxy::start(Mode::Pass).await else { return };
    let f = Fixture::start(Some(proxy.url.clone()), None, &no_grace, WriteLimit::default()).await;
    let (first, [config, layer]) = f.image("r", "t", "1").await;
    indexed(&f, &first).await;
    // 1. A manifest: it may be stored or not, and a repeated push is right in both cases.
    let manifest = image(&config, &[&layer, &config]);
    proxy.set(Mode::LoseCommit);
    unavailable(&f.put("r", "new", &manifest).await);
    proxy.set(Mode::Pass);
    let digest = f.get("r", "new").await.unwrap();
    assert_eq!(f.put("r", "new", &manifest).await.unwrap().digest, digest);
    indexed(&f, &digest).await;
    f.assert_sound().await;
    // 2. A deletion.
    proxy.set(Mode::LoseCommit);
    unavailable(&f.delete("r", "new").await);
    proxy.set(Mode::Pass);
    assert!(matches!(f.delete("r", "new").await, Err(Error::ManifestUnknown { .. })));
    // 3. A collection.
    proxy.set(Mode::LoseCommit);
    unavailable(&f.registry.gc_run(&CALLER, false).await);
    proxy.set(Mode::Pass);
    f.registry.gc_run(&CALLER, false).await.unwrap();
    assert!(f.get("r", digest.as_str()).await.is_err());
    assert!(f.pull("r", &layer).await.is_ok());
    f.assert_sound().await;
}

#[tokio::test]
async fn a_checkpoint_whose_response_is_lost_keeps_its_bytes() {
    const MIB: usize = 1024 * 1024;
    const LEN: usize = 80 * MIB;
    let Some(proxy) = Proxy::start(Mode::Pass).await else { return };
    let f = Fixture::start(Some(proxy.url.clone()), None, &no_grace, WriteLimit::default()).await;
    let (repository, id, content) = (repo("r"), f.upload("r").await, Bytes::from(vec![7; LEN]));
    // More bytes than declared, after a checkpoint whose response is lost.
    let pieces = (0..LEN).step_by(MIB).map(|start| content.slice(start..start + MIB));
    let pieces: Vec<Bytes> = pieces.chain([Bytes::from_static(b"more")]).collect();
    let mode = proxy.mode.clone();
    let too_long = stream::iter(pieces).enumerate().map(move |(at, piece)| {
        if at == 0 {
            mode.send_replace(Mode::LoseStatement(id));
        }
        Ok(piece)
    });
    let chunk = ChunkRange { range: None, length: Some(LEN as u64) };
    let refused = f.registry.upload_append(&CALLER, &repository, id, chunk, too_long.boxed()).await;
    assert!(refused.is_err(), "{refused:?}");
    proxy.set(Mode::Pass);
    // The upload continues at the offset that the database has.
    let offset = f.registry.upload_status(&CALLER, &repository, id).await.unwrap().offset;
    assert!(offset > 0 && offset < LEN as u64, "{offset}");
    let rest = body(&content[usize::try_from(offset).unwrap()..]);
    let digest = Digest::sha256(&content);
    f.registry.upload_finish(&CALLER, &repository, id, ChunkRange::default(), rest, &digest).await.unwrap();
    assert_eq!(f.pull("r", &digest).await.unwrap().len(), LEN);
    f.assert_sound().await;
}

#[tokio::test]
async fn a_start_waits_for_the_database() {
    let Some(proxy) = Proxy::start(Mode::Cut).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let open = async |wait| {
        let reach = PostgresOptions { wait, ..PostgresOptions::default() };
        Store::open_with(Some(&proxy.url), folder.path(), reach).await.map(drop)
    };
    let refused = open(Duration::ZERO).await;
    assert!(matches!(refused, Err(OpenError::Registry(Error::Unavailable { .. }))), "{refused:?}");
    let late = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        proxy.set(Mode::Pass);
    };
    let (opened, ()) = tokio::join!(open(SOON), late);
    opened.unwrap();
    // A database that rejects the connection is not waited for.
    let mut url = proxy.url.clone();
    url.set_path("/no_such_database");
    let started = Instant::now();
    let refused = Store::open_with(
        Some(&url),
        folder.path(),
        PostgresOptions { wait: SOON, ..PostgresOptions::default() },
    )
    .await;
    assert!(matches!(refused.map(drop), Err(OpenError::Registry(Error::Database(_)))));
    assert!(started.elapsed() < SOON);
}
