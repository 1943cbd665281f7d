//! Protected tags, quotas, reserved names and the audit log, over HTTP.

use http::Request;
use lode_model::digest::Digest;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic, closed};
use super::{App, failure, image};

/// Pushes an image whose config has this text.
async fn push(app: &App, credentials: &str, repository: &str, tag: &str, text: &str) -> u16 {
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
async fn a_namespace_stays_within_its_quota() {
    let app = closed().await;
    let admin = basic("admin", PASSWORD);
    let set = async |limit: Value| {
        app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "team", "limit_bytes": limit})).await;
    };
    let used = async || {
        let listed = app.admin("GET", "/lode/v1/quotas?namespace=team", json!(null)).await.json();
        let quota = &listed["quotas"][0];
        ["used_bytes", "logical_bytes", "own_bytes"].map(|key| quota[key].as_u64().unwrap())
    };
    let blob = async |repository: &str, size: usize, letter: &str| {
        let bytes = letter.repeat(size);
        let digest = Digest::sha256(bytes.as_bytes());
        let path = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
        let request = Request::post(path).header("content-length", size);
        app.send_as(&admin, request, bytes).await
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
    assert_eq!(chunk.status, 202, "{}", chunk.text());
    let finish = format!("{location}?digest={}", Digest::sha256(bytes.as_bytes()));
    assert_eq!(app.send_as(&admin, Request::put(finish), "").await.failure(), failure(403, "DENIED"));
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
    let records = async |query: &str| {
        // Refusals and pulls are written by a task.
        for _ in 0..100 {
            let listed = app.admin("GET", &format!("/lode/v1/audit?{query}"), json!(null)).await.json();
            let records = listed["records"].as_array().unwrap().clone();
            if !records.is_empty() {
                return records;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("no record for {query}");
    };
    let deleted = &records("action=tag.delete").await[0];
    assert_eq!((&deleted["actor"], &deleted["target"]), (&json!("user:alice"), &json!("alice/app:latest")));
    assert_eq!((&deleted["via"], &deleted["request"]), (&json!(format!("token {id}")), &json!("request-7")));
    let target = format!("alice/app@{digest}");
    let pushed = &records("action=manifest.push").await[0];
    assert_eq!((&pushed["target"], &pushed["detail"]), (&json!(target), &json!({"tags": ["latest"]})));
    let pulled = records("action=manifest.pull").await;
    assert_eq!((pulled.len(), &pulled[0]["target"]), (1, &json!(target)), "repeated pulls are one record");
    let refused = &records("outcome=refused&actor=user:alice").await[0];
    assert_eq!((&refused["action"], &refused["target"]), (&json!("access.refuse"), &json!("admin/app")));
    let failed = &records("outcome=refused&actor=anonymous").await[0];
    assert_eq!((&failed["action"], &failed["target"]), (&json!("account.sign_in"), &json!("user:alice")));
    let created = &records("action=token.create&target=user:alice").await[0];
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
