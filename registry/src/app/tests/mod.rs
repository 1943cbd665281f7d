//! Tests of the registry's rules with each database and storage: SQLite and a fresh data folder always,
//! Postgres where LODE_TEST_POSTGRES names a server on which schemas may be created, S3 where LODE_TEST_S3
//! names a bucket (otherwise object storage in memory).

mod cancelled;
mod collect;
mod crash;
mod database;
mod fleet;
mod index;
mod listings;
mod manifests;
mod recent;
mod records;
mod removals;
mod replicas;
mod shared;
mod sign_in;
mod uploads;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use lode_model::digest::{Algorithm, Digest};
use lode_model::media_type;
use lode_model::reference::{Reference, Repository};
use serde_json::json;
use tempfile::TempDir;
use url::Url;
use uuid::Uuid;

use super::{Body, ChunkRange, Limits, ManifestPut, Registry};
use crate::auth::Caller;
use crate::blobs::testing::{self, Storage, bucket_for_test};
use crate::blobs::{WriteLimit, key};
use crate::open::{open, open_limited};
use crate::{BodyError, Config, Error, OpenError};

const CALLER: Caller = Caller::ANONYMOUS;

/// A registry in a temporary folder, which can be stopped abruptly and restarted.
struct Fixture {
    registry: Registry,
    config: Config,
    _folder: TempDir,
}

impl Fixture {
    async fn start(
        database: Option<Url>,
        storage: Option<Url>,
        change: &dyn Fn(&mut Config),
        limit: WriteLimit,
    ) -> Fixture {
        let limits = Limits { write: limit, ..Limits::default() };
        Fixture::start_limited(database, storage, change, limits).await
    }

    async fn start_limited(
        database: Option<Url>,
        storage: Option<Url>,
        change: &dyn Fn(&mut Config),
        limits: Limits,
    ) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config { data: folder.path().join("data"), database, storage, ..Config::default() };
        change(&mut config);
        let registry = open_limited(config.clone(), limits).await.unwrap();
        Fixture { registry, config, _folder: folder }
    }

    /// Opens the same folder again. The old registry finishes nothing and passes nothing on.
    async fn restart(self) -> Fixture {
        let Fixture { registry, config, _folder } = self;
        registry.close().await;
        drop(registry);
        loop {
            match open(config.clone()).await {
                // A task that is about to end may still hold the folder.
                Err(OpenError::FolderInUse { .. }) => tokio::task::yield_now().await,
                registry => return Fixture { registry: registry.unwrap(), config, _folder },
            }
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.config.data.join(name)
    }

    fn blob_path(&self, digest: &Digest) -> std::path::PathBuf {
        self.path(&format!("blobs/{}/{}", digest.algorithm(), digest.hex()))
    }

    /// Whether the storage has bytes of this digest, under any key.
    async fn holds(&self, digest: &Digest) -> bool {
        let blobs = self.registry.blobs();
        if !blobs.is_shared() {
            return self.blob_path(digest).exists();
        }
        let mut objects = blobs.list(key::OBJECTS);
        while let Some(object) = objects.next().await {
            let object = object.unwrap();
            // A collection may delete it meanwhile.
            let Ok(bytes) = blobs.read(&object.key, 0..object.size_bytes).await else { continue };
            if Digest::of(digest.algorithm(), &collect_bytes(bytes).await) == *digest {
                return true;
            }
        }
        false
    }

    /// Whether a writer has taken over the upload.
    async fn is_written(&self, id: Uuid) -> bool {
        match self.registry.blobs().is_shared() {
            true => {
                let row = self.registry.store().upload_find_any(id).await.unwrap();
                row.is_some_and(|row| row.generation > 0)
            }
            false => self.path(&format!("uploads/{id}")).exists(),
        }
    }

    /// Files in the storage that belong to no blob.
    async fn leftovers(&self) -> Vec<String> {
        let report = self.registry.fsck(&CALLER, false).await.unwrap();
        [report.uploads, report.orphans].concat()
    }

    async fn push(&self, repository: &str, bytes: &[u8]) -> Digest {
        let digest = Digest::sha256(bytes);
        let (repo, chunk) = (repo(repository), ChunkRange::default());
        let stored = self.registry.blob_put(&CALLER, &repo, &digest, chunk, body(bytes)).await.unwrap();
        assert_eq!((stored.digest, stored.size_bytes), (digest.clone(), bytes.len() as u64));
        digest
    }

    async fn pull(&self, repository: &str, digest: &Digest) -> Result<Vec<u8>, Error> {
        let (_, bytes) = self.registry.blob_open(&CALLER, &repo(repository), digest, None).await?;
        Ok(collect_bytes(bytes).await)
    }

    async fn put(
        &self,
        repository: &str,
        reference: &str,
        manifest: &serde_json::Value,
    ) -> Result<ManifestPut, Error> {
        let manifest = self.sized(manifest.clone()).await;
        let bytes = Bytes::from(serde_json::to_vec(&manifest).unwrap());
        self.registry
            .manifest_put(&CALLER, &repo(repository), &reference_of(reference), None, bytes, &[])
            .await
    }

    /// Sets the sizes of a manifest's descriptors to those of the stored content.
    async fn sized(&self, mut manifest: serde_json::Value) -> serde_json::Value {
        for field in ["config", "layers", "manifests"] {
            let described = match manifest.get_mut(field) {
                Some(serde_json::Value::Array(all)) => all.iter_mut().collect(),
                Some(one) => vec![one],
                None => Vec::new(),
            };
            for descriptor in described {
                let digest: Digest = descriptor["digest"].as_str().unwrap().parse().unwrap();
                // With an unavailable database the push itself fails.
                if let Ok(Some((size_bytes, _))) = self.registry.store().blob_live(&digest).await {
                    descriptor["size"] = size_bytes.into();
                }
            }
        }
        manifest
    }

    async fn get(&self, repository: &str, reference: &str) -> Result<Digest, Error> {
        let found = self.registry.manifest_get(&CALLER, &repo(repository), &reference_of(reference)).await?;
        Ok(found.digest)
    }

    async fn delete(&self, repository: &str, reference: &str) -> Result<(), Error> {
        self.registry.manifest_delete(&CALLER, &repo(repository), &reference_of(reference)).await
    }

    /// Pushes and tags a manifest with two new blobs.
    async fn image(&self, repository: &str, tag: &str, seed: &str) -> (Digest, [Digest; 2]) {
        let config = self.push(repository, format!("config {seed}").as_bytes()).await;
        let layer = self.push(repository, format!("layer {seed}").as_bytes()).await;
        let put = self.put(repository, tag, &image(&config, &[&layer])).await.unwrap();
        (put.digest, [config, layer])
    }

    async fn upload(&self, repository: &str) -> Uuid {
        self.registry.upload_create(&CALLER, &repo(repository), None).await.unwrap().id
    }

    async fn append(
        &self,
        repository: &str,
        id: Uuid,
        range: Option<(u64, u64)>,
        body: Body,
    ) -> Result<u64, Error> {
        let chunk = ChunkRange { range, length: None };
        Ok(self.registry.upload_append(&CALLER, &repo(repository), id, chunk, body).await?.offset)
    }

    async fn offset(&self, repository: &str, id: Uuid) -> Result<u64, Error> {
        Ok(self.registry.upload_status(&CALLER, &repo(repository), id).await?.offset)
    }

    async fn finish(&self, repository: &str, id: Uuid, body: Body, digest: &Digest) -> Result<u64, Error> {
        let chunk = ChunkRange::default();
        Ok(self.registry.upload_finish(&CALLER, &repo(repository), id, chunk, body, digest).await?.size_bytes)
    }

    async fn assert_sound(&self) {
        let report = self.registry.fsck(&CALLER, true).await.unwrap();
        assert!(report.is_sound(), "{report:?}");
        assert_eq!(report.orphans, Vec::<String>::new());
    }
}

/// Runs a test once for each database with each storage.
async fn each_engine(test: impl AsyncFn(Fixture)) {
    each_engine_with(&|_| {}, WriteLimit::default(), test).await;
}

async fn each_engine_with(change: &dyn Fn(&mut Config), limit: WriteLimit, test: impl AsyncFn(Fixture)) {
    each_folder_with(change, limit, &test).await;
    each_bucket_with(change, &test).await;
}

/// Runs a test once for each database, with a folder.
async fn each_folder(test: impl AsyncFn(Fixture)) {
    each_folder_with(&|_| {}, WriteLimit::default(), test).await;
}

async fn each_folder_with(change: &dyn Fn(&mut Config), limit: WriteLimit, test: impl AsyncFn(Fixture)) {
    test(Fixture::start(None, None, change, limit).await).await;
    if let Some(database) = crate::store::postgres_for_test().await {
        test(Fixture::start(Some(database), None, change, limit).await).await;
    }
}

/// Runs a test once for each database, with S3 or, where there is none, object storage in memory.
async fn each_bucket_with(change: &dyn Fn(&mut Config), test: impl AsyncFn(Fixture)) {
    let limit = WriteLimit::default();
    let bucket = bucket_for_test().unwrap_or_else(|| memory_for_test().1);
    // A separate prefix for each.
    let bucket = |name: &str| Some(format!("{bucket}/{name}").parse().unwrap());
    test(Fixture::start(None, bucket("sqlite"), change, limit).await).await;
    if let Some(database) = crate::store::postgres_for_test().await {
        test(Fixture::start(Some(database), bucket("postgres"), change, limit).await).await;
    }
}

/// Object storage of this process, which fails on demand.
fn memory_for_test() -> (Arc<Storage>, Url) {
    let name = Uuid::new_v4().simple().to_string();
    (testing::storage(&name), format!("memory://{name}").parse().unwrap())
}

fn no_grace(config: &mut Config) {
    config.gc_grace = Duration::ZERO;
    config.upload_lease = Duration::ZERO;
}

fn repo(name: &str) -> Repository {
    name.parse().unwrap()
}

fn reference_of(text: &str) -> Reference {
    text.parse().unwrap()
}

fn body(bytes: &[u8]) -> Body {
    pieces(bytes, 1000)
}

fn pieces(bytes: &[u8], piece: usize) -> Body {
    let pieces: Vec<Result<Bytes, BodyError>> =
        bytes.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    stream::iter(pieces).boxed()
}

/// A body that is interrupted after these bytes.
fn cut(bytes: &[u8]) -> Body {
    let cut: BodyError = "connection reset".into();
    body(bytes).chain(stream::iter([Err(cut)])).boxed()
}

/// A body that stalls after these bytes.
fn hanging(bytes: &[u8]) -> Body {
    body(bytes).chain(stream::pending()).boxed()
}

async fn collect_bytes(mut bytes: super::BlobStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = bytes.next().await {
        all.extend_from_slice(&piece.unwrap());
    }
    all
}

/// Pseudo-random bytes, so that a shifted or repeated piece is detected.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    })
    .take(len)
    .collect()
}

fn descriptor(digest: &Digest, media_type: &str) -> serde_json::Value {
    json!({"mediaType": media_type, "digest": digest, "size": 10})
}

fn image(config: &Digest, layers: &[&Digest]) -> serde_json::Value {
    let layers: Vec<_> = layers.iter().map(|l| descriptor(l, media_type::OCI_LAYER_TAR)).collect();
    json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": descriptor(config, media_type::OCI_CONFIG),
        "layers": layers,
    })
}

fn index(children: &[&Digest]) -> serde_json::Value {
    let manifests: Vec<_> = children.iter().map(|c| descriptor(c, media_type::OCI_MANIFEST)).collect();
    json!({"schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": manifests})
}

fn sha512(bytes: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha512, bytes)
}
