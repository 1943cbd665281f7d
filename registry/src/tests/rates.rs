//! Limits on the rate of requests, and on wrong tokens.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use http::Request;
use lode_client::Secret;
use serde_json::json;

use super::access::{PASSWORD, basic};
use super::{App, TestResponse};
use crate::Config;

async fn get_from(app: &App, address: &str, credentials: &str, path: &str) -> TestResponse {
    let peer: SocketAddr = format!("{address}:1234").parse().unwrap();
    app.send_as(credentials, Request::get(path).extension(ConnectInfo(peer)), "").await
}

#[tokio::test]
async fn each_client_has_a_rate_of_its_own() {
    let config = Config {
        admin_password: Some(Secret::new(PASSWORD)),
        requests_per_minute: 3,
        account_requests_per_minute: 5,
        ..Config::default()
    };
    let app = App::with(config).await;
    // 1. An address without credentials.
    for expected in [401, 401, 401, 429] {
        assert_eq!(get_from(&app, "192.0.2.1", "", "/v2/").await.status, expected);
    }
    let refused = get_from(&app, "192.0.2.1", "", "/v2/").await;
    assert_eq!(refused.code(), "TOOMANYREQUESTS");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=21).contains(&wait), "{wait}");
    assert!(refused.text().contains("try again in"), "{}", refused.text());
    assert_eq!(get_from(&app, "192.0.2.1", "", "/api/tags").await.status, 429, "every API");
    assert_eq!(get_from(&app, "192.0.2.1", "", "/healthz").await.status, 200, "probes are not limited");
    assert_eq!(get_from(&app, "192.0.2.2", "", "/v2/").await.status, 401, "another address");
    for (address, expected) in [("1", 401), ("2", 401), ("3", 401), ("4", 429)] {
        let address = format!("[2001:db8::{address}]");
        assert_eq!(get_from(&app, &address, "", "/v2/").await.status, expected, "one network");
    }
    // 2. An account, from everywhere.
    let admin = basic("admin", PASSWORD);
    for (at, expected) in [200, 200, 200, 200, 200, 429].into_iter().enumerate() {
        assert_eq!(get_from(&app, &format!("192.0.2.{}", 1 + at), &admin, "/v2/").await.status, expected);
    }
    // 3. Parts of this server are not limited.
    let own = format!("Bearer {}", app.registry.internal_token().expose());
    for _ in 0..20 {
        assert_eq!(get_from(&app, "127.0.0.1", &own, "/v2/").await.status, 200);
    }
    // Without the settings there is no limit.
    let app = App::new().await;
    for _ in 0..20 {
        assert_eq!(get_from(&app, "192.0.2.1", "", "/v2/").await.status, 200);
    }
}

#[tokio::test]
async fn wrong_tokens_of_one_network_are_slowed_down() {
    let app = super::access::closed().await;
    let (right, _) = app.token(&basic("admin", PASSWORD), json!({"name": "ci"})).await;
    let mut statuses = Vec::new();
    for _ in 0..130 {
        statuses.push(get_from(&app, "192.0.2.1", "Bearer wrong", "/v2/").await.status.as_u16());
    }
    assert!(statuses[..100].iter().all(|status| *status == 401), "{statuses:?}");
    assert_eq!(statuses.last(), Some(&429));
    assert_eq!(
        get_from(&app, "192.0.2.1", &right, "/v2/").await.status,
        200,
        "right tokens are not slowed down"
    );
    assert_eq!(get_from(&app, "192.0.2.2", "Bearer wrong", "/v2/").await.status, 401);
}

#[tokio::test]
async fn wrong_credentials_count_as_requests() {
    let config =
        Config { admin_password: Some(Secret::new(PASSWORD)), requests_per_minute: 3, ..Config::default() };
    let app = App::with(config).await;
    let wrong = crate::auth::token::new_token().unwrap();
    for (at, credentials) in
        [basic("admin", "wrong"), format!("Bearer {}", wrong.expose()), "Bearer lode.x".to_owned()]
            .iter()
            .enumerate()
    {
        let address = format!("192.0.2.{}", at + 1);
        for expected in [401, 401, 401, 429] {
            assert_eq!(get_from(&app, &address, credentials, "/v2/").await.status, expected, "{credentials}");
        }
        assert_eq!(
            get_from(&app, &address, &basic("admin", PASSWORD), "/v2/").await.status,
            200,
            "an account"
        );
    }
}
