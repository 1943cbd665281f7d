//! API tests on Postgres: models, tensors, workers, keys. They run if LODE_TEST_POSTGRES names a server; all
//! other tests use SQLite.

use std::time::Duration;

use futures::future::join_all;
use http::Request;
use serde_json::json;

use super::gateway::{join, local};
use super::models::push_model;
use super::{App, image};
use crate::store::query;
use crate::{Config, open};

#[tokio::test]
async fn the_same_rows() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let app = App::with(Config { database: Some(database), ..Config::default() }).await;

    push_model(&app, "mini", "latest").await;
    let list = app.get("/lode/v1/models").await.json();
    assert_eq!(
        (&list["models"][0]["parameters"], &list["models"][0]["tensor_count"]),
        (&json!(44), &json!(2))
    );
    let tensors = app.get("/lode/v1/tensors/mini/latest").await.json();
    assert_eq!(tensors["tensors"][1]["name"], "head.weight");
    let copy = json!({"source": "mini", "destination": "team/copy"});
    assert_eq!(app.post_json("/api/copy", copy).await.status, 200);
    assert_eq!(app.get("/api/tags").await.json()["models"].as_array().unwrap().len(), 2);

    let digest = app.push_blob("mini", "content").await;
    let probe = Request::get(format!("/v2/library/mini/blobs/{digest}")).header("user-agent", "ollama/0");
    let link = app.send(probe.header("host", "localhost"), "").await.header("location").to_owned();
    assert_eq!(app.get(&link).await.text(), "content");

    let joined = join(&app, ([127, 0, 0, 1], 9).into()).await;
    let (path, credential) = (joined.path(), Some(&joined.credential[..]));
    let beat = json!({"loaded": [{"repository": "mini", "digest": digest}], "cached": [digest]});
    assert_eq!(local(&app, "PUT", &path, credential, beat).await.status, 204);
    assert_eq!(app.get("/lode/v1/workers").await.json()["workers"][0]["cached"], json!([digest]));
    assert_eq!(local(&app, "DELETE", &path, credential, json!(null)).await.status, 204);
}

#[tokio::test]
async fn replicas_are_listed_while_they_run() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let config = Config { database: Some(database), ..Config::default() };
    let (first, second) = (App::with(config.clone()).await, App::with(config).await);
    let listed = async |count: usize| {
        for _ in 0..200 {
            let status = first.get("/lode/v1/status").await.json();
            let replicas = status["replicas"].as_array().unwrap().clone();
            if replicas.len() == count {
                return replicas;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("not {count} replicas");
    };
    let both = listed(2).await;
    assert!(both.iter().all(|replica| replica["state"] == "ready" && replica["version"] != ""), "{both:?}");
    assert_eq!(both.iter().filter(|replica| replica["this_server"] == true).count(), 1);
    let page = first.get("/-/admin").await;
    assert!(page.text().contains("<h2 id=\"replicas\">Replicas</h2>"), "{}", page.text());
    second.registry.close().await;
    assert_eq!(listed(1).await[0]["this_server"], true);
    // A server that no longer reports is absent, and is forgotten later.
    let store = first.registry.store();
    let limits = (Duration::from_secs(45), Duration::from_secs(24 * 3600));
    store.replica_report("gone", "gone:5000", "0.1.0", "ready", limits).await.unwrap();
    for (age_ms, state) in [(40_000, "ready"), (50_000, "absent")] {
        let mut tx = store.begin().await.unwrap();
        query!(tx.conn(), c => sqlx::query("update replicas set seen_at = seen_at - $1 where id = 'gone'")
            .bind(age_ms).execute(c).await.map(drop))
        .unwrap();
        tx.commit().await.unwrap();
        let replicas = listed(2).await;
        let gone = replicas.iter().find(|replica| replica["address"] == "gone:5000").unwrap();
        assert_eq!(gone["state"], state);
    }
    // One that was restarted after a crash replaces its earlier process.
    store.replica_report("restarted", "gone:5000", "0.1.0", "ready", limits).await.unwrap();
    let replicas = listed(2).await;
    let restarted = replicas.iter().find(|replica| replica["address"] == "gone:5000").unwrap();
    assert_eq!(restarted["state"], "ready");
    let mut tx = store.begin().await.unwrap();
    query!(tx.conn(), c => sqlx::query("update replicas set seen_at = seen_at - 90000 where id = 'restarted'")
        .execute(c).await.map(drop))
    .unwrap();
    tx.commit().await.unwrap();
    let short = (Duration::from_secs(45), Duration::from_secs(60));
    store.replica_report("other", "other:5000", "0.1.0", "ready", short).await.unwrap();
    let addresses: Vec<_> = listed(2).await.iter().map(|replica| replica["address"].clone()).collect();
    assert!(!addresses.contains(&json!("gone:5000")), "{addresses:?}");
}

/// A transaction that needed a second connection would wait for the others, and they for it.
#[tokio::test]
async fn many_pushes_share_few_connections() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let app =
        App::with(Config { database: Some(database), database_connections: 4, ..Config::default() }).await;
    let config = app.push_blob("team/app", "{}").await;
    // What is remembered of access control is no longer fresh.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let pushes = (0..40).map(async |at| {
        let tag = format!("v{at}");
        app.push_manifest("team/app", &tag, &image(&config, 2, &[json!({
            "mediaType": "application/x-test", "digest": config, "size": 2, "annotations": {"at": tag},
        })])).await.status
    });
    assert!(join_all(pushes).await.iter().all(|status| *status == 201));
}

#[tokio::test]
async fn damage_is_found_with_its_names() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let app = App::with(Config { database: Some(database), ..Config::default() }).await;
    app.push_image("team/app", "t", "content").await;
    std::fs::remove_dir_all(app.registry.config().data.join("blobs/sha256")).unwrap();
    let job = app.job("/lode/v1/fsck", json!({})).await;
    let damage = app.findings(job["id"].as_str().unwrap(), "damage", 100).await;
    assert_eq!(damage.len(), 3);
    for finding in damage {
        assert_eq!(finding["used_by"], json!(["team/app:t"]), "{finding}");
    }
}

#[tokio::test]
async fn errors_are_the_messages_of_the_database() {
    let Some(mut database) = crate::store::postgres_for_test().await else { return };
    database.set_path("/no_such_database");
    let data = tempfile::tempdir().unwrap();
    let opened = open(Config { data: data.path().to_owned(), database: Some(database), ..Config::default() });
    let error = crate::error::chain(&opened.await.err().expect("the server does not start"));
    assert_eq!(error, "database error: database \"no_such_database\" does not exist");
}

#[tokio::test]
async fn too_few_connections_are_refused() {
    for database_connections in [0, 3] {
        let data = tempfile::tempdir().unwrap();
        // Refused before the server looks for the database.
        let database = "postgres://127.0.0.1:1/lode".parse().ok();
        let data = data.path().to_owned();
        let opened = open(Config { data, database, database_connections, ..Config::default() }).await;
        let error = opened.err().expect("the server does not start").to_string();
        let expected = format!(
            "invalid `database_connections`: expected at least 4 connections, got {database_connections}"
        );
        assert_eq!(error, expected);
    }
}
