//! kill -9 of one replica of two at random moments during client requests and garbage collection, while the
//! other keeps running. Clients repeat interrupted requests, and no acknowledged content is lost.
//!
//! LODE_REPLICA_KILLS sets the number of kills: 15 by default, 100 with `tests/run --long`. A failure prints
//! its seed; LODE_KILL_SEED repeats it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lode_tests::cluster::Cluster;
use lode_tests::report::{env_number, figure};
use lode_tests::server::Options;
use lode_tests::services::Backends;
use lode_tests::soak::{Soak, Worker};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const LEASE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_content_survives_the_kill_of_a_replica() {
    let Some(backing) = Backends::shared("replica_kill::the_other_replica_goes_on") else { return };
    let (kills, seed) =
        (env_number("LODE_REPLICA_KILLS", 15), env_number("LODE_KILL_SEED", rand::random::<u32>().into()));
    let mut random = StdRng::seed_from_u64(seed);
    let options = Options::new()
        .env("LODE_GC_GRACE", "0s")
        .env("LODE_GC_UNDO", "0s")
        .env("LODE_GC_INTERVAL", "1s")
        .env("LODE_UPLOAD_LEASE", format!("{}s", LEASE.as_secs()));
    let mut cluster = Cluster::start(2, &backing, options).await;
    let soak = Arc::new(Soak::new(cluster.registries(), LEASE).expecting_kills());
    let workers: Vec<_> = (0..8)
        .map(|id| {
            let mut worker = Worker::new(soak.clone(), id, random.random());
            tokio::spawn(async move {
                let result = worker.work().await;
                (worker, result)
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for kill in 0..kills {
        if soak.stop.load(Ordering::Relaxed) {
            break; // a worker found an error
        }
        tokio::time::sleep(Duration::from_micros(random.random_range(1_000..1_200_000))).await;
        let replica = (kill % 2) as usize;
        cluster.kill(replica);
        tokio::time::sleep(Duration::from_micros(random.random_range(0..500_000))).await;
        let started = Instant::now();
        cluster.restart(replica).await;
        slowest = slowest.max(started.elapsed());
    }
    soak.stop.store(true, Ordering::Relaxed);
    let (mut kept, mut failures) = (0, Vec::new());
    for worker in workers {
        let (mut worker, result) = worker.await.unwrap();
        failures.extend(result.err());
        match worker.check().await {
            Ok(images) => kept += images,
            Err(e) => failures.push(e),
        }
    }
    assert!(failures.is_empty(), "seed {seed}: {failures:#?}");
    for replica in 0..2 {
        cluster.lode(replica).run(&["fsck", "--verify"]).await.expect_success();
    }
    figure(
        &format!("{kills} kill -9 of one replica of two (seed {seed})"),
        &format!(
            "{} operations, {} requests repeated, {kept} images checked: none lost, none changed, fsck --verify clean; \
             slowest restart {} ms",
            soak.operations(),
            soak.repeated.load(Ordering::Relaxed),
            slowest.as_millis()
        ),
    );
    assert!(soak.operations() > 0, "the workers completed no operation");
}
