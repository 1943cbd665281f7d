//! Listings that a limited credential gets.

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
            let mut names: Vec<String> = list[of].as_array().unwrap().iter()
                .map(|item| item[key].as_str().or(item.as_str()).unwrap().to_owned()).collect();
            names.dedup();
            names
        };
        let catalog = app.get_as(&credentials, "/v2/_catalog").await.json();
        assert_eq!(names(&catalog, "repositories", ""), expect, "{credentials}");
        let models = app.get_as(&credentials, "/lode/v1/models").await.json();
        assert_eq!(names(&models, "models", "repository"), expect, "{credentials}");
        if expect.contains(&"team/a") {
            let lineage = app.get_as(&credentials, "/lode/v1/lineage/team/a/latest").await;
            let named = ["team/b", "team/c"].iter().filter(|name| lineage.text().contains(**name)).count();
            assert!(lineage.status != 200 || named < expect.len(), "{}", lineage.text());
        }
    }
}
