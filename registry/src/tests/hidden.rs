//! A repository that a caller may not see looks as if it did not exist, on every route.

use std::time::Duration;

use http::Request;
use lode_client::Secret;
use serde_json::json;

use super::access::PASSWORD;
use super::models::push_model;
use super::rights::each_database;
use super::routes::{Need, ROUTES, address};
use super::{App, TestResponse};
use crate::{Config, MirrorConfig};

/// What a client sees of a response, with the names of two repositories made equal.
fn seen(response: &TestResponse, name: &str) -> (u16, Vec<String>, String) {
    let plain = |text: &str| text.replace(name, "NAME");
    let mut headers: Vec<String> = response
        .headers
        .iter()
        .filter(|(header, _)| !["x-request-id", "request-id", "date"].contains(&header.as_str()))
        .map(|(header, value)| format!("{header}: {}", plain(value.to_str().unwrap())))
        .collect();
    headers.sort();
    let mut text = plain(response.text());
    // Problem details have the request's id.
    if let Some(id) = response.headers.get("x-request-id") {
        text = text.replace(id.to_str().unwrap(), "ID");
    }
    (response.status.as_u16(), headers, text)
}

/// A server with the private model `team/mini`, and nothing called `team/none`.
async fn with_private_model() -> App {
    let app = App::new().await;
    push_model(&app, "team/mini", "latest").await;
    push_model(&app, "team/open", "latest").await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    app.show("team/mini", "private").await;
    app
}

#[tokio::test]
async fn hidden_and_missing_repositories_look_alike() {
    let app = with_private_model().await;
    let user = app.user("alice").await;
    app.grant("team/open", "alice", "write").await;
    let (full, _) = app.token(&user, json!({"name": "full"})).await;
    let (infer, _) = app.token(&user, json!({"name": "infer", "access": "infer"})).await;
    let (limited, _) = app.token(&user, json!({"name": "limited", "targets": ["team/open"]})).await;
    let exchanged = async |credentials: &str| {
        let scopes = "scope=repository:team/mini:*&scope=repository:team/none:*";
        let response = app.get_as(credentials, &format!("/token?{scopes}")).await.json();
        format!("Bearer {}", response["token"].as_str().unwrap())
    };
    for visibility in ["private", "internal", "public"] {
        app.show("team/*", visibility).await;
        let callers = [
            ("anonymous", String::new()),
            ("guest", exchanged("").await),
            ("user", full.clone()),
            ("infer", infer.clone()),
            ("limited", limited.clone()),
            ("access token", exchanged(&full).await),
        ];
        for (method, route, body, need, _) in ROUTES {
            let has_name =
                route.contains("{name}") || route.contains("{*model}") || body.contains("team/mini");
            // Without a session, all pages that need one lead to the sign-in, with their address.
            let needs_more =
                [Need::Own, Need::Administer, Need::Join, Need::Maintain, Need::MaintainHere, Need::Session];
            if !has_name || needs_more.contains(need) {
                continue;
            }
            for (caller, credentials) in &callers {
                let mut found = Vec::new();
                for name in ["team/mini", "team/none"] {
                    let path = address(method, route).replace("team/mini", name);
                    let request = Request::builder().method(*method).uri(path);
                    let response = app.send_as(credentials, request, body.replace("team/mini", name)).await;
                    // An open route leads everyone to the page of the name, which checks the caller.
                    assert!(
                        response.status.is_client_error() || *need == Need::Open,
                        "{caller}: {method} {route}: {}",
                        response.status
                    );
                    found.push(seen(&response, name));
                }
                assert_eq!(found[0], found[1], "{caller}, {visibility}: {method} {route}");
            }
        }
        // With a repository that the caller may write.
        for (method, path, body) in [
            ("GET", "/lode/v1/diff/team/open/latest?with=team/mini", ""),
            ("GET", "/lode/v1/diff/team/mini/latest?with=team/open", ""),
            ("POST", "/lode/v1/copy", r#"{"source":"team/mini","destination":"team/open:2"}"#),
            ("POST", "/lode/v1/copy", r#"{"source":"team/open","destination":"team/mini"}"#),
            ("POST", "/api/create", r#"{"model":"team/open:3","from":"team/mini","stream":false}"#),
        ] {
            for (caller, credentials) in &callers {
                let mut found = Vec::new();
                for name in ["team/mini", "team/none"] {
                    let request = Request::builder().method(method).uri(path.replace("team/mini", name));
                    let response = app.send_as(credentials, request, body.replace("team/mini", name)).await;
                    found.push(seen(&response, name));
                }
                assert_eq!(found[0], found[1], "{caller}, {visibility}: {method} {path} {body}");
            }
        }
        for (caller, credentials) in callers.iter().filter(|(_, credentials)| !credentials.contains("lode."))
        {
            let mut found = Vec::new();
            for name in ["team/mini", "team/none"] {
                let response = app.get_as(credentials, &format!("/token?scope=repository:{name}:*")).await;
                found.push(response.json()["token"].as_str().map(str::len));
            }
            assert_eq!(found[0], found[1], "{caller}, {visibility}");
        }
    }
}

#[tokio::test]
async fn roles_create_repositories_and_visibility_follows() {
    each_database(async |app: App| {
        let (alice, bob) = (app.user("alice").await, app.user("bob").await);
        for (namespace, visibility) in [("alice/*", "internal"), ("bob/*", "public")] {
            app.show(namespace, visibility).await;
        }
        // 1. A repository that does not exist is hidden, and its namespace's owner creates it.
        assert_eq!(app.pull_as(&bob, "alice/app").await, 404);
        let refused = app.push_as(&bob, "alice/app").await;
        assert_eq!(refused.status, 404);
        assert!(refused.text().contains("the role `write` on `alice/*`"), "{}", refused.text());
        assert_eq!(app.pull_as("", "bob/app").await, 401);
        assert_eq!(app.push_as(&alice, "alice/app").await.status, 201);
        assert_eq!(app.push_as(&bob, "bob/app").await.status, 201);
        // 2. At once, it has the visibility of its namespace: what was hidden is not remembered.
        assert_eq!((app.pull_as(&bob, "alice/app").await, app.pull_as("", "bob/app").await), (200, 200));
        assert_eq!(app.push_as(&bob, "alice/app").await.status, 403);
        // 3. A role on a repository that does not exist yet creates it.
        app.grant("fresh/app", "alice", "write").await;
        assert_eq!(app.push_as(&alice, "fresh/app").await.status, 201);
    })
    .await;
}

/// A mirror stores what is read first.
#[tokio::test]
async fn below_a_mirrored_prefix_the_namespace_decides() {
    let upstream = App::new().await;
    upstream.push_image("team/mini", "latest", "layer").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = upstream.router.clone();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let mirror = MirrorConfig {
        prefix: "hub/".into(),
        upstream: format!("http://{address}").parse().unwrap(),
        username: None,
        password: None,
        check_after: Duration::from_secs(3600),
        plain_http: false,
    };
    let start = async || {
        let admin_password = Some(Secret::new(PASSWORD));
        App::with(Config { admin_password, mirror: vec![mirror.clone()], ..Config::default() }).await
    };
    for (visibility, user, client) in [("private", 404, 401), ("internal", 200, 401), ("public", 200, 200)] {
        let app = start().await;
        let alice = app.user("alice").await;
        app.show("hub/*", visibility).await;
        assert_eq!(app.pull_as("", "hub/team/mini").await, client, "{visibility}");
        assert_eq!(app.pull_as(&alice, "hub/team/mini").await, user, "{visibility}");
        assert_eq!(app.pull_as(&alice, "hub/team/none").await, 404, "{visibility}");
    }
}
