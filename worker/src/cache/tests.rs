//! The cache against a small registry: pulled once, verified, evicted in order, never while in use.

use std::path::Path;
use std::sync::Arc;

use lode_client::Registry;
use lode_model::digest::Digest;
use lode_model::media_type as mt;

use super::{Cache, Lease, Models};
use crate::error::Error;
use crate::testing::{TinyRegistry, repository};

struct Bench {
    tiny: TinyRegistry,
    registry: Registry,
    folder: tempfile::TempDir,
}

async fn bench() -> Bench {
    let tiny = TinyRegistry::default();
    let registry = tiny.client().await;
    Bench { tiny, registry, folder: tempfile::tempdir().unwrap() }
}

impl Bench {
    fn cache(&self, limit: Option<u64>) -> Arc<Cache> {
        Cache::open(self.folder.path(), Vec::new(), limit).unwrap()
    }

    fn blob(&self, seed: u8, len: usize) -> Digest {
        self.tiny.put(mt::OCTET_STREAM, vec![seed; len])
    }

    async fn fetch(&self, cache: &Arc<Cache>, digest: &Digest, size: u64) -> Result<Lease, Error> {
        cache.fetch(&self.registry, &repository(), digest, size).await
    }
}

#[tokio::test]
async fn concurrent_fetches_share_one_pull() {
    let bench = bench().await;
    let cache = bench.cache(None);
    let digest = bench.blob(7, 100_000);
    let leases = futures::future::join_all((0..20).map(|_| bench.fetch(&cache, &digest, 100_000))).await;
    for lease in &leases {
        assert_eq!(std::fs::read(lease.as_ref().unwrap().path()).unwrap(), vec![7; 100_000]);
    }
    assert_eq!(bench.tiny.gets(&digest), 1);
    drop(leases);
    drop(cache);
    // It is found after a restart.
    let cache = bench.cache(None);
    assert!(cache.contains(&digest));
    bench.fetch(&cache, &digest, 100_000).await.unwrap();
    assert_eq!(bench.tiny.gets(&digest), 1);
}

#[tokio::test]
async fn corrupt_blobs_are_rejected() {
    let bench = bench().await;
    let cache = bench.cache(None);
    let digest = bench.blob(7, 1000);
    bench.tiny.corrupt(&digest);
    let error = bench.fetch(&cache, &digest, 1000).await.unwrap_err();
    assert!(matches!(error, Error::Pull { .. }), "{error}");
    assert!(!cache.contains(&digest));
    let missing = Digest::sha256(b"nobody has this");
    assert!(bench.fetch(&cache, &missing, 15).await.is_err());
    // Failed pulls do not count against the limit.
    let cache = bench.cache(Some(1000));
    assert!(bench.fetch(&cache, &digest, 1000).await.is_err());
    assert!(bench.fetch(&cache, &bench.blob(8, 1000), 1000).await.is_ok());
}

#[tokio::test]
async fn lru_eviction_skips_leased_blobs() {
    let bench = bench().await;
    let cache = bench.cache(Some(250));
    let blobs: Vec<Digest> = (0..5).map(|seed| bench.blob(seed, 100)).collect();
    let fetch = async |at: usize| bench.fetch(&cache, &blobs[at], 100).await;
    let there = |expect: [bool; 5]| {
        let there: Vec<bool> = blobs.iter().map(|blob| cache.contains(blob)).collect();
        assert_eq!(there, expect);
    };
    drop(fetch(0).await.unwrap());
    drop(fetch(1).await.unwrap());
    drop(fetch(0).await.unwrap());
    let held = fetch(2).await.unwrap();
    there([true, false, true, false, false]);
    let also = fetch(3).await.unwrap();
    there([false, false, true, true, false]);
    assert!(matches!(fetch(4).await.unwrap_err(), Error::CacheFull { limit: 250, needed: 100 }));
    assert!(held.path().exists());
    drop(held);
    drop(fetch(4).await.unwrap());
    there([false, false, false, true, true]);
    drop(also);
    assert!(matches!(
        bench.fetch(&cache, &bench.blob(9, 300), 300).await.unwrap_err(),
        Error::CacheFull { .. }
    ));
}

#[tokio::test]
async fn source_folders_are_used_in_place() {
    let bench = bench().await;
    let source = tempfile::tempdir().unwrap();
    let (ours, theirs, cut) = (bench.blob(1, 10), bench.blob(2, 10), bench.blob(3, 10));
    let write = |path: String, bytes: Vec<u8>| {
        let path = source.path().join("blobs").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    write(format!("sha256/{}", ours.hex()), vec![1; 10]);
    write(format!("sha256-{}", theirs.hex()), vec![2; 10]);
    write(format!("sha256/{}", cut.hex()), vec![3; 9]);
    let cache =
        Cache::open(bench.folder.path(), vec!["/no/such/folder".into(), source.path().into()], None).unwrap();
    let is_in = |lease: &Lease, folder: &Path| lease.path().starts_with(folder);
    for digest in [&ours, &theirs] {
        assert!(cache.contains(digest));
        assert!(is_in(&bench.fetch(&cache, digest, 10).await.unwrap(), source.path()));
        assert_eq!(bench.tiny.gets(digest), 0);
    }
    assert!(is_in(&bench.fetch(&cache, &cut, 10).await.unwrap(), bench.folder.path()), "its size is wrong");
}

#[tokio::test]
async fn a_deleted_file_is_pulled_again() {
    let bench = bench().await;
    let cache = bench.cache(None);
    let digest = bench.blob(1, 10);
    let path = bench.fetch(&cache, &digest, 10).await.unwrap().path().to_owned();
    std::fs::remove_file(&path).unwrap();
    bench.fetch(&cache, &digest, 10).await.unwrap();
    assert!(path.exists());
    assert_eq!(bench.tiny.gets(&digest), 2);
}

#[tokio::test]
async fn a_deleted_file_keeps_its_leases() {
    let bench = bench().await;
    let cache = bench.cache(Some(200));
    let digest = bench.blob(1, 100);
    let first = bench.fetch(&cache, &digest, 100).await.unwrap();
    std::fs::remove_file(first.path()).unwrap();
    let second = bench.fetch(&cache, &digest, 100).await.unwrap();
    drop(first);
    let other = bench.blob(2, 200);
    let error = bench.fetch(&cache, &other, 200).await.unwrap_err();
    assert!(matches!(error, Error::CacheFull { .. }), "the second lease is still held: {error}");
    drop(second);
    assert!(bench.fetch(&cache, &other, 200).await.is_ok());
}

#[tokio::test]
async fn a_wrong_size_does_not_make_the_cache_forget_a_file() {
    let bench = bench().await;
    let cache = bench.cache(Some(150));
    let digest = bench.blob(1, 100);
    drop(bench.fetch(&cache, &digest, 100).await.unwrap());
    assert!(bench.fetch(&cache, &digest, 20).await.is_err());
    assert!(cache.contains(&digest));
    drop(bench.fetch(&cache, &digest, 100).await.unwrap());
    assert_eq!(bench.tiny.gets(&digest), 2, "one pull, and one with the wrong size");
}

#[tokio::test]
async fn partial_downloads_count_and_are_evicted_first() {
    let bench = bench().await;
    let (kept, cut, other) = (bench.blob(1, 100), bench.blob(2, 100), bench.blob(3, 100));
    drop(bench.fetch(&bench.cache(None), &kept, 100).await.unwrap());
    let part = bench.folder.path().join("blobs/sha256").join(format!("{}.part", cut.hex()));
    let state = part.with_extension("part.state");
    let interrupt = || {
        std::fs::write(&part, [2; 60]).unwrap();
        std::fs::write(&state, b"{}").unwrap();
    };
    interrupt();
    let cache = bench.cache(Some(200));
    drop(bench.fetch(&cache, &other, 100).await.unwrap());
    assert!(!part.exists() && !state.exists() && cache.contains(&kept), "160 bytes were there");
    // A resumed download reserves its size only once. A partial file that another process is resuming is
    // kept.
    std::fs::remove_file(bench.folder.path().join("blobs/sha256").join(other.hex())).unwrap();
    interrupt();
    let cache = bench.cache(Some(200));
    drop(bench.fetch(&cache, &cut, 100).await.unwrap());
    assert!(cache.contains(&kept) && !part.exists());
    std::fs::remove_file(bench.folder.path().join("blobs/sha256").join(cut.hex())).unwrap();
    interrupt();
    let taken_up = std::fs::File::open(&part).unwrap();
    taken_up.lock().unwrap();
    let cache = bench.cache(Some(200));
    drop(bench.fetch(&cache, &other, 100).await.unwrap());
    assert!(part.exists() && cache.contains(&kept));
}

#[tokio::test]
async fn a_truncated_manifest_is_ignored() {
    let bench = bench().await;
    let cache = bench.cache(None);
    let name = Digest::sha256(b"a whole manifest").to_string().replace(':', "-");
    let path = bench.folder.path().join("manifests").join(name);
    std::fs::write(&path, b"a whole").unwrap();
    assert!(Models::open(cache, bench.registry.clone()).unwrap().cached().is_empty());
    assert!(!path.exists());
}

#[tokio::test]
async fn a_model_larger_than_memory_is_not_pulled() {
    let bench = bench().await;
    let models = Models::open(bench.cache(None), bench.registry.clone()).unwrap();
    let digest = bench.tiny.put_demo(1, false);
    let error = models.fetch(&repository(), &digest, 99).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { needed: 100, total: 99 }), "{error}");
    let blobs = bench.folder.path().join("blobs/sha256");
    assert_eq!(std::fs::read_dir(&blobs).unwrap().count(), 0);
    models.fetch(&repository(), &digest, 100).await.unwrap();
    assert_ne!(std::fs::read_dir(&blobs).unwrap().count(), 0);
}

#[tokio::test]
async fn a_model_is_fetched_completely() {
    let bench = bench().await;
    let models = Models::open(bench.cache(None), bench.registry.clone()).unwrap();
    let digest = bench.tiny.put_demo(1, false);
    assert!(models.cached().is_empty());
    let model = models.fetch(&repository(), &digest, u64::MAX).await.unwrap();
    assert_eq!(model.spec.tensors.len(), 1);
    assert!(model.spec.tensors[0].whole_file && model.spec.files.contains_key("tokenizer.json"));
    assert_eq!((model.tensor_bytes, model.config["model_type"].as_str()), (100, Some("llama")));
    assert_eq!((model.details.file_type.as_str(), model.digest.clone()), ("BF16", digest.clone()));
    assert_eq!(models.cached(), std::slice::from_ref(&digest));
    // It is cached after a restart, until one of its blobs is deleted.
    let models = Models::open(bench.cache(None), bench.registry.clone()).unwrap();
    assert_eq!(models.cached(), std::slice::from_ref(&digest));
    std::fs::remove_file(&model.spec.tensors[0].path).unwrap();
    let models = Models::open(bench.cache(None), bench.registry.clone()).unwrap();
    assert!(models.cached().is_empty());

    let index = serde_json::json!({"schemaVersion": 2, "mediaType": mt::OCI_INDEX, "manifests": [
        {"mediaType": mt::OCI_MANIFEST, "digest": Digest::sha256(b"x"), "size": 1, "platform": {"os": "unknown"}},
        {"mediaType": mt::DOCKER_MANIFEST, "digest": digest, "size": 1}]});
    let index = bench.tiny.put(mt::OCI_INDEX, index.to_string());
    let model = models.fetch(&repository(), &index, u64::MAX).await.unwrap();
    assert_eq!(model.digest, index);

    let refused =
        async |digest: &Digest| models.fetch(&repository(), digest, u64::MAX).await.unwrap_err().to_string();
    let absent = Digest::sha256(b"nothing");
    assert_eq!(refused(&absent).await, format!("model '{absent}' not found"));
    let gguf = bench.tiny.put_model(&[(mt::OLLAMA_MODEL, "", vec![1])]);
    assert!(refused(&gguf).await.contains("is not a GGUF"));
    let broken = bench
        .tiny
        .put_model(&[(mt::OLLAMA_TENSOR, "a", vec![1]), (mt::OLLAMA_JSON, "config.json", vec![b'{'])]);
    assert!(refused(&broken).await.starts_with(&format!("cannot run {broken}: config.json: ")));
}
