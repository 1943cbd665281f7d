//! Collections over HTTP: the dry run, the removals with their reasons, and the undo.

use std::time::Duration;

use serde_json::json;

use super::App;
use crate::{Config, RetentionRule};

#[tokio::test]
async fn removals_are_listed_and_undone() {
    let config = Config {
        gc_grace: Duration::ZERO,
        gc_undo: Some(Duration::from_secs(3600)),
        upload_lease: Duration::ZERO,
        retention: vec![RetentionRule {
            repositories: vec!["ci/*".to_owned()],
            keep_last: Some(1),
            ..RetentionRule::default()
        }],
        ..Config::default()
    };
    let app = App::with(config).await;
    app.push_image("ci/app", "1", "one").await;
    let digest = app.push_image("team/app", "t", "two").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    app.push_image("ci/app", "2", "three").await;
    assert_eq!(app.delete("/v2/team/app/manifests/t").await.status, 202);

    let foreseen = app.job("/lode/v1/gc", json!({"dry_run": true})).await;
    let result = &foreseen["result"];
    assert_eq!((&result["tags"], &result["manifests"]), (&json!(1), &json!(2)));
    let id = foreseen["id"].as_str().unwrap();
    let removals = app.get(&format!("/lode/v1/jobs/{id}/findings?kind=removal")).await.json();
    let tag = &removals["findings"][0];
    assert_eq!((&tag["kind"], &tag["tag"], &tag["rule"]), (&json!("tag"), &json!("1"), &json!(1)));
    let done = app.job("/lode/v1/gc", json!({})).await;
    assert_eq!(done["result"]["tags"], 1);
    assert!(done["result"].get("removals").is_none());

    let page = app.get("/lode/v1/gc/removals?repository=team/app&n=1").await.json();
    let removal = &page["removals"][0];
    assert_eq!((&removal["kind"], &removal["reason"]), (&json!("manifest"), &json!("unreferenced")));
    assert!(removal["removed_at"].as_str().unwrap() < removal["undo_until"].as_str().unwrap());
    let next = page["next"].as_str().unwrap();
    let page = app.get(&format!("/lode/v1/gc/removals?repository=team/app&last={next}")).await.json();
    assert_eq!(page["removals"][0]["reason"], "deleted");
    assert_eq!(page["removals"].as_array().unwrap().len(), 1);

    let undo = |reference: String| json!({"repository": "team/app", "reference": reference});
    let undone = app.post_json("/lode/v1/gc/undo", undo("t".to_owned())).await;
    assert_eq!(undone.json(), json!({"manifests": [digest], "tags": ["t"]}));
    assert_eq!(app.get("/v2/team/app/manifests/t").await.status, 200);
    assert_eq!(app.post_json("/lode/v1/gc/undo", undo("t".to_owned())).await.status, 409);
    assert_eq!(app.post_json("/lode/v1/gc/undo", undo(digest.to_string())).await.status, 404);
    assert_eq!(app.get("/lode/v1/gc/removals?n=x").await.status, 400);
}
