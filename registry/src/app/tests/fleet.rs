//! Many workers: the cost of their heartbeats and of choosing among them. The long form has ten thousand.

use std::time::Instant;

use futures::TryStreamExt;

use super::*;
use crate::app::{Heartbeat, JoinProof, WorkerAnnouncement};
use crate::gateway::rank_workers;
use crate::report::{env_number, figure};
use crate::store::{WorkerInventory, query};

const PROOF: JoinProof<'static> = JoinProof { token: None, is_local: true };
const CHOICES: u32 = 10_000;

/// How many workers: LODE_SIMULATED_WORKERS, which the long form sets.
fn workers() -> usize {
    env_number("LODE_SIMULATED_WORKERS", 200) as usize
}

/// The report of a worker: one of 50 models loaded, 20 on disk.
fn heartbeat(number: usize, requests: u64) -> Heartbeat {
    let digest = |model: usize| Digest::sha256(format!("model {model}").as_bytes());
    let cached: Vec<Digest> = (0..20).map(|other| digest((number + other) % 50)).collect();
    serde_json::from_value(json!({
        "devices": [{"kind": "cpu", "name": "x", "memory_bytes": 64_u64 << 30, "free_bytes": (32_u64 << 30) + requests}],
        "loaded": [{"repository": "m", "digest": digest(number % 50), "size_bytes": 1, "requests": requests}],
        "cached": cached,
    }))
    .unwrap()
}

/// Registers a worker; returns its id and credential.
async fn join(f: &Fixture, number: usize) -> (Uuid, String) {
    let advertise = format!("http://10.{}.{}.{}:7000", number >> 16, (number >> 8) & 255, number & 255);
    let announcement = WorkerAnnouncement {
        advertise: advertise.parse().unwrap(),
        devices: Vec::new(),
        version: "1".to_owned(),
        reserved_for: Vec::new(),
    };
    let registration = f.registry.worker_register(&CALLER, PROOF, announcement).await.unwrap();
    (registration.id, registration.credential.expose().to_owned())
}

async fn inventories(f: &Fixture) -> i64 {
    let (sum,): (i64,) = query!(f.registry.store().read(), c => sqlx::query_as(
        "select cast(coalesce(sum(inventory), 0) as bigint) from workers").fetch_one(c).await)
    .unwrap();
    sum
}

#[tokio::test]
async fn heartbeats_are_written_in_one_statement_and_routing_needs_no_query() {
    each_folder(async |f: Fixture| {
        let (count, store) = (workers(), f.registry.store());
        let engine = if f.config.database.is_some() { "PostgreSQL" } else { "SQLite" };
        let started = Instant::now();
        let joined_workers: Vec<(Uuid, String)> =
            stream::iter(0..count).map(|number| join(&f, number)).buffered(8).collect().await;
        let ids: Vec<Uuid> = joined_workers.iter().map(|(id, _)| *id).collect();
        let joined = started.elapsed();
        // The first report of each worker is written separately.
        let beat = async |requests: u64| {
            stream::iter(joined_workers.iter().enumerate())
                .map(|(number, (id, credential))| {
                    let report = heartbeat(number, requests);
                    let registry = &f.registry;
                    async move { registry.worker_heartbeat(&CALLER, *id, credential, &report).await }
                })
                .buffer_unordered(8)
                .try_for_each(async |known| {
                    assert!(known.is_some());
                    Ok(())
                })
                .await
                .unwrap();
        };
        for (number, (id, credential)) in joined_workers.iter().enumerate() {
            let report = heartbeat(number, 0);
            let inventory = WorkerInventory {
                devices: &serde_json::to_string(&report.devices).unwrap(),
                loaded: &serde_json::to_string(&report.loaded).unwrap(),
                cached: &serde_json::to_string(&report.cached).unwrap(),
            };
            assert!(store.worker_update(*id, &Digest::sha256(credential.as_bytes()), inventory).await.unwrap());
        }
        // Registering all workers may take longer than the limit for heartbeats.
        assert_eq!(store.workers_seen(&ids).await.unwrap(), count as u64);
        f.registry.workers.changed();
        let started = Instant::now();
        let table = f.registry.workers_attached().await.unwrap();
        let read_all = started.elapsed();
        assert_eq!(table.len(), count);

        // From here on the inventories stay the same: no heartbeat writes one, and all of them are one
        // statement.
        let written = inventories(&f).await;
        assert_eq!(written, count as i64);
        let started = Instant::now();
        beat(7).await;
        let beats = started.elapsed();
        let started = Instant::now();
        let flushed = f.registry.workers.write_beats(store).await.unwrap();
        let flush = started.elapsed();
        assert!(flushed <= count);
        assert_eq!(inventories(&f).await, written);
        f.registry.workers.changed();
        let started = Instant::now();
        assert_eq!(f.registry.workers_attached().await.unwrap().len(), count);
        let read_again = started.elapsed();

        // A choice uses the table in memory.
        let mut state = 1_usize;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let started = Instant::now();
        for number in 0..CHOICES {
            let digest = Digest::sha256(format!("model {}", number % 60).as_bytes());
            let classes = [table.loaded(&digest), table.cached(&digest), table.open()];
            let chosen = rank_workers(&classes, &mut random, |at| table.worker(at).devices[0].free_bytes);
            let first = table.worker(chosen[0]);
            let is_loaded = first.loaded.iter().any(|model| model.digest == digest);
            assert!(is_loaded || number % 60 >= 50, "a worker that has it loaded comes first");
        }
        let choice = started.elapsed() / CHOICES;
        figure(
            &format!("{count} workers, {engine}"),
            &format!(
                "joined in {joined:.1?}; table read in {read_all:.1?}, again in {read_again:.1?}; \
                 a round of heartbeats {beats:.1?} and written in {flush:.1?} (1 statement a second instead of 1 for each heartbeat); \
                 a choice {choice:.1?} without a query"
            ),
        );
    })
    .await;
}

#[tokio::test]
async fn liveness_is_decided_by_the_clock_of_the_database() {
    let Some(database) = crate::store::postgres_ahead_for_test().await else { return };
    let pool = sqlx::PgPool::connect(database.as_str()).await.unwrap();
    let f = Fixture::start(Some(database), None, &|_| {}, WriteLimit::default()).await;
    let ids = [join(&f, 1).await.0, join(&f, 2).await.0];
    // Last seen, by the database's clock, by another replica: just now, and too long ago.
    for (id, ago) in ids.iter().zip([1_000_i64, 11_000]) {
        sqlx::query(
            "update workers set seen_at = cast(extract(epoch from clock_timestamp()) * 1000 as bigint) - $2 where id = $1",
        )
        .bind(id.to_string())
        .bind(ago)
        .execute(&pool)
        .await
        .unwrap();
    }
    f.registry.workers.changed();
    let attached = f.registry.worker_list(&CALLER).await.unwrap();
    assert_eq!(attached.iter().map(|worker| worker.id).collect::<Vec<_>>(), ids[..1]);
}
