//! Protected tags, quotas, reserved names and the audit log, over HTTP.

use std::time::Duration;

use http::Request;
use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::media_type;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic, closed};
use super::create::safetensors;
use super::models::push_model;
use super::{App, TestResponse, failure, gateway, image, transfer};
use crate::time::now_ms;
use crate::{Config, RetentionRule};

/// A server with the administrator `admin` on each available database engine.
async fn closed_on_each_engine() -> Vec<App> {
    let mut apps = vec![closed().await];
    if let Some(database) = crate::store::postgres_for_test().await {
        let admin_password = Some(Secret::new(PASSWORD));
        apps.push(App::with(Config { admin_password, database: Some(database), ..Config::default() }).await);
    }
    apps
}

/// Pushes an image whose config has this text.
pub(super) async fn push(app: &App, credentials: &str, repository: &str, tag: &str, text: &str) -> u16 {
    let digest = Digest::sha256(text.as_bytes());
    let path = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
    let blob = app.send_as(credentials, Request::post(path), text).await.status.as_u16();
    if blob != 201 {
        return blob;
    }
    let manifest = image(&digest, text.len(), &[]);
    let kind = manifest["mediaType"].as_str().unwrap();
    let request = Request::put(format!("/v2/{repository}/manifests/{tag}")).header("content-type", kind);
    app.send_as(credentials, request, manifest.to_string()).await.status.as_u16()
}

/// Pushes a blob whose length is declared.
async fn push_blob(app: &App, credentials: &str, repository: &str, bytes: &str) -> TestResponse {
    let path = format!("/v2/{repository}/blobs/uploads/?digest={}", Digest::sha256(bytes.as_bytes()));
    app.send_as(credentials, Request::post(path).header("content-length", bytes.len()), bytes).await
}

async fn set_quota(app: &App, namespace: &str, limit_bytes: impl Into<Value>) {
    let body = json!({"namespace": namespace, "limit_bytes": limit_bytes.into()});
    app.admin("PUT", "/lode/v1/quotas", body).await;
}

/// The records of the audit log for a query; at least one.
async fn records(app: &App, query: &str) -> Vec<Value> {
    // Refusals and pulls are written by a task.
    for _ in 0..100 {
        let listed = app.admin("GET", &format!("/lode/v1/audit?{query}"), json!(null)).await.json();
        let records = listed["records"].as_array().unwrap().clone();
        if !records.is_empty() {
            return records;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no record for {query}");
}

#[tokio::test]
async fn protected_tags_stay_where_they_are() {
    let app = closed().await;
    let admin = basic("admin", PASSWORD);
    let protect = async |patterns: Value| {
        app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": patterns})).await;
    };
    protect(json!(["v*", "release"])).await;
    for (tag, first, again) in [("v1", 201, 403), ("release", 201, 403), ("latest", 201, 201)] {
        assert_eq!(push(&app, &admin, "team/app", tag, "one").await, first, "{tag}");
        assert_eq!(push(&app, &admin, "team/app", tag, "one").await, 201, "the same content");
        assert_eq!(push(&app, &admin, "team/app", tag, "two").await, again, "{tag}");
    }
    let manifest = app.get_as(&admin, "/v2/team/app/manifests/v1").await;
    let digest = manifest.header("docker-content-digest").to_owned();
    let delete = async |reference: &str| {
        let request = Request::delete(format!("/v2/team/app/manifests/{reference}"));
        app.send_as(&admin, request, "").await
    };
    let refused = delete("v1").await;
    assert_eq!(refused.failure(), failure(403, "DENIED"));
    assert!(refused.text().contains("protected by the pattern `v*`"), "{}", refused.text());
    assert_eq!(delete(&digest).await.status, 403, "a manifest with a protected tag");
    assert_eq!(app.pull_as(&admin, "team/app").await, 200);
    let listed = app.admin("GET", "/lode/v1/protected-tags?target=team/*", json!(null)).await.json();
    assert_eq!(listed["protected_tags"].as_array().unwrap().len(), 2, "{listed}");
    // Another namespace is not affected, and a repository may have patterns of its own.
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "other/app", "patterns": ["*"]})).await;
    for (repository, again) in [("other/app", 403), ("other/free", 201)] {
        assert_eq!(push(&app, &admin, repository, "v1", "one").await, 201);
        assert_eq!(push(&app, &admin, repository, "v1", "two").await, again, "{repository}");
    }
    protect(json!([])).await;
    assert_eq!(
        (push(&app, &admin, "team/app", "v1", "two").await, delete("v1").await.status.as_u16()),
        (201, 202)
    );
    let alice = app.user("alice").await;
    for (target, patterns, status) in [
        ("alice/*", json!(["v*"]), 204),
        ("alice/*", json!(["["]), 400),
        ("alice/*", json!([""]), 400),
        ("alice/*", json!(vec!["x"; 33]), 400),
        ("team/*", json!(["v*"]), 403),
    ] {
        let body = json!({"target": target, "patterns": patterns}).to_string();
        let response = app.send_as(&alice, Request::put("/lode/v1/protected-tags"), body).await;
        assert_eq!(response.status, status, "{target}: {}", response.text());
    }
}

#[tokio::test]
async fn a_tagged_index_keeps_its_manifests() {
    for app in closed_on_each_engine().await {
        let admin = basic("admin", PASSWORD);
        let put = async |reference: &str, manifest: &Value| {
            let kind = manifest["mediaType"].as_str().unwrap();
            let request =
                Request::put(format!("/v2/team/app/manifests/{reference}")).header("content-type", kind);
            let stored = app.send_as(&admin, request, manifest.to_string()).await;
            assert_eq!(stored.status, 201, "{}", stored.text());
            let digest = stored.header("docker-content-digest").to_owned();
            json!({"mediaType": kind, "digest": digest, "size": manifest.to_string().len()})
        };
        let kind = media_type::OCI_INDEX;
        let index =
            |children: &[&Value]| json!({"schemaVersion": 2, "mediaType": kind, "manifests": children});
        let mut images = Vec::new();
        for text in ["one", "two"] {
            let config = Digest::sha256(text.as_bytes());
            assert_eq!(push_blob(&app, &admin, "team/app", text).await.status, 201);
            let manifest = image(&config, text.len(), &[]);
            let digest = Digest::sha256(manifest.to_string().as_bytes());
            images.push(put(digest.as_str(), &manifest).await);
        }
        let inner = put("inner", &index(&[&images[0]])).await;
        let outer = put("v1", &index(&[&inner])).await;
        let other = put("other", &index(&[&images[0], &images[1]])).await;
        let body = json!({"target": "team/*", "patterns": ["v*"]});
        app.admin("PUT", "/lode/v1/protected-tags", body).await;
        let delete = async |descriptor: &Value| {
            let path = format!("/v2/team/app/manifests/{}", descriptor["digest"].as_str().unwrap());
            app.send_as(&admin, Request::delete(path), "").await
        };
        for part in [&images[0], &inner, &outer] {
            let refused = delete(part).await;
            assert_eq!(refused.failure(), failure(403, "DENIED"), "{part}");
            assert!(refused.text().contains("tag v1 is protected"), "{}", refused.text());
        }
        for (part, status) in [(&images[1], 202), (&other, 202), (&images[1], 404)] {
            assert_eq!(delete(part).await.status, status, "{part}");
        }
    }
}

#[tokio::test]
async fn a_namespace_stays_within_its_quota() {
    for app in closed_on_each_engine().await {
        check_quota(&app).await;
    }
}

async fn check_quota(app: &App) {
    let admin = basic("admin", PASSWORD);
    let set = async |limit: Value| set_quota(app, "team", limit).await;
    let used = async || {
        let listed = app.admin("GET", "/lode/v1/quotas?namespace=team", json!(null)).await.json();
        let quota = &listed["quotas"][0];
        ["used_bytes", "logical_bytes", "own_bytes"].map(|key| quota[key].as_u64().unwrap())
    };
    let blob = async |repository: &str, size: usize, letter: &str| {
        push_blob(app, &admin, repository, &letter.repeat(size)).await
    };
    assert_eq!(blob("team/a", 600, "a").await.status, 201);
    set(json!(1000)).await;
    assert_eq!(used().await, [600, 600, 600]);
    // 1. What does not fit is refused before it is read, and counted by its real size otherwise.
    let refused = blob("team/a", 500, "b").await;
    assert_eq!(refused.failure(), failure(403, "DENIED"));
    assert_eq!(
        refused.json()["errors"][0]["detail"],
        json!({"namespace": "team", "used_bytes": 600, "limit_bytes": 1000})
    );
    let opened = app.send_as(&admin, Request::post("/v2/team/a/blobs/uploads/"), "").await;
    let location = opened.header("location").to_owned();
    let bytes = "c".repeat(500);
    let chunk = app.send_as(&admin, Request::patch(&location), bytes.clone()).await;
    assert_eq!(chunk.failure(), failure(403, "DENIED"), "a body without a length");
    let finish = format!("{location}?digest={}", Digest::sha256(bytes.as_bytes()));
    let finished = app.send_as(&admin, Request::put(finish), bytes).await;
    assert_eq!(finished.failure(), failure(403, "DENIED"));
    assert_eq!(app.send_as(&admin, Request::delete(&location), "").await.status, 204);
    assert_eq!(used().await, [600, 600, 600], "nothing is left behind");
    // 2. A blob that the namespace shares with itself or with others costs once.
    assert_eq!(blob("team/b", 300, "a").await.status, 201);
    let digest = Digest::sha256("a".repeat(600).as_bytes());
    let mount = |repository: &str| format!("/v2/{repository}/blobs/uploads/?mount={digest}&from=team/a");
    assert_eq!(app.send_as(&admin, Request::post(mount("team/b")), "").await.status, 201);
    assert_eq!(used().await, [900, 1500, 900]);
    assert_eq!(app.send_as(&admin, Request::post(mount("else/b")), "").await.status, 201);
    assert_eq!(used().await, [900, 1500, 300]);
    assert_eq!(blob("teams/a", 5000, "d").await.status, 201, "another namespace with the same beginning");
    assert_eq!(blob("team", 50, "e").await.status, 201, "a repository of one part belongs to its namespace");
    assert_eq!(used().await[0], 950);
    // 3. Without a quota, or after a deletion, there is space again.
    assert_eq!(blob("team/a", 100, "f").await.status, 403);
    assert_eq!(
        app.send_as(
            &admin,
            Request::delete(format!("/v2/team/b/blobs/{}", Digest::sha256("a".repeat(300).as_bytes()))),
            ""
        )
        .await
        .status,
        202
    );
    assert_eq!(blob("team/a", 100, "f").await.status, 201);
    set(json!(null)).await;
    assert_eq!(blob("team/a", 5000, "g").await.status, 201);
    assert_eq!(app.get_as(&admin, "/lode/v1/quotas?namespace=team/a").await.status, 400);
    // 4. Owners see the quota of their namespace, and administrators set it.
    let alice = app.user("alice").await;
    for (path, status) in [
        ("/lode/v1/quotas?namespace=alice", 200),
        ("/lode/v1/quotas?namespace=team", 403),
        ("/lode/v1/quotas", 403),
    ] {
        assert_eq!(app.get_as(&alice, path).await.status, status, "{path}");
    }
    // 5. What is elsewhere is only for administrators and auditors.
    let listed = app.get_as(&alice, "/lode/v1/quotas?namespace=alice").await.json();
    assert!(listed["quotas"][0]["used_bytes"].is_u64(), "{listed}");
    assert!(listed["quotas"][0].get("own_bytes").is_none(), "{listed}");
    // 6. A blob that the namespace has adds nothing, even beyond a lower quota.
    set(json!(1)).await;
    assert_eq!(app.send_as(&admin, Request::post(mount("team/c")), "").await.status, 201);
    assert_eq!(blob("team/c", 100, "h").await.status, 403);
    // 7. All quotas are listed, in order.
    set_quota(app, "else", 700).await;
    set_quota(app, "none", 800).await;
    let listed = app.admin("GET", "/lode/v1/quotas", json!(null)).await.json();
    let quotas: Vec<Value> = listed["quotas"].as_array().unwrap().clone();
    let shown = |quota: &Value| {
        let sizes = ["limit_bytes", "used_bytes", "logical_bytes", "own_bytes"];
        (quota["namespace"].as_str().unwrap().to_owned(), sizes.map(|key| quota[key].as_u64().unwrap()))
    };
    let expected = [
        ("else".to_owned(), [700, 600, 600, 0]),
        ("none".to_owned(), [800, 0, 0, 0]),
        ("team".to_owned(), [1, 5750, 6950, 5150]),
    ];
    assert_eq!(quotas.iter().map(shown).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn uploads_in_progress_count() {
    for app in closed_on_each_engine().await {
        let admin = basic("admin", PASSWORD);
        set_quota(&app, "team", 1000).await;
        let open = async |repository: &str| {
            let opened =
                app.send_as(&admin, Request::post(format!("/v2/{repository}/blobs/uploads/")), "").await;
            assert_eq!(opened.status, 202, "{}", opened.text());
            opened.header("location").to_owned()
        };
        let patch = async |location: &str, bytes: &str, is_declared: bool| {
            let request = Request::patch(location);
            let request = if is_declared { request.header("content-length", bytes.len()) } else { request };
            app.send_as(&admin, request, bytes).await
        };
        // 1. What open uploads have received counts in every repository of the namespace.
        let (first, second) = (open("team/a").await, open("team/b").await);
        assert_eq!(patch(&first, &"a".repeat(600), true).await.status, 202);
        for is_declared in [true, false] {
            let refused = patch(&second, &"b".repeat(600), is_declared).await;
            assert_eq!(refused.failure(), failure(403, "DENIED"), "{is_declared}");
            assert_eq!(
                refused.json()["errors"][0]["detail"],
                json!({"namespace": "team", "used_bytes": 600, "limit_bytes": 1000})
            );
        }
        assert_eq!(push_blob(&app, &admin, "team", &"c".repeat(401)).await.status, 403);
        // 2. A body without a length is accepted up to the limit, and then completes without space to spare.
        assert_eq!(patch(&second, &"b".repeat(400), false).await.status, 202);
        let third = app.send_as(&admin, Request::post("/v2/team/c/blobs/uploads/"), "").await;
        assert_eq!(third.failure(), failure(403, "DENIED"));
        let digest = Digest::sha256("a".repeat(600).as_bytes());
        let finish = Request::put(format!("{first}?digest={digest}")).header("content-length", 0);
        assert_eq!(app.send_as(&admin, finish, "").await.status, 201);
        let digest = Digest::sha256("b".repeat(400).as_bytes());
        assert_eq!(
            app.send_as(&admin, Request::put(format!("{second}?digest={digest}")), "").await.status,
            201
        );
        // 3. A cancelled upload counts no longer.
        set_quota(&app, "team", 1100).await;
        let third = open("team/c").await;
        assert_eq!(patch(&third, &"c".repeat(100), true).await.status, 202);
        assert_eq!(push_blob(&app, &admin, "team", "d").await.status, 403);
        assert_eq!(app.send_as(&admin, Request::delete(&third), "").await.status, 204);
        assert_eq!(push_blob(&app, &admin, "team", "d").await.status, 201);
    }
}

#[tokio::test]
async fn staging_takes_blobs_and_no_manifests() {
    let app = closed().await;
    let (admin, alice) = (basic("admin", PASSWORD), app.user("alice").await);
    let id = app.get_as(&alice, "/lode/v1/me").await.json()["id"].as_str().unwrap().to_owned();
    let own = format!("lode-staging/{id}");
    let stage = async |bytes: &[u8]| {
        let digest = Digest::sha256(bytes);
        let request = Request::post(format!("/api/blobs/{digest}")).header("authorization", &alice);
        (app.send(request.header("host", "localhost:5000"), bytes.to_vec()).await, digest)
    };
    // 1. Blobs are staged and read, and models are created from them.
    let (sent, weights) = stage(&safetensors("model.embed_tokens.weight", 8)).await;
    assert_eq!(sent.status, 201, "{}", sent.text());
    let config =
        br#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4,"vocab_size":8}"#;
    let (_, config) = stage(config).await;
    let body = |model: &str| {
        let files = json!({"model.safetensors": weights, "config.json": config});
        json!({"model": model, "files": files, "stream": false}).to_string()
    };
    let created = app.send_as(&alice, Request::post("/api/create"), body("alice/made")).await;
    assert_eq!(created.status, 200, "{}", created.text());
    assert_eq!(app.get_as(&alice, &format!("/v2/{own}/blobs/{weights}")).await.status, 200);
    // 2. Manifests are refused, on every way.
    for credentials in [&alice, &admin] {
        assert_eq!(push(&app, credentials, &own, "v1", "kept for ever").await, 403);
    }
    let copy = json!({"source": "alice/made:latest", "destination": format!("{own}:v1")}).to_string();
    let copied = app.send_as(&alice, Request::post("/lode/v1/copy"), copy).await;
    assert_eq!(copied.status, 403, "{}", copied.text());
    let created = app.send_as(&alice, Request::post("/api/create"), body(&format!("{own}:v1"))).await;
    assert_eq!(created.status, 403, "{}", created.text());
    assert_eq!(app.get_as(&admin, &format!("/v2/{own}/tags/list")).await.json()["tags"], json!([]));
    // 3. Only a role gives more.
    let blob = format!("/v2/{own}/blobs/{weights}");
    assert_eq!(app.send_as(&alice, Request::delete(&blob), "").await.status, 404);
    assert_eq!(app.send_as(&admin, Request::delete(&blob), "").await.status, 202);
    // 4. An account stages as many bytes as its namespace may have.
    set_quota(&app, "alice", 100_000).await;
    assert_eq!(stage(&[1; 60_000]).await.0.status, 201);
    let (refused, _) = stage(&[2; 60_000]).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    // A server without accounts refuses it, too.
    let open = App::new().await;
    let digest = Digest::sha256(b"x");
    assert_eq!(open.send(Request::post(format!("/api/blobs/{digest}")), "x").await.status, 201);
    let refused = open.push_manifest("lode-staging", "v1", &image(&digest, 1, &[])).await;
    assert_eq!(refused.failure(), failure(403, "DENIED"));
}

#[tokio::test]
async fn reserved_names_are_refused_for_new_repositories() {
    let app = App::new().await;
    for name in ["v1/models", "api", "static/x", "lode-staging/x", "hf/a/b", "login"] {
        let response = app.send(Request::post(format!("/v2/{name}/blobs/uploads/")), "").await;
        assert_eq!(response.failure(), failure(400, "NAME_INVALID"), "{name}");
    }
    for name in ["v1x/models", "team/v1", "apis"] {
        assert_eq!(
            app.send(Request::post(format!("/v2/{name}/blobs/uploads/")), "").await.status,
            202,
            "{name}"
        );
    }
}

#[tokio::test]
async fn changes_refusals_and_pulls_are_recorded() {
    let app = closed().await;
    let alice = app.user("alice").await;
    let (token, id) = app.token(&alice, json!({"name": "ci"})).await;
    let digest = {
        let request = Request::post("/v2/alice/app/blobs/uploads/").header("user-agent", "docker/29");
        assert_eq!(app.send_as(&token, request, "").await.status, 202);
        assert_eq!(app.push_as(&token, "alice/app").await.status, 201);
        app.get_as(&token, "/v2/alice/app/manifests/latest").await.header("docker-content-digest").to_owned()
    };
    assert_eq!(app.pull_as(&token, "alice/app").await, 200);
    assert_eq!(app.pull_as(&token, "admin/app").await, 404);
    assert_eq!(app.get_as(&basic("alice", "wrong"), "/v2/").await.status, 401);
    let delete = Request::delete("/v2/alice/app/manifests/latest").header("x-request-id", "request-7");
    assert_eq!(app.send_as(&token, delete, "").await.status, 202);
    let deleted = &records(&app, "action=tag.delete").await[0];
    assert_eq!((&deleted["actor"], &deleted["target"]), (&json!("user:alice"), &json!("alice/app:latest")));
    assert_eq!((&deleted["via"], &deleted["request"]), (&json!(format!("token {id}")), &json!("request-7")));
    let target = format!("alice/app@{digest}");
    let pushed = &records(&app, "action=manifest.push").await[0];
    assert_eq!((&pushed["target"], &pushed["detail"]), (&json!(target), &json!({"tags": ["latest"]})));
    let pulled = records(&app, "action=manifest.pull").await;
    assert_eq!((pulled.len(), &pulled[0]["target"]), (1, &json!(target)), "repeated pulls are one record");
    let refused = &records(&app, "outcome=refused&actor=user:alice").await[0];
    assert_eq!((&refused["action"], &refused["target"]), (&json!("access.refuse"), &json!("admin/app")));
    let failed = &records(&app, "outcome=refused&actor=anonymous").await[0];
    assert_eq!((&failed["action"], &failed["target"]), (&json!("account.sign_in"), &json!("user:alice")));
    let created = &records(&app, "action=token.create&target=user:alice").await[0];
    assert_eq!((&created["detail"]["name"], &created["via"]), (&json!("ci"), &json!("password")));
    // No record has a secret.
    let all = app.admin("GET", "/lode/v1/audit", json!(null)).await;
    let secret = token.strip_prefix("Bearer ").unwrap();
    assert!(!all.text().contains(secret) && !all.text().contains(PASSWORD) && !all.text().contains("argon2"));
    // Paging, and the time.
    let first = app.admin("GET", "/lode/v1/audit?n=2", json!(null)).await;
    let next = first.header("link").split(['<', '>']).nth(1).unwrap().to_owned();
    let second = app.admin("GET", &next, json!(null)).await.json();
    assert!(second["records"][0]["id"].as_str() < first.json()["records"][1]["id"].as_str());
    let later = app.admin("GET", "/lode/v1/audit?since=2999-01-01T00:00:00Z", json!(null)).await.json();
    assert_eq!(later["records"], json!([]));
    assert_eq!(app.get_as(&basic("admin", PASSWORD), "/lode/v1/audit?since=yesterday").await.status, 400);
    // The record of a removal names its actor, too.
    let removals = app.admin("GET", "/lode/v1/gc/removals", json!(null)).await.json();
    assert_eq!(removals["removals"][0]["actor"], "user:alice");
}

#[tokio::test]
async fn copies_are_recorded_as_pulls() {
    // A model that existed before the first account can be read by every account.
    let (there, address) = transfer::other().await;
    let allow_egress = vec![address.to_string().parse().unwrap()];
    let app = App::with(Config { allow_egress, ..Config::default() }).await;
    push_model(&app, "team/mini", "8b").await;
    let digest = Digest::sha256(&app.get("/v2/team/mini/manifests/8b").await.body);
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    for (name, path, body) in [
        ("alice", "/api/copy", json!({"source": "team/mini:8b", "destination": "alice/copy"})),
        ("bob", "/api/create", json!({"model": "bob/made", "from": "team/mini:8b", "stream": false})),
        ("carol", "/api/push", json!({"model": format!("{address}/team/mini:8b"), "stream": false})),
    ] {
        let credentials = app.user(name).await;
        let response = app.send_as(&credentials, Request::post(path), body.to_string()).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let pulled = &records(&app, &format!("action=manifest.pull&actor=user:{name}")).await[0];
        assert_eq!(pulled["target"], format!("team/mini@{digest}"), "{path}");
    }
    assert_eq!(there.get("/v2/team/mini/manifests/8b").await.status, 200);
}

#[tokio::test]
async fn jobs_and_workers_are_recorded() {
    let config = Config {
        admin_password: Some(Secret::new(PASSWORD)),
        worker_token: Some(Secret::new("hush")),
        ..Config::default()
    };
    let app = App::with(config).await;
    let _turn = app.registry.gc_lock_for_test().await;
    for (path, action, body) in [
        ("/lode/v1/gc", "gc.start", json!({"dry_run": false})),
        ("/lode/v1/fsck", "fsck.start", json!({"verify": true})),
    ] {
        let started = app.admin("POST", path, body.clone()).await;
        let record = &records(&app, &format!("action={action}")).await[0];
        assert_eq!((&record["actor"], &record["detail"]), (&json!("user:admin"), &body));
        assert_eq!(record["target"], format!("job:{}", started.json()["id"].as_str().unwrap()));
        if action == "gc.start" {
            app.admin("DELETE", started.header("location"), json!(null)).await;
            assert_eq!(records(&app, "action=job.cancel").await[0]["target"], record["target"]);
        }
    }
    let body = json!({"advertise": "http://127.0.0.1:1"});
    let joined = gateway::local(&app, "POST", "/lode/v1/workers", Some("hush"), body).await.json();
    let record = &records(&app, "action=worker.join").await[0];
    assert_eq!(record["target"], format!("worker:{}", joined["id"].as_str().unwrap()));
    assert_eq!(
        (&record["detail"], &record["address"]),
        (&json!({"advertise": "http://127.0.0.1:1/"}), &json!("127.0.0.1"))
    );
}

#[tokio::test]
async fn removals_by_rules_are_recorded() {
    let rule = |name: &str| RetentionRule { repositories: vec![name.to_owned()], ..RetentionRule::default() };
    let config = Config {
        gc_grace: Duration::ZERO,
        upload_lease: Duration::ZERO,
        retention: vec![
            RetentionRule { keep_last: Some(1), ..rule("ci/*") },
            RetentionRule { remove_untagged_after: Some(Duration::ZERO), ..rule("team/*") },
        ],
        ..Config::default()
    };
    let app = App::with(config).await;
    app.push_image("ci/app", "1", "one").await;
    let untagged = app.push_image("team/app", "t", "two").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    app.push_image("ci/app", "2", "three").await;
    app.push_image("team/app", "t", "four").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(app.job("/lode/v1/gc", json!({})).await["state"], "succeeded");
    for (action, target, detail) in [
        ("tag.delete", "ci/app:1".to_owned(), json!({"reason": "keep_last", "rule": 1})),
        ("manifest.delete", format!("team/app@{untagged}"), json!({"reason": "untagged", "rule": 2})),
    ] {
        let found = records(&app, &format!("action={action}")).await;
        assert_eq!((found.len(), &found[0]["actor"]), (1, &json!("server")), "{found:?}");
        assert_eq!((&found[0]["target"], &found[0]["detail"]), (&json!(target), &detail));
    }
}

#[tokio::test]
async fn retention_keeps_protected_tags() {
    let rule = RetentionRule {
        repositories: vec!["team/*".to_owned()],
        keep_last: Some(1),
        ..RetentionRule::default()
    };
    let config = || Config {
        admin_password: Some(Secret::new(PASSWORD)),
        gc_grace: Duration::ZERO,
        upload_lease: Duration::ZERO,
        retention: vec![rule.clone()],
        ..Config::default()
    };
    let mut configs = vec![config()];
    if let Some(database) = crate::store::postgres_for_test().await {
        configs.push(Config { database: Some(database), ..config() });
    }
    for config in configs {
        let app = App::with(config).await;
        let admin = basic("admin", PASSWORD);
        let protect = json!({"target": "team/*", "patterns": ["v*"]});
        app.admin("PUT", "/lode/v1/protected-tags", protect).await;
        for tag in ["v1", "nightly-1", "v2", "nightly-2", "v3"] {
            assert_eq!(push(&app, &admin, "team/app", tag, tag).await, 201, "{tag}");
            // Retention sorts tags by age, which has a resolution of a millisecond.
            let pushed_at = now_ms();
            while now_ms() == pushed_at {
                tokio::task::yield_now().await;
            }
        }
        let collect = async || {
            let started = app.admin("POST", "/lode/v1/gc", json!({})).await.json();
            let path = format!("/lode/v1/jobs/{}?wait=60", started["id"].as_str().unwrap());
            let job = app.admin("GET", &path, json!(null)).await.json();
            assert_eq!(job["state"], "succeeded", "{job}");
        };
        let tags = async || app.get_as(&admin, "/v2/team/app/tags/list").await.json()["tags"].clone();
        collect().await;
        // Protected tags stay, and do not count among those that the rule keeps.
        assert_eq!(tags().await, json!(["nightly-2", "v1", "v2", "v3"]));
        for tag in ["v1", "v2", "v3"] {
            let path = format!("/v2/team/app/manifests/{tag}");
            assert_eq!(app.get_as(&admin, &path).await.status, 200, "{tag}");
        }
        // Without the protection they are removed like others.
        let protect = json!({"target": "team/*", "patterns": []});
        app.admin("PUT", "/lode/v1/protected-tags", protect).await;
        collect().await;
        assert_eq!(tags().await, json!(["v3"]));
    }
}
