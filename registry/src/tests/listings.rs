//! Pages of the lists under `/lode/v1` (`n`, `last`, `Link`), and its failures as problem details.

use http::Request;
use serde_json::{Value, json};

use super::App;
use super::gateway::join;
use super::models::push_model;

/// Reads a list in pages of one entry.
async fn pages(app: &App, path: &str, list: &str) -> Vec<Value> {
    let (mut all, mut next) = (Vec::new(), format!("{path}?n=1"));
    loop {
        let page = app.get(&next).await;
        let found = page.json()[list].as_array().unwrap().clone();
        assert!(found.len() <= 1, "{next}: {found:?}");
        all.extend(found);
        let Some(link) = page.headers.get("link") else { return all };
        let (target, parameters) = link.to_str().unwrap().split_once('>').unwrap();
        assert_eq!(parameters, "; rel=\"next\"");
        target.strip_prefix('<').unwrap().clone_into(&mut next);
    }
}

#[tokio::test]
async fn lists_come_in_pages() {
    let app = App::new().await;
    for name in ["a/one", "a/two", "b"] {
        push_model(&app, name, "latest").await;
    }
    let names = pages(&app, "/lode/v1/models", "models").await;
    let names: Vec<&str> = names.iter().map(|model| model["repository"].as_str().unwrap()).collect();
    assert_eq!(names, ["a/one", "a/two", "b"]);
    let tensors = pages(&app, "/lode/v1/tensors/b/latest", "tensors").await;
    let whole = app.get("/lode/v1/tensors/b/latest").await.json();
    assert_eq!((tensors.len(), &json!(tensors)), (2, &whole["tensors"]));

    for port in 1..=3 {
        join(&app, ([127, 0, 0, 1], port).into()).await;
    }
    let workers = pages(&app, "/lode/v1/workers", "workers").await;
    assert_eq!(workers.len(), 3);
    assert_eq!(app.get("/lode/v1/workers").await.json()["workers"], json!(workers));

    for path in
        ["/lode/v1/models?n=x", "/lode/v1/models?last=x", "/lode/v1/workers?last=x", "/lode/v1/webhooks?n=-1"]
    {
        assert_eq!(app.get(path).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn failures_are_problem_details() {
    let app = App::new().await;
    let request = Request::get("/lode/v1/models/team/absent/latest").header("x-request-id", "check-7");
    let response = app.send(request, "").await;
    assert_eq!(
        (response.status.as_u16(), response.header("content-type")),
        (404, "application/problem+json")
    );
    let detail = "model 'team/absent:latest' not found";
    let expect = json!({"type": "about:blank", "title": "Not Found", "status": 404, "detail": detail,
        "instance": "check-7", "error": detail});
    assert_eq!(response.json(), expect);
    // The instance is the id of the response and of the log.
    let response = app.get("/lode/v1/nothing/here").await;
    assert_eq!(response.json()["instance"], response.header("x-request-id"));
    // Other APIs keep their own format.
    let response = app.get("/api/nothing").await;
    assert_eq!(
        (response.header("content-type"), response.json().as_object().unwrap().len()),
        ("application/json", 1)
    );
}
