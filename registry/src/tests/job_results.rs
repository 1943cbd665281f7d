//! The manifest of a job and its result are stored together: once, by the run that holds the job.

use std::time::Duration;

use serde_json::json;

use super::App;
use super::import::{Fault, Source, push_layer, start};
use super::models::push_model;
use super::wire::within;
use crate::Config;
use crate::store::query;

/// Runs a statement on the jobs, which a crash or another replica would have run.
async fn change(app: &App, statement: &'static str) {
    let store = app.registry.store();
    query!(store.write(), c => sqlx::query(statement).execute(c).await.map(drop)).unwrap();
}

#[tokio::test]
async fn a_run_after_the_manifest_was_stored_does_not_undo_later_pushes() {
    let there = Source::start().await;
    there.app.push_image("team/app", "v1", "one").await;
    let here = App::new().await;
    push_model(&here, "base", "latest").await;
    for (path, body) in [
        ("/lode/v1/import", json!({"model": "app:stable", "from": there.name("team/app:v1")})),
        ("/lode/v1/models", json!({"model": "app:stable", "from": "base"})),
    ] {
        let started = here.post_json(path, body).await;
        assert_eq!(started.status, 202, "{}", started.text());
        let location = started.header("location").to_owned();
        let first = within(here.until_finished(&location)).await;
        assert_eq!(first["state"], "succeeded", "{first}");
        let later = here.push_image("app", "stable", path).await;
        // As if the server had been killed between the manifest and the end of the job.
        change(
            &here,
            "update jobs set state = 'running', finished_at = null, holder = 'dead', lease_until = 0 \
             where result is not null",
        )
        .await;
        let second = within(here.until_finished(&location)).await;
        for field in ["state", "result", "progress"] {
            assert_eq!(second[field], first[field], "{second}");
        }
        let manifest = here.get("/v2/app/manifests/stable").await;
        assert_eq!(manifest.header("docker-content-digest"), later.as_str(), "{path}");
    }
}

#[tokio::test]
async fn a_run_that_lost_its_job_stores_no_manifest() {
    let there = Source::start().await;
    let layer = push_layer(&there.app, "team/app", "v1", "layer").await;
    let here = App::new().await;
    for statement in [
        // Another replica runs it.
        "update jobs set holder = 'other', attempts = attempts + 1, lease_until = 9000000000000",
        "update jobs set state = 'cancelled', finished_at = 1, holder = null, lease_until = null",
    ] {
        there.set(&layer, Fault::Hold);
        let started = start(&here, json!({"model": "app", "from": there.name("team/app:v1")})).await;
        assert_eq!(started.status, 202, "{}", started.text());
        there.is_asked_for(&layer).await;
        change(&here, statement).await;
        there.repair();
        within(async {
            while here.get(&format!("/v2/app/blobs/{layer}")).await.status != 200 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        // The manifest would follow at once.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(here.get("/v2/app/manifests/latest").await.status, 404, "{statement}");
        change(&here, "delete from jobs").await;
        assert_eq!(here.delete(&format!("/v2/app/blobs/{layer}")).await.status, 202);
        there.heard("");
    }
}

#[tokio::test]
async fn orderly_stops_do_not_use_up_the_attempts() {
    let there = Source::start().await;
    let layer = push_layer(&there.app, "team/app", "v1", "layer").await;
    there.set(&layer, Fault::Hold);
    let mut here = App::new().await;
    let started = start(&here, json!({"model": "app", "from": there.name("team/app:v1")})).await;
    let location = started.header("location").to_owned();
    for _ in 0..5 {
        there.is_asked_for(&layer).await;
        let data = here.close().await;
        there.heard("");
        here = App::with_data(Config::default(), data).await;
    }
    there.repair();
    let job = within(here.until_finished(&location)).await;
    assert_eq!(job["state"], "succeeded", "{job}");
    // Servers that are killed use them up.
    let started = start(&here, json!({"model": "again", "from": there.name("team/app:v1")})).await;
    let location = started.header("location").to_owned();
    within(here.until_finished(&location)).await;
    change(
        &here,
        "update jobs set state = 'running', finished_at = null, result = null, holder = 'dead', \
         lease_until = 0, lost_runs = 2 where finished_at is not null",
    )
    .await;
    let job = within(here.until_finished(&location)).await;
    assert_eq!(job["problem"], "3 servers stopped while running this job", "{job}");
}
