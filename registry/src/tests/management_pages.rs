//! The pages with which people delete tags and repositories, and change the members of a namespace.

use http::Request;
use serde_json::json;

use super::access::{PASSWORD, basic};
use super::robot_pages::asks;
use super::sign_in::{Browser, from_page};
use super::{App, TestResponse};

const TAGS: &str = "/team/app/-/tags";
const SETTINGS: &str = "/team/app/-/settings";
const NAMESPACE: &str = "/-/namespaces/team";

/// A server with the tags `v1` and `v2` in `team/app`, and a user for each role on its namespace.
async fn app() -> App {
    let app = App::new().await;
    app.push_image("team/app", "v1", "one").await;
    app.push_image("team/app", "v2", "two").await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    for (name, role) in [("reader", "read"), ("writer", "write"), ("keeper", "maintain"), ("owner", "own")] {
        app.user(name).await;
        app.grant("team/*", name, role).await;
    }
    app.user("stranger").await;
    // What an open server has becomes internal when its first account ends that.
    app.admin("PUT", "/lode/v1/visibility", json!({"target": "team/app", "visibility": null})).await;
    app.show("team/*", "private").await;
    app
}

/// The status of a manifest, for the administrator.
async fn pull(app: &App, tag: &str) -> u16 {
    let path = format!("/v2/team/app/manifests/{tag}");
    app.get_as(&basic("admin", PASSWORD), &path).await.status.as_u16()
}

/// The status and the location of a redirect.
fn moved(response: &TestResponse) -> (u16, &str) {
    assert_eq!(response.status, 303, "{}", response.text());
    (response.status.as_u16(), response.header("location"))
}

/// The actions in the audit log with this target.
async fn audited(app: &App, target: &str) -> Vec<String> {
    let log = app.admin("GET", "/lode/v1/audit", json!(null)).await.json();
    let records = log["records"].as_array().unwrap_or_else(|| panic!("{log}")).iter();
    let found = records.filter(|entry| entry["target"] == target);
    found.map(|entry| entry["action"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_tag_is_deleted_once_it_is_confirmed_and_comes_back() {
    let app = app().await;
    let keeper = Browser::signed_in(&app, "keeper").await;
    let page = keeper.get("/team/app/-/tags?tag=v2").await;
    assert!(page.text().contains("name=\"tag\" value=\"v1\">Delete<"), "{}", page.text());
    let asked = keeper.post("/team/app/-/tags?tag=v2", "tag=v1").await;
    asks(&asked, "Delete the tag v1?");
    assert!(asked.text().contains("action=\"/team/app/-/tags?tag=v2\""), "{}", asked.text());
    assert_eq!(pull(&app, "v1").await, 200);
    let deleted = keeper.post("/team/app/-/tags?tag=v2", "tag=v1&confirmed=yes").await;
    assert_eq!(moved(&deleted), (303, "/team/app/-/tags?deleted=v1&tag=v2"));
    assert_eq!((pull(&app, "v1").await, pull(&app, "v2").await), (404, 200));
    assert_eq!(audited(&app, "team/app:v1").await, ["tag.delete"]);
    // The page says how it comes back.
    let page = keeper.get(deleted.header("location")).await;
    assert!(page.text().contains("The tag v1 is deleted. <a href=\"/team/app/-/history?tag=v1\">"));
    assert!(page.text().contains("Manifests without a tag"), "{}", page.text());
    let history = keeper.get("/team/app/-/history?tag=v1").await;
    let (_, position) = history.text().split_once("name=\"position\" value=\"").unwrap();
    let position = position.split('"').next().unwrap();
    let back = keeper.post("/team/app/-/history", &format!("tag=v1&position={position}")).await;
    assert_eq!((back.status.as_u16(), pull(&app, "v1").await), (303, 200), "{}", back.text());
    // Its manifest without the tag.
    let digest = app.get_as(&basic("admin", PASSWORD), "/v2/team/app/manifests/v1").await;
    let digest = digest.header("docker-content-digest").to_owned();
    let form = format!("manifest={digest}");
    assert_eq!(keeper.post(TAGS, "tag=v1&confirmed=yes").await.status, 303);
    let page = keeper.get(TAGS).await;
    assert!(
        page.text().contains(&format!("name=\"manifest\" value=\"{digest}\">Delete<")),
        "{}",
        page.text()
    );
    asks(&keeper.post(TAGS, &form).await, "Delete the manifest ");
    assert_eq!(pull(&app, &digest).await, 200);
    let deleted = keeper.post(TAGS, &format!("{form}&confirmed=yes")).await;
    assert_eq!((deleted.status.as_u16(), pull(&app, &digest).await), (303, 404), "{}", deleted.text());
    assert_eq!(audited(&app, &format!("team/app@{digest}")).await[0], "manifest.delete");
    let page = keeper.get(deleted.header("location")).await;
    assert!(page.text().contains("An operator can restore it for a while."), "{}", page.text());
    assert!(!page.text().contains("Manifests without a tag"), "{}", page.text());
    let again = keeper.post(TAGS, &format!("{form}&confirmed=yes")).await;
    assert!(again.status == 404 && again.text().contains("role=\"alert\""), "{}", again.text());
    assert_eq!(keeper.post(TAGS, "manifest=%3Cscript%3E").await.status, 400);
    // A tag that does not exist, and a name that no tag can have.
    let missing = keeper.post(TAGS, "tag=none&confirmed=yes").await;
    assert_eq!(missing.status, 404);
    assert!(
        missing.text().contains("class=\"problem\" role=\"alert\"") && missing.text().contains(">v2</a>")
    );
    assert_eq!(keeper.post(TAGS, "tag=%3Cscript%3E").await.status, 400);
}

#[tokio::test]
async fn a_protected_tag_says_why_it_stays() {
    let app = app().await;
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": ["v1"]})).await;
    let keeper = Browser::signed_in(&app, "keeper").await;
    let page = keeper.get(TAGS).await;
    let text = "<a href=\"/team/app/-/rules\">A rule</a> protects it";
    assert_eq!(page.text().matches(text).count(), 1, "{}", page.text());
    assert!(!page.text().contains("value=\"v1\">Delete<") && page.text().contains("value=\"v2\">Delete<"));
    let refused = keeper.post(TAGS, "tag=v1&confirmed=yes").await;
    assert_eq!((refused.status.as_u16(), pull(&app, "v1").await), (403, 200));
    assert!(refused.text().contains("is protected by the pattern `v1`"), "{}", refused.text());
    // It protects its repository, too.
    let owner = Browser::signed_in(&app, "owner").await;
    let refused = owner.post(SETTINGS, "change=delete-repository&confirm=team/app").await;
    assert_eq!((refused.status.as_u16(), pull(&app, "v2").await), (403, 200));
    assert!(refused.text().contains("is protected by the pattern `v1`"), "{}", refused.text());
}

#[tokio::test]
async fn those_who_may_delete_have_the_buttons() {
    let app = app().await;
    app.user("auditor").await;
    app.admin("PATCH", "/lode/v1/accounts/auditor", json!({"server_role": "auditor"})).await;
    // The status of the page and of both forms, and whether the page has buttons.
    for (name, tag, repository, buttons) in [
        ("stranger", 404, 404, false),
        ("reader", 403, 404, false),
        ("writer", 403, 404, false),
        ("auditor", 403, 404, false),
        ("keeper", 303, 404, true),
        ("owner", 303, 303, true),
        ("admin", 303, 303, true),
    ] {
        app.push_as(&basic("admin", PASSWORD), "team/app").await;
        let browser = Browser::signed_in(&app, name).await;
        assert_eq!(browser.get(TAGS).await.text().contains(">Delete<span"), buttons, "{name}");
        let got = browser.post(TAGS, "tag=latest&confirmed=yes").await.status.as_u16();
        assert_eq!((got, pull(&app, "latest").await), (tag, if tag == 303 { 404 } else { 200 }), "{name}");
        app.push_as(&basic("admin", PASSWORD), "team/app").await;
        let delete = "change=delete-repository&confirm=team%2Fapp";
        let got = browser.post(SETTINGS, delete).await.status.as_u16();
        let left = if repository == 303 { 404 } else { 200 };
        assert_eq!((got, pull(&app, "latest").await), (repository, left), "{name}");
    }
    app.push_as(&basic("admin", PASSWORD), "team/app").await;
    app.show("team/app", "public").await;
    // A visitor, and forms of another site or without the session's token.
    assert!(!app.get(TAGS).await.text().contains(">Delete<span"));
    let form = "tag=latest&confirmed=yes";
    assert_eq!(app.send(from_page(Request::post(TAGS)), form).await.status, 401);
    let owner = Browser::signed_in(&app, "owner").await;
    let forged = from_page(Request::post(TAGS)).header("cookie", &owner.cookie);
    assert_eq!(app.send(forged, form).await.status, 403);
    let foreign = Request::post(TAGS)
        .header("host", "localhost:5000")
        .header("sec-fetch-site", "cross-site")
        .header("cookie", &owner.cookie);
    assert_eq!(app.send(foreign, format!("csrf={}&{form}", owner.csrf)).await.status, 403);
    assert_eq!(pull(&app, "latest").await, 200);
}

#[tokio::test]
async fn an_owner_deletes_a_repository_by_its_name() {
    let app = app().await;
    let owner = Browser::signed_in(&app, "owner").await;
    let page = owner.get(SETTINGS).await;
    assert!(page.text().contains("Enter <code>team/app</code> to confirm"), "{}", page.text());
    for wrong in ["", "app", "team/*", "<b>"] {
        let form = format!("change=delete-repository&confirm={wrong}");
        let refused = owner.post(SETTINGS, &form).await;
        assert_eq!((refused.status.as_u16(), pull(&app, "v1").await), (400, 200), "{wrong}");
        assert!(refused.text().contains("has to be the repository&#39;s name, `team/app`"), "{wrong}");
        assert!(refused.text().contains("<details open>"), "{}", refused.text());
    }
    let deleted = owner.post(SETTINGS, "change=delete-repository&confirm=team/app").await;
    assert_eq!(moved(&deleted), (303, "/models?q=team/&all=1"));
    assert_eq!((pull(&app, "v1").await, pull(&app, "v2").await), (404, 404));
    assert!(!owner.get(deleted.header("location")).await.text().contains("team/app"));
    let again = owner.post(SETTINGS, "change=delete-repository&confirm=team/app").await;
    assert_eq!(again.status, 404, "{}", again.text());
}

#[tokio::test]
async fn removing_a_member_of_a_repository_is_confirmed() {
    let app = app().await;
    app.grant("team/app", "stranger", "read").await;
    let owner = Browser::signed_in(&app, "owner").await;
    let stranger = basic("stranger", PASSWORD);
    let tags = async || app.get_as(&stranger, "/v2/team/app/tags/list").await.status.as_u16();
    asks(&owner.post(SETTINGS, "change=remove&subject=stranger").await, "Remove stranger from team/app?");
    assert_eq!(tags().await, 200);
    let removed = owner.post(SETTINGS, "change=remove&subject=stranger&confirmed=yes").await;
    assert_eq!((moved(&removed), tags().await), ((303, "/team/app/-/settings?saved=role"), 404));
}

#[tokio::test]
async fn owners_change_the_members_of_a_namespace() {
    let app = app().await;
    let owner = Browser::signed_in(&app, "owner").await;
    let stranger = basic("stranger", PASSWORD);
    let tags =
        async |credentials: &str| app.get_as(credentials, "/v2/team/app/tags/list").await.status.as_u16();
    let page = owner.get(NAMESPACE).await;
    for text in
        ["<th scope=\"row\">writer</th>", ">Remove<span class=\"hidden\"> writer</span>", "Grant the role"]
    {
        assert!(page.text().contains(text), "no `{text}`: {}", page.text());
    }
    // 1. A role counts in all repositories until its loss is confirmed.
    let granted = owner.post(NAMESPACE, "change=grant&subject=stranger&role=read").await;
    assert_eq!((moved(&granted), tags(&stranger).await), ((303, "/-/namespaces/team?saved=role"), 200));
    assert!(owner.get(granted.header("location")).await.text().contains("Saved the roles."));
    asks(&owner.post(NAMESPACE, "change=remove&subject=stranger").await, "Remove stranger from team/*?");
    assert_eq!(tags(&stranger).await, 200);
    let removed = owner.post(NAMESPACE, "change=remove&subject=stranger&confirmed=yes").await;
    assert_eq!((moved(&removed).0, tags(&stranger).await), (303, 404));
    // 2. The visibility. A namespace has none to inherit, and becomes public only once that is confirmed.
    let set =
        async |value: &str| owner.post(NAMESPACE, &format!("change=visibility&visibility={value}")).await;
    assert_eq!(moved(&set("internal").await), (303, "/-/namespaces/team?saved=visibility"));
    assert_eq!((tags(&stranger).await, tags("").await), (200, 401));
    assert!(owner.get(NAMESPACE).await.text().contains("<option value=\"internal\" selected>"));
    for form in ["change=visibility&visibility=public", "change=grant&subject=anyone&role=read"] {
        asks(&owner.post(NAMESPACE, form).await, "Make team/* public?");
        assert_eq!(tags("").await, 401);
        assert_eq!(owner.post(NAMESPACE, &format!("{form}&confirmed=yes")).await.status, 303);
        assert_eq!(tags("").await, 200);
        assert_eq!((set("private").await.status.as_u16(), tags("").await), (303, 401));
    }
    // 3. What cannot be done is said on the page.
    for (form, status, text) in [
        ("change=grant&subject=nobody&role=read", 404, "no account or group is called `nobody`"),
        ("change=grant&subject=writer&role=king", 400, "`king` is not a role"),
        ("change=visibility&visibility=", 400, "is not a visibility"),
        ("change=visibility&visibility=inherit", 400, "has no namespace to inherit from"),
        ("change=remove&subject=stranger&confirmed=yes", 404, "has no role on"),
        ("change=all", 400, "change must be"),
    ] {
        let refused = owner.post(NAMESPACE, form).await;
        assert_eq!(refused.status, status, "{form}");
        assert!(refused.text().contains(text), "{form}: {}", refused.text());
        assert_eq!(refused.text().matches("role=\"alert\"").count(), 1, "{form}");
    }
}

#[tokio::test]
async fn others_do_not_change_the_members_of_a_namespace() {
    let app = app().await;
    app.user("auditor").await;
    app.admin("PATCH", "/lode/v1/accounts/auditor", json!({"server_role": "auditor"})).await;
    for (name, page, change) in [
        ("stranger", 404, 404),
        ("reader", 404, 404),
        ("writer", 404, 404),
        ("keeper", 404, 404),
        ("auditor", 200, 404),
        ("owner", 200, 303),
        ("admin", 200, 303),
    ] {
        let browser = Browser::signed_in(&app, name).await;
        let shown = browser.get(NAMESPACE).await;
        assert_eq!(shown.status, page, "{name}");
        assert_eq!(shown.text().contains("<th scope=\"row\">writer</th>"), page == 200, "{name}");
        for text in ["Grant the role", "Save the visibility", ">Remove<span"] {
            assert_eq!(shown.text().contains(text), change == 303, "{name}: {text}");
        }
        for form in ["change=grant&subject=stranger&role=read", "change=visibility&visibility=private"] {
            assert_eq!(browser.post(NAMESPACE, form).await.status, change, "{name}: {form}");
        }
    }
}

#[tokio::test]
async fn members_of_a_namespace_are_paged() {
    let app = app().await;
    for at in 0..101 {
        let name = format!("group{at:03}");
        app.admin("POST", "/lode/v1/groups", json!({"name": name})).await;
        app.grant("team/*", &name, "read").await;
    }
    let owner = Browser::signed_in(&app, "owner").await;
    let rows = |page: &TestResponse| page.text().matches("<span class=\"muted\">group</span>").count();
    let page = owner.get(NAMESPACE).await;
    let (_, rest) =
        page.text().split_once("<a rel=\"next\" href=\"").unwrap_or_else(|| panic!("{}", page.text()));
    let next = owner.get(rest.split(['"', '#']).next().unwrap()).await;
    assert_eq!((next.status.as_u16(), rows(&page) + rows(&next)), (200, 101), "{}", next.text());
    assert!(rows(&next) > 0 && next.text().contains("First members"), "{}", next.text());
    assert_eq!(owner.get(&format!("{NAMESPACE}?last=%00")).await.status, 400);
}
