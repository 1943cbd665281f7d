//! The page of a user's own account: tokens and the password.

use http::Request;
use serde_json::json;

use super::access::{basic, closed};
use super::sign_in::{Browser, from_page};

#[tokio::test]
async fn people_manage_their_own_credentials() {
    let app = closed().await;
    let alice = app.user("alice").await;
    app.push_as(&alice, "alice/app").await;
    let browser = Browser::signed_in(&app, "alice").await;
    // 1. A token, shown once.
    let page =
        browser.post("/-/account/tokens", "change=create-token&name=%3Cci%3E&access=read&days=30").await;
    let (_, rest) = page.text().split_once("class=\"secret\">").unwrap();
    let secret = rest.split('<').next().unwrap().to_owned();
    let token = format!("Bearer {secret}");
    assert_eq!(
        (app.pull_as(&token, "alice/app").await, app.push_as(&token, "alice/app").await.status.as_u16()),
        (200, 403)
    );
    let page = browser.get("/-/account").await;
    assert!(page.text().contains("&#60;ci&#62;") && !page.text().contains(&secret), "{}", page.text());
    for form in [
        "change=create-token&name=&access=read&days=30",
        "change=create-token&name=x&access=all&days=30",
        "change=create-token&name=x&access=read&days=0",
        "change=create-token&name=x&access=read&days=99999999999999999999",
        "name=x&access=read&days=30",
    ] {
        let refused = browser.post("/-/account/tokens", form).await;
        assert_eq!(refused.status, 400, "{form}");
        assert!(refused.text().contains("class=\"problem\" role=\"alert\""), "{}", refused.text());
    }
    let refused =
        browser.post("/-/account/tokens", "change=create-token&name=a+%22b%22&access=read&days=0").await;
    for kept in ["value=\"a &#34;b&#34;\"", "<option value=\"read\" selected>", "value=\"0\""] {
        assert!(refused.text().contains(kept), "{kept}: {}", refused.text());
    }
    let id =
        app.get_as(&alice, "/lode/v1/tokens").await.json()["tokens"][0]["id"].as_str().unwrap().to_owned();
    // Another token takes its place.
    let page = browser.post("/-/account/tokens", &format!("change=rotate-token&id={id}")).await;
    assert_eq!(app.pull_as(&token, "alice/app").await, 401);
    let (_, rest) = page.text().split_once("class=\"secret\">").unwrap();
    let token = format!("Bearer {}", rest.split('<').next().unwrap());
    assert_eq!(app.pull_as(&token, "alice/app").await, 200);
    let id =
        app.get_as(&alice, "/lode/v1/tokens").await.json()["tokens"][0]["id"].as_str().unwrap().to_owned();
    let revoked = browser.post("/-/account/tokens", &format!("change=revoke-token&id={id}")).await;
    assert_eq!((revoked.status.as_u16(), revoked.header("location")), (303, "/-/account"));
    assert_eq!(app.pull_as(&token, "alice/app").await, 401);
    // A token is not a password: its session would have more rights.
    let form = format!("name=alice&password={secret}");
    let (full, _) = app.token(&alice, json!({"name": "full"})).await;
    let with_token = format!("name=alice&password={}", full.strip_prefix("Bearer ").unwrap());
    for form in [form, with_token] {
        assert_eq!(app.send(from_page(Request::post("/login")), form).await.status, 401);
    }
    // 2. The password, which ends the session.
    assert_eq!(browser.post("/-/account/password", "current=wrong&new=another+password").await.status, 401);
    assert_eq!(browser.post("/-/account/password", "current=a+long+password&new=short").await.status, 400);
    assert_eq!(
        browser.post("/-/account/password", "current=a+long+password&new=another+password").await.status,
        303
    );
    assert_eq!(browser.get("/-/account").await.status, 303);
    assert_eq!(app.pull_as(&basic("alice", "another password"), "alice/app").await, 200);
}
