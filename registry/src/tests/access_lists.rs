//! Lists of groups, roles, visibilities, protected tags, keys and publishers: pages with `n`, `last` and `Link`, and
//! pages of the browser.

use http::Request;
use serde_json::{Value, json};
use uuid::Uuid;

use super::App;
use super::access::{PASSWORD, basic};
use super::listings::pages_as;
use super::rights::each_database;
use super::sign_in::Browser;
use crate::auth::{AccessTarget, OllamaKey, Role, Visibility};
use crate::store::{OllamaKeyRow, PublisherRow};

/// How many rows of each kind a server has: one more than the largest page.
const MANY: u32 = 1001;

fn key(at: u32) -> OllamaKey {
    OllamaKey::from_hex(&format!("{at:064x}")).unwrap()
}

fn entries(list: &Value) -> Vec<Value> {
    list.as_array().unwrap().clone()
}

/// The names of groups with each of their members, in the order of the list.
fn members(groups: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut all = Vec::new();
    for group in groups {
        let members = entries(&group["members"]);
        if members.is_empty() {
            all.push((text(&group["name"]), String::new()));
        }
        all.extend(members.iter().map(|member| (text(&group["name"]), text(member))));
    }
    all
}

#[tokio::test]
async fn groups_come_in_pages() {
    each_database(async |app: App| {
        let admin = basic("admin", PASSWORD);
        for name in ["team+b", "team+a", "team+c"] {
            app.admin("POST", "/lode/v1/accounts", json!({"name": name, "kind": "robot"})).await;
        }
        for (group, joined) in
            [("zoo", &["team+c", "team+a", "team+b"][..]), ("empty", &[]), ("a", &["team+b"])]
        {
            app.admin("POST", "/lode/v1/groups", json!({"name": group})).await;
            for account in joined {
                app.admin("PUT", &format!("/lode/v1/groups/{group}/members/{account}"), json!(null)).await;
            }
        }
        let expect =
            [("a", "team+b"), ("empty", ""), ("zoo", "team+a"), ("zoo", "team+b"), ("zoo", "team+c")];
        let expect = expect.map(|(group, member)| (group.to_owned(), member.to_owned()));
        let whole = app.get_as(&admin, "/lode/v1/groups").await;
        assert_eq!((members(&entries(&whole.json()["groups"])), whole.next_page()), (expect.to_vec(), None));
        assert_eq!(whole.json()["groups"].as_array().unwrap().len(), 3);
        assert_eq!(members(&pages_as(&app, &admin, "/lode/v1/groups", "groups").await), expect);
        // Two members of the last group are on this page, and the third one on the next.
        let page = app.get_as(&admin, "/lode/v1/groups?n=4").await;
        assert_eq!(members(&entries(&page.json()["groups"])), expect[..4]);
        let rest = app.get_as(&admin, &page.next_page().unwrap()).await;
        assert_eq!(
            (members(&entries(&rest.json()["groups"])), rest.next_page()),
            (expect[4..].to_vec(), None)
        );
    })
    .await;
}

#[tokio::test]
async fn roles_and_visibilities_come_in_pages() {
    each_database(async |app: App| {
        let (admin, alice) = (basic("admin", PASSWORD), app.user("alice").await);
        app.admin("POST", "/lode/v1/groups", json!({"name": "ml"})).await;
        for (target, subject, role) in [
            ("team", "ml", "read"),
            ("team", "alice", "own"),
            ("team/*", "ml", "write"),
            ("team/app", "alice", "own"),
            ("team/app", "ml", "read"),
            ("team/other", "ml", "read"),
        ] {
            app.grant(target, subject, role).await;
        }
        for (target, visibility) in
            [("team", "public"), ("team/*", "internal"), ("team/app", "public"), ("zoo/*", "public")]
        {
            app.show(target, visibility).await;
        }
        for (credentials, path, roles, visible) in [
            // Both own the namespaces of their names, too.
            (&admin, "/lode/v1/grants", 8, 4),
            (&alice, "/lode/v1/grants?target=team/app", 2, 2),
            (&alice, "/lode/v1/grants?target=team", 2, 2),
            (&admin, "/lode/v1/grants?target=team/*", 1, 1),
            (&admin, "/lode/v1/grants?target=team/none", 0, 1),
        ] {
            let whole = app.get_as(credentials, path).await;
            let lists = ["grants", "visibilities"].map(|list| entries(&whole.json()[list]));
            assert_eq!((lists[0].len(), lists[1].len()), (roles, visible), "{path}: {}", whole.text());
            assert_eq!(whole.next_page(), None, "{path}");
            for (list, expect) in ["grants", "visibilities"].into_iter().zip(&lists) {
                assert_eq!(&pages_as(&app, credentials, path, list).await, expect, "{path}");
            }
            // Each page but the last one is full, with both lists together.
            let first = app.get_as(credentials, &format!("{path}{}n=2", separator(path))).await;
            let len = |list: &str| first.json()[list].as_array().unwrap().len();
            assert_eq!(len("grants") + len("visibilities"), (roles + visible).min(2), "{path}");
            assert_eq!(first.next_page().is_some(), roles + visible > 2, "{path}");
        }
        let targets: Vec<Value> = entries(&app.get_as(&admin, "/lode/v1/grants").await.json()["grants"])
            .iter()
            .map(|grant| grant["target"].clone())
            .collect();
        assert_eq!(
            targets,
            ["admin/*", "alice/*", "team", "team", "team/*", "team/app", "team/app", "team/other"]
                .map(Value::from)
        );
    })
    .await;
}

fn separator(path: &str) -> char {
    if path.contains('?') { '&' } else { '?' }
}

#[tokio::test]
async fn patterns_keys_and_publishers_come_in_pages() {
    each_database(async |app: App| {
        let (admin, alice) = (basic("admin", PASSWORD), app.user("alice").await);
        for (target, patterns) in
            [("team/*", &["v*", "release-*"][..]), ("alice/app", &["b", "a"]), ("alice/*", &["x"])]
        {
            app.admin("PUT", "/lode/v1/protected-tags", json!({"target": target, "patterns": patterns}))
                .await;
        }
        app.admin("POST", "/lode/v1/accounts", json!({"name": "alice+ci", "kind": "robot"})).await;
        for at in 0..3 {
            let body = json!({"key": key(at).line(), "name": format!("key {at}")}).to_string();
            assert_eq!(app.send_as(&alice, Request::post("/lode/v1/keys"), body).await.status, 201);
            let conditions = json!({"repository": format!("alice/{at}"), "workflow": "publish.yml"});
            let body = json!({"robot": "alice+ci", "kind": "github", "conditions": conditions});
            app.admin("POST", "/lode/v1/publishers", body).await;
        }
        for (credentials, path, list, field, expect) in [
            (
                &admin,
                "/lode/v1/protected-tags",
                "protected_tags",
                "/pattern",
                &["x", "a", "b", "release-*", "v*"][..],
            ),
            // Those of the namespace apply, too.
            (
                &alice,
                "/lode/v1/protected-tags?target=alice/app",
                "protected_tags",
                "/pattern",
                &["x", "a", "b"],
            ),
            (&alice, "/lode/v1/protected-tags?target=alice/*", "protected_tags", "/pattern", &["x"]),
            (&alice, "/lode/v1/keys", "keys", "/name", &["key 2", "key 1", "key 0"]),
            (&admin, "/lode/v1/keys?account=alice", "keys", "/name", &["key 2", "key 1", "key 0"]),
            (
                &alice,
                "/lode/v1/publishers?robot=alice%2Bci",
                "publishers",
                "/conditions/repository",
                &["alice/0", "alice/1", "alice/2"],
            ),
        ] {
            let whole = app.get_as(credentials, path).await;
            let all = entries(&whole.json()[list]);
            let found: Vec<&str> =
                all.iter().map(|entry| entry.pointer(field).unwrap().as_str().unwrap()).collect();
            assert_eq!((found, whole.next_page()), (expect.to_vec(), None), "{path}");
            assert_eq!(pages_as(&app, credentials, path, list).await, all, "{path}");
        }
        for path in [
            "/lode/v1/groups?last=%00",
            "/lode/v1/grants?last=team%2Fapp%20%C3%A9",
            "/lode/v1/protected-tags?last=%0A",
            "/lode/v1/groups?n=x",
            "/lode/v1/grants?n=-1",
            "/lode/v1/protected-tags?n=x",
            "/lode/v1/keys?n=x",
            "/lode/v1/publishers?robot=alice%2Bci&n=x",
        ] {
            assert_eq!(app.get_as(&admin, path).await.status, 400, "{path}");
        }
        for path in ["/lode/v1/keys?last=x", "/lode/v1/publishers?robot=alice%2Bci&last=x"] {
            assert_eq!(app.get_as(&admin, path).await.status, 404, "{path}");
        }
    })
    .await;
}

/// Adds many rows to each list: groups, roles of them on `team/app`, visibilities, patterns, and keys and publishers of
/// the administrator and of the robot `team+ci`.
async fn fill(app: &App) {
    let store = app.registry.store();
    let account = async |name: &str| store.account_find_by_name(name).await.unwrap().unwrap().id;
    let (admin, robot) = (account("admin").await, account("team+ci").await);
    let target = |text: String| -> AccessTarget { text.parse().unwrap() };
    let mut tx = store.begin().await.unwrap();
    for at in 0..MANY {
        let (id, account) = (Uuid::now_v7(), robot);
        assert!(tx.group_insert(id, &format!("group-{at}"), None, None).await.unwrap());
        tx.grant_put(&target("team/app".to_owned()), id, Role::Read).await.unwrap();
        let repository = target(format!("team/r{at}"));
        tx.visibility_put(&repository, Some(Visibility::Public)).await.unwrap();
        tx.tag_rules_put(&repository, &["v*".to_owned()]).await.unwrap();
        let row = OllamaKeyRow {
            id: Uuid::now_v7(),
            account: admin,
            public_key: key(at).to_hex(),
            name: format!("key {at}"),
            created_at: 0,
            used_at: None,
        };
        assert!(tx.ollama_key_insert(&row).await.unwrap());
        let row = PublisherRow {
            id: Uuid::now_v7(),
            account,
            kind: "oidc".to_owned(),
            issuer: "https://issuer.example".to_owned(),
            conditions: [("sub".to_owned(), at.to_string())].into(),
            pins: [].into(),
            created_at: 0,
            used_at: None,
            claims: None,
        };
        tx.publisher_insert(&row).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// Clients that know of no pages get the first one, and no client gets a longer one.
#[tokio::test]
async fn pages_are_bounded() {
    each_database(async |app: App| {
        let admin = basic("admin", PASSWORD);
        app.admin("POST", "/lode/v1/accounts", json!({"name": "team+ci", "kind": "robot"})).await;
        fill(&app).await;
        for (path, list) in [
            ("/lode/v1/groups", "groups"),
            ("/lode/v1/grants?target=team/app", "grants"),
            ("/lode/v1/protected-tags", "protected_tags"),
            ("/lode/v1/keys", "keys"),
            ("/lode/v1/publishers?robot=team%2Bci", "publishers"),
        ] {
            for query in ["", "n=0", "n=5000", "n=99999999999999999999"] {
                let page = app.get_as(&admin, &format!("{path}{}{query}", separator(path))).await;
                let expect = if query == "n=0" { 1 } else { 1000 };
                assert_eq!(page.json()[list].as_array().unwrap().len(), expect, "{path} {query}");
                let next = page.next_page().unwrap();
                if query != "n=0" {
                    let rest = app.get_as(&admin, &next).await;
                    assert_eq!(rest.json()[list].as_array().unwrap().len(), 1, "{next}");
                    assert_eq!(rest.next_page(), None, "{next}");
                }
            }
        }
        let whole = app.get_as(&admin, "/lode/v1/grants").await;
        let len = |list: &str| whole.json()[list].as_array().unwrap().len();
        assert_eq!(len("grants") + len("visibilities"), 1000);

        // The pages of the browser.
        let browser = Browser::signed_in(&app, "admin").await;
        let follow = async |path: &str, name: &str| {
            let page = browser.get(path).await;
            assert_eq!(page.status, 200, "{path}");
            let (before, _) = page.text().split_once(&format!("\">{name}</a>"))?;
            let address = before.rsplit_once("href=\"")?.1.replace("&#38;", "&");
            Some(address.split('#').next()?.to_owned())
        };
        let rows = async |path: &str, begin: &str| browser.get(path).await.text().matches(begin).count();
        let key_row = "<tr><th scope=\"row\">key ";
        assert_eq!(rows("/-/account", key_row).await, 50);
        assert_eq!(follow("/-/account", "Newest keys").await, None);
        let older = follow("/-/account", "Older keys").await.unwrap();
        assert_eq!(rows(&older, key_row).await, 50);
        assert!(
            browser.get(&older).await.text().contains(">key 950<"),
            "the second page begins with key 950"
        );
        assert_eq!(follow(&older, "Newest keys").await.as_deref(), Some("/-/account"));
        assert_eq!(browser.get("/-/account?keys_before=x").await.status, 400);

        app.push_as(&admin, "team/app").await;
        let (mut next, mut seen) = (Some("/team/app/-/settings".to_owned()), 0);
        while let Some(path) = next {
            let count = rows(&path, "<tr><th scope=\"row\">group-").await;
            assert!(count <= 100, "{path}: {count}");
            seen += count;
            next = follow(&path, "More members").await;
        }
        assert_eq!(seen, MANY as usize);
        assert_eq!(browser.get("/team/app/-/settings?last=%00").await.status, 400);
    })
    .await;
}
