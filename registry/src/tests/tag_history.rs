//! The history of tags: every way in which a tag is moved or deleted is recorded, and can be undone.

use http::Request;
use serde_json::{Value, json};

use super::App;
use super::access::{PASSWORD, basic, closed};
use super::sign_in::{Browser, from_page};

/// The moves of `team/mini`, newest first: the tag, and the first digits of the manifests before and after.
async fn moves(app: &App, query: &str) -> Vec<(String, String, String)> {
    let listed = app.get(&format!("/lode/v1/repositories/team/mini/history{query}")).await;
    assert_eq!(listed.status, 200, "{}", listed.text());
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let listed = listed.json();
    let rows = listed["moves"].as_array().unwrap();
    rows.iter().map(|row| (text(row, "tag"), text(row, "from"), text(row, "to"))).collect()
}

async fn undo(app: &App, body: Value) -> (u16, Value) {
    let undone = app.post_json("/lode/v1/repositories/team/mini/history", body).await;
    (undone.status.as_u16(), undone.json())
}

#[tokio::test]
async fn moves_and_deletions_are_recorded_and_undone() {
    let app = App::new().await;
    let one = app.push_image("team/mini", "v1", "one").await.to_string();
    let two = app.push_image("team/mini", "v1", "two").await.to_string();
    // The same again is no move.
    app.push_image("team/mini", "v1", "two").await;
    assert_eq!(app.delete("/v2/team/mini/manifests/v1").await.status, 202);
    let entry = |from: &str, to: &str| ("v1".to_owned(), from.to_owned(), to.to_owned());
    let expect = vec![entry(&two, ""), entry(&one, &two), entry("", &one)];
    assert_eq!(moves(&app, "").await, expect);
    assert_eq!(moves(&app, "?n=1&last=3").await, expect[1..2]);
    assert_eq!(moves(&app, "?tag=v2").await, []);
    // The last move, which was the deletion; then an earlier one.
    let (status, undone) = undo(&app, json!({"tag": "v1"})).await;
    assert_eq!((status, &undone["digest"], &undone["previous"]), (200, &json!(two), &Value::Null));
    let (status, undone) = undo(&app, json!({"tag": "v1", "position": 2})).await;
    assert_eq!((status, &undone["digest"], &undone["previous"]), (200, &json!(one), &json!(two)));
    let pulled = app.get("/v2/team/mini/manifests/v1").await;
    assert_eq!(pulled.header("docker-content-digest"), one);
    assert_eq!(moves(&app, "").await[..2], [entry(&two, &one), entry("", &two)]);
    // What has no way back.
    for (body, status) in [
        (json!({"tag": "v1", "position": 1}), 409),
        (json!({"tag": "v1", "position": 99}), 404),
        (json!({"tag": "v2"}), 404),
        (json!({"tag": "a b"}), 400),
        (json!({"tag": "v1", "digest": one}), 400),
    ] {
        assert_eq!(undo(&app, body.clone()).await.0, status, "{body}");
    }
    // A deleted manifest, with its tags.
    assert_eq!(app.delete(&format!("/v2/team/mini/manifests/{one}")).await.status, 202);
    assert_eq!(moves(&app, "?n=1").await, [entry(&one, "")]);
    let (status, problem) = undo(&app, json!({"tag": "v1"})).await;
    assert_eq!(status, 409);
    assert!(problem["error"].as_str().unwrap().contains("was deleted"), "{problem}");
    assert_eq!(app.get("/v2/team/mini/manifests/v1").await.status, 404);
}

#[tokio::test]
async fn the_page_moves_a_tag_back() {
    let app = closed().await;
    let admin = basic("admin", PASSWORD);
    app.push_as(&admin, "team/mini").await;
    let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "x/y", "size": 2,
            "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
        "layers": [], "annotations": {"a": "second"}});
    let before =
        app.get_as(&admin, "/v2/team/mini/manifests/latest").await.header("docker-content-digest").to_owned();
    let request = Request::put("/v2/team/mini/manifests/latest")
        .header("content-type", "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(app.send_as(&admin, request, manifest.to_string()).await.status, 201);
    for (name, role) in [("reader", "read"), ("writer", "write")] {
        app.user(name).await;
        app.grant("team/*", name, role).await;
    }
    let page = "/team/mini/-/history";
    let send = async |browser: &Browser<'_>, csrf: &str| {
        let request = from_page(Request::post(page)).header("cookie", &browser.cookie);
        app.send(request, format!("csrf={csrf}&tag=latest&position=2")).await
    };
    let reader = Browser::signed_in(&app, "reader").await;
    let seen = app.send(Request::get(page).header("cookie", &reader.cookie), "").await;
    assert_eq!(seen.status, 200);
    assert!(seen.text().contains("user:admin") && !seen.text().contains("Move the tag back"));
    assert_eq!(send(&reader, &reader.csrf).await.status, 403);
    let writer = Browser::signed_in(&app, "writer").await;
    let seen = app.send(Request::get(page).header("cookie", &writer.cookie), "").await;
    assert!(seen.text().contains("Move the tag back"), "{}", seen.text());
    assert_eq!(send(&writer, "wrong").await.status, 403);
    assert_eq!(send(&writer, &writer.csrf).await.status, 303);
    let now = app.get_as(&admin, "/v2/team/mini/manifests/latest").await;
    assert_eq!(now.header("docker-content-digest"), before);
    // A protected tag stays.
    let rule = json!({"target": "team/*", "patterns": ["latest"]});
    assert_eq!(app.admin("PUT", "/lode/v1/protected-tags", rule).await.status, 204);
    let request = from_page(Request::post(page)).header("cookie", &writer.cookie);
    let refused = app.send(request, format!("csrf={}&tag=latest&position=3", writer.csrf)).await;
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("is protected"), "{}", refused.text());
}
