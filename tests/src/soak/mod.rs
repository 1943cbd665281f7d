//! One of many clients that push, mount, move tags, delete and pull overlapping content while the collection runs without a grace.
//! Each knows exactly what it may find, because only it touches what is its own; what all of them move is held to `register`.

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
use crate::oci::{Answer, IMAGE_INDEX, IMAGE_MANIFEST, Registry};
use crate::register::Register;
use crate::server::PATIENCE;

/// A repository in which everybody pushes images of the same layers.
const SHARED: &str = "soak/all";
/// Tags of it that everybody moves.
const HOT: [&str; 4] = ["hot-0", "hot-1", "hot-2", "hot-3"];
/// How many images a worker keeps before it deletes more than it pushes.
const KEPT: usize = 24;

/// What went wrong, in words that name the request.
pub type Failure = String;

/// A replica died in the middle of an upload: whatever became of it, the client begins again.
const CUT: &str = "the connection was cut";

/// What all workers share.
pub struct Soak {
    /// Every replica.
    pub replicas: Vec<Registry>,
    /// Layers that the images are made of.
    pool: Vec<(Vec<u8>, String)>,
    /// How long an upload, a mount or a HEAD is promised to keep a blob.
    lease: Duration,
    hot: Mutex<BTreeMap<&'static str, Register>>,
    /// Images that were put under hot tags, by digest.
    shown: Mutex<HashMap<String, Arc<Image>>>,
    /// Manifests whose deletion has begun.
    doomed: Mutex<HashSet<String>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// Requests sent.
    pub requests: AtomicU64,
    /// Pushes that took longer than the lease and lost a blob to it, which is what a lease means.
    pub lapsed: AtomicU64,
    /// Replicas die under the workers, which try again at another.
    mortal: bool,
    /// Requests that were sent again because their replica died.
    pub repeated: AtomicU64,
    /// Set when the workers should come to an end.
    pub stop: AtomicBool,
}

impl Soak {
    /// A soak of these replicas, which were started with this lease.
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
            hot: Mutex::default(),
            shown: Mutex::default(),
            doomed: Mutex::default(),
            counts: Mutex::default(),
            requests: AtomicU64::new(0),
            lapsed: AtomicU64::new(0),
            mortal: false,
            repeated: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// The same, with replicas that die now and then: requests that were cut off are sent again elsewhere.
    #[must_use]
    pub fn mortal(self) -> Self {
        Self { mortal: true, ..self }
    }

    /// How often each operation was carried out.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        locked(&self.counts).clone()
    }

    /// How many operations were carried out.
    #[must_use]
    pub fn operations(&self) -> u64 {
        locked(&self.counts).values().sum()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An image that this worker has pushed and not deleted.
struct Held {
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
    held: Vec<Held>,
    /// Repository and digest of manifests that may or may not be there still.
    uncertain: Vec<(String, String)>,
    made: u64,
}

impl Worker {
    /// The worker of that number; the seed decides what it does.
    #[must_use]
    pub fn new(soak: Arc<Soak>, id: usize, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { soak, id, random, held: Vec::new(), uncertain: Vec::new(), made: 0 }
    }

    /// Works until it is told to stop, or finds what it must not find.
    ///
    /// # Errors
    ///
    /// What it found, and where.
    pub async fn work(&mut self) -> Result<(), Failure> {
        while !self.soak.stop.load(Ordering::Relaxed) {
            let operation = self.step().await;
            if operation.as_ref().is_err_and(|e| e == CUT) {
                continue; // it has changed nothing that this worker counts on
            }
            if operation.is_err() {
                self.soak.stop.store(true, Ordering::Relaxed);
            }
            *locked(&self.soak.counts).entry(operation?).or_default() += 1;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<&'static str, Failure> {
        let few = self.held.len() < 4;
        let many = self.held.len() > KEPT;
        match self.random.random_range(0..100) {
            _ if few => self.push().await.map(|()| "push"),
            0..=21 if !many => self.push().await.map(|()| "push"),
            0..=27 => self.delete_manifest().await.map(|()| "delete manifest"),
            28..=54 => self.pull().await.map(|()| "pull"),
            55..=68 => self.move_tag().await.map(|()| "move tag"),
            69..=74 => self.delete_tag().await.map(|()| "delete tag"),
            75..=81 => self.mount().await.map(|()| "mount"),
            82..=85 => self.put_hot().await.map(|()| "move shared tag"),
            86..=91 => self.pull_hot().await.map(|()| "pull shared tag"),
            92..=94 => self.list_tags().await.map(|()| "list tags"),
            95..=96 => self.attach().await.map(|()| "attach"),
            97..=98 => self.delete_blob().await.map(|()| "delete blob"),
            _ => self.cancel().await.map(|()| "cancel upload"),
        }
    }

    /// Everything it still holds is there, byte for byte.
    ///
    /// # Errors
    ///
    /// What is not.
    pub async fn check(&mut self) -> Result<usize, Failure> {
        for i in 0..self.held.len() {
            self.pull_whole(i).await?;
        }
        Ok(self.held.len())
    }

    /// Deletes everything that it pushed.
    ///
    /// # Errors
    ///
    /// A deletion that was refused.
    pub async fn clear(&mut self) -> Result<(), Failure> {
        while !self.held.is_empty() {
            self.delete_at(0).await?;
        }
        for (repository, digest) in std::mem::take(&mut self.uncertain) {
            let path = format!("/v2/{repository}/manifests/{digest}");
            self.ask("DELETE", &path, Body::None, &[202, 404]).await?;
        }
        Ok(())
    }

    fn own(&self) -> String {
        format!("soak/worker-{}", self.id)
    }

    /// One request to whichever replica comes, held to the answers that are right. Where replicas die it is sent again elsewhere,
    /// and then something that was to be deleted may be gone already.
    async fn ask(&mut self, method: &str, path: &str, body: Body, right: &[u16]) -> Result<Answer, Failure> {
        let deadline = Instant::now() + PATIENCE;
        let mut repeated = false;
        loop {
            let replica = self.random.random_range(0..self.soak.replicas.len());
            let registry = &self.soak.replicas[replica];
            let request = body.clone().of(registry.request(method, path).timeout(Duration::from_secs(60)));
            self.soak.requests.fetch_add(1, Ordering::Relaxed);
            match registry.try_send(request).await {
                Ok(answer) if right.contains(&answer.status) => return Ok(answer),
                Ok(answer) if repeated && method == "DELETE" && answer.status == 404 => return Ok(answer),
                Ok(answer) => {
                    return Err(format!(
                        "{method} {path} on replica {replica} answers {} `{}` instead of {right:?}",
                        answer.status,
                        answer.text()
                    ));
                }
                Err(_) if self.soak.mortal && Instant::now() < deadline => {
                    self.soak.repeated.fetch_add(1, Ordering::Relaxed);
                    if path.contains("/blobs/uploads/") && method != "DELETE" {
                        return Err(CUT.to_owned());
                    }
                    repeated = true;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(e) => return Err(format!("{method} {path} on replica {replica}: no answer: {e:?}")),
            }
        }
    }
}

/// The path of an answer's Location, so that the next request may go to another replica; as it is when it leads elsewhere.
fn location(answer: &Answer) -> Result<String, Failure> {
    let location = answer.header("location").ok_or("an answer without a Location")?;
    Ok(match location.split_once("/v2/") {
        Some((_, path)) if answer.status != 307 => format!("/v2/{path}"),
        _ => location.to_owned(),
    })
}

#[derive(Clone)]
enum Body {
    None,
    Manifest(bytes::Bytes),
    /// First byte and end, where it says so.
    Bytes(bytes::Bytes, Option<(usize, usize)>),
}

impl Body {
    fn of(self, request: RequestBuilder) -> RequestBuilder {
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
