//! The clients of the soak test: many workers push, mount, move tags, delete and pull overlapping content
//! while garbage collection runs without a grace period. Only its owner changes a worker's content, so the
//! worker knows every expected response. Tags that all workers move are checked with `register`.

mod reading;
mod writing;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::RequestBuilder;

use crate::artifact::{Image, random_bytes, sha256};
use crate::oci::{IMAGE_INDEX, IMAGE_MANIFEST, Registry, Response};
use crate::register::Register;
use crate::server::TIMEOUT;

/// A repository to which all workers push images with the same layers.
const SHARED: &str = "soak/all";
/// Tags in it that all workers move.
const SHARED_TAGS: [&str; 4] = ["hot-0", "hot-1", "hot-2", "hot-3"];
/// How many images a worker keeps before it deletes more than it pushes.
const KEPT: usize = 24;

/// A failure, described with the request.
pub type Failure = String;

/// A replica died during an upload. The client starts again, whatever the state of the upload.
const INTERRUPTED: &str = "the connection was cut";

/// The state that all workers share.
pub struct Soak {
    /// Every replica.
    pub replicas: Vec<Registry>,
    /// The layers of the images, with their digests.
    pool: Vec<(Vec<u8>, String)>,
    /// How long a blob is kept after an upload, a mount or a HEAD.
    lease: Duration,
    shared_tags: Mutex<BTreeMap<&'static str, Register>>,
    /// Images that were pushed under hot tags, by digest.
    shared_images: Mutex<HashMap<String, Arc<Image>>>,
    /// Manifests whose deletion has begun.
    deleted_digests: Mutex<HashSet<String>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// Requests sent.
    pub requests: AtomicU64,
    /// Pushes that took longer than the lease and lost a blob, which is allowed.
    pub expired_leases: AtomicU64,
    /// Whether replicas are killed during the test. Workers then retry at another replica.
    expects_kills: bool,
    /// Requests that were repeated because their replica died.
    pub repeated: AtomicU64,
    /// Set when the workers should stop.
    pub stop: AtomicBool,
}

impl Soak {
    /// A soak test of these replicas, which were started with this lease.
    #[must_use]
    pub fn new(replicas: Vec<Registry>, lease: Duration) -> Self {
        let sizes = (0..64u64).map(|i| match i {
            0 => 6 << 20, // more than one part of a multipart upload
            1..=6 => 200_000,
            _ => 100 + 300 * i as usize,
        });
        let pool = sizes.enumerate().map(|(i, len)| random_bytes(i as u64, len));
        Self {
            replicas,
            pool: pool.map(|bytes| (bytes.clone(), sha256(&bytes))).collect(),
            lease,
            shared_tags: Mutex::default(),
            shared_images: Mutex::default(),
            deleted_digests: Mutex::default(),
            counts: Mutex::default(),
            requests: AtomicU64::new(0),
            expired_leases: AtomicU64::new(0),
            expects_kills: false,
            repeated: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Expects that replicas are killed: interrupted requests are repeated at another replica.
    #[must_use]
    pub fn expecting_kills(self) -> Self {
        Self { expects_kills: true, ..self }
    }

    /// The number of completed operations of each kind.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        locked(&self.counts).clone()
    }

    /// The number of completed operations.
    #[must_use]
    pub fn operations(&self) -> u64 {
        locked(&self.counts).values().sum()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An image that this worker has pushed and not deleted.
struct PushedImage {
    repository: String,
    digest: String,
    image: Arc<Image>,
    tags: BTreeSet<String>,
    referrers: Vec<String>,
}

/// One client.
pub struct Worker {
    soak: Arc<Soak>,
    id: usize,
    random: StdRng,
    pushed_images: Vec<PushedImage>,
    /// Repository and digest of manifests that may or may not still exist.
    uncertain: Vec<(String, String)>,
    n_created: u64,
}

impl Worker {
    /// A worker with this number. The seed determines its operations.
    #[must_use]
    pub fn new(soak: Arc<Soak>, id: usize, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { soak, id, random, pushed_images: Vec::new(), uncertain: Vec::new(), n_created: 0 }
    }

    /// Runs operations until `stop` is set or a response is wrong.
    ///
    /// # Errors
    ///
    /// The wrong response and its request.
    pub async fn work(&mut self) -> Result<(), Failure> {
        while !self.soak.stop.load(Ordering::Relaxed) {
            let operation = self.step().await;
            if operation.as_ref().is_err_and(|e| e == INTERRUPTED) {
                continue; // it has not changed anything that this worker relies on
            }
            if operation.is_err() {
                self.soak.stop.store(true, Ordering::Relaxed);
            }
            *locked(&self.soak.counts).entry(operation?).or_default() += 1;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<&'static str, Failure> {
        let few = self.pushed_images.len() < 4;
        let many = self.pushed_images.len() > KEPT;
        match self.random.random_range(0..100) {
            _ if few => self.push().await.map(|()| "push"),
            0..=21 if !many => self.push().await.map(|()| "push"),
            0..=27 => self.delete_manifest().await.map(|()| "delete manifest"),
            28..=54 => self.pull().await.map(|()| "pull"),
            55..=68 => self.move_tag().await.map(|()| "move tag"),
            69..=74 => self.delete_tag().await.map(|()| "delete tag"),
            75..=81 => self.mount().await.map(|()| "mount"),
            82..=85 => self.move_shared_tag().await.map(|()| "move shared tag"),
            86..=91 => self.pull_shared_tag().await.map(|()| "pull shared tag"),
            92..=94 => self.list_tags().await.map(|()| "list tags"),
            95..=96 => self.attach_referrer().await.map(|()| "attach"),
            97..=98 => self.delete_blob().await.map(|()| "delete blob"),
            _ => self.cancel_upload().await.map(|()| "cancel upload"),
        }
    }

    /// Checks that every image of this worker is stored, byte for byte. Returns the number of images.
    ///
    /// # Errors
    ///
    /// A missing or different image.
    pub async fn check(&mut self) -> Result<usize, Failure> {
        for i in 0..self.pushed_images.len() {
            self.pull_whole(i).await?;
        }
        Ok(self.pushed_images.len())
    }

    /// Deletes everything that this worker pushed.
    ///
    /// # Errors
    ///
    /// A deletion that was refused.
    pub async fn clear(&mut self) -> Result<(), Failure> {
        while !self.pushed_images.is_empty() {
            self.delete_at(0).await?;
        }
        for (repository, digest) in std::mem::take(&mut self.uncertain) {
            let path = format!("/v2/{repository}/manifests/{digest}");
            self.send_checked("DELETE", &path, Body::None, &[202, 404]).await?;
        }
        Ok(())
    }

    fn own_repository(&self) -> String {
        format!("soak/worker-{}", self.id)
    }

    /// Sends a request to a random replica and checks that the status is one of `right`. If replicas are
    /// killed, an interrupted request is repeated at another one; a repeated deletion may then return 404.
    async fn send_checked(
        &mut self,
        method: &str,
        path: &str,
        body: Body,
        right: &[u16],
    ) -> Result<Response, Failure> {
        let deadline = Instant::now() + TIMEOUT;
        let mut repeated = false;
        loop {
            let replica = self.random.random_range(0..self.soak.replicas.len());
            let registry = &self.soak.replicas[replica];
            let request =
                body.clone().apply_to(registry.request(method, path).timeout(Duration::from_secs(60)));
            self.soak.requests.fetch_add(1, Ordering::Relaxed);
            match registry.try_send(request).await {
                Ok(response) if right.contains(&response.status) => return Ok(response),
                Ok(response) if repeated && method == "DELETE" && response.status == 404 => {
                    return Ok(response);
                }
                Ok(response) => {
                    return Err(format!(
                        "{method} {path} on replica {replica} returns {} `{}` instead of {right:?}",
                        response.status,
                        response.text()
                    ));
                }
                Err(_) if self.soak.expects_kills && Instant::now() < deadline => {
                    self.soak.repeated.fetch_add(1, Ordering::Relaxed);
                    if path.contains("/blobs/uploads/") && method != "DELETE" {
                        return Err(INTERRUPTED.to_owned());
                    }
                    repeated = true;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(e) => return Err(format!("{method} {path} on replica {replica}: no response: {e:?}")),
            }
        }
    }
}

/// The path of a Location, so that the next request can go to another replica. A redirect is returned
/// unchanged.
fn location(response: &Response) -> Result<String, Failure> {
    let location = response.header("location").ok_or("a response without a Location")?;
    Ok(match location.split_once("/v2/") {
        Some((_, path)) if response.status != 307 => format!("/v2/{path}"),
        _ => location.to_owned(),
    })
}

#[derive(Clone)]
enum Body {
    None,
    Manifest(bytes::Bytes),
    /// Bytes, with their Content-Range (first byte and end) if the request has one.
    Bytes(bytes::Bytes, Option<(usize, usize)>),
}

impl Body {
    fn apply_to(self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::None => request.header("accept", format!("{IMAGE_MANIFEST}, {IMAGE_INDEX}")),
            Self::Manifest(bytes) => request.header("content-type", IMAGE_MANIFEST).body(bytes),
            Self::Bytes(bytes, None) => {
                request.header("content-type", "application/octet-stream").body(bytes)
            }
            Self::Bytes(bytes, Some((first, end))) => request
                .header("content-type", "application/octet-stream")
                .header("content-range", format!("{first}-{}", end.saturating_sub(1)))
                .body(bytes),
        }
    }
}
