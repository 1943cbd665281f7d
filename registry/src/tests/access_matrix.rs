//! Every route, by every kind of caller, on a private, an internal and a public repository.

use std::collections::BTreeMap;

use http::Request;
use serde_json::json;

use super::access::{PASSWORD, basic};
use super::models::push_model;
use super::routes::{Need, ROUTES, address};
use super::{App, TestResponse};

/// The columns of the table.
const CALLERS: [&str; 10] =
    ["anonymous", "guest", "user", "reader", "writer", "maintainer", "owner", "infer", "auditor", "admin"];

/// The statuses of refusals on a private repository; `ok` is any other response. `404` is the response of a
/// repository that does not exist.
const TABLE: &[(Need, &str)] = &[
    //                 anon guest user reader writer maintainer owner infer auditor admin
    (Need::SignIn, "    401 ok    ok   ok     ok     ok         ok    ok    ok      ok"),
    (Need::List, "      ok  ok    ok   ok     ok     ok         ok    ok    ok      ok"),
    (Need::Pull, "      401 401   404  ok     ok     ok         ok    403   ok      ok"),
    (Need::PullAsAccount, "401 401 404  ok     ok     ok         ok    403   ok      ok"),
    (Need::Infer, "     401 401   404  ok     ok     ok         ok    ok    ok      ok"),
    (Need::Push, "      401 401   404  403    ok     ok         ok    403   403     ok"),
    (Need::Delete, "    401 401   404  403    403    ok         ok    403   403     ok"),
    (Need::Own, "       401 401   403  403    403    403        ok    403   403     ok"),
    (Need::Stage, "     401 401   ok   ok     ok     ok         ok    403   ok      ok"),
    (Need::Account, "   401 401   ok   ok     ok     ok         ok    403   ok      ok"),
    (Need::Identity, "  401 401   ok   ok     ok     ok         ok    ok    ok      ok"),
    (Need::Maintain, "  401 401   403  403    403    ok         ok    403   403     ok"),
    (Need::Session, "   303 303   303  303    303    303        303   303   303     303"),
    (Need::Inspect, "   401 401   403  403    403    403        403   403   ok      ok"),
    (Need::Administer, "401 401   403  403    403    403        403   403   403     ok"),
];

#[tokio::test]
async fn every_route_by_every_caller() {
    let app = App::new().await;
    push_model(&app, "team/mini", "latest").await;
    let stored = app.get("/v2/team/mini/manifests/latest").await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let admin = basic("admin", PASSWORD);
    let mut callers = BTreeMap::from([("anonymous", String::new()), ("admin", admin.clone())]);
    let guest = app.get_as("", "/token?scope=repository:team/mini:pull").await.json();
    callers.insert("guest", format!("Bearer {}", guest["token"].as_str().unwrap()));
    for (name, role) in
        [("user", ""), ("reader", "read"), ("writer", "write"), ("maintainer", "maintain"), ("owner", "own")]
    {
        callers.insert(name, full_token(&app, &app.user(name).await).await);
        if !role.is_empty() {
            app.grant("team/*", name, role).await;
        }
    }
    let auditor = app.user("auditor").await;
    app.admin("PATCH", "/lode/v1/accounts/auditor", json!({"server_role": "auditor"})).await;
    callers.insert("auditor", full_token(&app, &auditor).await);
    let (infer, _) = app.token(&callers["owner"], json!({"name": "infer", "access": "infer"})).await;
    callers.insert("infer", infer);

    for visibility in ["private", "internal", "public"] {
        app.show("team/mini", visibility).await;
        for (need, row) in TABLE {
            let expected: BTreeMap<&str, &str> = CALLERS.into_iter().zip(row.split_whitespace()).collect();
            for (method, route, body, _) in ROUTES.iter().filter(|(.., needed)| needed == need) {
                for (caller, credentials) in &callers {
                    prepare(&app, &admin, &stored).await;
                    let request = Request::builder().method(*method).uri(address(method, route));
                    let response = app.send_as(credentials, request, *body).await;
                    let expect = with_visibility(expected[caller], caller, *need, visibility);
                    assert_eq!(
                        outcome(&response),
                        expect,
                        "{caller}, {visibility}: {method} {route}: {} {}",
                        response.status,
                        response.text()
                    );
                }
            }
        }
    }
}

/// A token of the account, which is checked faster than its password.
async fn full_token(app: &App, credentials: &str) -> String {
    app.token(credentials, json!({"name": "matrix"})).await.0
}

/// What visibility changes: readers without a role.
fn with_visibility(expected: &'static str, caller: &str, need: Need, visibility: &str) -> &'static str {
    let is_open = matches!(need, Need::Pull | Need::Infer);
    let reads = is_open || need == Need::PullAsAccount;
    let (is_client, is_user) = (matches!(caller, "anonymous" | "guest"), caller == "user");
    match visibility {
        "public" if is_client && is_open => "ok",
        "internal" | "public" if is_user && reads => "ok",
        // It sees the repository now, and may not change it.
        "internal" | "public" if is_user && expected == "404" => "403",
        _ => expected,
    }
}

/// Restores what an earlier request may have deleted.
async fn prepare(app: &App, admin: &str, stored: &TestResponse) {
    if app.pull_as(admin, "team/mini").await != 200 {
        let request = Request::put("/v2/team/mini/manifests/latest");
        let request = request.header("content-type", stored.header("content-type"));
        assert_eq!(app.send_as(admin, request, stored.text()).await.status, 201);
    }
}

/// The refusal in a response.
fn outcome(response: &TestResponse) -> &'static str {
    let text = response.text();
    match response.status.as_u16() {
        303 => "303",
        401 => "401",
        403 => "403",
        404 if ["NAME_UNKNOWN", "model 'team/mini", "repository team/mini does not exist"]
            .iter()
            .any(|part| text.contains(part)) =>
        {
            "404"
        }
        _ => "ok",
    }
}

#[test]
fn every_need_has_a_row() {
    for (method, route, _, need) in ROUTES {
        let has_row = TABLE.iter().any(|(known, _)| known == need);
        assert!(has_row || *need == Need::Join, "{method} {route}");
    }
    assert!(TABLE.iter().all(|(_, row)| row.split_whitespace().count() == CALLERS.len()));
}
