//! kill -9 at random moments during pushes, commits and tag moves, each followed by a restart: all
//! acknowledged content must be stored. LODE_KILL_ROUNDS sets the number of rounds: 30 by default, 200 with
//! `tests/run --long`. A failure prints its seed; LODE_KILL_SEED repeats it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lode_tests::artifact::{Image, random_bytes, sha256};
use lode_tests::oci::{IMAGE_MANIFEST, Registry, with_query};
use lode_tests::report::{env_number, figure};
use lode_tests::server::{Folder, Options};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// The changes that the server has acknowledged, and those in progress when it was killed.
#[derive(Default)]
struct Ledger {
    /// Seed and length of each blob, by repository and digest. The check generates the bytes again.
    blobs: BTreeMap<(String, String), (u64, usize)>,
    /// Manifest bytes by repository and digest.
    manifests: BTreeMap<(String, String), Vec<u8>>,
    /// The digest of each tag, or `None` after an acknowledged deletion.
    tags: BTreeMap<(String, String), Option<String>>,
    /// The digest that a tag may have instead, because a move or a deletion was in progress.
    moving: BTreeMap<(String, String), Option<String>>,
    /// Uploads with acknowledged chunks, by location: repository, offset, and seed and length of the blob.
    uploads: BTreeMap<String, (String, u64, u64, usize)>,
    /// Blobs and manifests that were added since the last check.
    fresh: BTreeSet<(String, String)>,
    acknowledged: u64,
}

type Shared = Arc<Mutex<Ledger>>;

/// A client that pushes, commits, moves and deletes tags in its own repository until a request fails.
async fn client(registry: Registry, lane: u64, seed: u64, ledger: Shared) -> Result<(), reqwest::Error> {
    let mut random = StdRng::seed_from_u64(seed);
    let repository = format!("lane/{lane}");
    loop {
        match random.random_range(0..10) {
            0 => upload_in_chunks(&registry, &repository, &mut random, &ledger).await?,
            1..=5 => commit(&registry, &repository, &mut random, &ledger).await?,
            6..=8 => move_tag(&registry, &repository, &mut random, &ledger).await?,
            _ => delete_tag(&registry, &repository, &mut random, &ledger).await?,
        }
    }
}

async fn push(
    registry: &Registry,
    repository: &str,
    seed: u64,
    len: usize,
    ledger: &Shared,
) -> Result<(), reqwest::Error> {
    let bytes = random_bytes(seed, len);
    let digest = sha256(&bytes);
    let path = with_query(&format!("/v2/{repository}/blobs/uploads/"), "digest", &digest);
    registry.try_send(registry.request("POST", &path).body(bytes)).await?.expect(201);
    let mut ledger = ledger.lock().unwrap();
    ledger.blobs.insert((repository.into(), digest.clone()), (seed, len));
    ledger.fresh.insert((repository.into(), digest));
    ledger.acknowledged += 1;
    Ok(())
}

/// Pushes two blobs and a tagged manifest.
async fn commit(
    registry: &Registry,
    repository: &str,
    random: &mut StdRng,
    ledger: &Shared,
) -> Result<(), reqwest::Error> {
    let seed: u64 = random.random();
    let len = *[0, 100, 5_000, 200_000, 2_000_000].choose(random).unwrap();
    let image = Image::of(random_bytes(seed, 60), vec![random_bytes(seed + 1, len)], &serde_json::json!({}));
    push(registry, repository, seed, 60, ledger).await?;
    push(registry, repository, seed + 1, len, ledger).await?;
    let tag = format!("t{}", random.random_range(0..8));
    put_tag(registry, repository, &tag, image.manifest, ledger).await
}

async fn put_tag(
    registry: &Registry,
    repository: &str,
    tag: &str,
    manifest: Vec<u8>,
    ledger: &Shared,
) -> Result<(), reqwest::Error> {
    let key = (repository.to_owned(), tag.to_owned());
    let digest = sha256(&manifest);
    ledger.lock().unwrap().moving.insert(key.clone(), Some(digest.clone()));
    let request = registry
        .request("PUT", &format!("/v2/{repository}/manifests/{tag}"))
        .header("content-type", IMAGE_MANIFEST);
    registry.try_send(request.body(manifest.clone())).await?.expect(201);
    let mut ledger = ledger.lock().unwrap();
    ledger.manifests.insert((repository.into(), digest.clone()), manifest);
    ledger.moving.remove(&key);
    ledger.tags.insert(key, Some(digest.clone()));
    ledger.fresh.insert((repository.into(), digest));
    ledger.acknowledged += 1;
    Ok(())
}

async fn move_tag(
    registry: &Registry,
    repository: &str,
    random: &mut StdRng,
    ledger: &Shared,
) -> Result<(), reqwest::Error> {
    let manifest = {
        let ledger = ledger.lock().unwrap();
        let all: Vec<_> = ledger
            .manifests
            .iter()
            .filter(|((r, _), _)| r == repository)
            .map(|(_, bytes)| bytes.clone())
            .collect();
        all.choose(random).cloned()
    };
    let Some(manifest) = manifest else { return Ok(()) };
    put_tag(registry, repository, &format!("t{}", random.random_range(0..8)), manifest, ledger).await
}

async fn delete_tag(
    registry: &Registry,
    repository: &str,
    random: &mut StdRng,
    ledger: &Shared,
) -> Result<(), reqwest::Error> {
    let tag = format!("t{}", random.random_range(0..8));
    let key = (repository.to_owned(), tag.clone());
    ledger.lock().unwrap().moving.insert(key.clone(), None);
    let response =
        registry.try_send(registry.request("DELETE", &format!("/v2/{repository}/manifests/{tag}"))).await?;
    assert!([202, 404].contains(&response.status), "{}", response.status);
    let mut ledger = ledger.lock().unwrap();
    ledger.moving.remove(&key);
    ledger.tags.insert(key, None);
    ledger.acknowledged += 1;
    Ok(())
}

async fn upload_in_chunks(
    registry: &Registry,
    repository: &str,
    random: &mut StdRng,
    ledger: &Shared,
) -> Result<(), reqwest::Error> {
    let (seed, len) = (random.random(), 1_500_000);
    let bytes = random_bytes(seed, len);
    let digest = sha256(&bytes);
    let response = registry
        .try_send(registry.request("POST", &format!("/v2/{repository}/blobs/uploads/")))
        .await?
        .expect(202);
    let path = response.header("location").unwrap().trim_start_matches(&registry.url).to_owned();
    for (i, chunk) in bytes.chunks(300_000).enumerate() {
        let first = i * 300_000;
        let request = registry
            .request("PATCH", &path)
            .header("content-range", format!("{first}-{}", first + chunk.len() - 1));
        registry.try_send(request.body(chunk.to_vec())).await?.expect(202);
        let mut ledger = ledger.lock().unwrap();
        ledger.uploads.insert(path.clone(), (repository.into(), (first + chunk.len()) as u64, seed, len));
        ledger.acknowledged += 1;
    }
    registry.try_send(registry.request("PUT", &with_query(&path, "digest", &digest))).await?.expect(201);
    let mut ledger = ledger.lock().unwrap();
    ledger.uploads.remove(&path);
    ledger.blobs.insert((repository.into(), digest.clone()), (seed, len));
    ledger.fresh.insert((repository.into(), digest));
    ledger.acknowledged += 1;
    Ok(())
}

/// Checks the server against the ledger: everything if `whole`, otherwise what was added since the last
/// check.
async fn check(registry: &Registry, ledger: &Shared, whole: bool) {
    let mut book = std::mem::take(&mut *ledger.lock().unwrap());
    for ((repository, digest), (seed, len)) in &book.blobs {
        if whole || book.fresh.contains(&(repository.clone(), digest.clone())) {
            let response = registry.blob_get(repository, digest).await.expect(200);
            assert!(
                response.body == random_bytes(*seed, *len),
                "the acknowledged blob {digest} of {repository} has changed"
            );
        }
    }
    for ((repository, digest), bytes) in &book.manifests {
        if whole || book.fresh.contains(&(repository.clone(), digest.clone())) {
            let response = registry.manifest_get(repository, digest).await.expect(200);
            assert!(
                response.body == *bytes,
                "the acknowledged manifest {digest} of {repository} has changed"
            );
        }
    }
    let keys: BTreeSet<_> = book.tags.keys().chain(book.moving.keys()).cloned().collect();
    for key in keys {
        let (repository, tag) = &key;
        let response = registry.manifest_get(repository, tag).await;
        let found = match response.status {
            200 => Some(response.header("docker-content-digest").unwrap().to_owned()),
            404 => None,
            other => panic!("{repository}:{tag} returns {other}"),
        };
        if let Some(digest) = &found {
            assert_eq!(*digest, sha256(&response.body));
            book.manifests.insert((repository.clone(), digest.clone()), response.body.to_vec());
        }
        let acknowledged = book.tags.get(&key).cloned().flatten();
        let allowed = found == acknowledged || book.moving.get(&key) == Some(&found);
        assert!(
            allowed,
            "{repository}:{tag} points at {found:?}, acknowledged {acknowledged:?}, in progress {:?}",
            book.moving.get(&key)
        );
        book.tags.insert(key, found);
    }
    for (path, (repository, offset, seed, len)) in std::mem::take(&mut book.uploads) {
        let bytes = random_bytes(seed, len);
        let digest = sha256(&bytes);
        let status = registry.get(&path).await;
        if status.status == 404 {
            // The server may have executed the closing PUT without sending the response.
            registry.blob_head(&repository, &digest).await.expect(200);
        } else {
            let stored = lode_tests::oci::offset_in(status.expect(204).header("range").unwrap());
            assert!(stored >= offset, "{offset} bytes of {path} were acknowledged, {stored} are stored");
            let request = registry
                .request("PUT", &with_query(&path, "digest", &digest))
                .body(bytes[stored as usize..].to_vec());
            registry.send(request).await.expect(201);
        }
        book.blobs.insert((repository, digest), (seed, len));
    }
    book.fresh.clear();
    book.moving.clear();
    *ledger.lock().unwrap() = book;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_changes_survive_kill_9() {
    let (rounds, seed) =
        (env_number("LODE_KILL_ROUNDS", 30), env_number("LODE_KILL_SEED", rand::random::<u32>().into()));
    let mut random = StdRng::seed_from_u64(seed);
    let folder = Folder::new();
    // Without a grace period the collections delete content, and only leases protect blobs.
    let options = Options::new().env("LODE_GC_GRACE", "0s").env("LODE_GC_INTERVAL", "1s");
    let ledger = Shared::default();
    let mut starts = Vec::new();
    for round in 0..rounds {
        let server = folder.start(options.clone()).await;
        starts.push(server.started.elapsed());
        let registry = server.registry();
        check(&registry, &ledger, false).await;
        let clients: Vec<_> = (0..4)
            .map(|lane| tokio::spawn(client(registry.clone(), lane, random.random(), ledger.clone())))
            .collect();
        // The random moment of the kill.
        tokio::time::sleep(Duration::from_micros(random.random_range(1_000..700_000))).await;
        server.kill();
        for client in clients {
            let ended = client.await.unwrap_or_else(|e| panic!("seed {seed}, round {round}: {e}"));
            assert!(ended.is_err(), "a client ended without a failed request");
        }
    }
    let server = folder.start(options).await;
    check(&server.registry(), &ledger, true).await;
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
    server.lode().run(&["gc"]).await.expect_success();
    check(&server.registry(), &ledger, true).await;
    let book = ledger.lock().unwrap();
    figure(
        &format!("{rounds} kill -9 (seed {seed})"),
        &format!(
            "{} acknowledgements, {} blobs, {} manifests, {} tags: none lost, none changed, fsck --verify clean; slowest restart {} ms",
            book.acknowledged,
            book.blobs.len(),
            book.manifests.len(),
            book.tags.len(),
            starts.iter().max().map_or(0, Duration::as_millis)
        ),
    );
    assert!(book.acknowledged > 0, "no request was acknowledged");
}
