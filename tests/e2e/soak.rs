//! Many clients push, mount, move tags, delete and pull overlapping content while garbage collection runs
//! every second without a grace period and with a short lease. No request may fail, no referenced content may
//! be lost, and all unreferenced content must be deleted. The test runs until LODE_SOAK_SECONDS,
//! LODE_SOAK_OPERATIONS and LODE_SOAK_COLLECTIONS are all reached.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lode_tests::cluster::Cluster;
use lode_tests::register::{Register, tick};
use lode_tests::report::{env_number, figure};
use lode_tests::server::Options;
use lode_tests::services::Backends;
use lode_tests::soak::{Soak, Worker};
use serde_json::json;

const LEASE: Duration = Duration::from_secs(5);
const WORKERS: usize = 12;

async fn soak(backing: &Backends, n_replicas: usize, share: u64) {
    let seconds = env_number("LODE_SOAK_SECONDS", 40) / share;
    let operations = env_number("LODE_SOAK_OPERATIONS", 500) / share;
    let collections = env_number("LODE_SOAK_COLLECTIONS", 10) / share;
    let seed = env_number("LODE_SOAK_SEED", rand::random::<u32>().into());
    let options = Options::new()
        .env("LODE_GC_GRACE", "0s")
        .env("LODE_GC_UNDO", "0s")
        .env("LODE_GC_INTERVAL", "1s")
        .env("LODE_UPLOAD_LEASE", format!("{}s", LEASE.as_secs()));
    let cluster = Cluster::start(n_replicas, backing, options).await;
    let soak = Arc::new(Soak::new(cluster.registries(), LEASE));
    let started = Instant::now();
    let workers: Vec<_> = (0..WORKERS)
        .map(|id| {
            let mut worker = Worker::new(soak.clone(), id, seed.wrapping_mul(1000).wrapping_add(id as u64));
            tokio::spawn(async move {
                let result = worker.work().await;
                (worker, result)
            })
        })
        .collect();

    // In addition to the scheduled collections, start one on each replica in turn. These are counted and may
    // overlap.
    let mut collected = 0;
    while !soak.stop.load(Ordering::Relaxed) {
        let replica = &soak.replicas[collected as usize % n_replicas];
        let response = replica.collect().await;
        assert_eq!(response.status, 200, "seed {seed}: a collection returns `{}`", response.text());
        collected += 1;
        if started.elapsed().as_secs() >= seconds
            && soak.operations() >= operations
            && collected >= collections
        {
            soak.stop.store(true, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let took = started.elapsed();

    let (mut idle, mut failures) = (Vec::new(), Vec::new());
    for worker in workers {
        let (worker, result) = worker.await.unwrap();
        failures.extend(result.err());
        idle.push(worker);
    }
    assert!(failures.is_empty(), "{}, seed {seed}, after {took:?}: {failures:#?}", backing.name);
    let mut kept = 0;
    for worker in &mut idle {
        kept += worker.check().await.unwrap_or_else(|e| panic!("seed {seed}: after the soak: {e}"));
    }
    cluster.lode(0).run(&["fsck", "--verify"]).await.expect_success();

    // After everything is deleted, no blobs or uploads may remain.
    for worker in &mut idle {
        worker.clear().await.unwrap_or_else(|e| panic!("seed {seed}: clearing up: {e}"));
    }
    let deadline = Instant::now() + LEASE * 36;
    let left = loop {
        soak.replicas[0].collect().await.expect(200);
        let left = cluster.lode(n_replicas - 1).run(&["fsck", "--json"]).await.expect_success().json();
        let clean = left["blobs"] == 0 && left["orphans"] == json!([]) && left["uploads"] == json!([]);
        if clean || Instant::now() > deadline {
            break left;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    assert_eq!(left["blobs"], 0, "seed {seed}: blobs are left over: {left}");
    assert_eq!(left["orphans"], json!([]), "seed {seed}: bytes are left over: {left}");
    assert_eq!(left["uploads"], json!([]), "seed {seed}: uploads are left over: {left}");
    figure(
        &format!("soak on {} with {n_replicas} replica(s), seed {seed}", backing.name),
        &format!(
            "{} operations ({} requests) and {collected} collections in addition to the scheduled ones in {} s: 0 failures, \
             fsck --verify clean, {kept} images checked, nothing left after deletion; {} pushes exceeded their lease; {:?}",
            soak.operations(),
            soak.requests.load(Ordering::Relaxed),
            took.as_secs(),
            soak.expired_leases.load(Ordering::Relaxed),
            soak.counts()
        ),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas() {
    let Some(backing) = Backends::shared("soak::two_replicas") else { return };
    soak(&backing, 2, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_on_a_folder() {
    soak(&Backends::embedded(), 1, 4).await;
}

#[test]
fn a_read_returns_a_write_that_was_not_replaced() {
    let mut register = Register::default();
    let now = tick();
    assert!(register.may_hold(None, now, tick()), "an unwritten register must be empty");
    let a = register.begin_put("a");
    let during = tick();
    assert!(register.may_hold(None, during, tick()) && register.may_hold(Some("a"), during, tick()));
    register.end_write(a);
    let now = tick();
    assert!(register.may_hold(Some("a"), now, tick()));
    assert!(!register.may_hold(None, now, tick()) && !register.may_hold(Some("b"), now, tick()));
    // Two concurrent writes: either may win, and the earlier value is replaced.
    let (b, c) = (register.begin_put("b"), register.begin_put("c"));
    let during = tick();
    assert!(register.may_hold(Some("a"), during, tick()));
    register.end_write(b);
    register.end_write(c);
    let now = tick();
    assert!(register.may_hold(Some("b"), now, tick()) && register.may_hold(Some("c"), now, tick()));
    assert!(!register.may_hold(Some("a"), now, tick()));
    // A removal of a possible value.
    let gone = register.removal_begins("c");
    register.end_write(gone);
    let now = tick();
    assert!(register.may_hold(None, now, tick()) && register.may_hold(Some("b"), now, tick()));
    assert!(!register.may_hold(Some("c"), now, tick()));
    let d = register.begin_put("d");
    register.end_write(d);
    let now = tick();
    assert!(!register.may_hold(None, now, tick()) && register.may_hold(Some("d"), now, tick()));
}
