//! The page with the rules of a repository: who has it, how its patterns change, and what it says about retention.

use std::time::Duration;

use http::Request;
use lode_client::Secret;
use serde_json::json;

use super::access::{PASSWORD, basic};
use super::rules::push;
use super::sign_in::{Browser, from_page};
use super::{App, TestResponse};
use crate::{Config, RetentionRule};

const PAGE: &str = "/ci/app/-/rules";

/// A server with the tags `1` and `2` of `ci/app`, of which a retention rule keeps one, and a user for each role.
async fn app() -> App {
    let rule = RetentionRule {
        repositories: vec!["ci/*".to_owned()],
        keep_last: Some(1),
        keep: vec!["lts-*".to_owned()],
        remove_untagged_after: Some(Duration::from_secs(7 * 86400)),
    };
    let config =
        Config { retention: vec![rule], admin_password: Some(Secret::new(PASSWORD)), ..Config::default() };
    let app = App::with(config).await;
    for (name, role) in [("writer", "write"), ("keeper", "maintain")] {
        app.user(name).await;
        app.grant("ci/*", name, role).await;
    }
    for tag in ["1", "2"] {
        assert_eq!(push(&app, &basic("admin", PASSWORD), "ci/app", tag, tag).await, 201, "{tag}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    app
}

fn form(base: &str, patterns: &str) -> String {
    let fields = [("base", base), ("patterns", patterns)];
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// The patterns in the form of a page.
fn patterns_of(page: &TestResponse) -> String {
    let (_, rest) = page.text().split_once("<textarea id=\"patterns\"").unwrap();
    let (_, rest) = rest.split_once(">\n").unwrap();
    rest.split("</textarea>").next().unwrap().to_owned()
}

#[tokio::test]
async fn a_maintainer_protects_tags() {
    let app = app().await;
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "ci/*", "patterns": ["stable-*"]})).await;
    let keeper = Browser::signed_in(&app, "keeper").await;
    assert!(keeper.get("/ci/app").await.text().contains(PAGE));
    let page = keeper.get(PAGE).await;
    assert_eq!((page.status.as_u16(), patterns_of(&page).as_str()), (200, ""), "{}", page.text());
    assert!(page.text().contains("<code>stable-*</code>"), "{}", page.text());
    // Maintainers do not own it.
    assert!(!page.text().contains("/-/settings"));

    let saved = keeper.post(PAGE, &form("", "v*\r\n\r\n 1 \r\n")).await;
    let saved_page = "/ci/app/-/rules?saved=patterns";
    assert_eq!((saved.status.as_u16(), saved.header("location")), (303, saved_page), "{}", saved.text());
    assert!(keeper.get(saved_page).await.text().contains("Saved the patterns."));
    assert_eq!(patterns_of(&keeper.get(PAGE).await), "1\nv*");
    let admin = basic("admin", PASSWORD);
    assert_eq!(push(&app, &admin, "ci/app", "1", "another image").await, 403, "the tag is protected");

    // A form from before changes nothing, and shows both lists. Sending it again replaces the stored one.
    let stale = keeper.post(PAGE, &form("", "release-*")).await;
    assert_eq!(stale.status, 409, "{}", stale.text());
    assert!(stale.text().contains("the patterns of `ci/app` were changed meanwhile"), "{}", stale.text());
    assert!(stale.text().contains("<pre class=\"text\">1\nv*</pre>"), "{}", stale.text());
    assert_eq!(patterns_of(&stale), "release-*");
    assert_eq!(keeper.post(PAGE, &form("1\nv*", "release-*")).await.status, 303);
    assert_eq!(patterns_of(&keeper.get(PAGE).await), "release-*");

    // Texts that are no patterns are kept in the form.
    for (patterns, text) in [
        ("[", "is not a pattern of tags"),
        ("v1 v2", "is not a pattern of tags"),
        ("</textarea><script>[", "is not a pattern of tags"),
        (&"x\n".repeat(33), "at most 32"),
        (&"x".repeat(1000), "is not a pattern of tags"),
    ] {
        let refused = keeper.post(PAGE, &form("release-*", patterns)).await;
        assert_eq!(refused.status, 400, "{patterns}");
        assert!(refused.text().contains(text) && !refused.text().contains("<script>"), "{}", refused.text());
    }
    assert_eq!(patterns_of(&keeper.get(PAGE).await), "release-*");
    assert_eq!(keeper.post(PAGE, &form("release-*", "")).await.status, 303);
    assert_eq!(patterns_of(&keeper.get(PAGE).await), "");
}

#[tokio::test]
async fn others_have_no_page_of_rules() {
    let app = app().await;
    let writer = Browser::signed_in(&app, "writer").await;
    assert!(!writer.get("/ci/app").await.text().contains(PAGE));
    let missing = writer.get("/ci/none/-/rules").await;
    assert_eq!(missing.status, 404);
    assert_eq!(writer.get(PAGE).await.text(), missing.text().replace("ci/none", "ci/app"));
    assert_eq!(writer.post(PAGE, &form("", "v*")).await.status, 404);
    let anonymous = app.send(from_page(Request::post(PAGE)), form("", "v*")).await;
    assert_eq!(anonymous.status, 303, "to the sign-in");
    let keeper = Browser::signed_in(&app, "keeper").await;
    let forged = from_page(Request::post(PAGE)).header("cookie", &keeper.cookie);
    assert_eq!(
        app.send(forged, form("", "v*")).await.status,
        403,
        "without the token of the session's forms"
    );
    assert_eq!(patterns_of(&keeper.get(PAGE).await), "");
}

#[tokio::test]
async fn the_page_shows_what_retention_would_remove() {
    let app = app().await;
    let keeper = Browser::signed_in(&app, "keeper").await;
    let page = keeper.get(PAGE).await;
    for text in [
        "the last 1 tag to be pushed or moved",
        "tags like lts-*",
        "after 7days",
        "A collection would remove 1 tag now.",
        "<a href=\"/ci/app?tag=1\">1</a>",
    ] {
        assert!(page.text().contains(text), "{text}: {}", page.text());
    }
    assert!(!page.text().contains("/ci/app?tag=2"));
    // For programs, too.
    let path = "/lode/v1/repositories/ci/app/retention";
    let as_keeper = basic("keeper", PASSWORD);
    let found = app.get_as(&as_keeper, path).await.json();
    let rule = json!({"number": 1, "keep_last": 1, "keep": ["lts-*"], "remove_untagged_after": 604_800});
    assert_eq!(found["rule"], rule);
    let removals = &found["removals"];
    assert_eq!(
        (&removals["tag_count"], &removals["tags"][0]["tag"], &removals["untagged_count"]),
        (&json!(1), &json!("1"), &json!(0))
    );
    assert_eq!(app.get_as(&basic("writer", PASSWORD), path).await.status, 403);
    assert_eq!(keeper.post(PAGE, &form("", "1")).await.status, 303);
    let page = keeper.get(PAGE).await;
    assert!(page.text().contains("A collection would remove nothing now."), "{}", page.text());

    app.grant("team/*", "keeper", "maintain").await;
    assert_eq!(push(&app, &basic("admin", PASSWORD), "team/app", "1", "x").await, 201);
    let page = keeper.get("/team/app/-/rules").await;
    assert!(page.text().contains("No retention rule applies here"), "{}", page.text());
    let found = app.get_as(&as_keeper, "/lode/v1/repositories/team/app/retention").await.json();
    assert_eq!((&found["rule"], &found["removals"]), (&json!(null), &json!(null)));
}
