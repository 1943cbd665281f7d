//! Repositories that Hugging Face's clients move, copy and squash: what moves along, what is refused, and who may.

use std::time::Duration;

use http::Request;
use lode_client::Secret;
use lode_model::media_type as mt;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic};
use super::cards::{attach, close};
use super::hf_write::{file, lines};
use super::models::push_model;
use super::{App, TestResponse};
use crate::Config;

/// A server on each database, without waiting times before content is deleted.
async fn each_server(test: impl AsyncFn(App)) {
    let config = || Config {
        admin_password: Some(Secret::new(PASSWORD)),
        gc_grace: Duration::ZERO,
        gc_undo: Some(Duration::ZERO),
        upload_lease: Duration::ZERO,
        ..Config::default()
    };
    test(App::with(config()).await).await;
    if let Some(database) = crate::store::postgres_for_test().await {
        test(App::with(Config { database: Some(database), ..config() }).await).await;
    }
}

impl App {
    async fn post_as(&self, credentials: &str, path: &str, body: Value) -> TestResponse {
        self.send_as(credentials, Request::post(path), body.to_string()).await
    }

    async fn move_as(&self, credentials: &str, from: &str, to: &str) -> TestResponse {
        let body = json!({"fromRepo": from, "toRepo": to, "type": "model"});
        self.post_as(credentials, "/hf/api/repos/move", body).await
    }

    async fn duplicate_as(&self, credentials: &str, from: &str, body: Value) -> TestResponse {
        self.post_as(credentials, &format!("/hf/api/models/{from}/duplicate"), body).await
    }

    async fn create_as(&self, credentials: &str, repository: &str) {
        let created = self.post_as(credentials, "/hf/api/repos/create", json!({"name": repository})).await;
        assert_eq!(created.status, 200, "{}", created.text());
    }

    /// Commits a file; returns the id of the commit.
    async fn commit_as(&self, credentials: &str, repository: &str, path: &str) -> String {
        let request = Request::post(format!("/hf/api/models/{repository}/commit/main"));
        let done = self.send_as(credentials, request, lines(None, &[file(path, path.as_bytes())])).await;
        assert_eq!(done.status, 200, "{}", done.text());
        done.json()["commitOid"].as_str().unwrap().to_owned()
    }

    async fn json_as_admin(&self, path: &str) -> Value {
        let found = self.get_as(&basic("admin", PASSWORD), path).await;
        assert_eq!(found.status, 200, "{path}: {}", found.text());
        found.json()
    }

    /// Collects unreferenced content; then checks that nothing is damaged.
    async fn collect_and_check(&self) {
        let run = async |path: &str, body: Value| {
            let started = self.admin("POST", path, body).await.json();
            let job = self
                .json_as_admin(&format!("/lode/v1/jobs/{}?wait=60", started["id"].as_str().unwrap()))
                .await;
            assert_eq!(job["state"], "succeeded", "{job}");
            job["result"].clone()
        };
        run("/lode/v1/gc", json!({})).await;
        assert_eq!(run("/lode/v1/fsck", json!({"verify": true})).await["damage"], 0);
    }

    /// What clients see of a repository, without its name and the times of requests.
    async fn content_of(&self, repository: &str) -> Value {
        let info = self.json_as_admin(&format!("/hf/api/models/{repository}?blobs=true")).await;
        let kept = ["sha", "siblings", "createdAt", "lastModified", "downloadsAllTime", "private"];
        let info: Vec<&Value> = kept.iter().map(|field| &info[*field]).collect();
        let history = self.json_as_admin(&format!("/lode/v1/repositories/{repository}/history")).await;
        json!({
            "info": info,
            "refs": self.json_as_admin(&format!("/hf/api/models/{repository}/refs")).await,
            "tree": self.json_as_admin(&format!("/hf/api/models/{repository}/tree/main?recursive=true")).await,
            "commits": titles(&self.json_as_admin(&format!("/hf/api/models/{repository}/commits/main")).await),
            "moves": history["moves"],
            "card": self.json_as_admin(&format!("/lode/v1/repositories/{repository}/card")).await["text"],
        })
    }

    async fn names(&self) -> Vec<String> {
        let list = self.json_as_admin("/lode/v1/repositories").await;
        let list = list["repositories"].as_array().unwrap();
        list.iter().map(|entry| entry["repository"].as_str().unwrap().to_owned()).collect()
    }

    /// The repositories that a search finds.
    async fn searched(&self, words: &str) -> Vec<String> {
        let found = self.json_as_admin(&format!("/lode/v1/search?all=1&sort=name&q={words}")).await;
        let hits = found["repositories"].as_array().unwrap();
        hits.iter().map(|hit| hit["repository"].as_str().unwrap().to_owned()).collect()
    }
}

/// The ids and titles of commits. A title that a client did not give has the repository's name.
fn titles(commits: &Value) -> Vec<(Value, Value)> {
    let pair = |commit: &Value| (commit["id"].clone(), commit["title"].clone());
    commits.as_array().unwrap().iter().map(pair).collect()
}

#[tokio::test]
async fn a_repository_moves_with_everything_it_has() {
    each_server(async |app: App| {
        let alice = app.user("alice").await;
        let (bob, carol) = (app.user("bob").await, app.user("carol").await);
        for namespace in ["team/*", "other/*"] {
            app.grant(namespace, "alice", "own").await;
        }
        app.show("team/*", "public").await;
        app.create_as(&alice, "team/m").await;
        let first = app.commit_as(&alice, "team/m", "a").await;
        app.commit_as(&alice, "team/m", "b").await;
        let tag = json!({"tag": "v1", "message": "The first"});
        assert_eq!(app.post_as(&alice, &format!("/hf/api/models/team/m/tag/{first}"), tag).await.status, 200);
        let card = json!({"base": null, "text": "# Zebra\n"}).to_string();
        let request = Request::put("/lode/v1/repositories/team/m/card");
        assert_eq!(app.send_as(&alice, request, card).await.status, 200);
        app.grant("team/m", "bob", "write").await;
        app.grant("other/n", "bob", "read").await;
        app.grant("other/n", "carol", "read").await;
        let rules = json!({"target": "team/m", "patterns": ["release-*"]});
        app.admin("PUT", "/lode/v1/protected-tags", rules).await;
        assert_eq!(app.pull_as(&bob, "team/m").await, 200);
        app.registry.write_pulls().await.unwrap();
        // An upload that is open meanwhile, and an earlier repository of the new name.
        let begun = app.send_as(&bob, Request::post("/v2/team/m/blobs/uploads/"), "").await;
        let upload = begun.header("location").to_owned();
        app.create_as(&alice, "other/n").await;
        let deleted = json!({"name": "n", "organization": "other"}).to_string();
        assert_eq!(app.send_as(&alice, Request::delete("/hf/api/repos/delete"), deleted).await.status, 200);
        let mut before = app.content_of("team/m").await;
        let moves = before["moves"].as_array().unwrap().len();

        let moved = app.move_as(&alice, "Team/M", "other/N").await;
        assert_eq!(moved.status, 200, "{}", moved.text());
        assert_eq!(moved.json()["id"], "other/n");
        let mut after = app.content_of("other/n").await;
        // The history of the earlier repository remains: its tag was set and deleted.
        let history = after["moves"].as_array_mut().unwrap();
        assert_eq!(history.split_off(moves).len(), 2);
        let commits = after["commits"].as_array_mut().unwrap();
        assert_eq!(commits.pop().unwrap()[1], "Create the repository");
        for state in [&mut before, &mut after] {
            for row in state["moves"].as_array_mut().unwrap() {
                row.as_object_mut().unwrap().remove("position");
            }
        }
        assert_eq!(before, after);
        // The old name leads nowhere, in any API.
        assert_eq!(app.names().await, ["other/n"]);
        assert_eq!(
            (app.searched("zebra").await, app.searched("team").await),
            (vec!["other/n".to_owned()], vec![])
        );
        for path in ["/hf/api/models/team/m", "/v2/team/m/tags/list", "/v2/team/m/manifests/latest"] {
            assert_eq!(app.get_as(&basic("admin", PASSWORD), path).await.status, 404, "{path}");
        }
        let sizes =
            app.json_as_admin("/lode/v1/repositories?prefix=other/n").await["repositories"][0].clone();
        assert_eq!((&sizes["tags"], &sizes["manifests"]), (&json!(2), &json!(3)));
        // The rights moved: everyone may read it still, bob has the higher of two roles, and nothing is left behind.
        assert_eq!((app.pull_as("", "other/n").await, app.pull_as(&carol, "other/n").await), (200, 200));
        app.commit_as(&bob, "other/n", "c").await;
        let grants = app.json_as_admin("/lode/v1/grants").await;
        assert!(!grants.to_string().contains("team/m"), "{grants}");
        assert_eq!(app.push_as(&bob, "team/m").await.status, 404);
        let rules = app.json_as_admin("/lode/v1/protected-tags").await["protected_tags"].clone();
        assert_eq!(rules, json!([{"target": "other/n", "pattern": "release-*"}]));
        // The open upload still has the old name, where bob has no rights any more.
        assert_eq!(app.send_as(&alice, Request::get(upload.clone()), "").await.status, 204);
        assert_eq!(app.send_as(&bob, Request::get(upload), "").await.status, 404);
        let audit = app.json_as_admin("/lode/v1/audit?action=repository.move").await;
        let record = &audit["records"][0];
        assert_eq!(
            (&record["actor"], &record["target"], &record["detail"]),
            (&json!("user:alice"), &json!("team/m"), &json!({"to": "other/n"}))
        );
        // Nothing of it is collected, the old name is free, and it can move back.
        app.collect_and_check().await;
        app.create_as(&alice, "team/m").await;
        app.commit_as(&alice, "team/m", "other").await;
        assert_eq!(app.move_as(&alice, "other/n", "team/m").await.status, 409);
        assert_eq!(app.move_as(&alice, "team/m", "team/k").await.status, 200);
        assert_eq!(app.move_as(&alice, "other/n", "team/m").await.status, 200);
        assert_eq!(app.pull_as(&bob, "team/m").await, 200);
        app.collect_and_check().await;
        assert_eq!(app.names().await, ["team/k", "team/m"]);
    })
    .await;
}

#[tokio::test]
async fn moves_that_would_lose_or_leak_content_are_refused() {
    each_server(async |app: App| {
        let alice = app.user("alice").await;
        let others = [app.user("reader").await, app.user("writer").await, app.user("maintainer").await];
        for namespace in ["team/*", "full/*", "fixed/*", "open/*"] {
            app.grant(namespace, "alice", "own").await;
        }
        app.show("open/*", "public").await;
        app.create_as(&alice, "team/m").await;
        app.commit_as(&alice, "team/m", "a").await;
        app.create_as(&alice, "team/other").await;
        // Who owns only one of the names may not.
        for (name, credentials) in ["read", "write", "maintain"].into_iter().zip(&others) {
            let account = ["reader", "writer", "maintainer"];
            let account = account.into_iter().find(|account| account.starts_with(&name[..4])).unwrap();
            app.grant("team/*", account, name).await;
            app.grant("open/*", account, "own").await;
            assert_eq!(app.move_as(credentials, "team/m", "open/m").await.status, 403, "{account}");
        }
        let stranger = app.user("stranger").await;
        assert_eq!(app.move_as(&stranger, "team/m", "stranger/m").await.status, 404);
        assert_eq!(app.move_as(&alice, "team/m", "elsewhere/m").await.status, 404);
        assert_eq!(app.move_as("", "team/m", "team/n").await.status, 401);
        let (token, _) = app.token(&alice, json!({"name": "x", "access": "write"})).await;
        assert_eq!(app.move_as(&token, "team/m", "team/n").await.status, 403);
        // Names.
        let refused = async |from: &str, to: &str, status: u16, text: &str| {
            let refused = app.move_as(&basic("admin", PASSWORD), from, to).await;
            assert!(
                refused.status == status && refused.text().contains(text),
                "{from} {to}: {}",
                refused.text()
            );
        };
        refused("team/none", "team/n", 404, "team/none").await;
        refused("team/m", "team/other", 409, "repository team/other exists already").await;
        refused("team/m", "team/m", 409, "exists").await;
        refused("team/m", "v2/m", 400, "reserved").await;
        refused("team/m", "team/..", 400, "").await;
        let dataset = json!({"fromRepo": "team/m", "toRepo": "team/n", "type": "dataset"});
        assert_eq!(app.post_as(&alice, "/hf/api/repos/move", dataset).await.status, 400);
        // Quotas and protected tags.
        app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "full", "limit_bytes": 10})).await;
        refused("team/m", "full/m", 403, "quota").await;
        app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": ["latest"]}))
            .await;
        refused("team/m", "team/n", 403, "protected").await;
        app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": []})).await;
        let some = |from: u8| -> Vec<String> { (from..from + 20).map(|n| format!("v{n}")).collect() };
        for (target, patterns) in [("team/m", some(0)), ("fixed/m", some(50))] {
            app.admin("PUT", "/lode/v1/protected-tags", json!({"target": target, "patterns": patterns}))
                .await;
        }
        refused("team/m", "fixed/m", 400, "more than 32 patterns").await;
        // Nothing has changed, and nothing was created.
        assert_eq!(app.names().await, ["team/m", "team/other"]);
        assert_eq!(
            app.json_as_admin("/hf/api/models/team/m/commits/main").await.as_array().unwrap().len(),
            2
        );
        // What only some may read stays so in a namespace for everyone.
        assert_eq!(app.move_as(&alice, "team/m", "open/m").await.status, 200);
        assert_eq!((app.pull_as("", "open/m").await, app.pull_as(&alice, "open/m").await), (401, 200));
        // With space in the namespace, what was refused moves, and counts there.
        app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "full", "limit_bytes": 1_000_000})).await;
        assert_eq!(app.move_as(&alice, "open/m", "full/m").await.status, 200);
        let quotas = app.json_as_admin("/lode/v1/quotas?namespace=full").await;
        assert!(quotas["quotas"][0]["used_bytes"].as_u64().unwrap() > 10, "{quotas}");
    })
    .await;
}

#[tokio::test]
async fn models_indexes_and_referrers_move() {
    for database in [Some(None), crate::store::postgres_for_test().await.map(Some)].into_iter().flatten() {
        let app = App::with(Config { database, gc_grace: Duration::ZERO, ..Config::default() }).await;
        push_model(&app, "team/mini", "latest").await;
        let model = app.get("/v2/team/mini/manifests/latest").await;
        let digest = model.header("docker-content-digest").to_owned();
        let child = json!({"mediaType": mt::OCI_MANIFEST, "digest": digest, "size": model.body.len()});
        let index = json!({"schemaVersion": 2, "mediaType": mt::OCI_INDEX, "manifests": [child]});
        assert_eq!(app.push_manifest("team/mini", "all", &index).await.status, 201);
        close(&app).await;
        let attached = attach(&app, "team/mini", &digest, "application/vnd.example.sbom", &[]).await;
        let tensors = app.json_as_admin("/lode/v1/tensors/team/mini/latest").await["tensors"].clone();
        assert!(tensors.is_array(), "{tensors}");
        let admin = basic("admin", PASSWORD);
        assert_eq!(app.move_as(&admin, "team/mini", "team/moved").await.status, 200);
        let copied = app.duplicate_as(&admin, "team/moved", json!({"repository": "copies/mini"})).await;
        assert_eq!(copied.status, 200, "{}", copied.text());
        app.collect_and_check().await;
        for repository in ["team/moved", "copies/mini"] {
            let referrers = app.json_as_admin(&format!("/v2/{repository}/referrers/{digest}")).await;
            assert_eq!(referrers["manifests"][0]["digest"], attached);
            let path = format!("/lode/v1/tensors/{repository}/latest");
            assert_eq!(app.json_as_admin(&path).await["tensors"], tensors);
            let stored = app.get_as(&admin, &format!("/v2/{repository}/manifests/all")).await;
            assert_eq!(stored.json(), index);
            // What a manifest names is still protected.
            let path = format!("/v2/{repository}/blobs/{digest}");
            assert_eq!(app.send_as(&admin, Request::delete(path), "").await.status, 405);
        }
        assert_eq!(app.names().await, ["copies/mini", "team/moved"]);
    }
}

#[tokio::test]
async fn a_squashed_branch_has_one_commit() {
    each_server(async |app: App| {
        let alice = app.user("alice").await;
        let writer = app.user("writer").await;
        app.grant("team/*", "alice", "maintain").await;
        app.grant("team/*", "writer", "write").await;
        app.create_as(&alice, "team/m").await;
        let first = app.commit_as(&alice, "team/m", "a").await;
        let second = app.commit_as(&alice, "team/m", "b").await;
        let branch = json!({"startingPoint": first});
        assert_eq!(app.post_as(&alice, "/hf/api/models/team/m/branch/kept", branch).await.status, 200);
        let third = app.commit_as(&alice, "team/m", "c").await;
        let squash = async |credentials: &str, branch: &str, message: &str| {
            let path = format!("/hf/api/models/team/m/super-squash/{branch}");
            app.post_as(credentials, &path, json!({"message": message})).await
        };
        assert_eq!(squash("", "main", "x").await.status, 401);
        assert_eq!(squash(&writer, "main", "x").await.status, 403);
        let unknown = squash(&alice, "none", "x").await;
        assert_eq!((unknown.status.as_u16(), unknown.header("x-error-code")), (404, "RevisionNotFound"));
        app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": ["latest"]}))
            .await;
        assert_eq!(squash(&alice, "main", "x").await.status, 403);
        app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": []})).await;
        let tree = app.json_as_admin("/hf/api/models/team/m/tree/main").await;
        for _ in 0..2 {
            assert_eq!(squash(&alice, "main", "All in one\n").await.status, 200);
            let commits = app.json_as_admin("/hf/api/models/team/m/commits/main").await;
            assert_eq!(titles(&commits), [(json!(third), json!("All in one"))]);
        }
        assert_eq!(app.json_as_admin("/hf/api/models/team/m/tree/main").await, tree);
        // A commit that another branch has stays; the others are gone.
        let status = async |commit: &str| {
            app.get_as(&alice, &format!("/hf/api/models/team/m/revision/{commit}")).await.status.as_u16()
        };
        assert_eq!((status(&first).await, status(&second).await, status(&third).await), (200, 404, 200));
        let audit = app.json_as_admin("/lode/v1/audit?action=tag.squash").await;
        assert_eq!(audit["records"][0]["target"], "team/m:latest");
        app.commit_as(&writer, "team/m", "d").await;
        app.collect_and_check().await;
        assert_eq!(app.json_as_admin("/hf/api/models/team/m/tree/main").await.as_array().unwrap().len(), 4);
    })
    .await;
}

#[tokio::test]
async fn a_duplicate_has_the_files_and_the_history() {
    each_server(async |app: App| {
        let (alice, bob) = (app.user("alice").await, app.user("bob").await);
        app.grant("team/*", "alice", "write").await;
        app.grant("team/*", "bob", "read").await;
        app.show("bob/*", "public").await;
        app.create_as(&alice, "team/m").await;
        let first = app.commit_as(&alice, "team/m", "a").await;
        app.commit_as(&alice, "team/m", "b").await;
        let branch = json!({"startingPoint": first});
        assert_eq!(app.post_as(&alice, "/hf/api/models/team/m/branch/next", branch).await.status, 200);
        let to = |repository: &str| json!({"repository": repository});
        assert_eq!(app.duplicate_as("", "team/m", to("bob/m")).await.status, 401);
        assert_eq!(app.duplicate_as(&alice, "team/m", to("bob/m")).await.status, 404);
        assert_eq!(app.duplicate_as(&bob, "team/m", to("team/n")).await.status, 403);
        assert_eq!(app.duplicate_as(&bob, "team/none", to("bob/m")).await.status, 404);
        assert_eq!(
            app.duplicate_as(&bob, "team/m", json!({"repository": "bob/m", "visibility": "x"})).await.status,
            400
        );
        let copied = app.duplicate_as(&bob, "team/m", to("bob/M")).await;
        assert_eq!(copied.status, 200, "{}", copied.text());
        let url = copied.json()["url"].clone();
        assert!(url.as_str().unwrap().ends_with("/hf/bob/m"), "{url}");
        assert_eq!(copied.json()["filesCopyPending"], false);
        let again = app.duplicate_as(&bob, "team/m", to("bob/m")).await;
        assert_eq!((again.status.as_u16(), &again.json()["url"]), (409, &url));
        // The same files and commits, for those who may read it: the source is not for everyone.
        let (source, copy) = (app.content_of("team/m").await, app.content_of("bob/m").await);
        for part in ["refs", "tree", "commits"] {
            assert_eq!(source[part], copy[part], "{part}");
        }
        assert_eq!((app.pull_as("", "bob/m").await, app.pull_as(&bob, "bob/m").await), (401, 200));
        let public = json!({"repository": "bob/public", "private": false});
        assert_eq!(app.duplicate_as(&bob, "team/m", public).await.status, 200);
        assert_eq!(app.pull_as("", "bob/public").await, 200);
        // Who does not own the namespace cannot make a copy private there, and so makes none.
        app.show("team/*", "private").await;
        app.show("open/*", "public").await;
        app.grant("open/*", "bob", "write").await;
        assert_eq!(app.duplicate_as(&bob, "team/m", to("open/m")).await.status, 403);
        app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "bob", "limit_bytes": 10})).await;
        let full = app.duplicate_as(&bob, "team/m", to("bob/full")).await;
        assert!(full.status == 403 && full.text().contains("quota"), "{}", full.text());
        // They do not depend on each other.
        let delete = json!({"name": "m", "organization": "team"}).to_string();
        let admin = basic("admin", PASSWORD);
        assert_eq!(app.send_as(&admin, Request::delete("/hf/api/repos/delete"), delete).await.status, 200);
        app.collect_and_check().await;
        assert_eq!(app.content_of("bob/m").await["tree"], copy["tree"]);
        let mut of_bob = app.names().await;
        of_bob.retain(|name| name.starts_with("bob/"));
        assert_eq!(of_bob, ["bob/m", "bob/public"]);
        let audit = app.json_as_admin("/lode/v1/audit?action=repository.copy").await;
        let record = &audit["records"][1];
        assert_eq!((&record["target"], &record["detail"]), (&json!("bob/m"), &json!({"from": "team/m"})));
    })
    .await;
}
