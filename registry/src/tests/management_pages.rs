//! The pages with which people change the members of a repository and of a namespace.

use serde_json::json;

use super::access::{PASSWORD, basic};
use super::robot_pages::asks;
use super::sign_in::Browser;
use super::{App, TestResponse};

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

/// The status and the location of a redirect.
fn moved(response: &TestResponse) -> (u16, &str) {
    assert_eq!(response.status, 303, "{}", response.text());
    (response.status.as_u16(), response.header("location"))
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
