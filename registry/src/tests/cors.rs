//! Requests of web pages from other origins.

use http::Request;
use serde_json::json;

use super::access::{PASSWORD, basic};
use super::models::push_model;
use super::{App, TestResponse};
use crate::Config;

const PAGE: &str = "https://app.example";
/// One path of each API.
const PATHS: [&str; 5] =
    ["/v1/models", "/api/tags", "/v2/team/mini/tags/list", "/hf/api/models", "/lode/v1/models"];

fn allowing(origins: &[&str], listen: &str) -> Config {
    Config {
        allow_origin: origins.iter().map(|origin| origin.parse().unwrap()).collect(),
        listen: listen.parse().unwrap(),
        allow_anonymous: true,
        ..Config::default()
    }
}

async fn get_from(app: &App, origin: &str, path: &str) -> TestResponse {
    app.send(Request::get(path).header("host", "localhost:5000").header("origin", origin), "").await
}

async fn preflight(app: &App, origin: &str, path: &str) -> TestResponse {
    let request = Request::options(path)
        .header("host", "localhost:5000")
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,x-stainless-os");
    app.send(request, "").await
}

fn allowed_origin(response: &TestResponse) -> &str {
    let value = response.headers.get("access-control-allow-origin");
    value.map(|value| value.to_str().unwrap()).unwrap_or_default()
}

#[tokio::test]
async fn pages_of_listed_origins_may_use_the_apis() {
    for listen in ["127.0.0.1:5000", "0.0.0.0:5000"] {
        let app = App::with(allowing(&[PAGE, "https://*.example.org"], listen)).await;
        push_model(&app, "team/mini", "latest").await;
        for path in PATHS {
            for origin in [PAGE, "https://a.example.org"] {
                let response = get_from(&app, origin, path).await;
                assert_eq!((response.status.as_u16(), allowed_origin(&response)), (200, origin), "{path}");
                assert!(response.header("access-control-expose-headers").contains("x-repo-commit"));
                assert!(response.header("vary").contains("origin"));
                assert!(!response.headers.contains_key("access-control-allow-credentials"));
                let first = preflight(&app, origin, path).await;
                assert_eq!((first.status.as_u16(), allowed_origin(&first)), (200, origin), "{path}");
                let headers = "authorization,content-type,x-stainless-os";
                assert_eq!(first.header("access-control-allow-headers"), headers);
                assert!(first.header("access-control-allow-methods").contains("POST"));
                assert!(!first.headers.contains_key("access-control-allow-credentials"));
            }
            for origin in ["https://evil.example", "null", "http://localhost:3000", "https://example.org"] {
                let response = get_from(&app, origin, path).await;
                assert_eq!(allowed_origin(&response), "", "{origin} {path}");
                assert_eq!(allowed_origin(&preflight(&app, origin, path).await), "", "{origin} {path}");
            }
        }
        // A failure is readable, too.
        let missing = get_from(&app, PAGE, "/hf/api/models/team/none").await;
        assert_eq!((missing.status.as_u16(), allowed_origin(&missing)), (404, PAGE));
        // Pages for people and the sign-in are not for other origins.
        for path in ["/", "/login", "/token", "/-/account", "/healthz"] {
            assert_eq!(allowed_origin(&get_from(&app, PAGE, path).await), "", "{path}");
        }
    }
}

#[tokio::test]
async fn pages_of_this_machine_are_the_default_on_loopback() {
    let app = App::with(allowing(&[], "127.0.0.1:5000")).await;
    for origin in ["http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:1"] {
        assert_eq!(allowed_origin(&get_from(&app, origin, "/api/tags").await), origin);
        assert_eq!(preflight(&app, origin, "/v1/models").await.status, 200);
    }
    let refused = get_from(&app, PAGE, "/api/tags").await;
    assert_eq!((refused.status.as_u16(), allowed_origin(&refused)), (403, ""));
    // A request from this server's own page needs no header.
    assert_eq!(allowed_origin(&get_from(&app, "http://localhost:5000", "/api/tags").await), "");
    let wide = App::with(allowing(&[], "0.0.0.0:5000")).await;
    assert_eq!(allowed_origin(&get_from(&wide, "http://localhost:3000", "/api/tags").await), "");
    let every = App::with(allowing(&["*"], "127.0.0.1:5000")).await;
    for origin in [PAGE, "null"] {
        assert_eq!(allowed_origin(&get_from(&every, origin, "/api/tags").await), origin);
    }
    // The name of the server is still checked.
    let rebound = Request::get("/api/tags").header("host", "evil.example").header("origin", PAGE);
    assert_eq!(every.send(rebound, "").await.status, 403);
}

#[tokio::test]
async fn cookies_of_a_browser_do_not_count() {
    for origins in [&[PAGE][..], &["*"]] {
        let app = App::with(allowing(origins, "127.0.0.1:5000")).await;
        let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
        assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
        let form =
            Request::post("/login").header("host", "localhost:5000").header("sec-fetch-site", "same-origin");
        let signed_in = app.send(form, format!("name=admin&password={}", PASSWORD.replace(' ', "+"))).await;
        assert_eq!(signed_in.status, 303, "{}", signed_in.text());
        let cookie = signed_in.header("set-cookie").split(';').next().unwrap().to_owned();
        let me = |origin: Option<&str>| {
            let request =
                Request::get("/lode/v1/me").header("host", "localhost:5000").header("cookie", &cookie);
            match origin {
                Some(origin) => request.header("origin", origin),
                None => request,
            }
        };
        assert_eq!(app.send(me(None), "").await.json()["name"], "admin");
        let from_page = app.send(me(Some(PAGE)), "").await;
        assert_ne!(from_page.json()["name"], "admin", "{}", from_page.text());
        assert!(!from_page.headers.contains_key("access-control-allow-credentials"));
        // A token that the page has counts; a remembered password does not.
        let token = app.token(&basic("admin", PASSWORD), json!({"name": "page"})).await.0;
        let with = |credentials: &str| {
            Request::post("/lode/v1/gc").header("origin", PAGE).header("authorization", credentials)
        };
        let done = app.send(with(&token), "{}").await;
        assert!(done.status.is_success() && allowed_origin(&done) == PAGE, "{}", done.text());
        assert_eq!(app.send(with(&basic("admin", PASSWORD)), "{}").await.status, 403);
    }
}
