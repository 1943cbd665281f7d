//! The pages about a repository: which tag they show, their tabs, settings, and addresses that lead to them.

use http::Request;
use lode_model::media_type;
use serde_json::json;

use super::access::{PASSWORD, basic};
use super::cards::{close, form};
use super::hf_write::{CONFIG, file};
use super::models::{push_model, push_model_with};
use super::sign_in::{Browser, from_page};
use super::{App, TestResponse};
use crate::store::query;

/// A server with the models `stable`, `q4` and `x` in `team/app`. `q4` names `stable` as its origin, and `x` was moved
/// last. With the accounts of [`close`].
async fn app() -> App {
    let app = App::new().await;
    push_model(&app, "team/app", "stable").await;
    push_from(&app, "q4", "team/app:stable").await;
    push_model_with(&app, "team/app", "x", &[(media_type::OLLAMA_TEMPLATE, "", "{{ .Prompt }}")]).await;
    close(&app).await;
    app
}

/// Pushes a tag of `team/app` that names its origin twice, once with a digest.
async fn push_from(app: &App, tag: &str, from: &str) {
    let base = app.get("/v2/team/app/manifests/stable").await;
    let mut manifest = base.json();
    manifest["annotations"] = json!({
        "org.opencontainers.image.base.name": from,
        "org.opencontainers.image.base.digest": base.header("docker-content-digest"),
    });
    manifest["layers"][0]["from"] = json!(from);
    let pushed = app.push_manifest("team/app", tag, &manifest).await;
    assert_eq!(pushed.status, 201, "{}", pushed.text());
}

/// The names and addresses of the tabs of a page.
fn tabs(page: &TestResponse) -> Vec<(String, String)> {
    let (_, rest) =
        page.text().split_once("<nav class=\"tabs\"").unwrap_or_else(|| panic!("{}", page.text()));
    let nav = rest.split("</nav>").next().unwrap();
    nav.split("<a href=\"")
        .skip(1)
        .map(|link| {
            let (url, rest) = link.split_once('"').unwrap();
            let (_, name) = rest.split_once('>').unwrap();
            (name.split('<').next().unwrap().to_owned(), url.to_owned())
        })
        .collect()
}

fn contains(page: &TestResponse, texts: &[&str]) {
    for text in texts {
        assert!(page.text().contains(text), "no `{text}`: {} {}", page.status, page.text());
    }
}

/// Pages that need no manifest are shown when it is damaged, to those who may read the repository.
#[tokio::test]
async fn a_damaged_manifest_leaves_the_tags_readable() {
    let app = app().await;
    let admin = Browser::signed_in(&app, "admin").await;
    query!(app.registry.store().write(), c => sqlx::query("update manifests set bytes = $1")
        .bind(&b"{}"[..]).execute(c).await.map(drop))
    .unwrap();
    for path in ["tags", "history", "rules", "settings"].map(|page| format!("/team/app/-/{page}")) {
        let page = admin.get(&path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text());
        contains(&page, &["<nav class=\"tabs\""]);
        let visitor = app.get_as("", &path).await;
        assert!([303, 401, 404].contains(&visitor.status.as_u16()), "{path}: {}", visitor.status);
    }
}

#[tokio::test]
async fn the_chosen_tag_stays_on_every_page() {
    let app = app().await;
    let admin = Browser::signed_in(&app, "admin").await;
    let chosen = [
        ("Overview", "/team/app?tag=stable"),
        ("Files", "/team/app/-/tree/stable"),
        ("Tensors", "/team/app/-/tensors/stable"),
        ("Try", "/team/app/-/try?tag=stable"),
        ("Tags", "/team/app/-/tags?tag=stable"),
        ("Lineage", "/team/app/-/lineage?tag=stable"),
        ("Referrers", "/team/app/-/referrers?tag=stable"),
        ("Rules", "/team/app/-/rules?tag=stable"),
        ("Settings", "/team/app/-/settings?tag=stable"),
    ]
    .map(|(name, url)| (name.to_owned(), url.to_owned()));
    for (_, url) in &chosen {
        assert_eq!(tabs(&admin.get(url).await), chosen, "{url}");
    }
    for url in [
        "/-/blob/stable/config.json",
        "/-/history?tag=stable",
        "/-/card?tag=stable",
        "/-/card?of=repository&tag=stable",
        "/-/diff/stable..x",
        // Addresses of earlier versions.
        "?ref=stable",
        "/-/try?ref=stable",
        "/-/lineage?ref=stable",
        "/-/referrers?ref=stable",
        "/-/card?ref=stable",
    ] {
        assert_eq!(tabs(&admin.get(&format!("/team/app{url}")).await), chosen, "{url}");
    }
    // The pages say which tag they show.
    for (url, text) in [
        ("/-/try?tag=stable", "<h2>Try <code>stable</code></h2>"),
        ("/-/try?ref=stable", "data-chat=\"team/app:stable\""),
        ("/-/lineage?tag=stable", "<h2>Lineage of <code>stable</code></h2>"),
        ("/-/referrers?tag=stable", "<h2>Referrers of <code>stable</code></h2>"),
        ("/-/card?ref=stable", "of stable</span></h2>"),
        ("?tag=stable", "/team/app:stable</code>"),
    ] {
        contains(&admin.get(&format!("/team/app{url}")).await, &[text]);
    }
}

#[tokio::test]
async fn all_pages_have_the_same_tabs() {
    let app = app().await;
    let pages = ["", "/-/tree/x", "/-/tensors/x", "/-/try", "/-/tags", "/-/lineage", "/-/referrers"];
    let own = ["/-/history", "/-/diff/x..q4", "/-/card", "/-/card?of=repository", "/-/rules", "/-/settings"];
    let all = ["Overview", "Files", "Tensors", "Try", "Tags", "Lineage", "Referrers", "Rules", "Settings"];
    let names = |page: &TestResponse| tabs(page).into_iter().map(|(name, _)| name).collect::<Vec<String>>();
    let admin = Browser::signed_in(&app, "admin").await;
    let reader = Browser::signed_in(&app, "reader").await;
    for page in pages.iter().chain(&own) {
        assert_eq!(names(&admin.get(&format!("/team/app{page}")).await), all, "{page}");
    }
    for page in pages.iter().chain(&own[..2]) {
        assert_eq!(names(&reader.get(&format!("/team/app{page}")).await), all[..7], "{page}");
    }
    // A repository whose last tag is no model, and one without a tag.
    let image = basic("admin", PASSWORD);
    assert_eq!(app.push_as(&image, "team/image").await.status, 201);
    let plain = ["Overview", "Files", "Tags", "Lineage", "Referrers", "Rules", "Settings"];
    for page in ["", "/-/tags", "/-/rules", "/-/settings", "/-/history"] {
        assert_eq!(names(&admin.get(&format!("/team/image{page}")).await), plain, "{page}");
    }
    let delete = Request::delete("/v2/team/image/manifests/latest");
    assert_eq!(app.send_as(&image, delete, "").await.status, 202);
    for page in ["", "/-/tags", "/-/rules", "/-/settings", "/-/history"] {
        assert_eq!(
            names(&admin.get(&format!("/team/image{page}")).await),
            ["Overview", "Tags", "Rules", "Settings"]
        );
    }
}

#[tokio::test]
async fn lineage_lists_other_tags_of_the_repository() {
    let app = app().await;
    let admin = Browser::signed_in(&app, "admin").await;
    let page = admin.get("/team/app/-/lineage?tag=stable").await;
    contains(&page, &["<a href=\"/team/app?tag=q4\">team/app:q4</a>"]);
    let derived = page.text().split("id=\"derived\"").nth(1).unwrap().split("</section>").next().unwrap();
    assert!(!derived.contains("team/app:x") && !derived.contains("team/app:stable"), "{derived}");
    contains(&admin.get("/team/app?tag=stable").await, &["<a href=\"/team/app?tag=q4\">team/app:q4</a>"]);
    // What it was made from has one row, and it derives from no tag of its own.
    let page = admin.get("/team/app/-/lineage?tag=q4").await;
    assert_eq!(page.text().matches(">team/app:stable</a></th><td>").count(), 1, "{}", page.text());
    contains(&page, &["No model here names this one as its origin"]);
}

#[tokio::test]
async fn unknown_addresses_have_a_page_in_the_frame() {
    let app = app().await;
    let admin = Browser::signed_in(&app, "admin").await;
    let browse = async |path: &str| {
        let request = from_page(Request::get(path)).header("cookie", &admin.cookie);
        app.send(request.header("accept", "text/html"), "").await
    };
    for path in ["/team/app/-/nothing", "/team/app/-/settings/more", "/-/nothing"] {
        let page = browse(path).await;
        assert_eq!(page.status, 404, "{path}");
        contains(&page, &["Page not found", "There is no page at this address.", ">admin</a>", "Sign out"]);
    }
    // Programs get JSON.
    assert_eq!(app.get("/team/app/-/nothing").await.json()["error"], "no route matches this path");

    // A file below the address of the tree leads to its page. A folder has its files.
    let location = |page: TestResponse| (page.status.as_u16(), page.header("location").to_owned());
    let moved = location(browse("/team/app/-/tree/stable/config.json").await);
    assert_eq!(moved, (303, "/team/app/-/blob/stable/config.json".to_owned()));
    for missing in
        ["/team/app/-/tree/stable/config", "/team/app/-/tree/stable/none/x", "/team/none/-/tree/a/b"]
    {
        assert_eq!(browse(missing).await.status, 404, "{missing}");
    }
    let stranger = app.get("/team/app/-/tree/stable/config.json").await;
    assert_eq!(stranger.status, 404, "{}", stranger.text());
}

#[tokio::test]
async fn addresses_of_hugging_face_lead_to_the_revision() {
    let app = App::new().await;
    app.create_repository("team/hub").await;
    let first = app.committed("team/hub", &[file("config.json", CONFIG)]).await;
    app.committed("team/hub", &[file("docs/a.txt", b"first")]).await;
    close(&app).await;
    let reader = Browser::signed_in(&app, "reader").await;
    let follow = async |path: &str| {
        let moved = reader.get(path).await;
        assert_eq!(moved.status, 303, "{path}: {}", moved.text());
        let moved = moved.header("location").to_owned();
        let page = reader.get(&moved).await;
        match page.status.as_u16() {
            303 => reader.get(page.header("location")).await,
            _ => page,
        }
    };
    contains(&follow("/hf/team/hub/tree/main").await, &["docs/a.txt", "Files of"]);
    let before = follow(&format!("/hf/team/hub/tree/{first}")).await;
    contains(&before, &["config.json"]);
    assert!(!before.text().contains("docs/a.txt"), "{}", before.text());
    contains(&follow("/hf/team/hub/tree/main/docs").await, &["Files in docs", "docs/a.txt"]);
    contains(&follow("/hf/team/hub/blob/main/docs/a.txt").await, &["<code>first</code>"]);
    let commit = follow(&format!("/hf/team/hub/commit/{first}")).await;
    contains(&commit, &[&format!("<dt>Shown</dt><dd>sha256:{first}")]);
    // A revision that does not exist, and what a stranger gets.
    for path in ["/hf/team/hub/commit/0000000000000000000000000000000000000000", "/hf/team/hub/tree/none"] {
        assert_eq!(follow(path).await.status, 404, "{path}");
    }
    let hidden = app.get(&format!("/team/hub/-/tree/{first}")).await;
    assert_eq!(hidden.status, 404, "{}", hidden.text());
}

#[tokio::test]
async fn a_public_repository_is_confirmed_and_can_follow_its_namespace_again() {
    const PAGE: &str = "/team/app/-/settings";
    let app = app().await;
    let admin = Browser::signed_in(&app, "admin").await;
    let anonymous = async || app.get("/v2/team/app/manifests/x").await.status.as_u16();
    let set = async |value: &str| admin.post(PAGE, &format!("change=visibility&visibility={value}")).await;
    let saved = set("internal").await;
    assert_eq!(
        (saved.status.as_u16(), saved.header("location")),
        (303, "/team/app/-/settings?saved=visibility")
    );
    let page = admin.get(saved.header("location")).await;
    contains(&page, &["role=\"status\">Saved. Internal: every account may read."]);
    // The visibility, and the role of `anyone`, which is one.
    for change in ["change=visibility&visibility=public", "change=grant&subject=anyone&role=read"] {
        let asked = admin.post(PAGE, change).await;
        assert_eq!((asked.status.as_u16(), anonymous().await), (200, 401), "{}", asked.text());
        contains(
            &asked,
            &["Make team/app public?", "also without an account", "name=\"confirmed\" value=\"yes\""],
        );
        let confirmed = admin.post(PAGE, &format!("{change}&confirmed=yes")).await;
        assert_eq!((confirmed.status.as_u16(), anonymous().await), (303, 200), "{}", confirmed.text());
        contains(&admin.get(confirmed.header("location")).await, &["Saved. Public: everyone may read."]);
        // It is public already.
        assert_eq!(set("public").await.status, 303);
        assert_eq!((set("private").await.status.as_u16(), anonymous().await), (303, 401));
    }
    // As the namespace, which is public: that has to be confirmed, too.
    app.show("team/*", "public").await;
    contains(&admin.get(PAGE).await, &["<option value=\"inherit\">As team/*, which is public</option>"]);
    assert_eq!((set("inherit").await.status.as_u16(), anonymous().await), (200, 401));
    assert_eq!((set("inherit&confirmed=yes").await.status.as_u16(), anonymous().await), (303, 200));
    contains(&admin.get(PAGE).await, &["<option value=\"inherit\" selected>"]);
    app.show("team/*", "private").await;
    assert_eq!(anonymous().await, 401);
    // Programs do the same; a namespace has nothing to inherit.
    app.show("team/app", "public").await;
    let put = async |target: &str| {
        let body = json!({"target": target, "visibility": null}).to_string();
        app.send_as(&basic("admin", PASSWORD), Request::put("/lode/v1/visibility"), body).await
    };
    assert_eq!((put("team/app").await.status.as_u16(), anonymous().await), (204, 401));
    let refused = put("team/*").await;
    assert_eq!(refused.status, 400);
    contains(&refused, &["has no namespace to inherit from"]);
}

#[tokio::test]
async fn the_page_shows_who_may_read_and_how_to_sign_in() {
    let app = app().await;
    app.show("team/app", "internal").await;
    let reader = Browser::signed_in(&app, "reader").await;
    let page = reader.get("/team/app").await;
    contains(
        &page,
        &[
            "Internal: every account may read",
            "<code>lode login localhost:5000</code>",
            "<a href=\"/-/account#tokens\">a token of your account</a>",
            "Authorization: Bearer $LODE_TOKEN",
        ],
    );
    contains(&reader.get("/team/app/-/tags").await, &[">internal</span>"]);
    // Who reads a public model needs no account.
    app.show("team/app", "public").await;
    for page in [reader.get("/team/app").await, app.get("/team/app").await] {
        contains(&page, &["Public: everyone may read"]);
        for text in ["lode login", "LODE_TOKEN", "Sign in first"] {
            assert!(!page.text().contains(text), "{text}: {}", page.text());
        }
    }
}

#[tokio::test]
async fn protected_tags_are_marked() {
    const PAGE: &str = "/team/m/-/card?tag=latest";
    let app = App::new().await;
    app.create_repository("team/m").await;
    app.committed("team/m", &[file("config.json", CONFIG)]).await;
    app.push_image("team/m", "image", "other").await;
    close(&app).await;
    let writer = Browser::signed_in(&app, "writer").await;
    contains(&writer.get(PAGE).await, &["value=\"save\"", "Saving moves the tag <code>latest</code>"]);
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": ["lat*"]})).await;
    let tags = writer.get("/team/m/-/tags").await;
    assert_eq!(tags.text().matches(">protected</span>").count(), 1, "{}", tags.text());
    let page = writer.get(PAGE).await;
    contains(&page, &["is protected", "href=\"/team/m/-/card?of=repository&#38;tag=latest\""]);
    assert!(!page.text().contains("value=\"save\"") && !page.text().contains("Saving moves the tag"));
}

#[tokio::test]
async fn a_wrong_card_is_reported_in_the_preview_with_its_line() {
    const PAGE: &str = "/team/app/-/card?tag=x";
    let app = app().await;
    let writer = Browser::signed_in(&app, "writer").await;
    let text = "---\ntags: [a]\nlicense: [mit\nlanguage: en\n---\n# Title";
    let base = app.as_admin("/v2/team/app/manifests/x").await.header("docker-content-digest").to_owned();
    let page = writer.post(PAGE, &form("preview", &base, text)).await;
    assert_eq!(page.status, 200);
    let (before, preview) = page.text().split_once("id=\"preview\"").unwrap();
    assert!(!before.contains("class=\"problem\""), "{}", page.text());
    let (_, problem) = preview.split_once("role=\"alert\">").unwrap();
    let problem = problem.split("</p>").next().unwrap();
    assert!(problem.starts_with("line 4 of the card is not valid YAML: "), "{problem}");
    assert!(problem.len() < 120 && !problem.contains('|') && !problem.contains("column"), "{problem}");
}

#[tokio::test]
async fn browsers_without_an_account_are_sent_to_the_sign_in() {
    let app = app().await;
    let operators =
        ["accounts", "quotas", "deletions", "audit", "connections"].map(|page| format!("/-/admin/{page}"));
    let pages =
        ["/team/app/-/card?tag=x", "/-/admin"].into_iter().chain(operators.iter().map(String::as_str));
    for path in pages {
        let moved = app.send(from_page(Request::get(path)).header("accept", "text/html"), "").await;
        assert_eq!(moved.status, 303, "{path}");
        let next: String = url::form_urlencoded::byte_serialize(path.as_bytes()).collect();
        let location = moved.header("location").replace("%2D", "-");
        assert_eq!(location, format!("/login?next={next}"), "{path}");
        // Programs get a status.
        assert_eq!(app.get(path).await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_namespace_lists_its_members() {
    let app = app().await;
    app.show("team/*", "internal").await;
    let admin = Browser::signed_in(&app, "admin").await;
    let page = admin.get("/-/namespaces/team").await;
    contains(
        &page,
        &["The namespace is internal.", "<th scope=\"row\">writer</th><td data-name=\"Role\">write</td>"],
    );
}
