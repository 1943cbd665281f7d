//! What access control costs: a request with a token that is in use needs no more queries than one without any.

use std::collections::BTreeMap;

use http::Request;
use lode_client::Secret;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;

use super::App;
use super::access::{PASSWORD, basic};
use crate::Config;

/// Every replica reads the version of access control twice a second, with and without requests.
const VERSION: &str = "access_state";
/// The use of a credential is recorded once a minute, by a task.
const LAST_USE: &str = "token_used";

/// What measurements and the queue of jobs ask at any time.
const BACKGROUND: [&str; 6] =
    ["ping", "blobs_live", "sized_page", "waiting_removals", "job_claim", "database_now_ms"];

/// The tasks that record and count pulls, and that index the model. All statements of the search are theirs, too.
const RECORD: [&str; 6] = ["begin", "audit_insert", "pulls_write", "pulls_expire", "commit", "model_put"];
const SEARCH: &str = "search_";

/// How often each query ran, in the tasks of this thread.
fn counts(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("lode_database_seconds_count{operation=\""));
    lines
        .filter_map(|line| line.split_once("\"} "))
        .map(|(operation, count)| (operation.to_owned(), count.parse().unwrap()))
        .filter(|(operation, _)| {
            ![VERSION, LAST_USE].contains(&&operation[..]) && !BACKGROUND.contains(&&operation[..])
        })
        .collect()
}

#[tokio::test]
async fn a_token_in_use_causes_no_query() {
    let databases = [None, crate::store::postgres_for_test().await];
    for (at, database) in databases.into_iter().enumerate() {
        if at > 0 && database.is_none() {
            continue;
        }
        let admin_password = Some(Secret::new(PASSWORD));
        let app = App::with(Config { admin_password, database, ..Config::default() }).await;
        let alice = app.user("alice").await;
        assert_eq!(app.push_as(&basic("admin", PASSWORD), "team/app").await.status, 201);
        app.show("team/app", "public").await;
        let (token, _) = app.token(&alice, json!({"name": "x"})).await;
        let exchanged = app.get_as(&token, "/token?scope=repository:team/app:pull").await.json();
        let exchanged = format!("Bearer {}", exchanged["token"].as_str().unwrap());
        let digest = lode_model::digest::Digest::sha256(b"{}");
        for (method, path) in [
            ("GET", "/v2/team/app/manifests/latest".to_owned()),
            ("HEAD", "/v2/team/app/manifests/latest".to_owned()),
            ("GET", format!("/v2/team/app/blobs/{digest}")),
            ("HEAD", format!("/v2/team/app/blobs/{digest}")),
            ("GET", "/v2/team/app/tags/list".to_owned()),
            ("POST", "/api/show".to_owned()),
        ] {
            let send = async |credentials: &str| {
                let request = Request::builder().method(method).uri(&path);
                app.send_as(credentials, request, r#"{"model":"team/app"}"#).await.status.as_u16()
            };
            let mut costs = Vec::new();
            for credentials in ["", &token, &exchanged, &alice] {
                let warm = send(credentials).await;
                let mut attempts = 0;
                let cost = loop {
                    let recorder = PrometheusBuilder::new().build_recorder();
                    {
                        let _recording = ::metrics::set_default_local_recorder(&recorder);
                        for _ in 0..10 {
                            assert_eq!(send(credentials).await, warm, "{method} {path}");
                        }
                    }
                    let cost = counts(&recorder.handle().render());
                    // A pull is recorded and counted once an hour, by tasks; the model is indexed by another.
                    attempts += 1;
                    let is_recording =
                        |query: &String| RECORD.contains(&&query[..]) || query.starts_with(SEARCH);
                    if !cost.keys().any(is_recording) || attempts > 20 {
                        break cost;
                    }
                };
                costs.push(cost);
            }
            for (caller, cost) in ["a token", "an access token", "a password"].iter().zip(&costs[1..]) {
                assert_eq!(cost, &costs[0], "{caller} and no credentials: {method} {path}");
            }
        }
        // The measure counts: without what is remembered, the account is read again.
        let recorder = PrometheusBuilder::new().build_recorder();
        {
            let _recording = ::metrics::set_default_local_recorder(&recorder);
            app.show("team/app", "internal").await;
            assert_eq!(app.get_as(&token, "/v2/").await.status, 200);
        }
        let cost = counts(&recorder.handle().render());
        assert!(cost.contains_key("token_find") && cost.contains_key("account_find"), "{cost:?}");
    }
}
