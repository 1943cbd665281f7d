//! Requests cannot fill the audit log.

use http::Request;
use serde_json::json;

use super::access::{basic, closed};

#[tokio::test]
async fn refusals_of_many_names_are_few_records() {
    let app = closed().await;
    let alice = app.token(&app.user("alice").await, json!({"name": "x"})).await.0;
    for at in 0..100 {
        assert_eq!(app.pull_as(&alice, &format!("team/n{at}")).await, 404);
        let delete = Request::delete(format!("/v2/team/n{at}/manifests/latest"));
        assert_eq!(app.send_as(&alice, delete, "").await.status, 404);
    }
    // The log has all records once it has this one.
    app.get_as(&basic("last", "wrong"), "/v2/").await;
    let last = "/lode/v1/audit?target=user:last";
    while app.admin("GET", last, json!(null)).await.json()["records"] == json!([]) {}
    let found = app.admin("GET", "/lode/v1/audit?action=access.refuse&n=1000", json!(null)).await.json();
    let targets: Vec<&str> = found["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["target"].as_str().unwrap())
        .collect();
    let others = targets.iter().filter(|target| **target == "other").count();
    assert_eq!((targets.len(), others), (22, 2), "20, and one for each action: {targets:?}");
    assert!(targets.contains(&"team/n0") && !targets.contains(&"team/n99"), "{targets:?}");
}
