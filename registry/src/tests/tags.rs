//! Listings and deletions: order, pages, and what is deleted together.

use serde_json::json;

use super::{App, failure};

#[tokio::test]
async fn tags_are_in_byte_order_and_in_pages() {
    let app = App::new().await;
    for tag in ["b", "a10", "B", "a2", "_x"] {
        app.push_image("team/mini", tag, "same").await;
    }
    let list = async |query: &str| {
        let response = app.get(&format!("/v2/team/mini/tags/list{query}")).await;
        assert_eq!(response.status, 200, "{query}");
        (
            response.json()["tags"].clone(),
            response.headers.get("link").map(|link| link.to_str().unwrap().to_owned()),
        )
    };
    let link = |query: &str| Some(format!("</v2/team/mini/tags/list?{query}>; rel=\"next\""));
    assert_eq!(list("").await, (json!(["B", "_x", "a10", "a2", "b"]), None));
    assert_eq!(list("?n=2").await, (json!(["B", "_x"]), link("n=2&last=_x")));
    assert_eq!(list("?n=2&last=_x").await, (json!(["a10", "a2"]), link("n=2&last=a2")));
    assert_eq!(list("?n=2&last=a2").await, (json!(["b"]), None));
    assert_eq!(list("?n=5").await, (json!(["B", "_x", "a10", "a2", "b"]), None));
    assert_eq!(list("?n=0").await, (json!([]), None));
    assert_eq!(list("?last=a").await, (json!(["a10", "a2", "b"]), None));
    assert_eq!(list("?n=99999999999999999999").await.0.as_array().unwrap().len(), 5);
    for bad in ["?n=-1", "?n=two", "?n=", "?n=1.5", "?n=%2B1"] {
        assert_eq!(
            app.get(&format!("/v2/team/mini/tags/list{bad}")).await.failure(),
            failure(400, "UNSUPPORTED"),
            "{bad}"
        );
    }
    assert_eq!(app.get("/v2/nobody/tags/list").await.failure(), failure(404, "NAME_UNKNOWN"));
}

#[tokio::test]
async fn the_catalog_has_pages_too() {
    let app = App::new().await;
    for repository in ["b", "a/x", "a"] {
        app.push_blob(repository, "x").await;
    }
    assert_eq!(app.get("/v2/_catalog").await.json(), json!({"repositories": ["a", "a/x", "b"]}));
    let page = app.get("/v2/_catalog?n=2").await;
    assert_eq!(page.json(), json!({"repositories": ["a", "a/x"]}));
    assert_eq!(page.header("link"), "</v2/_catalog?n=2&last=a%2Fx>; rel=\"next\"");
    assert_eq!(app.get("/v2/_catalog?n=2&last=a%2Fx").await.json(), json!({"repositories": ["b"]}));
    assert_eq!(app.get("/v2/_catalog?n=x").await.failure(), failure(400, "UNSUPPORTED"));
}

#[tokio::test]
async fn a_deleted_manifest_takes_its_tags() {
    let app = App::new().await;
    let digest = app.push_image("a", "one", "same").await;
    app.push_image("a", "two", "same").await;
    app.push_image("a", "other", "other").await;
    assert_eq!(app.delete(&format!("/v2/a/manifests/{digest}")).await.status, 202);
    assert_eq!(app.get("/v2/a/tags/list").await.json()["tags"], json!(["other"]));
    for reference in ["one", "two", digest.as_str()] {
        let gone = app.get(&format!("/v2/a/manifests/{reference}")).await;
        assert_eq!(gone.failure(), failure(404, "MANIFEST_UNKNOWN"));
    }
    assert_eq!(app.delete("/v2/nobody/manifests/x").await.failure(), failure(404, "NAME_UNKNOWN"));
}

#[tokio::test]
async fn deleting_a_tag_keeps_the_manifest() {
    let app = App::new().await;
    let digest = app.push_image("a", "one", "same").await;
    assert_eq!(app.delete("/v2/a/manifests/one").await.status, 202);
    assert_eq!(app.get("/v2/a/manifests/one").await.failure(), failure(404, "MANIFEST_UNKNOWN"));
    assert_eq!(app.get(&format!("/v2/a/manifests/{digest}")).await.status, 200);
    assert_eq!(app.get("/v2/a/tags/list").await.json()["tags"], json!([]));
}

#[tokio::test]
async fn a_blob_in_use_stays() {
    let app = App::new().await;
    let digest = app.push_image("a", "one", "layer").await;
    let manifest = app.get("/v2/a/manifests/one").await.json();
    let layer = manifest["layers"][0]["digest"].as_str().unwrap();
    let path = format!("/v2/a/blobs/{layer}");
    assert_eq!(app.delete(&path).await.failure(), failure(405, "DENIED"));
    assert_eq!(app.get(&path).await.status, 200);
    app.delete(&format!("/v2/a/manifests/{digest}")).await;
    assert_eq!(app.delete(&path).await.status, 202);
    assert_eq!(app.delete(&path).await.failure(), failure(404, "BLOB_UNKNOWN"));
}
