//! The commits of a branch as Hugging Face's clients list them: from the history of its tag, with their messages.

use http::Request;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic, closed};
use super::hf_write::{file, post};
use super::{App, TestResponse};

const COMMITS: &str = "/hf/api/models/team/m/commits/main";

impl App {
    /// Commits a file with a message; returns the id of the commit.
    async fn commit_file(&self, credentials: &str, (title, description): (&str, &str), path: &str) -> String {
        let header = json!({"key": "header", "value": {"summary": title, "description": description}});
        let lines = format!("{header}\n{}\n", file(path, path.as_bytes()));
        let request = Request::post("/hf/api/models/team/m/commit/main");
        let done = self.send_as(credentials, request, lines).await;
        assert_eq!(done.status, 200, "{}", done.text());
        done.json()["commitOid"].as_str().unwrap().to_owned()
    }
}

/// This field of the commits of a page.
fn all(page: &TestResponse, field: &str) -> Vec<String> {
    assert_eq!(page.status, 200, "{}", page.text());
    let commits = page.json();
    let text = |commit: &Value| commit[field].as_str().unwrap().to_owned();
    commits.as_array().unwrap().iter().map(text).collect()
}

#[tokio::test]
async fn commits_are_listed_with_their_messages() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let first = app.commit_file("", ("Add <b>", "It has\ntwo lines."), "a").await;
    let second = app.commit_file("", ("Add c", ""), "c").await;
    let page = app.get(COMMITS).await;
    assert_eq!(all(&page, "title"), ["Add c", "Add <b>", "Create the repository"]);
    assert_eq!(all(&page, "message"), ["", "It has\ntwo lines.", ""]);
    assert_eq!(all(&page, "id")[..2], [second.clone(), first.clone()]);
    assert_eq!((page.header("x-total-count"), page.next_page()), ("3", None));
    assert_eq!(page.json()[0]["authors"], json!([]));
    // In pages.
    let (mut titles, mut next) = (Vec::new(), Some(format!("{COMMITS}?limit=1")));
    while let Some(path) = next {
        let page = app.get(&path).await;
        next = page.next_page();
        titles.extend(all(&page, "title"));
    }
    assert_eq!(titles, all(&page, "title"));
    assert_eq!(app.get(&format!("{COMMITS}?p=4294967295&limit=1000")).await.json(), json!([]));
    // One commit by its id, and in trees.
    let one = app.get(&COMMITS.replace("main", &first)).await;
    assert_eq!(all(&one, "title"), ["Add <b>"]);
    let tree = app.get("/hf/api/models/team/m/tree/main?expand=true").await.json();
    assert_eq!(
        (&tree[0]["lastCommit"]["title"], &tree[0]["lastCommit"]["id"]),
        (&json!("Add c"), &json!(second))
    );
    // Other lists of the same moves.
    let moves = app.get("/lode/v1/repositories/team/m/history").await.json();
    assert_eq!(moves["moves"][1]["message"], "Add <b>\n\nIt has\ntwo lines.");
    let history = app.get("/team/m/-/history").await;
    assert!(history.text().contains("Add &#60;b&#62;<"), "{}", history.text());
    // Moves without a message: an undo, and a push.
    let undone = app.post_json("/lode/v1/repositories/team/m/history", json!({"tag": "latest"})).await;
    assert_eq!(undone.status, 200, "{}", undone.text());
    let commits = app.get(COMMITS).await;
    assert_eq!(all(&commits, "id")[..3], [first.clone(), second, first]);
    assert!(all(&commits, "title")[0].starts_with("team/m@sha256:"));
    let pushed = app.push_image("team/image", "v1", "one").await;
    let commits = app.get("/hf/api/models/team/image/commits/v1").await;
    assert_eq!(all(&commits, "title"), [format!("team/image@{pushed}")]);
    // A tag with a message.
    let tagged = json!({"tag": "v1", "message": "The first release"}).to_string();
    assert_eq!(app.send(post("/hf/api/models/team/m/tag/main"), tagged).await.status, 200);
    let commits = app.get(&COMMITS.replace("main", "v1")).await;
    assert_eq!(all(&commits, "title"), ["The first release"]);
}

#[tokio::test]
async fn deleted_commits_leave_the_list() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let first = app.commit_file("", ("First", ""), "a").await;
    app.commit_file("", ("Second", ""), "b").await;
    let digest = app.get(&format!("/hf/api/models/team/m/revision/{first}")).await.json();
    assert_eq!(digest["sha"], first);
    let moves = app.get("/lode/v1/repositories/team/m/history").await.json();
    let digest = moves["moves"][1]["to"].as_str().unwrap();
    assert_eq!(app.delete(&format!("/v2/team/m/manifests/{digest}")).await.status, 202);
    let page = app.get(COMMITS).await;
    assert_eq!(all(&page, "title"), ["Second", "Create the repository"]);
    assert_eq!(page.header("x-total-count"), "2");
}

#[tokio::test]
async fn messages_are_stored_as_text_of_limited_length() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    for (nth, (title, description, shown)) in [
        ("two\r\nlines", " \u{0}\u{1b}[31mred\r\nblue ", ("two lines", "[31mred\nblue")),
        ("", "only this", ("only this", "")),
        (" \t ", "\u{0}", ("", "")),
        (&"é".repeat(5000)[..], "", (&format!("{}...", "é".repeat(1000))[..], "")),
    ]
    .into_iter()
    .enumerate()
    {
        app.commit_file("", (title, description), &nth.to_string()).await;
        let page = app.get(COMMITS).await;
        let (title, message) = (all(&page, "title").swap_remove(0), all(&page, "message").swap_remove(0));
        match shown.0 {
            "" => assert!(title.starts_with("team/m@sha256:"), "{title}"),
            expected => assert_eq!(title, expected),
        }
        assert_eq!(message, shown.1);
    }
}

#[tokio::test]
async fn authors_are_for_accounts() {
    let app = closed().await;
    let admin = basic("admin", PASSWORD);
    let new = json!({"name": "m", "organization": "team"}).to_string();
    assert_eq!(app.send_as(&admin, Request::post("/hf/api/repos/create"), new).await.status, 200);
    app.show("team/m", "public").await;
    app.commit_file(&admin, ("Add a", ""), "a").await;
    let listed = app.get_as(&admin, COMMITS).await.json();
    assert_eq!((&listed[0]["title"], &listed[0]["authors"]), (&json!("Add a"), &json!([{"user": "admin"}])));
    let listed = app.get(COMMITS).await.json();
    assert_eq!((&listed[0]["title"], &listed[0]["authors"]), (&json!("Add a"), &json!([])));
}
