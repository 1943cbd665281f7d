//! Webhooks with a receiver on a real socket, which may refuse at first.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Request, StatusCode};
use lode_client::Secret;
use serde_json::{Value, json};
use sha2::Sha256;

use super::App;
use super::access::PASSWORD;
use super::wire::within;
use crate::{Config, open, router};

const SECRET: &str = "a secret of the test";

/// A receiver, and the events that it got.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<ReceivedEvents>>);

#[derive(Default)]
struct ReceivedEvents {
    /// How many more attempts to refuse.
    refusals: usize,
    attempts: usize,
    taken: Vec<(String, Value)>,
}

impl Receiver {
    /// Starts listening; returns the URL to post to.
    async fn start(refusals: usize) -> (Receiver, String) {
        let receiver = Receiver::default();
        receiver.0.lock().unwrap().refusals = refusals;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let routes = Router::new().route("/hook", post(receive_event)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (receiver, url)
    }

    async fn events(&self, at_least: usize) -> Vec<Value> {
        within(async {
            loop {
                let taken: Vec<Value> =
                    self.0.lock().unwrap().taken.iter().map(|(_, event)| event.clone()).collect();
                if taken.len() >= at_least {
                    return taken;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    }
}

async fn receive_event(State(receiver): State<Receiver>, headers: HeaderMap, body: String) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(format!("{}.{}.{body}", header("webhook-id"), header("webhook-timestamp")).as_bytes());
    let expect = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    assert_eq!(header("webhook-signature"), expect);
    let event: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(event["type"], header("lode-event"));

    let mut heard = receiver.0.lock().unwrap();
    heard.attempts += 1;
    if heard.refusals > 0 {
        heard.refusals -= 1;
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    heard.taken.push((header("webhook-id").to_owned(), event));
    StatusCode::NO_CONTENT
}

fn config_with_webhook(url: &str, more: Value) -> Config {
    let mut webhook = json!({ "url": url, "secret": SECRET });
    webhook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Config { webhook: vec![serde_json::from_value(webhook).unwrap()], ..Config::default() }
}

fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).map(|event| &event["data"]).collect()
}

async fn pending(app: &App) -> Value {
    app.get("/lode/v1/webhooks").await.json()["deliveries"].clone()
}

/// Waits until no event is pending. The receiver gets an event before the sender has stored the result.
async fn wait_until_delivered(app: &App) {
    within(async {
        while pending(app).await != json!([]) {
            tokio::task::yield_now().await
        }
    })
    .await;
}

#[tokio::test]
async fn every_change_is_delivered_after_retries() {
    let (receiver, url) = Receiver::start(2).await;
    let app = App::with(config_with_webhook(&url, json!({}))).await;
    let first = app.push_image("team/mini", "v1", "one").await;
    let second = app.push_image("team/mini", "v1", "two").await;
    app.push_image("team/mini", "v1", "two").await;
    app.push_image("team/mini", "other", "two").await;
    assert_eq!(app.delete("/v2/team/mini/manifests/other").await.status, 202);
    assert_eq!(app.delete(&format!("/v2/team/mini/manifests/{second}")).await.status, 202);

    let events = receiver.events(9).await;
    let pushes = of_type(&events, "push");
    assert_eq!(pushes.len(), 4, "{events:?}");
    assert!(pushes.iter().any(|push| push["digest"] == json!(first) && push["tags"] == json!(["v1"])));
    assert!(
        pushes
            .iter()
            .all(|push| push["repository"] == "team/mini" && push["size_bytes"].as_u64() > Some(100))
    );
    // The third push moved no tag.
    let mut moves: Vec<_> =
        of_type(&events, "tag").iter().map(|tag| (tag["tag"].clone(), tag["previous"].clone())).collect();
    moves.sort_by_key(|(tag, previous)| (tag.to_string(), previous.to_string()));
    assert_eq!(
        moves,
        [(json!("other"), Value::Null), (json!("v1"), json!(first)), (json!("v1"), Value::Null)]
    );
    assert_eq!(of_type(&events, "untag")[0]["tag"], "other");
    let deleted = of_type(&events, "delete")[0];
    assert_eq!((&deleted["digest"], &deleted["tags"]), (&json!(second), &json!(["v1"])));
    assert_eq!(deleted["reason"], "deleted");
    wait_until_delivered(&app).await;
    assert_eq!(receiver.0.lock().unwrap().attempts, 11);
}

/// The new name or the old one is enough.
#[tokio::test]
async fn moves_and_copies_send_events() {
    let (receiver, url) = Receiver::start(0).await;
    let app = App::with(config_with_webhook(&url, json!({"repositories": ["team/*"]}))).await;
    let image = app.push_image("other/mini", "v1", "one").await;
    let moves = async |from: &str, to: &str| {
        let moved = app.post_json("/hf/api/repos/move", json!({"fromRepo": from, "toRepo": to})).await;
        assert_eq!(moved.status, 200, "{}", moved.text());
    };
    moves("other/mini", "team/mini").await;
    moves("team/mini", "other/mini").await;
    moves("other/mini", "else/mini").await;
    let copied =
        app.post_json("/hf/api/models/else/mini/duplicate", json!({"repository": "team/copy"})).await;
    assert_eq!(copied.status, 200, "{}", copied.text());
    let events = receiver.events(4).await;
    let mut moved: Vec<_> = of_type(&events, "move")
        .iter()
        .map(|data| (data["from"].clone(), data["repository"].clone()))
        .collect();
    moved.sort_by_key(|(from, _)| from.to_string());
    let (other, team) = (json!("other/mini"), json!("team/mini"));
    assert_eq!(moved, [(other.clone(), team.clone()), (team, other)]);
    let pushed = of_type(&events, "push")[0];
    assert_eq!(
        (&pushed["repository"], &pushed["digest"], &pushed["tags"]),
        (&json!("team/copy"), &json!(image), &json!(["v1"]))
    );
    assert_eq!(of_type(&events, "tag")[0]["tag"], "v1");
}

#[tokio::test]
async fn collections_and_restores_send_events() {
    let (receiver, url) = Receiver::start(0).await;
    let rule = |rule: Value| serde_json::from_value(rule).unwrap();
    let app = App::with(Config {
        gc_grace: Duration::ZERO,
        upload_lease: Duration::ZERO,
        gc_undo: Some(Duration::from_secs(3600)),
        retention: vec![
            rule(json!({ "repositories": ["team/*"], "keep_last": 1 })),
            rule(json!({ "repositories": ["ci/*"], "remove_untagged_after": "0s" })),
        ],
        ..config_with_webhook(&url, json!({}))
    })
    .await;
    let old = app.push_image("team/mini", "v1", "one").await;
    // Retention sorts tags by age, which has millisecond resolution.
    tokio::time::sleep(Duration::from_millis(5)).await;
    app.push_image("team/mini", "v2", "two").await;
    let build = app.push_image("ci/build", "latest", "three").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    app.push_image("ci/build", "latest", "four").await;
    let event_count = receiver.events(8).await.len();

    let job = app.job("/lode/v1/gc", json!({})).await;
    assert_eq!(job["state"], "succeeded", "{job}");
    let events = receiver.events(event_count + 3).await.split_off(event_count);
    assert_eq!(events.len(), 3, "{events:#?}");
    let untag = of_type(&events, "untag")[0];
    assert_eq!(
        (&untag["repository"], &untag["tag"], &untag["digest"], &untag["reason"]),
        (&json!("team/mini"), &json!("v1"), &json!(old), &json!("keep_last"))
    );
    let mut deleted: Vec<_> = of_type(&events, "delete")
        .iter()
        .map(|gone| (gone["digest"].clone(), gone["reason"].clone(), gone["tags"].clone()))
        .collect();
    deleted.sort_by_key(|(_, reason, _)| reason.to_string());
    assert_eq!(
        deleted,
        [(json!(old), json!("unreferenced"), json!([])), (json!(build), json!("untagged"), json!([]))]
    );
    // A collection that removes nothing sends no events.
    assert_eq!(app.job("/lode/v1/gc", json!({})).await["state"], "succeeded");
    wait_until_delivered(&app).await;
    assert_eq!(receiver.0.lock().unwrap().taken.len(), event_count + 3);

    let undo = json!({ "repository": "team/mini", "reference": "v1" });
    let restored = app.post_json("/lode/v1/gc/undo", undo).await;
    assert_eq!(restored.status, 200, "{}", restored.text());
    let events = receiver.events(event_count + 5).await.split_off(event_count + 3);
    let (push, tag) = (of_type(&events, "push")[0], of_type(&events, "tag")[0]);
    assert_eq!((&push["digest"], &push["repository"]), (&json!(old), &json!("team/mini")));
    assert_eq!((&tag["tag"], &tag["digest"], &tag["previous"]), (&json!("v1"), &json!(old), &Value::Null));
    wait_until_delivered(&app).await;
    assert_eq!(receiver.0.lock().unwrap().taken.len(), event_count + 5);
}

#[tokio::test]
async fn only_matching_events_are_sent() {
    let (receiver, url) = Receiver::start(0).await;
    let app =
        App::with(config_with_webhook(&url, json!({ "events": ["tag"], "repositories": ["team/*"] }))).await;
    app.push_image("other/mini", "v1", "one").await;
    app.push_image("team/mini", "v2", "one").await;
    let events = receiver.events(1).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["data"]["tag"], "v2");
    // A refused push sends no event.
    let missing = super::image(&lode_model::digest::Digest::sha256(b"absent"), 1, &[]);
    assert_eq!(app.push_manifest("team/mini", "v3", &missing).await.status, 400);
    wait_until_delivered(&app).await;
    assert_eq!(receiver.0.lock().unwrap().attempts, 1);
}

#[tokio::test]
async fn abandoned_events_stay_visible_and_can_be_retried() {
    let (receiver, url) = Receiver::start(1).await;
    let mut config =
        config_with_webhook(&url.replace("http://", "http://user:hush@"), json!({ "events": ["push"] }));
    config.webhook_give_up = Duration::ZERO;
    let app = App::with(config).await;
    app.push_image("a", "v1", "one").await;
    let given_up = within(async {
        loop {
            let listed = pending(&app).await;
            if listed[0]["given_up_at"].is_i64() {
                return listed;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(given_up[0]["attempts"], 1);
    assert!(given_up[0]["problem"].as_str().unwrap().contains("500"), "{given_up}");
    assert!(!given_up.to_string().contains("hush"), "{given_up}");
    let again = format!("/lode/v1/webhooks/{}/retry", given_up[0]["id"].as_str().unwrap());
    assert_eq!(app.send(Request::post(&again), "").await.status, 202);
    let recorded = app.get("/lode/v1/audit?action=webhook.retry").await.json();
    let target = format!("delivery:{}", given_up[0]["id"].as_str().unwrap());
    assert_eq!(recorded["records"][0]["target"], target, "{recorded}");
    assert_eq!(receiver.events(1).await.len(), 1);
    wait_until_delivered(&app).await;
    assert_eq!(app.send(Request::post(&again), "").await.status, 404);
}

#[tokio::test]
async fn events_of_a_removed_webhook_are_abandoned() {
    // A port without a listener.
    let app = App::with(config_with_webhook("http://127.0.0.1:9/hook", json!({ "events": ["push"] }))).await;
    app.push_image("a", "v1", "one").await;
    assert_eq!(pending(&app).await.as_array().unwrap().len(), 1);
    let data = app.close().await;
    let index = format!("sqlite:{}", data.path().join("lode.db").display());
    let pool = sqlx::SqlitePool::connect(&index).await.unwrap();
    sqlx::query("update webhook_deliveries set created_at = 0").execute(&pool).await.unwrap();
    pool.close().await;

    // Without webhooks in the settings nothing is delivered.
    let app = App::with_data(Config::default(), data).await;
    within(async {
        while !pending(&app).await[0]["given_up_at"].is_i64() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let metrics = app.get("/metrics").await;
    assert!(metrics.text().contains("lode_webhooks_pending 0"), "{}", metrics.text());
}

#[tokio::test]
async fn an_event_outlives_its_process_and_replicas_share_the_work() {
    let (receiver, url) = Receiver::start(0).await;
    let Some(database) = crate::store::postgres_for_test().await else { return };
    // Stored by a process that ends before its URL can be reached.
    let nobody = "http://127.0.0.1:9/hook";
    let config = |url: &str| Config {
        database: Some(database.clone()),
        ..config_with_webhook(url, json!({ "events": ["push"] }))
    };
    let app = App::with(config(nobody)).await;
    for n in 0..20 {
        app.push_image("a", &format!("v{n}"), &format!("layer {n}")).await;
    }
    drop(app.close().await);

    // The receiver's URL has changed. Pending events are moved to the new one, because no test may listen on
    // port 9.
    let pool = sqlx::PgPool::connect(database.as_str()).await.unwrap();
    let moved = sqlx::query("update webhook_deliveries set target = $1, next_at = 0").bind(&url);
    assert_eq!(moved.execute(&pool).await.unwrap().rows_affected(), 20);
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let data = tempfile::tempdir().unwrap();
        let registry = open(Config { data: data.path().to_owned(), ..config(&url) }).await.unwrap();
        replicas.push(App { router: router(registry.clone()).unwrap(), registry, _data: data });
    }
    receiver.events(20).await;
    wait_until_delivered(&replicas[0]).await;
    let heard = receiver.0.lock().unwrap();
    let ids: BTreeSet<&String> = heard.taken.iter().map(|(id, _)| id).collect();
    assert_eq!((heard.attempts, ids.len()), (20, 20));
}

/// With accounts, events name who has caused them, and records of the audit log are events themselves.
#[tokio::test]
async fn events_name_the_account() {
    let (receiver, url) = Receiver::start(1).await;
    let admin_password = Some(Secret::new(PASSWORD));
    let events = json!({ "events": ["push", "tag", "audit"] });
    let app = App::with(Config { admin_password, ..config_with_webhook(&url, events) }).await;
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    let (token, id) = app.token(&alice, json!({"name": "ci"})).await;
    assert_eq!(app.push_as(&token, "alice/app").await.status, 201);
    app.grant("alice/*", "alice", "own").await;
    assert_eq!(app.push_as(&bob, "alice/app").await.status, 404);
    let found = within(async {
        loop {
            let events = receiver.events(1).await;
            let is_refused = |record: &&&Value| record["outcome"] == "refused";
            if of_type(&events, "audit").iter().find(is_refused).is_some()
                && !of_type(&events, "tag").is_empty()
            {
                return events;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    for kind in ["push", "tag"] {
        let [event] = of_type(&found, kind)[..] else { panic!("{kind}: {found:#?}") };
        assert_eq!((&event["actor"], &event["repository"]), (&json!("user:alice"), &json!("alice/app")));
    }
    let records = of_type(&found, "audit");
    for (actor, via, action, target) in [
        ("user:admin", "password".to_owned(), "account.create", "user:alice"),
        ("user:admin", "password".to_owned(), "grant.set", "alice/*"),
        ("user:alice", format!("token {id}"), "manifest.push", "alice/app@sha256:"),
    ] {
        let matches = |record: &&&Value| {
            record["action"] == action && record["target"].as_str().unwrap().starts_with(target)
        };
        let record = records.iter().find(matches).unwrap_or_else(|| panic!("no {action} in {records:#?}"));
        assert_eq!(
            (&record["actor"], &record["via"], &record["outcome"]),
            (&json!(actor), &json!(via), &json!("ok"))
        );
    }
    let refused = records.iter().find(|record| record["outcome"] == "refused").unwrap();
    assert_eq!((&refused["action"], &refused["target"]), (&json!("access.refuse"), &json!("alice/app")));
    assert_eq!((&refused["actor"], &refused["via"]), (&json!("user:bob"), &json!("password")));
    // Neither a password nor a token is in an event.
    let all = json!(found).to_string();
    assert!(!all.contains(PASSWORD) && !all.contains(token.strip_prefix("Bearer ").unwrap()));
}
