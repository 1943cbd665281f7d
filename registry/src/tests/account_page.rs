//! The page of a user's own account: tokens, keys and the password.

use http::Request;
use serde_json::json;

use super::access::{basic, closed};
use super::sign_in::{Browser, Ollama, from_page};

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
    let replace = format!("change=rotate-token&id={id}");
    let asked = browser.post("/-/account/tokens", &replace).await;
    assert!(asked.text().contains("Replace the token &#60;ci&#62;?"), "{} {}", asked.status, asked.text());
    assert_eq!(app.pull_as(&token, "alice/app").await, 200);
    let page = browser.post("/-/account/tokens", &format!("{replace}&confirmed=yes")).await;
    assert_eq!(app.pull_as(&token, "alice/app").await, 401);
    let (_, rest) = page.text().split_once("class=\"secret\">").unwrap();
    let token = format!("Bearer {}", rest.split('<').next().unwrap());
    assert_eq!(app.pull_as(&token, "alice/app").await, 200);
    let id =
        app.get_as(&alice, "/lode/v1/tokens").await.json()["tokens"][0]["id"].as_str().unwrap().to_owned();
    let revoke = format!("change=revoke-token&id={id}");
    let asked = browser.post("/-/account/tokens", &revoke).await;
    assert!(asked.text().contains("Revoke the token &#60;ci&#62;?"), "{} {}", asked.status, asked.text());
    assert_eq!(app.pull_as(&token, "alice/app").await, 200);
    let revoked = browser.post("/-/account/tokens", &format!("{revoke}&confirmed=yes")).await;
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

#[tokio::test]
async fn a_key_is_removed_once_it_is_confirmed() {
    let app = closed().await;
    app.user("alice").await;
    let browser = Browser::signed_in(&app, "alice").await;
    let line = format!("ssh-ed25519+{}+laptop", Ollama::new(&app, 7).public().replace('+', "%2B"));
    assert_eq!(browser.post("/-/account/keys", &format!("key={line}")).await.status, 303);
    let page = browser.get("/-/account").await;
    let (_, form) = page.text().split_once("action=\"/-/account/keys/remove\"").unwrap();
    let (_, id) = form.split_once("name=\"id\" value=\"").unwrap();
    let id = id.split('"').next().unwrap();
    let asked = browser.post("/-/account/keys/remove", &format!("id={id}")).await;
    assert_eq!(asked.status, 200);
    for text in ["Remove the key laptop?", "name=\"confirmed\" value=\"yes\"", &format!("value=\"{id}\"")] {
        assert!(asked.text().contains(text), "{text}: {}", asked.text());
    }
    assert!(!browser.get("/-/account").await.text().contains("You have no keys."));
    let removed = browser.post("/-/account/keys/remove", &format!("id={id}&confirmed=yes")).await;
    assert_eq!((removed.status.as_u16(), removed.header("location")), (303, "/-/account"));
    assert!(browser.get("/-/account").await.text().contains("You have no keys."));
}
