//! The load: pushing and pulling blobs, and small requests at the maximum rate.
//! Bytes and digests are computed before the measurement starts.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

use crate::http::{Body, Connection, host_of};

const PIECE: usize = 1 << 20;
const STAMP: usize = 16;
const IMAGE_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const REPOSITORY: &str = "bench/models";
/// The number of tagged manifests.
const TAGS: usize = 100;
pub(crate) const CLIENTS: usize = 16;

/// The number and size of blobs, and the number of clients that send them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) count: usize,
    pub(crate) size_mib: u64,
    pub(crate) clients: usize,
}

impl Shape {
    pub(crate) fn name(&self) -> String {
        match self.size_mib {
            mib if mib >= 1024 && mib % 1024 == 0 => format!("{} x {} GiB", self.count, mib / 1024),
            mib => format!("{} x {mib} MiB", self.count),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.count as u64 * self.size_mib * PIECE as u64
    }
}

/// Generated blobs, which are never in memory as a whole: every MiB is the same random block with its own
/// stamp in front.
pub(crate) struct Blobs {
    pub(crate) shape: Shape,
    block: Vec<u8>,
    digests: Vec<String>,
}

impl Blobs {
    pub(crate) fn new(shape: Shape) -> Blobs {
        let mut block = vec![0; PIECE];
        StdRng::seed_from_u64(7).fill_bytes(&mut block);
        let digests = parallel(2, shape.count, |_: &mut (), blob| {
            let mut piece = block.clone();
            let mut hasher = Sha256::new();
            for at in 0..shape.size_mib {
                stamp(&mut piece, blob, at);
                hasher.update(&piece);
            }
            Ok(digest_of(hasher))
        });
        Blobs { shape, block, digests: digests.expect("hashing does not fail") }
    }

    /// Pushes every blob as docker, skopeo and crane do: POST, PATCH, PUT.
    pub(crate) fn push(&self, address: SocketAddr) -> io::Result<Duration> {
        let started = Instant::now();
        parallel(self.shape.clients, self.shape.count, |connection: &mut Option<Connection>, blob| {
            let connection = connection.get_or_insert_with(|| Connection::new(address));
            push(connection, &self.digests[blob], self.shape.size_mib * PIECE as u64, &mut |stream| {
                let mut piece = self.block.clone();
                for at in 0..self.shape.size_mib {
                    stamp(&mut piece, blob, at);
                    stream.write_all(&piece)?;
                }
                Ok(())
            })
        })?;
        Ok(started.elapsed())
    }

    /// Pulls every blob. Checks lengths and stamps only; the tests check hashes.
    pub(crate) fn pull(&self, address: SocketAddr) -> io::Result<Duration> {
        let started = Instant::now();
        parallel(self.shape.clients, self.shape.count, |connections: &mut PullConnections, blob| {
            let connection = connections.registry.get_or_insert_with(|| Connection::new(address));
            let path = format!("/v2/{REPOSITORY}/blobs/{}", self.digests[blob]);
            let head = connection.send("GET", &path, "", Body::None)?;
            let (connection, head) = match (head.status, &head.location) {
                (307, Some(location)) => {
                    connection.receive(&head, &mut |_| {})?;
                    let at = host_of(location)?;
                    let storage = match connections.storage.take() {
                        Some(storage) if storage.address() == at => storage,
                        _ => Connection::new(at),
                    };
                    let storage = connections.storage.insert(storage);
                    let head = storage.send("GET", location, "", Body::None)?;
                    (storage, head)
                }
                _ => (connection, head),
            };
            let head = expect(head, 200)?;
            let mut at = 0usize;
            let mut wrong = 0;
            let total = connection.receive(&head, &mut |bytes| {
                // The stamps that are completely in these bytes.
                let mut next = at.next_multiple_of(PIECE);
                while next + STAMP <= at + bytes.len() {
                    let got = &bytes[next - at..next - at + STAMP];
                    wrong += usize::from(got != &stamp_of(blob, (next / PIECE) as u64)[..]);
                    next += PIECE;
                }
                at += bytes.len();
            })?;
            match total == self.shape.size_mib * PIECE as u64 && wrong == 0 {
                true => Ok(()),
                false => Err(io::Error::other(format!("received {total} bytes with {wrong} wrong pieces"))),
            }
        })?;
        Ok(started.elapsed())
    }
}

/// A kind of small request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    GetByTag,
    GetByDigest,
    Head,
    Tags,
    /// A blob of 1,000 bytes.
    Blob,
}

impl Request {
    pub(crate) const ALL: [Request; 4] =
        [Request::GetByTag, Request::GetByDigest, Request::Head, Request::Tags];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Request::GetByTag => "manifest GET by tag",
            Request::GetByDigest => "manifest GET by digest",
            Request::Head => "manifest HEAD by tag",
            Request::Tags => "tag list (100 tags)",
            Request::Blob => "blob GET (1,000 bytes)",
        }
    }
}

/// A repository with many tagged manifests.
pub(crate) struct TaggedManifests {
    digests: Vec<String>,
    /// Of a layer.
    blob: String,
}

impl TaggedManifests {
    /// Pushes the manifests with this `Authorization` header, unless it is empty.
    pub(crate) fn push(address: SocketAddr, authorization: &str) -> io::Result<TaggedManifests> {
        let mut connection = Connection::with_authorization(address, authorization);
        let config = b"{}";
        let layers: Vec<Vec<u8>> = (0..8u8).map(|i| vec![i; 1000]).collect();
        for blob in layers.iter().map(Vec::as_slice).chain([&config[..]]) {
            let digest = digest_of(Sha256::new_with_prefix(blob));
            push(&mut connection, &digest, blob.len() as u64, &mut |stream| stream.write_all(blob))?;
        }
        let blob = digest_of(Sha256::new_with_prefix(&layers[0]));
        let described = |media_type: &str, bytes: &[u8]| {
            serde_json::json!({
                "mediaType": media_type, "digest": digest_of(Sha256::new_with_prefix(bytes)), "size": bytes.len()
            })
        };
        let layers: Vec<_> =
            layers.iter().map(|l| described("application/vnd.oci.image.layer.v1.tar", l)).collect();
        let mut digests = Vec::new();
        for i in 0..TAGS {
            let manifest = serde_json::json!({
                "schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "annotations": { "n": i.to_string() },
                "config": described("application/vnd.oci.image.config.v1+json", config), "layers": layers,
            });
            let bytes = manifest.to_string().into_bytes();
            let body = Body::Bytes { content_type: IMAGE_MANIFEST, bytes: &bytes };
            let path = format!("/v2/{REPOSITORY}/manifests/{}", tag(i));
            expect(connection.send_and_discard("PUT", &path, "", body)?, 201)?;
            digests.push(digest_of(Sha256::new_with_prefix(&bytes)));
        }
        Ok(TaggedManifests { digests, blob })
    }

    /// Sends requests of one kind for `time`, with this `Authorization` header unless it is empty. Returns the number of responses and the elapsed time.
    pub(crate) fn send_requests(
        &self,
        address: SocketAddr,
        authorization: &str,
        request: Request,
        time: Duration,
    ) -> io::Result<(u64, Duration)> {
        let (over, responses) = (AtomicBool::new(false), AtomicU64::new(0));
        let started = Instant::now();
        parallel(CLIENTS, CLIENTS, |_: &mut (), client| {
            let mut connection = Connection::with_authorization(address, authorization);
            let paths: Vec<String> = (0..TAGS).map(|i| self.path(request, (client * 7 + i) % TAGS)).collect();
            let method = if request == Request::Head { "HEAD" } else { "GET" };
            let mut count = 0;
            for path in paths.iter().cycle() {
                if over.load(Ordering::Relaxed) || started.elapsed() > time {
                    break;
                }
                expect(connection.send_and_discard(method, path, IMAGE_MANIFEST, Body::None)?, 200)?;
                count += 1;
            }
            over.store(true, Ordering::Relaxed);
            responses.fetch_add(count, Ordering::Relaxed);
            Ok(())
        })?;
        Ok((responses.into_inner(), started.elapsed()))
    }

    fn path(&self, request: Request, i: usize) -> String {
        match request {
            Request::GetByTag | Request::Head => format!("/v2/{REPOSITORY}/manifests/{}", tag(i)),
            Request::GetByDigest => format!("/v2/{REPOSITORY}/manifests/{}", self.digests[i]),
            Request::Tags => format!("/v2/{REPOSITORY}/tags/list"),
            Request::Blob => format!("/v2/{REPOSITORY}/blobs/{}", self.blob),
        }
    }
}

fn tag(i: usize) -> String {
    format!("v{i:03}")
}

fn push(
    connection: &mut Connection,
    digest: &str,
    length: u64,
    write: &mut dyn FnMut(&mut std::net::TcpStream) -> io::Result<()>,
) -> io::Result<()> {
    let located = |head: crate::http::Head| {
        head.location.ok_or_else(|| io::Error::other("an upload without a location"))
    };
    let path = format!("/v2/{REPOSITORY}/blobs/uploads/");
    let upload = located(expect(connection.send_and_discard("POST", &path, "", Body::None)?, 202)?)?;
    let body = Body::Stream { length, write };
    let upload = located(expect(connection.send_and_discard("PATCH", &upload, "", body)?, 202)?)?;
    let separator = if upload.contains('?') { '&' } else { '?' };
    let close = format!("{upload}{separator}digest={digest}");
    expect(connection.send_and_discard("PUT", &close, "", Body::None)?, 201).map(drop)
}

fn expect(head: crate::http::Head, status: u16) -> io::Result<crate::http::Head> {
    match head.status == status {
        true => Ok(head),
        false => Err(io::Error::other(format!("expected {status}, got {}", head.status))),
    }
}

/// The connections of one pulling client.
#[derive(Default)]
struct PullConnections {
    registry: Option<Connection>,
    /// To the storage that the registry redirects to.
    storage: Option<Connection>,
}

/// Runs `work` for every number below `count` on several threads, each with its own state.
pub(crate) fn parallel<T: Send, S: Default>(
    threads: usize,
    count: usize,
    work: impl Fn(&mut S, usize) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut kept = S::default();
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(done);
            }
            done.push((at, work(&mut kept, at)?));
        }
    };
    let outcomes: Vec<io::Result<Vec<(usize, T)>>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.min(count)).map(|_| scope.spawn(run)).collect();
        handles.into_iter().map(|handle| handle.join().expect("a client does not panic")).collect()
    });
    let mut all = Vec::new();
    for outcome in outcomes {
        all.extend(outcome?);
    }
    all.sort_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, value)| value).collect())
}

fn stamp_of(blob: usize, at: u64) -> [u8; STAMP] {
    let mut stamp = [0; STAMP];
    stamp[..8].copy_from_slice(&(blob as u64 + 1).to_le_bytes());
    stamp[8..].copy_from_slice(&at.to_le_bytes());
    stamp
}

fn stamp(piece: &mut [u8], blob: usize, at: u64) {
    piece[..STAMP].copy_from_slice(&stamp_of(blob, at));
}

fn digest_of(hasher: Sha256) -> String {
    let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Writing and syncing a plain file, in bytes per second.
pub(crate) fn plain_write(folder: &std::path::Path, bytes: u64) -> io::Result<f64> {
    let path = folder.join("plain");
    let block = vec![1; PIECE];
    let started = Instant::now();
    let mut file = std::fs::File::create(&path)?;
    for _ in 0..bytes / PIECE as u64 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let seconds = started.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(bytes as f64 / seconds)
}

/// SHA-256 on one core, in bytes per second.
pub(crate) fn plain_hash(bytes: u64) -> f64 {
    let block = vec![1; PIECE];
    let mut hasher = Sha256::new();
    let started = Instant::now();
    for _ in 0..bytes / PIECE as u64 {
        hasher.update(&block);
    }
    std::hint::black_box(hasher.finalize());
    bytes as f64 / started.elapsed().as_secs_f64()
}

/// Sending over a loopback connection, in bytes per second.
pub(crate) fn plain_socket(bytes: u64) -> io::Result<f64> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let started = Instant::now();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let (mut stream, _) = listener.accept()?;
            let block = vec![1; PIECE];
            (0..bytes / PIECE as u64).try_for_each(|_| stream.write_all(&block))
        });
        let mut stream = std::net::TcpStream::connect(address)?;
        let mut buffer = vec![0; PIECE / 4];
        while io::Read::read(&mut stream, &mut buffer)? > 0 {}
        sender.join().expect("the sender does not panic")
    })?;
    Ok(bytes as f64 / started.elapsed().as_secs_f64())
}
