//! The pages for operators: their lists of accounts, quotas and workers, the form of a quota, what was deleted, the audit
//! log, and the mirrors and webhooks.

use http::Request;
use lode_client::Secret;
use serde_json::json;

use super::access::{PASSWORD, basic, closed};
use super::rules::push;
use super::sign_in::{Browser, from_page};
use super::wire::within;
use super::{App, TestResponse};
use crate::{Config, RetentionRule};

const ACCOUNTS: &str = "/-/admin/accounts";
const QUOTAS: &str = "/-/admin/quotas";

/// A server with an auditor and a user.
async fn app() -> App {
    with_people(closed().await).await
}

async fn app_with(config: Config) -> App {
    with_people(App::with(Config { admin_password: Some(Secret::new(PASSWORD)), ..config }).await).await
}

async fn with_people(app: App) -> App {
    for name in ["auditor", "alice"] {
        app.user(name).await;
    }
    app.admin("PATCH", "/lode/v1/accounts/auditor", json!({"server_role": "auditor"})).await;
    app
}

/// The number of rows in the tables of a page.
fn rows(page: &TestResponse) -> usize {
    page.text().matches("<th scope=\"row\">").count()
}

/// The address of the next page.
fn next_of(page: &TestResponse) -> Option<String> {
    let (_, rest) = page.text().split_once("<a rel=\"next\" href=\"")?;
    let url = rest.split('"').next()?.replace("&#38;", "&");
    Some(url.split('#').next()?.to_owned())
}

#[tokio::test]
async fn an_administrator_sets_quotas() {
    let app = app().await;
    assert_eq!(app.push_as(&basic("admin", PASSWORD), "team/app").await.status, 201);
    let admin = Browser::signed_in(&app, "admin").await;
    assert!(admin.get("/-/admin").await.text().contains(QUOTAS));
    assert!(admin.get(QUOTAS).await.text().contains("No namespace has a quota."));
    let set = admin.post(QUOTAS, "change=set&namespace=team&limit=2GiB").await;
    assert_eq!((set.status.as_u16(), set.header("location")), (303, QUOTAS), "{}", set.text());
    let page = admin.get(QUOTAS).await;
    for text in ["<a href=\"/-/namespaces/team\">team</a>", ">2GiB</td>", ">0 %</td>"] {
        assert!(page.text().contains(text), "{text}: {}", page.text());
    }
    // The form of a change has the stored value.
    let page = admin.get(&format!("{QUOTAS}?namespace=team")).await;
    assert!(page.text().contains("value=\"2GiB\""), "{}", page.text());
    assert_eq!(admin.post(QUOTAS, "change=set&namespace=team&limit=1").await.status, 303);
    assert!(admin.get("/-/namespaces/team").await.text().contains("has reached its limit"));
    for (namespace, limit, status, text) in [
        ("team", "much", 400, "`much` is not a size"),
        ("team", "", 400, "is not a size"),
        ("team", "-1", 400, "is not a size"),
        ("team", "99999999TiB", 400, "is not a size"),
        ("team/app", "1GiB", 400, "a namespace is the first part"),
        ("\"><script>", "1GiB", 400, "&#60;script&#62;"),
        ("", "1GiB", 400, "role=\"alert\""),
    ] {
        let fields = [("change", "set"), ("namespace", namespace), ("limit", limit)];
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let refused = admin.post(QUOTAS, &form).await;
        assert_eq!(refused.status, status, "{namespace} {limit}: {}", refused.text());
        assert!(refused.text().contains(text) && !refused.text().contains("<script>"), "{}", refused.text());
        let kept = format!("id=\"limit\" name=\"limit\" value=\"{limit}\"");
        assert!(refused.text().contains(&kept), "{kept}: {}", refused.text());
    }
    assert_eq!(admin.post(QUOTAS, "change=none&namespace=team&limit=1GiB").await.status, 400);
    assert!(admin.get(QUOTAS).await.text().contains(">1</td>"), "nothing of it was stored");
    let asked = admin.post(QUOTAS, "change=remove&namespace=team").await;
    for text in ["Remove the quota of team?", "Nothing is changed yet.", ">1</td>"] {
        assert!(asked.text().contains(text), "{text}: {} {}", asked.status, asked.text());
    }
    assert_eq!(admin.post(QUOTAS, "change=remove&namespace=team&confirmed=yes").await.status, 303);
    assert!(admin.get(QUOTAS).await.text().contains("No namespace has a quota."));
}

#[tokio::test]
async fn pages_are_for_operators() {
    let app = app().await;
    app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "team", "limit_bytes": 1000})).await;
    let form = "change=set&namespace=other&limit=1GiB";
    for (name, expect) in
        [("alice", [403, 403, 403]), ("auditor", [200, 200, 403]), ("admin", [200, 200, 303])]
    {
        let browser = Browser::signed_in(&app, name).await;
        let page = browser.get(QUOTAS).await;
        let got = [
            browser.get(ACCOUNTS).await.status.as_u16(),
            page.status.as_u16(),
            browser.post(QUOTAS, form).await.status.as_u16(),
        ];
        assert_eq!(got, expect, "{name}");
        assert_eq!(page.text().contains("Set a quota"), name == "admin", "{name}");
        assert_eq!(page.text().contains("value=\"remove\""), name == "admin", "{name}");
    }
    for path in [ACCOUNTS, QUOTAS] {
        assert_eq!(app.get_as("", path).await.status, 401, "{path}");
    }
    assert_eq!(app.send(from_page(Request::post(QUOTAS)), form).await.status, 401);
    let admin = Browser::signed_in(&app, "admin").await;
    let forged = from_page(Request::post(QUOTAS)).header("cookie", &admin.cookie);
    assert_eq!(app.send(forged, form).await.status, 403, "without the token of the session's forms");
    // Without accounts, everyone operates the server.
    let open = App::new().await;
    assert_eq!(open.send(from_page(Request::post(QUOTAS)), form).await.status, 303);
    assert!(open.get(QUOTAS).await.text().contains(">1GiB</td>"));
    assert_eq!(open.get(ACCOUNTS).await.status, 200);
}

#[tokio::test]
async fn lists_are_paged_and_searched() {
    let app = app().await;
    app.admin("POST", "/lode/v1/accounts", json!({"name": "alice+ci", "kind": "robot"})).await;
    app.user("alicia").await;
    for at in 0..51 {
        app.admin("POST", "/lode/v1/accounts", json!({"name": format!("z+{at:02}"), "kind": "robot"})).await;
        app.admin("PUT", "/lode/v1/quotas", json!({"namespace": format!("n{at:02}"), "limit_bytes": 1}))
            .await;
    }
    let admin = Browser::signed_in(&app, "admin").await;
    for (path, name, expect) in [
        // The names of accounts: admin, alice, alice+ci, alicia, auditor and those of z.
        (ACCOUNTS, "", vec![50, 6]),
        (ACCOUNTS, "ali", vec![3]),
        (ACCOUNTS, "alice", vec![2]),
        (ACCOUNTS, "ALICE%2B", vec![1]),
        (ACCOUNTS, "z%2B", vec![50, 1]),
        (ACCOUNTS, "%25", vec![0]),
        (ACCOUNTS, "%3Cscript%3E", vec![0]),
        (QUOTAS, "", vec![50, 1]),
        (QUOTAS, "n", vec![50, 1]),
        (QUOTAS, "n1", vec![10]),
        (QUOTAS, "N10", vec![1]),
        (QUOTAS, "%25", vec![0]),
        (QUOTAS, "%3Cscript%3E", vec![0]),
    ] {
        let mut found = Vec::new();
        let mut next = Some(format!("{path}?name={name}"));
        while let Some(path) = next {
            let page = admin.get(&path).await;
            assert_eq!(page.status, 200, "{path}");
            assert!(!page.text().contains("<script>"), "{}", page.text());
            found.push(rows(&page));
            next = next_of(&page).filter(|_| found.len() < 3);
        }
        assert_eq!(found, expect, "{path} {name}");
    }
    // A robot leads to its page, a user to the namespace of the same name.
    let page = admin.get(&format!("{ACCOUNTS}?name=alice")).await;
    for link in ["href=\"/-/robots/alice+ci\"", "href=\"/-/namespaces/alice\""] {
        assert!(page.text().contains(link), "{link}: {}", page.text());
    }
}

#[tokio::test]
async fn workers_are_paged() {
    let app = App::with(Config { worker_token: Some(Secret::new("let me join")), ..Config::default() }).await;
    for at in 0..51 {
        let body = json!({"advertise": format!("http://127.0.0.1:{}", 1000 + at)}).to_string();
        let joined = app.send_as("Bearer let me join", Request::post("/lode/v1/workers"), body).await;
        assert_eq!(joined.status, 201, "{}", joined.text());
    }
    let page = app.get("/-/admin").await;
    assert!(page.text().contains("51 workers are attached."), "{}", page.text());
    assert_eq!(rows(&page), 50);
    let (_, id) = page.text().split_once("<code class=\"muted\">").unwrap();
    let remove = format!("change=remove&id={}", id.split('<').next().unwrap());
    let asked = app.send(from_page(Request::post("/-/admin/workers")), remove.clone()).await;
    for text in ["Remove the worker http://127.0.0.1:", "51 workers are attached."] {
        assert!(asked.text().contains(text), "{text}: {} {}", asked.status, asked.text());
    }
    let page = app.get(&next_of(&page).unwrap()).await;
    assert_eq!((rows(&page), next_of(&page)), (1, None), "{}", page.text());
    assert!(page.text().contains("51 workers are attached."), "{}", page.text());
}

#[tokio::test]
async fn operators_read_the_audit_log() {
    const AUDIT: &str = "/-/admin/audit";
    let app = app().await;
    let agent = "<script>alert(1)</script>";
    let pushed = Request::post("/lode/v1/groups")
        .header("user-agent", agent)
        .header("content-type", "application/json");
    assert!(
        app.send_as(&basic("admin", PASSWORD), pushed, json!({"name": "staff"}).to_string())
            .await
            .status
            .is_success()
    );
    for at in 0..52 {
        app.show(&format!("team-{at}/*"), "public").await;
    }
    assert_eq!(app.push_as(&basic("alice", PASSWORD), "team/app").await.status, 404);
    let auditor = Browser::signed_in(&app, "auditor").await;
    assert!(auditor.get("/-/admin").await.text().contains(AUDIT));
    let page = auditor.get(AUDIT).await;
    assert!(!page.text().contains("<script>alert"), "{}", page.text());
    // The newest first, in pages that keep the filter.
    let filtered = format!("{AUDIT}?actor=user%3Aadmin&outcome=ok");
    let first = auditor.get(&filtered).await;
    assert_eq!(rows(&first), 50, "{}", first.text());
    let next = next_of(&first).unwrap();
    assert!(next.contains("actor=user%3Aadmin") && next.contains("&last="), "{next}");
    let second = auditor.get(&next).await;
    assert!(rows(&second) >= 3 && second.text().contains("First page"), "{}", second.text());
    assert!(second.text().contains("&#60;script&#62;alert(1)"), "{}", second.text());
    let refused = auditor.get(&format!("{AUDIT}?outcome=refused&actor=user%3Aalice")).await;
    assert!(rows(&refused) >= 1 && !refused.text().contains("user:admin"), "{}", refused.text());
    assert!(auditor.get(&format!("{AUDIT}?action=nothing")).await.text().contains("No record fits."));
    let alice = Browser::signed_in(&app, "alice").await;
    assert_eq!(alice.get(AUDIT).await.status, 403);
}

#[tokio::test]
async fn an_administrator_sees_what_is_due_and_restores_what_was_deleted() {
    const DELETIONS: &str = "/-/admin/deletions";
    let rule = RetentionRule {
        repositories: vec!["ci/*".to_owned()],
        keep_last: Some(1),
        keep: Vec::new(),
        remove_untagged_after: None,
    };
    let app = app_with(Config { retention: vec![rule], ..Config::default() }).await;
    let credentials = basic("admin", PASSWORD);
    for (name, tag) in [("ci/app", "1"), ("ci/app", "2"), ("team/app", "v1")] {
        assert_eq!(push(&app, &credentials, name, tag, tag).await, 201, "{name}:{tag}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let admin = Browser::signed_in(&app, "admin").await;
    assert!(admin.get(DELETIONS).await.text().contains("Nothing was deleted yet."));
    // What a collection would do.
    let started = admin.post(DELETIONS, "change=preview").await;
    assert_eq!(started.status, 303, "{}", started.text());
    let job = started.header("location").split('#').next().unwrap().to_owned();
    let page = within(async {
        loop {
            let page = admin.get(&job).await;
            if page.text().contains("A collection would delete") {
                return page;
            }
        }
    })
    .await;
    for text in ["1 tag,", "ci/app:1</th>", "retention rule 1: not among the newest tags"] {
        assert!(page.text().contains(text), "{text}: {}", page.text());
    }
    assert!(!page.text().contains("ci/app:2"));
    // A deleted tag is restored with its manifest.
    let path = "/v2/team/app/manifests/v1";
    assert_eq!(app.send_as(&credentials, Request::delete(path), "").await.status, 202);
    let auditor = Browser::signed_in(&app, "auditor").await;
    let seen = auditor.get(DELETIONS).await;
    for text in ["team/app:v1</th>", "deleted on request", "user:admin", "restorable until"] {
        assert!(seen.text().contains(text), "{text}: {}", seen.text());
    }
    assert!(!seen.text().contains("Restore<") && !seen.text().contains("Collect now"));
    let restore = "change=restore&repository=team%2Fapp&reference=v1";
    assert_eq!(auditor.post(DELETIONS, restore).await.status, 403);
    assert!(admin.get(DELETIONS).await.text().contains("Restore<"));
    assert_eq!(admin.post(DELETIONS, restore).await.status, 303);
    assert_eq!(app.get_as(&credentials, path).await.status, 200);
    assert!(admin.get(DELETIONS).await.text().contains(">restored "));
    let again = admin.post(DELETIONS, restore).await;
    assert!(again.status.is_client_error() && again.text().contains("role=\"alert\""), "{}", again.text());
    // A collection is confirmed first.
    let asked = admin.post(DELETIONS, "change=collect").await;
    assert!(asked.text().contains("Nothing is changed yet."), "{}", asked.text());
    assert_eq!(app.get_as(&credentials, "/v2/ci/app/manifests/1").await.status, 200);
    assert_eq!(admin.post(DELETIONS, "change=collect&confirmed=yes").await.status, 303);
    within(async {
        while app.get_as(&credentials, "/v2/ci/app/manifests/1").await.status == 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(admin.post(DELETIONS, "change=other").await.status, 400);
}

#[tokio::test]
async fn operators_see_mirrors_and_webhooks() {
    const CONNECTIONS: &str = "/-/admin/connections";
    let app = app().await;
    let admin = Browser::signed_in(&app, "admin").await;
    let page = admin.get(CONNECTIONS).await;
    for text in ["No registry is mirrored.", "No webhook is called."] {
        assert!(page.text().contains(text), "{text}: {}", page.text());
    }
    let webhook = json!({"url": "http://127.0.0.1:9/hook?token=s3cret", "secret": "whsec_c2VjcmV0", "events": ["push"]});
    let mirror =
        json!({"prefix": "hub/", "upstream": "http://127.0.0.1:9", "username": "ann", "password": "s3cret"});
    let config = Config {
        webhook: vec![serde_json::from_value(webhook).unwrap()],
        mirror: vec![serde_json::from_value(mirror).unwrap()],
        ..Config::default()
    };
    let app = app_with(config).await;
    assert_eq!(app.push_as(&basic("admin", PASSWORD), "team/app").await.status, 201);
    let admin = Browser::signed_in(&app, "admin").await;
    let page = admin.get(CONNECTIONS).await;
    for text in ["<code>hub/*</code>", ">ann</td>", "token=***", ">push</td>", "Deliver now"] {
        assert!(page.text().contains(text), "{text}: {}", page.text());
    }
    let listed = admin.get("/lode/v1/connections").await;
    let mirrors = json!([{"prefix": "hub/", "upstream": "http://127.0.0.1:9/", "username": "ann", "check_after_seconds": 300}]);
    let webhooks =
        json!([{"url": "http://127.0.0.1:9/hook?token=***", "events": ["push"], "repositories": []}]);
    assert_eq!(listed.json(), json!({"mirrors": mirrors, "webhooks": webhooks}));
    for shown in [page.text(), listed.text()] {
        assert!(!shown.contains("s3cret") && !shown.contains("c2VjcmV0"), "{shown}");
    }
    let (_, rest) = page.text().split_once("name=\"id\" value=\"").unwrap();
    let form = format!("id={}", rest.split('"').next().unwrap());
    assert_eq!(admin.post(CONNECTIONS, &form).await.status, 303);
    let auditor = Browser::signed_in(&app, "auditor").await;
    assert!(!auditor.get(CONNECTIONS).await.text().contains("Deliver now"));
    assert_eq!(auditor.post(CONNECTIONS, &form).await.status, 403);
    assert_eq!(admin.post(CONNECTIONS, "id=x").await.status, 404);
}
