//! Pages of the lists under `/lode/v1` (`n`, `last`, `Link`), and its failures as problem details.

use axum::response::IntoResponse;
use http::Request;
use serde_json::{Value, json};

use super::App;
use super::access::{PASSWORD, basic};
use super::gateway::{join, worker};
use super::models::push_model;

/// Reads a list in pages of one entry.
async fn pages(app: &App, path: &str, list: &str) -> Vec<Value> {
    pages_as(app, "", path, list).await
}

pub(super) async fn pages_as(app: &App, credentials: &str, path: &str, list: &str) -> Vec<Value> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let (mut all, mut next) = (Vec::new(), Some(format!("{path}{separator}n=1")));
    while let Some(path) = next {
        let page = app.get_as(credentials, &path).await;
        let found = page.json()[list].as_array().unwrap().clone();
        assert!(found.len() <= 1, "{path}: {found:?}");
        all.extend(found);
        next = page.next_page();
    }
    all
}

#[tokio::test]
async fn tokens_and_quotas_come_in_pages() {
    let app = App::new().await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let (admin, alice) = (basic("admin", PASSWORD), app.user("alice").await);
    for name in ["one", "two", "three"] {
        app.token(&alice, json!({"name": name})).await;
        app.admin("PUT", "/lode/v1/quotas", json!({"namespace": name, "limit_bytes": 1})).await;
    }
    let names = |found: &[Value], key: &str| -> Vec<String> {
        found.iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
    };
    let of_alice = pages_as(&app, &admin, "/lode/v1/tokens?account=alice", "tokens").await;
    assert_eq!(names(&of_alice, "name"), ["three", "two", "one"]);
    assert_eq!(pages_as(&app, &alice, "/lode/v1/tokens", "tokens").await, of_alice);
    assert_eq!(app.get_as(&alice, "/lode/v1/tokens?last=1").await.status, 404);
    let quotas = pages_as(&app, &admin, "/lode/v1/quotas", "quotas").await;
    assert_eq!(names(&quotas, "namespace"), ["one", "three", "two"]);
    // One namespace has an entry even without a quota.
    let none = app.get_as(&alice, "/lode/v1/quotas?namespace=alice").await.json();
    assert_eq!((&none["quotas"][0]["limit_bytes"], &none["quotas"][1]), (&Value::Null, &Value::Null));
    assert_eq!(app.get_as(&alice, "/lode/v1/quotas?namespace=one").await.status, 403);
}

#[tokio::test]
async fn lists_come_in_pages() {
    let app = App::new().await;
    for name in ["a/one", "a/two", "b"] {
        push_model(&app, name, "latest").await;
    }
    let names = pages(&app, "/lode/v1/models", "models").await;
    let names: Vec<&str> = names.iter().map(|model| model["repository"].as_str().unwrap()).collect();
    assert_eq!(names, ["a/one", "a/two", "b"]);
    let tensors = pages(&app, "/lode/v1/tensors/b/latest", "tensors").await;
    let whole = app.get("/lode/v1/tensors/b/latest").await.json();
    assert_eq!((tensors.len(), &json!(tensors)), (2, &whole["tensors"]));

    let repositories = pages(&app, "/lode/v1/repositories", "repositories").await;
    let names: Vec<&str> = repositories.iter().map(|found| found["repository"].as_str().unwrap()).collect();
    assert_eq!(names, ["a/one", "a/two", "b"]);
    let below = app.get("/lode/v1/repositories?prefix=a&n=1").await;
    assert_eq!(below.json()["repositories"], json!(repositories[..1]));
    assert!(below.header("link").contains("prefix=a"), "{}", below.header("link"));
    assert_eq!(
        app.push_manifest(
            "b",
            "v2",
            &json!({"schemaVersion": 2, "manifests": [],
        "mediaType": "application/vnd.oci.image.index.v1+json"})
        )
        .await
        .status,
        201
    );
    for (list, first, second) in [("tags", "latest", "v2"), ("manifests", "", "")] {
        let found = pages(&app, &format!("/lode/v1/repositories/b/{list}"), list).await;
        let kinds: Vec<&str> = found.iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds.iter().filter(|kind| ["model", "index"].contains(*kind)).count(), 2, "{kinds:?}");
        if list == "tags" {
            assert_eq!((&found[0]["tag"], &found[1]["tag"]), (&json!(first), &json!(second)));
            assert!(found[0]["modified_at"].as_str().unwrap().ends_with('Z'), "{}", found[0]);
        }
    }

    for port in 1..=3 {
        join(&app, ([127, 0, 0, 1], port).into()).await;
    }
    let workers = pages(&app, "/lode/v1/workers", "workers").await;
    assert_eq!(workers.len(), 3);
    assert_eq!(app.get("/lode/v1/workers").await.json()["workers"], json!(workers));

    for path in [
        "/lode/v1/models?n=x",
        "/lode/v1/models?last=x",
        "/lode/v1/workers?last=x",
        "/lode/v1/webhooks?n=-1",
        "/lode/v1/repositories?n=x",
        "/lode/v1/repositories?prefix=A//b",
        "/lode/v1/repositories/b/tags?n=x",
        "/lode/v1/repositories/b/manifests?last=latest",
    ] {
        assert_eq!(app.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn failures_are_problem_details() {
    let app = App::new().await;
    let request = Request::get("/lode/v1/models/team/absent/latest").header("x-request-id", "check-7");
    let response = app.send(request, "").await;
    assert_eq!(
        (response.status.as_u16(), response.header("content-type")),
        (404, "application/problem+json")
    );
    let detail = "model 'team/absent:latest' not found";
    let expect = json!({"type": "about:blank", "title": "Not Found", "status": 404, "detail": detail,
        "instance": "check-7", "error": detail});
    assert_eq!(response.json(), expect);
    // The instance is the id of the response and of the log.
    let response = app.get("/lode/v1/nothing/here").await;
    assert_eq!(response.json()["instance"], response.header("x-request-id"));
    // Other APIs keep their own format.
    let response = app.get("/api/nothing").await;
    assert_eq!(
        (response.header("content-type"), response.json().as_object().unwrap().len()),
        ("application/json", 1)
    );
}

/// Every response that has names of models, for callers that may not read one of them. A caller that may has to
/// find it there, so that the test cannot pass with an empty list.
#[tokio::test]
async fn no_listing_has_a_hidden_model() {
    let app = App::new().await;
    for repository in ["open/shown", "team/hidden"] {
        push_model(&app, repository, "latest").await;
    }
    // Relatives share a large blob, and one names the other as its origin.
    let large = "x".repeat(100_000);
    for repository in ["open/shown", "team/hidden"] {
        let (config, layer) =
            (app.push_blob(repository, "{}").await, app.push_blob(repository, large.clone()).await);
        let readme = "---\nbase_model: team/hidden\n---\n";
        let readme_digest = app.push_blob(repository, readme).await;
        let mut manifest = super::image(
            &config,
            2,
            &[
                json!({"mediaType": "application/vnd.ollama.image.tensor", "digest": layer, "size": large.len(), "name": "w"}),
                json!({"mediaType": "application/vnd.ollama.image.json", "digest": readme_digest, "size": readme.len(), "name": "README.md"}),
            ],
        );
        manifest["annotations"] = json!({
            "org.opencontainers.image.base.name": "team/hidden:latest", "for": repository,
        });
        assert_eq!(app.push_manifest(repository, "tuned", &manifest).await.status, 201);
    }
    let (address, _) = worker(|| {
        let model = |name: &str| json!({"name": name, "model": name, "expires_at": "2030-01-01T00:00:00Z"});
        let models = [model("open/shown:latest"), model("team/hidden:latest")];
        json!({ "models": models }).to_string().into_response()
    })
    .await;
    join(&app, address).await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let admin = basic("admin", PASSWORD);
    app.show("open/shown", "public").await;
    app.show("team/hidden", "private").await;
    let alice = app.user("alice").await;
    let (token, _) = app.token(&alice, json!({"name": "x"})).await;
    let (limited, _) = app.token(&admin, json!({"name": "x", "targets": ["open/*"]})).await;
    let guest = app.get_as("", "/token?scope=repository:open/shown:pull").await.json();
    let guest = format!("Bearer {}", guest["token"].as_str().unwrap());
    for path in [
        "/v2/_catalog",
        "/lode/v1/repositories",
        "/lode/v1/models",
        "/api/tags",
        "/v1/models",
        "/api/ps",
        "/lode/v1/ps",
        "/lode/v1/lineage/open/shown/tuned",
        "/lode/v1/lineage/open/shown/latest",
    ] {
        let found = app.get_as(&admin, path).await;
        // The origin is named in the model itself: only its name here is hidden.
        let text = |response: &super::TestResponse| match path.contains("lineage") {
            true => {
                let mut lineage = response.json();
                for origin in lineage["from"].as_array_mut().unwrap() {
                    *origin = origin["here"].clone();
                }
                lineage.to_string()
            }
            false => response.text().to_owned(),
        };
        let is_listed = text(&found).contains("team/hidden") || path.ends_with("shown/latest");
        assert!(found.status == 200 && is_listed, "{path}: {}", found.text());
        for credentials in ["", &guest, &alice, &token, &limited] {
            let response = app.get_as(credentials, path).await;
            assert_eq!(response.status, 200, "{path} {credentials}: {}", response.text());
            assert!(!text(&response).contains("hidden"), "{path} {credentials}: {}", response.text());
            assert!(
                path.contains("lineage") || response.text().contains("open/shown"),
                "{path} {credentials}: {}",
                response.text()
            );
        }
    }
    // A comparison needs both models.
    for (credentials, status) in
        [("", 401), (&guest[..], 401), (&alice[..], 404), (&limited[..], 404), (&admin[..], 200)]
    {
        for (one, other) in [("open/shown", "team/hidden"), ("team/hidden", "open/shown")] {
            let path = format!("/lode/v1/diff/{one}/latest?with={other}");
            let response = app.get_as(credentials, &path).await;
            assert_eq!(response.status, status, "{path} {credentials}: {}", response.text());
        }
    }
}
