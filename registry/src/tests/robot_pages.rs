//! The pages of a namespace and of a robot: who has them, and what their forms change.

use http::Request;
use lode_client::Secret;
use serde_json::json;

use super::access::{PASSWORD, basic};
use super::sign_in::{Browser, from_page};
use super::{App, TestResponse};
use crate::Config;

const NAMESPACE: &str = "/-/namespaces/team";
const ROBOT: &str = "/-/robots/team+ci";

/// A server with the repository `team/app` and a user for each role on its namespace.
async fn app() -> App {
    let public_url = Some("http://localhost:5000".parse().unwrap());
    let config = Config { admin_password: Some(Secret::new(PASSWORD)), public_url, ..Config::default() };
    let app = App::with(config).await;
    for (name, role) in [("reader", "read"), ("writer", "write"), ("keeper", "maintain"), ("owner", "own")] {
        app.user(name).await;
        app.grant("team/*", name, role).await;
    }
    app.user("stranger").await;
    assert_eq!(app.push_as(&basic("admin", PASSWORD), "team/app").await.status, 201);
    app
}

fn form(fields: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// The secret on a page.
fn secret_of(page: &TestResponse) -> String {
    let (_, rest) = page.text().split_once("class=\"secret\">").unwrap_or_else(|| panic!("{}", page.text()));
    rest.split('<').next().unwrap().to_owned()
}

/// The ids in the forms of a page that have a button with this value.
fn ids_of(page: &TestResponse, change: &str) -> Vec<String> {
    let forms = page.text().split("<form ").filter(|form| form.contains(&format!("value=\"{change}\"")));
    let id = |form: &str| Some(form.split_once("name=\"id\" value=\"")?.1.split('"').next()?.to_owned());
    forms.filter_map(id).collect()
}

/// Fails unless a page asks to confirm a change.
pub(super) fn asks(page: &TestResponse, question: &str) {
    assert_eq!(page.status, 200, "{question}");
    for text in [question, "Nothing is changed yet.", "name=\"confirmed\" value=\"yes\"", ">Cancel</a>"] {
        assert!(page.text().contains(text), "no `{text}`: {}", page.text());
    }
}

#[tokio::test]
async fn an_owner_makes_a_robot_that_pushes() {
    let app = app().await;
    let owner = Browser::signed_in(&app, "owner").await;
    // 1. The page is found from the account, the repository and the search.
    for page in ["/-/account", "/team/app/-/settings", "/models?q=team/&all=1"] {
        assert!(owner.get(page).await.text().contains(NAMESPACE), "{page}");
    }
    let page = owner.get(NAMESPACE).await;
    assert!(page.text().contains("There are no robots."), "{}", page.text());
    let created = owner.post(NAMESPACE, "name=ci").await;
    assert_eq!((created.status.as_u16(), created.header("location")), (303, ROBOT), "{}", created.text());
    assert!(owner.get(NAMESPACE).await.text().contains(&format!("<a href=\"{ROBOT}\">team+ci</a>")));
    // 2. A token, shown once.
    let page = owner.post(ROBOT, "change=create-token&name=nightly+%3Cjob%3E&access=write&days=30").await;
    let secret = secret_of(&page);
    let token = format!("Bearer {secret}");
    let page = owner.get(ROBOT).await;
    assert!(page.text().contains("nightly &#60;job&#62;") && !page.text().contains(&secret));
    assert!(page.text().contains("The robot has no role yet"), "{}", page.text());
    assert_eq!(app.push_as(&token, "team/app").await.status, 404);
    // 3. A role, with which it pushes.
    let granted = owner.post(ROBOT, "change=grant-role&target=team/*&role=write").await;
    assert_eq!((granted.status.as_u16(), granted.header("location")), (303, ROBOT), "{}", granted.text());
    assert_eq!(app.push_as(&token, "team/app").await.status, 201);
    assert_eq!(app.push_as(&basic("team+ci", &secret), "team/new").await.status, 201);
    // 4. Another token takes its place, and is revoked.
    let id = ids_of(&owner.get(ROBOT).await, "rotate-token").remove(0);
    let replace = form(&[("change", "rotate-token"), ("id", &id)]);
    asks(&owner.post(ROBOT, &replace).await, "Replace the token nightly &#60;job&#62;?");
    assert_eq!(app.push_as(&token, "team/app").await.status, 201);
    let replace = format!("{replace}&confirmed=yes");
    let page = owner.post(ROBOT, &replace).await;
    assert_eq!(app.push_as(&token, "team/app").await.status, 401);
    let token = format!("Bearer {}", secret_of(&page));
    assert_eq!(app.push_as(&token, "team/app").await.status, 201);
    let gone = owner.post(ROBOT, &replace).await;
    assert_eq!(gone.status, 404);
    assert!(gone.text().contains("no valid token has the id"), "{}", gone.text());
    let id = ids_of(&owner.get(ROBOT).await, "revoke-token").remove(0);
    let revoke = form(&[("change", "revoke-token"), ("id", &id)]);
    asks(&owner.post(ROBOT, &revoke).await, "Revoke the token nightly &#60;job&#62;?");
    assert_eq!(app.push_as(&token, "team/app").await.status, 201);
    assert_eq!(owner.post(ROBOT, &format!("{revoke}&confirmed=yes")).await.status, 303);
    assert_eq!(app.push_as(&token, "team/app").await.status, 401);
    // 5. The role and the robot are removed.
    asks(&owner.post(ROBOT, "change=remove-role&target=team/*").await, "Remove the role on team/*?");
    assert!(!owner.get(ROBOT).await.text().contains("The robot has no role yet"));
    assert_eq!(owner.post(ROBOT, "change=remove-role&target=team/*&confirmed=yes").await.status, 303);
    assert!(owner.get(ROBOT).await.text().contains("The robot has no role yet"));
    let refused = owner.post(ROBOT, "change=delete-robot&confirm=team").await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("has to be the robot&#39;s name"), "{}", refused.text());
    let deleted = owner.post(ROBOT, "change=delete-robot&confirm=team%2Bci").await;
    assert_eq!((deleted.status.as_u16(), deleted.header("location")), (303, NAMESPACE));
    assert_eq!(owner.get(ROBOT).await.status, 404);
    assert!(owner.get(NAMESPACE).await.text().contains("There are no robots."));
}

#[tokio::test]
async fn an_owner_registers_publishers() {
    let app = app().await;
    let owner = Browser::signed_in(&app, "owner").await;
    owner.post(NAMESPACE, "name=ci").await;
    let github = [
        ("change", "add-publisher"),
        ("kind", "github"),
        ("repository", "octo-org/octo-repo"),
        ("workflow", ".github/workflows/publish.yml"),
        ("environment", "release"),
        ("claims", "ref=refs/heads/main\r\n\r\n repository_id = 7 \r\n"),
        ("issuer", ""),
    ];
    let gitlab = [("change", "add-publisher"), ("kind", "gitlab"), ("project_path", "group/project")];
    let other = [
        ("change", "add-publisher"),
        ("kind", "oidc"),
        ("issuer", "https://oidc.example/cluster"),
        ("claims", "sub=system:serviceaccount:ml:trainer"),
    ];
    for fields in [&github[..], &gitlab, &other] {
        let added = owner.post(ROBOT, &form(fields)).await;
        assert_eq!((added.status.as_u16(), added.header("location")), (303, ROBOT), "{}", added.text());
    }
    let stored = app.admin("GET", "/lode/v1/publishers?robot=team%2Bci", json!(null)).await.json();
    let publishers = stored["publishers"].as_array().unwrap();
    assert_eq!(
        publishers.iter().map(|publisher| publisher["conditions"].clone()).collect::<Vec<_>>(),
        [
            json!({
                "repository": "octo-org/octo-repo", "workflow": "publish.yml", "environment": "release",
                "ref": "refs/heads/main", "repository_id": "7",
            }),
            json!({"project_path": "group/project", "config_file": ".gitlab-ci.yml"}),
            json!({"sub": "system:serviceaccount:ml:trainer"}),
        ]
    );
    assert_eq!(publishers[0]["issuer"], "https://token.actions.githubusercontent.com");
    let page = owner.get(ROBOT).await;
    for text in ["GitHub Actions", "GitLab CI", "sub=system:serviceaccount:ml:trainer", "repository_id=7"] {
        assert!(page.text().contains(text), "{text}: {}", page.text());
    }
    assert!(!page.text().contains("public_url"), "{}", page.text());
    for id in ids_of(&page, "remove-publisher") {
        let remove = form(&[("change", "remove-publisher"), ("id", &id)]);
        asks(&owner.post(ROBOT, &remove).await, "Remove the publisher ");
        assert!(owner.get(ROBOT).await.text().contains(&id));
        assert_eq!(owner.post(ROBOT, &format!("{remove}&confirmed=yes")).await.status, 303);
    }
    assert!(owner.get(ROBOT).await.text().contains("There are no publishers."));
}

/// The fields of a form, the status of the response, and texts of its page.
type RefusedForm<'a> = (&'a [(&'a str, &'a str)], u16, &'a [&'a str]);

/// Each refused form is shown again with what was entered, in the section that it belongs to.
#[tokio::test]
async fn refused_forms_keep_what_was_entered() {
    let app = app().await;
    let owner = Browser::signed_in(&app, "owner").await;
    for (name, status, text) in [
        ("Not a name", 400, "invalid name"),
        ("", 400, "expected 1 to 63 characters"),
        ("a+b", 400, "invalid name"),
        ("\"><script>", 400, "&#60;script&#62;"),
        ("everyone", 400, "it is reserved"),
    ] {
        let refused = owner.post(NAMESPACE, &form(&[("name", name)])).await;
        assert_eq!(refused.status, status, "{name}");
        assert!(refused.text().contains(text) && !refused.text().contains("<script>"), "{}", refused.text());
    }
    assert!(owner.post(NAMESPACE, "name=Big").await.text().contains("value=\"Big\""));
    assert_eq!(owner.post(NAMESPACE, "name=ci").await.status, 303);
    assert_eq!(owner.post(NAMESPACE, "name=ci").await.status, 409);

    let bare = |kind| [("change", "add-publisher"), ("kind", kind)];
    let long = "x".repeat(501);
    let none = "00000000-0000-0000-0000-000000000000";
    let cases: &[RefusedForm<'_>] = &[
        (
            &[("change", "create-token"), ("name", "a\"b"), ("access", "all"), ("days", "7")],
            400,
            &["`all` is not", "value=\"a&#34;b\"", "value=\"7\""],
        ),
        (
            &[("change", "create-token"), ("name", "x"), ("access", "read"), ("days", "x")],
            400,
            &["invalid lifetime of a token", "<option value=\"read\" selected>"],
        ),
        (&[("change", "revoke-token"), ("id", "x")], 404, &["`x` is not a valid id"]),
        (
            &[("change", "revoke-token"), ("id", none), ("confirmed", "yes")],
            404,
            &["no valid token has the id"],
        ),
        (
            &[("change", "grant-role"), ("target", "TEAM"), ("role", "own")],
            400,
            &["`TEAM` is not", "value=\"TEAM\"", "<option value=\"own\" selected>"],
        ),
        (&[("change", "grant-role"), ("target", "team/*"), ("role", "god")], 400, &["`god` is not a role"]),
        // Of another namespace.
        (
            &[("change", "grant-role"), ("target", "other/*"), ("role", "read")],
            400,
            &["`other/*` has other owners", "value=\"other/*\""],
        ),
        (&[("change", "remove-role"), ("target", "team/*"), ("confirmed", "yes")], 404, &["has no role on"]),
        (&bare("github"), 400, &["the condition `repository` is missing"]),
        (&bare("gitlab"), 400, &["the condition `project_path` is missing"]),
        (&bare("oidc"), 400, &["expected 1 to 16 conditions"]),
        (&bare("jenkins"), 400, &["kind must be"]),
        (
            &[
                ("change", "add-publisher"),
                ("kind", "github"),
                ("repository", "octo/<b>"),
                ("workflow", "a.yml"),
                ("claims", "nonsense"),
            ],
            400,
            &["`nonsense` is not a claim", "octo/&#60;b&#62;", "value=\"a.yml\"", "<details open>"],
        ),
        (
            &[
                ("change", "add-publisher"),
                ("kind", "github"),
                ("repository", "a/b"),
                ("workflow", "a.yml"),
                ("claims", "repository=c/d"),
            ],
            400,
            &["`repository` has two values"],
        ),
        (
            &[
                ("change", "add-publisher"),
                ("kind", "oidc"),
                ("issuer", "ftp://x"),
                ("claims", "a=b\nc=</textarea>"),
            ],
            400,
            &["invalid issuer `ftp://x`", "value=\"ftp://x\"", "a=b\nc=&#60;/textarea&#62;"],
        ),
        (
            &[("change", "add-publisher"), ("kind", "gitlab"), ("project_path", &long), ("config_file", "x")],
            400,
            &["1 to 500 characters"],
        ),
        (&[("change", "remove-publisher"), ("id", none)], 404, &["no publisher has the id"]),
        (&[("change", "everything")], 400, &["the field `change` has an unknown value"]),
        (&[], 400, &["the field `change` has an unknown value"]),
    ];
    for (fields, status, texts) in cases {
        let refused = owner.post(ROBOT, &form(fields)).await;
        assert_eq!(refused.status, *status, "{fields:?}: {}", refused.text());
        assert_eq!(refused.text().matches("role=\"alert\"").count(), 1, "{fields:?}");
        for text in *texts {
            assert!(refused.text().contains(text), "{fields:?} {text}: {}", refused.text());
        }
        assert!(!refused.text().contains("<b>"), "{}", refused.text());
    }
    // Nothing of it was stored.
    let page = owner.get(ROBOT).await;
    for text in ["There are no tokens.", "The robot has no role yet", "There are no publishers."] {
        assert!(page.text().contains(text), "{text}: {}", page.text());
    }
}

/// The status of both pages, and of a form of each.
#[tokio::test]
async fn pages_are_for_owners_of_the_namespace() {
    let app = app().await;
    app.user("auditor").await;
    app.admin("PATCH", "/lode/v1/accounts/auditor", json!({"server_role": "auditor"})).await;
    app.admin("POST", "/lode/v1/accounts", json!({"name": "team+ci", "kind": "robot"})).await;
    app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "team", "limit_bytes": 1 << 30})).await;
    for (name, expect) in [
        ("stranger", [404, 404, 404, 404]),
        ("reader", [404, 404, 404, 404]),
        ("writer", [404, 404, 404, 404]),
        ("keeper", [404, 404, 404, 404]),
        ("auditor", [200, 404, 404, 404]),
        ("owner", [200, 303, 200, 200]),
        ("admin", [200, 303, 200, 200]),
    ] {
        let browser = Browser::signed_in(&app, name).await;
        let create = format!("name=robot-of-{name}");
        let token = "change=create-token&name=x&access=read&days=1";
        let got = [
            browser.get(NAMESPACE).await.status.as_u16(),
            browser.post(NAMESPACE, &create).await.status.as_u16(),
            browser.get(ROBOT).await.status.as_u16(),
            browser.post(ROBOT, token).await.status.as_u16(),
        ];
        assert_eq!(got, expect, "{name}");
        let is_linked = browser.get("/models?q=team/&all=1").await.text().contains(NAMESPACE);
        assert_eq!(is_linked, expect[1] == 303, "{name}");
        let page = browser.get(NAMESPACE).await;
        assert_eq!(page.text().contains("1GiB"), expect[0] == 200, "{name}: {}", page.text());
        // Only auditors and administrators see what other namespaces have, too.
        assert_eq!(page.text().contains("Nowhere else"), ["auditor", "admin"].contains(&name), "{name}");
        assert_eq!(page.text().contains("Name of a new robot"), expect[1] == 303, "{name}");
        // What is hidden looks as if it did not exist.
        if expect[2] == 404 {
            let missing = browser.get("/-/robots/team+none").await;
            assert_eq!(browser.get(ROBOT).await.text(), missing.text(), "{name}");
        }
    }
    for path in [NAMESPACE, ROBOT] {
        let sent = app.send(Request::get(path).header("host", "localhost:5000"), "").await;
        assert_eq!(sent.status, 303);
        assert!(sent.header("location").starts_with("/login?next=%2F%2D%2F"), "{}", sent.header("location"));
        assert_eq!(app.send(from_page(Request::post(path)), "name=x").await.status, 303);
        // A form of another site, or without the session's token.
        let owner = Browser::signed_in(&app, "owner").await;
        let forged = from_page(Request::post(path)).header("cookie", &owner.cookie);
        assert_eq!(app.send(forged, "name=x&change=delete-robot&confirm=team%2Bci").await.status, 403);
        let foreign = Request::post(path)
            .header("host", "localhost:5000")
            .header("sec-fetch-site", "cross-site")
            .header("cookie", &owner.cookie);
        let body = format!("csrf={}&name=x&change=delete-robot&confirm=team%2Bci", owner.csrf);
        assert_eq!(app.send(foreign, body).await.status, 403);
    }
    let owner = Browser::signed_in(&app, "owner").await;
    assert_eq!(owner.get(ROBOT).await.status, 200);
    for (path, text) in [
        ("/-/robots/team+none", "no account or group is called `team+none`"),
        ("/-/robots/owner", "there is no such page here"),
        ("/-/robots/TEAM+ci", "there is no such page here"),
        ("/-/robots/%3Cscript%3E+ci", "there is no such page here"),
        ("/-/namespaces/TEAM", "there is no such page here"),
        ("/-/namespaces/nobody", "there is no such page here"),
        ("/-/namespaces/%3Cscript%3E", "there is no such page here"),
    ] {
        let page = owner.get(path).await;
        assert_eq!(page.status, 404, "{path}");
        assert!(page.text().contains(text) && !page.text().contains("<script>"), "{}", page.text());
    }
    assert_eq!(owner.get(&format!("{ROBOT}?before=x")).await.status, 400);
}

#[tokio::test]
async fn lists_of_robots_and_tokens_are_paged() {
    let app = app().await;
    for at in 0..51 {
        let name = format!("team+r{at:02}");
        app.admin("POST", "/lode/v1/accounts", json!({"name": name, "kind": "robot"})).await;
        app.admin("POST", "/lode/v1/tokens", json!({"name": format!("t{at:02}"), "account": "team+r00"}))
            .await;
    }
    let owner = Browser::signed_in(&app, "owner").await;
    for (path, mark, first, last) in [
        (NAMESPACE, "<th scope=\"row\"><a href=\"/-/robots/", "team+r00", "team+r50"),
        ("/-/robots/team+r00", "<th scope=\"row\">t", "t50", "t00"),
    ] {
        let row = |page: &TestResponse, name: &str| {
            page.text().contains(&format!(">{name}</a></th>"))
                || page.text().contains(&format!(">{name}</th>"))
        };
        let page = owner.get(path).await;
        assert_eq!(page.text().matches(mark).count(), 50, "{path}");
        assert!(row(&page, first) && !row(&page, last), "{path}: {}", page.text());
        let (_, rest) = page.text().split_once("<a rel=\"next\" href=\"").unwrap();
        let next = rest.split(['"', '#']).next().unwrap();
        let page = owner.get(next).await;
        assert_eq!(page.text().matches(mark).count(), 1, "{path}: {}", page.text());
        assert!(row(&page, last) && !page.text().contains("rel=\"next\""), "{path}: {}", page.text());
    }
}
