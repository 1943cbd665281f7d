//! The moment at which the first account ends open access: another replica may have created it, and this one
//! remembers for half a second that the server is open.

use http::Request;
use lode_client::Secret;
use serde_json::json;
use uuid::Uuid;

use super::App;
use super::access::PASSWORD;
use crate::auth::password::Passwords;
use crate::auth::{AccountKind, ServerRole};
use crate::store::AccountRow;
use crate::time::now_ms;

#[tokio::test]
async fn a_server_that_was_open_a_moment_ago_gives_nobody_an_account() {
    let app = App::new().await;
    let hash = Passwords::default().hash(Secret::new(PASSWORD)).await.unwrap();
    let admin = AccountRow {
        id: Uuid::now_v7(),
        kind: AccountKind::User,
        name: "admin".to_owned(),
        password: Some(hash),
        server_role: Some(ServerRole::Admin),
        epoch: 0,
        created_at: now_ms(),
        disabled_at: None,
        groups: Vec::new(),
    };
    // Each request comes right after this replica has seen an open server.
    let requests = [
        ("POST", "/lode/v1/accounts", json!({"name": "x", "password": PASSWORD, "server_role": "admin"})),
        ("POST", "/lode/v1/accounts", json!({"name": "team+x", "kind": "robot"})),
        ("PATCH", "/lode/v1/accounts/admin", json!({"password": "another password"})),
        ("DELETE", "/lode/v1/accounts/admin", json!(null)),
        ("POST", "/lode/v1/tokens", json!({"name": "x", "account": "admin"})),
        ("PUT", "/lode/v1/grants", json!({"target": "team/*", "subject": "admin", "role": "own"})),
        ("POST", "/lode/v1/groups", json!({"name": "staff"})),
    ];
    for (method, path, body) in requests {
        while !app.registry.is_open().await.unwrap() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        // Another replica creates the administrator. This one has not noticed yet.
        let mut tx = app.registry.store().begin().await.unwrap();
        assert!(tx.account_insert(&admin).await.unwrap());
        tx.commit().await.unwrap();
        let request = Request::builder().method(method).uri(path);
        let response = app.send(request, body.to_string()).await;
        assert_eq!(response.status, 401, "{method} {path}: {}", response.text());
        let accounts = app.registry.store().account_list("", "", 10).await.unwrap();
        assert_eq!(
            accounts.iter().map(|row| &row.name[..]).collect::<Vec<_>>(),
            ["admin"],
            "{method} {path}"
        );
        assert_eq!(accounts[0].password, admin.password, "{method} {path}");
        let mut tx = app.registry.store().begin().await.unwrap();
        tx.account_delete(&admin).await.unwrap();
        tx.commit().await.unwrap();
    }
}
