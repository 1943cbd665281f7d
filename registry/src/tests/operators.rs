//! Operators' view: metrics and request ids, without the names of repositories.

use std::time::Duration;

use http::Request;
use lode_client::Secret;
use serde_json::json;

use super::App;
use super::access::{PASSWORD, basic};
use crate::Config;

#[tokio::test]
async fn metrics_count_by_route_and_never_by_name() {
    let app = App::new().await;
    app.push_image("zebra-team/zebra-model", "v1", "layer").await;
    assert_eq!(app.get("/v2/zebra-team/zebra-model/manifests/v1").await.status, 200);
    assert_eq!(app.get("/v2/zebra-team/zebra-model/manifests/gone").await.status, 404);
    // A page of no repository, and no route.
    assert_eq!(app.get("/zebra-path").await.status, 404);
    assert_eq!(app.get("/hf/api/zebra-path").await.status, 404);
    app.send(Request::builder().method("MADE-UP").uri("/v2/"), "").await;
    app.upload("zebra-team/zebra-model").await;

    let page = app.get("/metrics").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("text/plain; version=0.0.4"));
    // Other tests count in the same process, so only the presence of lines can be checked. Their registries
    // also set the values of gauges, which then are theirs for a moment.
    let mut text = page.text().to_owned();
    for _ in 0..100 {
        if text.contains("lode_uploads_open 1\n") && text.contains("lode_workers_attached 0\n") {
            break;
        }
        text = app.get("/metrics").await.text().to_owned();
    }
    for line in [
        "# TYPE lode_http_requests_total counter",
        "# HELP lode_http_requests_total Completed requests.",
        r#"lode_http_requests_total{route="/v2/{name}/manifests/{reference}",method="PUT",status="201"}"#,
        r#"lode_http_requests_total{route="/v2/{name}/manifests/{reference}",method="GET",status="200"}"#,
        r#"lode_http_requests_total{route="/v2/{name}/manifests/{reference}",method="GET",status="404"}"#,
        r#"lode_http_requests_total{route="/{name}",method="GET",status="404"}"#,
        r#"lode_http_requests_total{route="none",method="GET",status="404"}"#,
        r#"lode_http_requests_total{route="/v2/",method="other",status="405"}"#,
        r#"lode_http_request_seconds_bucket{route="/v2/{name}/blobs/uploads/",method="POST",le="0.5"}"#,
        "lode_http_received_bytes_total ",
        "lode_http_sent_bytes_total ",
        "lode_uploads_open 1",
        "lode_workers_attached 0",
        "lode_webhooks_pending 0",
        "lode_index_queue_length ",
        r#"lode_database_connections{pool="read",state="idle"}"#,
        r#"lode_database_waiting{pool="write"} "#,
        r#"lode_database_acquire_seconds_bucket{pool="write",le="0.5"}"#,
        "lode_start_timestamp_seconds ",
        "lode_gc_interval_seconds 3600",
        r#"lode_database_seconds_count{operation="manifest_find"}"#,
        r#"lode_database_seconds_count{operation="commit"}"#,
        concat!("lode_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    // Unlike `secret`, no operation of the database has this word in its name.
    assert!(!text.contains("zebra"), "{text}");
}

/// Two repositories with a common layer. A page of a measurement has two rows in tests.
#[tokio::test]
async fn the_content_is_measured() {
    let databases = [Some(None), crate::store::postgres_for_test().await.map(Some)];
    for database in databases.into_iter().flatten() {
        let app = App::with(Config { database, ..Config::default() }).await;
        app.registry.measure_content().await.unwrap();
        let empty = app.registry.measured().content.unwrap();
        assert_eq!((empty.blobs, empty.stored_bytes, empty.logical_bytes), (0, 0, 0));
        let layer = "x".repeat(10_000);
        for repository in ["a", "b", "team/c"] {
            app.push_image(repository, "v1", &layer).await;
        }
        app.registry.measure_content().await.unwrap();
        let content = app.registry.measured().content.unwrap();
        // The layer, the config and the manifest are the same in all three.
        assert_eq!((content.blobs, content.logical_bytes), (3, 3 * content.stored_bytes));
        assert!((10_000..11_000).contains(&content.stored_bytes), "{content:?}");
        assert!(content.measured_at > 0);

        // What lost its last reference waits for a collection.
        assert_eq!(app.delete("/v2/a/manifests/v1").await.status, 202);
        app.registry.measure_state().await;
        let measured = app.registry.measured();
        assert_eq!(measured.missing, Some(Vec::new()));
        let waiting = measured.waiting.unwrap();
        assert_eq!((waiting.manifests, waiting.blobs, waiting.size_bytes), (1, 0, 0));
        let disk = measured.disks[0];
        assert_eq!((measured.disks.len(), disk.folder), (1, "data"));
        assert!(0 < disk.free_bytes && disk.free_bytes <= disk.size_bytes, "{disk:?}");
        for line in [
            "lode_stored_bytes ",
            "lode_logical_bytes ",
            "lode_gc_waiting{kind=\"manifest\"} ",
            "lode_ready ",
        ] {
            let page = app.get("/metrics").await;
            let text = page.text();
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}

#[tokio::test]
async fn a_storage_of_another_database_is_not_ready() {
    let app = App::new().await;
    assert_eq!(app.get("/readyz").await.status, 200);
    app.push_image("a", "v1", "layer").await;
    assert_eq!(app.get("/readyz").await.status, 200);
    // The same database with another, misspelt storage.
    let elsewhere = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", app._data.path().join("lode.db").display());
    let config = Config {
        database: database.parse().ok(),
        storage: url::Url::from_file_path(elsewhere.path()).ok(),
        ..Config::default()
    };
    let astray = App::with(config).await.get("/readyz").await;
    assert_eq!(astray.status, 503);
    assert!(astray.text().contains("check that it is the right one"), "{}", astray.text());
}

#[tokio::test]
async fn a_request_keeps_the_id_that_it_came_with() {
    let app = App::new().await;
    let given = app.send(Request::get("/v2/").header("x-request-id", "edge-7:abc"), "").await;
    assert_eq!(given.header("x-request-id"), "edge-7:abc");
    let unfit = app.send(Request::get("/nowhere").header("x-request-id", "a \"b\""), "").await;
    assert_eq!(unfit.status, 404);
    assert!(unfit.header("x-request-id").parse::<uuid::Uuid>().is_ok());
}

#[tokio::test]
async fn if_none_match_returns_304() {
    let app = App::new().await;
    let digest = app.push_image("a", "v1", "layer").await;
    let blob = app.push_blob("a", "content").await;
    for (path, etag) in [
        ("/v2/a/manifests/v1".to_owned(), format!("\"{digest}\"")),
        (format!("/v2/a/manifests/{digest}"), "*".to_owned()),
        (format!("/v2/a/blobs/{blob}"), format!("\"sha256:00\", \"{blob}\"")),
    ] {
        for method in ["GET", "HEAD"] {
            let conditional =
                |etag: &str| Request::builder().method(method).uri(&path).header("if-none-match", etag);
            let same = app.send(conditional(&etag), "").await;
            assert_eq!((same.status.as_u16(), same.body.len()), (304, 0), "{method} {path}");
            assert!(same.header("etag").contains("sha256:"));
            assert_eq!(app.send(conditional("\"sha256:00\""), "").await.status, 200, "{method} {path}");
        }
    }
    let absent = Request::get("/v2/a/manifests/none").header("if-none-match", "*");
    assert_eq!(app.send(absent, "").await.status, 404);
}

/// The status of `/metrics`, and whether `/readyz` names what is missing, for each kind of caller.
#[tokio::test]
async fn metrics_can_be_private() {
    for (private_metrics, expected) in
        [(true, [(401, false), (403, false), (200, false), (200, false)]), (false, [(200, true); 4])]
    {
        let admin_password = Some(Secret::new(PASSWORD));
        let config = Config { private_metrics, admin_password, wait_for_worker: true, ..Config::default() };
        let app = App::with(config).await;
        let (user, auditor) = (app.user("alice").await, app.user("audit").await);
        app.admin("PATCH", "/lode/v1/accounts/audit", json!({"server_role": "auditor"})).await;
        for (credentials, expected) in ["", &user, &auditor, &basic("admin", PASSWORD)].iter().zip(expected) {
            let metrics = app.get_as(credentials, "/metrics").await;
            assert_eq!(metrics.text().contains("lode_http_requests_total"), metrics.status == 200);
            let ready = app.get_as(credentials, "/readyz").await;
            assert_eq!(ready.status, 503);
            let is_named = ready.text().contains("no worker is attached yet");
            assert_eq!((metrics.status.as_u16(), is_named), expected, "{private_metrics} {credentials}");
        }
        assert_eq!(app.get_as("Bearer wrong", "/metrics").await.status, 401);
        assert_eq!(app.get_as("", "/healthz").await.status, 200);
    }
}

/// Monitoring needs them most then. Private ones need the database to check the credentials.
#[tokio::test]
async fn metrics_are_served_while_the_database_is_unavailable() {
    for (private_metrics, expected) in [(false, 200), (true, 503)] {
        let config =
            Config { private_metrics, admin_password: Some(Secret::new(PASSWORD)), ..Config::default() };
        let app = App::with(config).await;
        app.registry.store().close().await;
        // What is remembered of access control is no longer fresh.
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert_eq!(app.get_as("", "/v2/").await.status, 503);
        let page = app.get_as("", "/metrics").await;
        assert_eq!(page.status, expected, "{}", page.text());
        assert_eq!(page.text().contains("\nlode_http_requests_total{"), !private_metrics);
    }
}

#[tokio::test]
async fn the_status_is_for_auditors_and_administrators() {
    let app = App::with(Config { admin_password: Some(Secret::new(PASSWORD)), ..Config::default() }).await;
    let (user, auditor) = (app.user("alice").await, app.user("audit").await);
    app.admin("PATCH", "/lode/v1/accounts/audit", json!({"server_role": "auditor"})).await;
    app.registry.measure_content().await.unwrap();
    app.registry.measure_state().await;
    let status = async |credentials: &str| app.get_as(credentials, "/lode/v1/status").await;
    assert_eq!((status("").await.status.as_u16(), status(&user).await.status.as_u16()), (401, 403));
    assert_eq!(status(&auditor).await.status, 200);
    let found = status(&basic("admin", PASSWORD)).await.json();
    assert_eq!(found["server"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&found["server"]["ready"], &found["server"]["missing"]), (&json!(true), &json!([])));
    assert_eq!((&found["database"]["kind"], &found["storage"]["kind"]), (&json!("sqlite"), &json!("folder")));
    assert_eq!(found["storage"]["location"], app._data.path().display().to_string());
    assert_eq!(found["storage"]["content"]["blobs"], 0);
    assert!(found["storage"]["disks"][0]["free_bytes"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["storage"]["full"], false);
    assert_eq!(found["jobs"], json!({"unfinished": [], "failed": []}));
}
