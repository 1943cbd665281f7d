//! Owners see the rights on what they own, and their robots.

use http::Request;
use lode_client::Secret;
use serde_json::{Value, json};

use super::App;
use super::access::{PASSWORD, basic};
use crate::Config;

/// A server on each database, with the administrator `admin`.
pub(super) async fn each_database(test: impl AsyncFn(App)) {
    let admin_password = Some(Secret::new(PASSWORD));
    test(App::with(Config { admin_password: admin_password.clone(), ..Config::default() }).await).await;
    if let Some(database) = crate::store::postgres_for_test().await {
        test(App::with(Config { admin_password, database: Some(database), ..Config::default() }).await).await;
    }
}

#[tokio::test]
async fn owners_read_the_visibility() {
    each_database(async |app: App| {
        let (alice, bob) = (app.user("alice").await, app.user("bob").await);
        app.show("alice/*", "internal").await;
        app.show("alice/app", "public").await;
        app.show("bob/*", "public").await;
        let read = async |credentials: &str, query: &str| {
            let response = app.get_as(credentials, &format!("/lode/v1/grants{query}")).await;
            match response.status.as_u16() {
                200 => response.json()["visibilities"].clone(),
                status => json!(status),
            }
        };
        let row = |target: &str, visibility: &str| json!({"target": target, "visibility": visibility});
        let (space, app_row) = (row("alice/*", "internal"), row("alice/app", "public"));
        assert_eq!(read(&alice, "?target=alice/app").await, json!([space, app_row]));
        assert_eq!(read(&alice, "?target=alice/other").await, json!([space]));
        assert_eq!(read(&alice, "?target=alice/*").await, json!([space]));
        for (credentials, query, status) in
            [(&alice, "", 403), (&bob, "?target=alice/app", 403), (&String::new(), "?target=alice/app", 401)]
        {
            assert_eq!(read(credentials, query).await, json!(status), "{query}");
        }
        let all = read(&basic("admin", PASSWORD), "").await;
        assert_eq!(all, json!([space, app_row, row("bob/*", "public")]));
    })
    .await;
}

#[tokio::test]
async fn owners_list_their_robots() {
    each_database(async |app: App| {
        let (alice, bob) = (app.user("alice").await, app.user("bob").await);
        for name in ["alice+a", "alice+b", "alice+c", "alic+x", "bob+x"] {
            app.admin("POST", "/lode/v1/accounts", json!({"name": name, "kind": "robot"})).await;
        }
        let list = async |credentials: &str, path: &str| {
            let response = app.get_as(credentials, path).await;
            let accounts = response.json()["accounts"].as_array().cloned().unwrap_or_default();
            let names: Vec<Value> = accounts.into_iter().map(|account| account["name"].clone()).collect();
            let next = response.headers.get("link").map(|link| link.to_str().unwrap().to_owned());
            (response.status.as_u16(), json!(names), next)
        };
        let path = "/lode/v1/accounts?namespace=alice";
        assert_eq!(list(&alice, path).await, (200, json!(["alice+a", "alice+b", "alice+c"]), None));
        let (status, names, next) = list(&alice, &format!("{path}&n=2")).await;
        assert_eq!((status, names), (200, json!(["alice+a", "alice+b"])));
        let next = next.unwrap();
        let next = next.strip_prefix('<').and_then(|rest| rest.split('>').next()).unwrap();
        assert_eq!(list(&alice, next).await, (200, json!(["alice+c"]), None), "{next}");
        assert_eq!(list(&bob, path).await.0, 403);
        assert_eq!(list("", path).await.0, 401);
        assert_eq!(list(&alice, "/lode/v1/accounts").await.0, 403);
        let request = Request::get("/lode/v1/accounts?namespace=a/b");
        assert!(app.send_as(&alice, request, "").await.status.is_client_error());
        assert_eq!(
            list(&basic("admin", PASSWORD), "/lode/v1/accounts?namespace=bob").await.1,
            json!(["bob+x"])
        );
    })
    .await;
}

#[tokio::test]
async fn readers_see_who_has_set_a_tag() {
    each_database(async |app: App| {
        let (alice, bob) = (app.user("alice").await, app.user("bob").await);
        let pushed = app.push_as(&alice, "alice/app").await;
        let digest = pushed.header("docker-content-digest").to_owned();
        app.show("alice/app", "public").await;
        let actor = async |credentials: &str, reference: &str| {
            let shown = app.get_as(credentials, &format!("/lode/v1/models/alice/app/{reference}")).await;
            assert_eq!(shown.status, 200, "{}", shown.text());
            shown.json()["actor"].clone()
        };
        assert_eq!(actor(&bob, "latest").await, json!("user:alice"));
        assert_eq!(actor("", "latest").await, Value::Null, "names of accounts are not for every client");
        assert_eq!(actor(&bob, &digest).await, Value::Null);
    })
    .await;
}
