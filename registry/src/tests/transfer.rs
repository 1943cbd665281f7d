//! This server as the client of another one: pulls and pushes of models.

use std::net::SocketAddr;

use lode_model::digest::Digest;
use serde_json::{Value, json};

use super::App;
use super::models::push_model;

/// Another server, with a socket.
pub(super) async fn other() -> (App, SocketAddr) {
    let app = App::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = app.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (app, address)
}

async fn records(app: &App, path: &str, body: Value) -> Vec<Value> {
    let response = app.post_json(path, body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn statuses(records: &[Value]) -> Vec<&str> {
    records.iter().map(|record| record["status"].as_str().unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_model_is_fetched_from_another_registry() {
    let (there, address) = other().await;
    push_model(&there, "team/mini", "8b").await;
    let here = App::new().await;
    let name = format!("{address}/team/mini:8b");
    let progress = records(&here, "/api/pull", json!({"model": name, "insecure": true})).await;
    let statuses = statuses(&progress);
    assert_eq!(statuses[0], "pulling manifest");
    assert_eq!(statuses[statuses.len() - 3..], ["verifying sha256 digest", "writing manifest", "success"]);
    let blob = progress.iter().find(|record| record["completed"].is_u64()).unwrap();
    assert_eq!(blob["completed"], blob["total"]);
    let hex = blob["digest"].as_str().unwrap().trim_start_matches("sha256:");
    assert_eq!(blob["status"], format!("pulling {}", &hex[..12]));

    let theirs = there.get("/v2/team/mini/manifests/8b").await.body;
    assert_eq!(here.get("/v2/team/mini/manifests/8b").await.body, theirs);
    let tags = here.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["name"], "team/mini:8b");
    assert_eq!(tags["models"][0]["digest"], Digest::sha256(&theirs).hex());
    // Again: nothing is transferred. A name without a host means this server's own model.
    let again = here.post_json("/api/pull", json!({"name": name, "stream": false})).await;
    assert_eq!((again.status.as_u16(), again.json()), (200, json!({"status": "success"})));
    let own = records(&here, "/api/pull", json!({"model": "team/mini:8b"})).await;
    assert_eq!(own, [json!({"status": "pulling manifest"}), json!({"status": "success"})]);
}

#[tokio::test]
async fn a_model_is_sent_to_another_registry() {
    let (there, address) = other().await;
    let here = App::new().await;
    push_model(&here, "team/mini", "8b").await;
    let name = format!("{address}/team/mini:8b");
    let progress = records(&here, "/api/push", json!({"model": name})).await;
    let statuses = statuses(&progress);
    assert_eq!(statuses[0], "retrieving manifest");
    assert!(statuses.iter().any(|status| status.starts_with("pushing ") && *status != "pushing manifest"));
    assert_eq!(statuses[statuses.len() - 2..], ["pushing manifest", "success"]);
    assert_eq!(
        there.get("/v2/team/mini/manifests/8b").await.body,
        here.get("/v2/team/mini/manifests/8b").await.body
    );
    assert_eq!(
        there.get("/lode/v1/tensors/team/mini/8b").await.json()["tensors"].as_array().unwrap().len(),
        2
    );
}

#[tokio::test]
async fn failed_transfers_report_errors() {
    let (_there, address) = other().await;
    let here = App::new().await;
    push_model(&here, "mini", "latest").await;
    for (path, body, status, part) in [
        ("/api/pull", json!({}), 400, "model is required"),
        ("/api/pull", json!({"model": "a//b"}), 400, ""),
        ("/api/push", json!({"model": "mini"}), 400, "HOST/NAMESPACE/MODEL"),
        (
            "/api/push",
            json!({"model": format!("{address}/team/gone")}),
            404,
            "model 'team/gone:latest' not found",
        ),
    ] {
        let response = here.post_json(path, body.clone()).await;
        assert_eq!(response.status, status, "{path} {body}: {}", response.text());
        assert!(response.json()["error"].as_str().unwrap().contains(part), "{}", response.text());
    }
    let progress = records(&here, "/api/pull", json!({"model": format!("{address}/team/gone:1")})).await;
    let error = progress.last().unwrap()["error"].as_str().unwrap();
    assert!(error.contains("file does not exist") && error.contains("team/gone:1"), "{error}");
    assert_eq!(here.get("/v2/team/gone/manifests/1").await.status, 404);
    // A port without a listener.
    let silent = json!({"model": "127.0.0.1:1/team/mini", "stream": false});
    let response = here.post_json("/api/pull", silent).await;
    assert_eq!(response.status, 502, "{}", response.text());
    assert!(response.text().contains("127.0.0.1:1"), "{}", response.text());
}
