//! Collections and checks as jobs: starting, following, cancelling and listing them, and taking over from a
//! dead replica.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::App;
use crate::Config;
use crate::auth::Caller;
use crate::store::{Claimable, JobEnd, JobInsert, JobLimits, JobRun, NewJob};

const LIMITS: JobLimits = JobLimits { all: 100, of_account: 100 };
const READING: Claimable = Claimable { writing: false, except: [None; 2] };
const WRITING: Claimable = Claimable { writing: true, except: [None; 2] };

impl App {
    /// Starts a job and waits for it to finish.
    pub(super) async fn job(&self, path: &str, body: Value) -> Value {
        let started = self.post_json(path, body).await;
        assert_eq!(started.status, 202, "{}", started.text());
        let location = started.header("location").to_owned();
        assert_eq!(location, format!("/lode/v1/jobs/{}", started.json()["id"].as_str().unwrap()));
        self.until_finished(&location).await
    }

    pub(super) async fn until_finished(&self, location: &str) -> Value {
        loop {
            let job = self.get(&format!("{location}?wait=60")).await.json();
            if job.get("finished_at").is_some() {
                return job;
            }
        }
    }

    /// All findings of a job of one kind, read in pages of `n`.
    pub(super) async fn findings(&self, id: &str, kind: &str, n: u32) -> Vec<Value> {
        let (mut all, mut next) = (Vec::new(), format!("/lode/v1/jobs/{id}/findings?kind={kind}&n={n}"));
        loop {
            let page = self.get(&next).await;
            let found = page.json()["findings"].as_array().unwrap().clone();
            assert!(found.len() <= n as usize);
            all.extend(found);
            let Some(link) = page.headers.get("link") else { return all };
            let link = link.to_str().unwrap().strip_prefix('<').unwrap();
            link.split_once('>').unwrap().0.clone_into(&mut next);
        }
    }
}

#[tokio::test]
async fn a_check_is_a_job_whose_findings_are_pages() {
    let app = App::new().await;
    app.push_image("team/app", "t", "content").await;
    // Bytes without a row, more of them than one batch has.
    let folder = app.registry.config().data.join("blobs/sha256");
    for n in 0..450 {
        std::fs::write(folder.join(format!("{n:064x}")), b"orphan").unwrap();
    }
    let job = app.job("/lode/v1/fsck", json!({"verify": true})).await;
    assert_eq!((&job["kind"], &job["state"]), (&json!("fsck"), &json!("succeeded")));
    assert_eq!(job["parameters"], json!({"verify": true}));
    let result = &job["result"];
    assert_eq!((&result["blobs"], &result["damage"]), (&json!(3), &json!(0)), "{job}");
    // The counts are exact; the lists are database rows, not part of the report.
    assert_eq!(result["orphans"], 450);
    let id = job["id"].as_str().unwrap();
    let orphans = app.findings(id, "orphan", 100).await;
    assert_eq!(orphans.len(), 450);
    assert!(app.findings(id, "damage", 100).await.is_empty());

    std::fs::remove_dir_all(&folder).unwrap();
    let job = app.job("/lode/v1/fsck", json!({})).await;
    assert_eq!(job["result"]["damage"], 3, "{job}");
    let damage = app.findings(job["id"].as_str().unwrap(), "damage", 2).await;
    assert_eq!((damage.len(), &damage[0]["kind"]), (3, &json!("missing")));
    for finding in damage {
        assert_eq!(finding["used_by"], json!(["team/app:t"]), "{finding}");
    }

    // Newest first, in pages.
    let page = app.get("/lode/v1/jobs?n=1").await;
    assert_eq!(page.json()["jobs"][0]["id"], job["id"]);
    let next = page.header("link").to_owned();
    let next = next.strip_prefix('<').unwrap().split_once('>').unwrap().0;
    assert_eq!(app.get(next).await.json()["jobs"][0]["id"], id);
    assert_eq!(app.get(&format!("/lode/v1/jobs/{}", Uuid::nil())).await.status, 404);
    assert_eq!(app.get(&format!("/lode/v1/jobs/{id}/findings?kind=x")).await.status, 400);
}

#[tokio::test]
async fn jobs_wait_for_their_turn_and_are_cancelled() {
    let app = App::new().await;
    let turn = app.registry.gc_lock_for_test().await;
    let mut started = Vec::new();
    // More than run at a time: some wait for their turn, some for a runner.
    for _ in 0..6 {
        started.push(app.post_json("/lode/v1/gc", json!({})).await.header("location").to_owned());
    }
    for location in &started {
        let cancelled = app.delete(location).await;
        assert!(matches!(cancelled.status.as_u16(), 200 | 202), "{}", cancelled.text());
        assert_eq!(app.until_finished(location).await["state"], "cancelled");
    }
    // Cancelling it again changes nothing.
    assert_eq!(app.delete(&started[0]).await.status, 200);
    drop(turn);
    let done = app.job("/lode/v1/gc", json!({})).await;
    assert_eq!((&done["state"], &done["result"]["dry_run"]), (&json!("succeeded"), &json!(false)));
}

#[tokio::test]
async fn too_many_jobs_are_refused() {
    let app = App::new().await;
    let _turn = app.registry.gc_lock_for_test().await;
    for _ in 0..100 {
        assert_eq!(app.post_json("/lode/v1/gc", json!({})).await.status, 202);
    }
    assert_eq!(app.post_json("/lode/v1/gc", json!({})).await.status, 429);
    app.registry.close().await;
}

#[tokio::test]
async fn another_replica_takes_over_what_a_dead_one_ran() {
    for database in [None, crate::store::postgres_for_test().await] {
        let app = App::with(Config { database, read_only: true, ..Config::default() }).await;
        let store = app.registry.store();
        let id = Uuid::now_v7().to_string();
        let parameters = r#"{"dry_run":false}"#;
        // This replica is read-only, so it does not claim the job.
        let new = NewJob { id: &id, kind: "gc", parameters, writes: true, account: None, secret: None };
        let mut tx = store.begin().await.unwrap();
        assert_eq!(tx.job_insert(&new, LIMITS).await.unwrap(), JobInsert::Added);
        tx.commit().await.unwrap();
        let lease = Duration::from_secs(600);
        assert!(store.job_claim("reader", READING, lease).await.unwrap().is_none());
        let first = store.job_claim("a", WRITING, lease).await.unwrap().unwrap();
        assert!(store.job_claim("b", WRITING, lease).await.unwrap().is_none());
        let run = |holder: &str, attempt| JobRun { id: first.id.clone(), holder: holder.to_owned(), attempt };
        // The first lease expires, by the database's clock.
        assert_eq!(store.job_renew(&run("a", 1), Duration::ZERO, None).await.unwrap(), Some(false));
        let second = store.job_claim("b", WRITING, lease).await.unwrap().unwrap();
        assert_eq!((&second.id, second.attempts), (&first.id, 2));
        // Its late updates have no effect.
        assert_eq!(store.job_renew(&run("a", 1), lease, None).await.unwrap(), None);
        let end = JobEnd { state: "succeeded", progress: None, result: Some("{}"), problem: None };
        assert!(!store.job_finish(&run("a", 1), &end).await.unwrap());
        store.findings_insert(&run("a", 1), "orphan", 0, &["\"stale\"".to_owned()]).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        assert!(tx.job_cancel(&id).await.unwrap());
        tx.commit().await.unwrap();
        assert_eq!(store.job_renew(&run("b", 2), lease, None).await.unwrap(), Some(true));
        assert!(store.job_finish(&run("b", 2), &end).await.unwrap());
        assert!(app.findings(&id, "orphan", 10).await.is_empty());
        let shown = app.registry.job_show(&Caller::ANONYMOUS, id.parse().unwrap(), Duration::ZERO).await;
        assert_eq!(shown.unwrap().unwrap().state, "succeeded");
        // It expires in the end, with its findings.
        store.jobs_expire(i64::MAX, 100).await.unwrap();
        assert!(store.job_find(&id).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_job_of_a_server_that_was_killed_runs_again() {
    let data = tempfile::tempdir().unwrap();
    let config = Config { data: data.path().to_owned(), ..Config::default() };
    let id = Uuid::now_v7().to_string();
    {
        let store = crate::store::Store::open(None, data.path()).await.unwrap();
        let new = NewJob {
            id: &id,
            kind: "fsck",
            parameters: r#"{"verify":false}"#,
            writes: false,
            account: None,
            secret: None,
        };
        let mut tx = store.begin().await.unwrap();
        assert_eq!(tx.job_insert(&new, LIMITS).await.unwrap(), JobInsert::Added);
        tx.commit().await.unwrap();
        store.job_claim("dead", WRITING, Duration::from_secs(600)).await.unwrap().unwrap();
        store.close().await;
    }
    let app = App::with_data(config, data).await;
    let job = app.until_finished(&format!("/lode/v1/jobs/{id}")).await;
    assert_eq!(job["state"], "succeeded", "{job}");
}
