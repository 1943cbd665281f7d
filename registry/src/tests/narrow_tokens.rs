//! Listings that a limited credential gets.

use http::Request;
use lode_model::digest::Digest;
use lode_model::gguf::{Header, Metadata};
use lode_model::media_type;
use serde_json::json;

use super::App;
use super::access::{PASSWORD, basic};
use super::models::push_model;

#[tokio::test]
async fn listings_of_an_access_token_have_what_it_was_requested_for() {
    let app = App::new().await;
    for repository in ["team/a", "team/b", "team/c"] {
        push_model(&app, repository, "latest").await;
    }
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let alice = app.user("alice").await;
    let (limited, _) = app.token(&alice, json!({"name": "x", "targets": ["team/a", "team/b"]})).await;
    let exchange = async |credentials: &str, scopes: &str| {
        let token = app.get_as(credentials, &format!("/token?{scopes}")).await.json();
        format!("Bearer {}", token["token"].as_str().unwrap())
    };
    let (one, all) = ("scope=repository:team/a:pull", "scope=registry:catalog:*");
    for (credentials, expect) in [
        (exchange(&alice, one).await, vec!["team/a"]),
        (exchange(&alice, "scope=repository:team/a:push").await, vec![]),
        (exchange(&alice, "").await, vec![]),
        (exchange(&alice, all).await, vec!["team/a", "team/b", "team/c"]),
        (exchange(&alice, &format!("{one}%20registry:catalog:*")).await, vec!["team/a", "team/b", "team/c"]),
        (exchange(&limited, all).await, vec!["team/a", "team/b"]),
        (exchange(&limited, "scope=repository:team/c:pull").await, vec![]),
        (exchange(&basic("admin", PASSWORD), one).await, vec!["team/a"]),
    ] {
        let names = |list: &serde_json::Value, of: &str, key: &str| {
            let mut names: Vec<String> = list[of]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item[key].as_str().or(item.as_str()).unwrap().to_owned())
                .collect();
            names.dedup();
            names
        };
        let catalog = app.get_as(&credentials, "/v2/_catalog").await.json();
        assert_eq!(names(&catalog, "repositories", ""), expect, "{credentials}");
        let models = app.get_as(&credentials, "/lode/v1/models").await.json();
        assert_eq!(names(&models, "models", "repository"), expect, "{credentials}");
    }
}

/// A token has the scopes of the challenge that it answers, so a client that follows challenges mounts what its account may
/// read, and a token that was requested for something else does not.
#[tokio::test]
async fn an_access_token_mounts_from_what_it_was_requested_for() {
    let app = App::new().await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let (admin, alice) = (basic("admin", PASSWORD), app.user("alice").await);
    let push = async |repository: &str, content: &'static str| {
        let digest = Digest::sha256(content.as_bytes());
        let address = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
        assert_eq!(app.send_as(&admin, Request::post(address), content).await.status, 201);
        digest
    };
    let (shared, hidden) = (push("team/shared", "shared").await, push("team/hidden", "hidden").await);
    app.grant("alice/*", "alice", "write").await;
    app.show("team/shared", "internal").await;
    let mount = async |credentials: &str, digest: &Digest| {
        let address = format!("/v2/alice/new/blobs/uploads/?mount={digest}");
        app.send_as(credentials, Request::post(address), "").await
    };
    let challenge = mount("", &shared).await;
    let scope = challenge.header("www-authenticate").split("scope=\"").nth(1).unwrap();
    let scopes = scope.trim_end_matches('"').replace(' ', "%20");
    for (scopes, expect) in [
        ("repository:alice/new:pull,push", 202),
        ("repository:alice/new:pull,push%20registry:catalog:*", 202),
        ("repository:alice/new:pull,push%20repository:team/shared:pull", 201),
        (&scopes[..], 201),
    ] {
        app.send_as(&admin, Request::delete(format!("/v2/alice/new/blobs/{shared}")), "").await;
        let token = app.get_as(&alice, &format!("/token?scope={scopes}")).await.json();
        let token = format!("Bearer {}", token["token"].as_str().unwrap());
        assert_eq!(mount(&token, &shared).await.status, expect, "{scopes}");
        assert_eq!(mount(&token, &hidden).await.status, 202, "{scopes}");
    }
}

#[tokio::test]
async fn lineage_shows_what_the_caller_may_read() {
    let app = App::new().await;
    push_model(&app, "team/base", "latest").await;
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "bert");
    metadata.set("general.base_model.count", 1u32);
    metadata.set("general.base_model.0.repo_url", "https://huggingface.co/team/base");
    let file = Header::new(metadata, []).unwrap().to_bytes();
    let (size, digest) = (file.len(), app.push_blob("team/tuned", file).await);
    let config = app.push_blob("team/tuned", &b"{}"[..]).await;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type::DOCKER_MANIFEST,
        "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": config, "size": 2},
        "layers": [{"mediaType": media_type::OLLAMA_MODEL, "digest": digest, "size": size}],
    });
    assert_eq!(app.push_manifest("team/tuned", "latest", &manifest).await.status, 201);
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let alice = app.user("alice").await;
    let (limited, _) = app.token(&alice, json!({"name": "x", "targets": ["team/tuned"]})).await;
    let exchanged = app.get_as(&alice, "/token?scope=repository:team/tuned:pull").await.json();
    let exchanged = format!("Bearer {}", exchanged["token"].as_str().unwrap());
    let here = async |credentials: &str| {
        let response = app.get_as(credentials, "/lode/v1/lineage/team/tuned/latest").await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()["from"][0]["here"].clone()
    };
    for credentials in [&limited, &exchanged] {
        assert_eq!(here(credentials).await, json!(null));
    }
    assert_eq!(here(&alice).await, json!("team/base:latest"));
    app.show("team/base", "private").await;
    assert_eq!(here(&alice).await, json!(null));
    // The request did not ask for the base: no refusal is recorded.
    app.get_as(&basic("last", "wrong"), "/v2/").await;
    while app.admin("GET", "/lode/v1/audit?target=user:last", json!(null)).await.json()["records"]
        == json!([])
    {}
    let refused = app.admin("GET", "/lode/v1/audit?action=access.refuse", json!(null)).await.json();
    assert_eq!(refused["records"], json!([]));
}
