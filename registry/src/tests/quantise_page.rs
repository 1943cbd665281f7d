//! The page that quantises a stored model in a job.

use http::Request;
use lode_model::quant::ggml::Type;
use serde_json::json;

use super::access::{PASSWORD, basic};
use super::cards::close;
use super::create::{gguf, stage};
use super::sign_in::{Browser, from_page};
use super::{App, TestResponse};

const PAGE: &str = "/team/base/-/quantise";
const FORM: &str = "to=team/base:small&type=Q8_0";

/// A server with the model `team/base`, and the accounts of [`close`].
async fn app() -> App {
    let app = App::new().await;
    let files = json!({"m.gguf": stage(&app, &gguf(Type::F32, 0x3d)).await});
    let made =
        app.post_json("/api/create", json!({"model": "team/base", "files": files, "stream": false})).await;
    assert_eq!(made.status, 200, "{}", made.text());
    app.push_image("team/image", "latest", "layer").await;
    close(&app).await;
    app.admin("PUT", "/lode/v1/visibility", json!({"target": "team/base", "visibility": null})).await;
    app.show("team/*", "private").await;
    app
}

/// The id of the job to whose state a page leads.
fn job_of(started: &TestResponse) -> &str {
    assert_eq!(started.status, 303, "{}", started.text());
    let (_, query) = started.header("location").split_once("/-/quantise?job=").unwrap();
    query.split('&').next().unwrap()
}

#[tokio::test]
async fn a_writer_quantises_a_model_and_follows_the_job() {
    let app = app().await;
    let writer = Browser::signed_in(&app, "writer").await;
    let page = writer.get("/team/base").await;
    assert!(
        page.text().contains("<a href=\"/team/base/-/quantise?tag=latest\">Quantise it</a>"),
        "{}",
        page.text()
    );
    let page = writer.get(PAGE).await;
    for text in [
        // The page says which tag it is about, and its form keeps it.
        "action=\"/team/base/-/quantise?tag=latest\"",
        "value=\"team/base\"",
        "<code>team/base:Q4_K_M</code>",
        "<option selected>Q4_K_M</option>",
        "<option>int4</option>",
    ] {
        assert!(page.text().contains(text), "no `{text}`: {}", page.text());
    }
    let started = writer.post(PAGE, FORM).await;
    let id = job_of(&started);
    assert_eq!(started.header("location"), format!("{PAGE}?job={id}&tag=latest"));
    let finished =
        app.get_as(&basic("writer", PASSWORD), &format!("/lode/v1/jobs/{id}?wait=60")).await.json();
    assert_eq!(finished["state"], "succeeded", "{finished}");
    let page = writer.get(started.header("location")).await;
    for text in ["<dd>succeeded</dd>", "<a href=\"/team/base?tag=small\">team/base:small</a>"] {
        assert!(page.text().contains(text), "no `{text}`: {}", page.text());
    }
    assert!(writer.get("/team/base?tag=small").await.text().contains("Q8_0"));
    // The name that the form suggests follows the type.
    let started = writer.post(PAGE, "to=team/base&type=Q5_K_M").await;
    assert!(writer.get(started.header("location")).await.text().contains("team/base:Q5_K_M"));
    // Nobody else sees the job, and a reader of the model not even that it exists.
    let reader = Browser::signed_in(&app, "reader").await;
    let none = "00000000-0000-0000-0000-000000000000";
    for job in [id, none, "x"] {
        assert_eq!(reader.get(&format!("{PAGE}?job={job}")).await.status, 404, "{job}");
    }
    // A model that is quantised already is not quantised again: the page of the job says so.
    let again = writer.post(&format!("{PAGE}?tag=small"), "to=team/base:again&type=int4").await;
    let id = job_of(&again);
    let failed = app.get_as(&basic("writer", PASSWORD), &format!("/lode/v1/jobs/{id}?wait=60")).await.json();
    assert_eq!(failed["state"], "failed", "{failed}");
    let page = writer.get(again.header("location")).await;
    assert!(
        page.text().contains("role=\"alert\"") && page.text().contains("<dd>failed</dd>"),
        "{}",
        page.text()
    );
}

#[tokio::test]
async fn the_new_model_needs_the_right_to_push_it() {
    let app = app().await;
    app.user("stranger").await;
    for (name, page, here, own) in [
        ("stranger", 404, 404, 404),
        ("reader", 200, 403, 303),
        ("writer", 200, 303, 303),
        ("admin", 200, 303, 303),
    ] {
        let browser = Browser::signed_in(&app, name).await;
        assert_eq!(browser.get(PAGE).await.status, page, "{name}");
        let overview = browser.get("/team/base").await;
        assert_eq!(overview.text().contains("Quantise it"), here == 303, "{name}");
        let refused = browser.post(PAGE, FORM).await;
        assert_eq!(refused.status, here, "{name}: {}", refused.text());
        if here == 403 {
            for text in ["class=\"problem\" role=\"alert\"", "value=\"team/base:small\""] {
                assert!(refused.text().contains(text), "no `{text}`: {}", refused.text());
            }
        }
        let form = format!("to={name}/small:v1&type=Q8_0");
        assert_eq!(browser.post(PAGE, &form).await.status, own, "{name}");
    }
    // A visitor of a public model, and a form without the session's token.
    app.show("team/base", "public").await;
    assert!(!app.get("/team/base").await.text().contains("Quantise it"));
    assert_eq!(app.send(from_page(Request::post(PAGE)), FORM).await.status, 403);
    let writer = Browser::signed_in(&app, "writer").await;
    let forged = from_page(Request::post(PAGE)).header("cookie", &writer.cookie);
    assert_eq!(app.send(forged, FORM).await.status, 403);
}

#[tokio::test]
async fn wrong_forms_keep_what_was_entered() {
    let app = app().await;
    let writer = Browser::signed_in(&app, "writer").await;
    for (form, text) in [
        ("to=&type=Q8_0", "is not the name of a model here"),
        ("to=TEAM%3Cb%3E&type=Q8_0", "TEAM&#60;b&#62;"),
        ("to=other.example/team/base:x&type=Q8_0", "is not the name of a model here"),
        ("to=team/base:latest&type=Q8_0", "is the model itself"),
        ("to=team/base:x&type=q9", "`q9` is not a supported quantisation"),
        ("to=team/base:x", "is not a supported quantisation"),
    ] {
        let refused = writer.post(PAGE, form).await;
        assert_eq!(refused.status, 400, "{form}: {}", refused.text());
        assert!(refused.text().contains(text), "{form}: {}", refused.text());
        assert!(!refused.text().contains("<b>"), "{}", refused.text());
    }
    // Only models have the page.
    assert_eq!(writer.get("/team/image/-/quantise").await.status, 404);
    assert_eq!(writer.get("/team/none/-/quantise").await.status, 404);
}
