//! Cards of repositories: which manifests show them, who may save them, and that searches find their words and those of
//! attached cards.

use http::Request;
use lode_model::digest::Digest;
use lode_model::media_type as mt;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic};
use super::cards::{attach, base_of, close, form};
use super::create::safetensors;
use super::hf_write::{CONFIG, file};
use super::sign_in::Browser;
use super::wire::within;
use super::{App, TestResponse};
use crate::card::MAX_CARD_BYTES;

const PATH: &str = "/lode/v1/repositories/team/image/card";
const PAGE: &str = "/team/image/-/card?of=repository";
const CARD: &str = "---\nlicense: mit\n---\n# Mini\n\nAnswers [questions](faq.md).\n";

/// A server with the repository `team/image`, whose two tags have no card, and a user for each role.
async fn app() -> App {
    let app = App::new().await;
    app.push_image("team/image", "latest", "one").await;
    app.push_image("team/image", "v2", "two").await;
    close(&app).await;
    app
}

fn digest_of(text: &str) -> String {
    Digest::sha256(text.as_bytes()).to_string()
}

impl App {
    async fn put_card(&self, credentials: &str, path: &str, base: Option<&str>, text: &str) -> TestResponse {
        let body = json!({"base": base, "text": text}).to_string();
        self.send_as(credentials, Request::put(path), body).await
    }

    async fn delete_as_admin(&self, path: &str) {
        let deleted = self.send_as(&basic("admin", PASSWORD), Request::delete(path), "").await;
        assert!(deleted.status.is_success(), "{path}: {}", deleted.text());
    }

    /// The repositories that a search finds.
    async fn found(&self, words: &str) -> Vec<String> {
        let found = self.as_admin(&format!("/lode/v1/search?all=1&sort=name&q={words}")).await.json();
        let hits = found["repositories"].as_array().unwrap();
        hits.iter().map(|hit| hit["repository"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until a search finds these repositories: manifests are read in the background.
    async fn finds(&self, words: &str, expect: &[&str]) {
        within(async {
            while self.found(words).await != expect {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn tags_without_a_card_have_that_of_the_repository() {
    let app = app().await;
    let (reader, writer) = (basic("reader", PASSWORD), basic("writer", PASSWORD));
    let none = app.get_as(&reader, PATH).await.json();
    let empty = json!({"repository": "team/image", "digest": null, "text": null, "modified_at": null});
    assert_eq!(none, empty);
    let saved = app.put_card(&writer, PATH, None, CARD).await;
    assert_eq!(saved.json(), json!({"repository": "team/image", "digest": digest_of(CARD)}));
    let read = app.get_as(&reader, PATH).await.json();
    assert_eq!((&read["text"], &read["digest"]), (&json!(CARD), &json!(digest_of(CARD))));
    assert!(read["modified_at"].as_str().unwrap().starts_with("20"), "{read}");
    // Each tag shows it, with links to its own files.
    let card_of =
        async |tag: &str| app.get_as(&reader, &format!("/lode/v1/card/team/image/{tag}")).await.json();
    let browser = Browser::signed_in(&app, "reader").await;
    for tag in ["latest", "v2"] {
        let page = browser.get(&format!("/team/image?tag={tag}")).await;
        let link = format!("href=\"/team/image/-/blob/{tag}/faq.md\"");
        for text in [&link[..], "This card is the repository", ">Mini<"] {
            assert!(page.text().contains(text), "{text}: {}", page.text());
        }
        let card = card_of(tag).await;
        for (name, expect) in [
            ("text", json!(CARD)),
            ("metadata", json!({"license": "mit"})),
            ("is_of_repository", json!(true)),
            ("attached", Value::Null),
        ] {
            assert_eq!(card[name], expect, "{tag} {name}");
        }
    }
    // A card of its own comes first.
    let head = app.digest_of("team/image").await;
    let own = attach(&app, "team/image", &head, mt::LODE_CARD, &[("text/markdown", b"# Own\n")]).await;
    let card = card_of("latest").await;
    assert_eq!((&card["attached"], &card["is_of_repository"]), (&json!(own), &json!(false)));
    assert_eq!(card_of("v2").await["is_of_repository"], true);
    // It stays when tags move or go, and ends with the repository's content.
    for tag in ["latest", "v2"] {
        app.delete_as_admin(&format!("/v2/team/image/manifests/{tag}")).await;
    }
    let page = browser.get("/team/image").await;
    for text in ["This repository has no tags.", ">Mini<", "/-/blob/latest/faq.md"] {
        assert!(page.text().contains(text), "{text}: {}", page.text());
    }
    let deleted = app.send_as(&writer, Request::delete(PATH), "").await;
    assert_eq!(deleted.status, 204, "{}", deleted.text());
    assert_eq!(app.get_as(&reader, PATH).await.json(), empty);
    // Again: it is gone already.
    assert_eq!(app.send_as(&writer, Request::delete(PATH), "").await.status, 204);
    let records = app.as_admin("/lode/v1/audit?target=team/image").await.json();
    let actions: Vec<&str> = records["records"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|record| record["action"].as_str())
        .collect();
    assert_eq!(actions.iter().filter(|action| **action == "card.set").count(), 1, "{actions:?}");
    assert_eq!(actions.iter().filter(|action| **action == "card.remove").count(), 1, "{actions:?}");
}

#[tokio::test]
async fn only_writers_save_what_they_have_read() {
    let app = app().await;
    let (reader, writer) = (basic("reader", PASSWORD), basic("writer", PASSWORD));
    assert_eq!(app.put_card(&writer, PATH, None, CARD).await.status, 200);
    // The same request again.
    assert_eq!(app.put_card(&writer, PATH, None, CARD).await.status, 200);
    let base = digest_of(CARD);
    let long = "a".repeat(MAX_CARD_BYTES as usize + 1);
    for (credentials, path, base, text, status, problem) in [
        (&writer, PATH, None, "# Mine", 409, "the card of team/image was changed after you read it"),
        (&writer, PATH, Some("latest"), "# Mine", 400, "digest"),
        (&writer, PATH, Some(&base[..]), " ", 400, "the card is empty"),
        (&writer, PATH, Some(&base[..]), "---\nlicense: [mit\n---\n", 400, "is not valid YAML"),
        (&writer, PATH, Some(&base[..]), &long, 413, "has 1048577 bytes"),
        (&writer, "/lode/v1/repositories/team/none/card", None, "# Mine", 404, "team/none"),
        (&reader, PATH, Some(&base[..]), "# Mine", 403, ""),
        (&String::new(), PATH, Some(&base[..]), "# Mine", 401, ""),
    ] {
        let refused = app.put_card(credentials, path, base, text).await;
        assert_eq!(refused.status, status, "{problem}: {}", refused.text());
        assert!(refused.text().contains(problem), "{problem}: {}", refused.text());
    }
    assert_eq!(app.get_as(&reader, PATH).await.json()["text"], CARD);
    assert_eq!(app.send_as(&reader, Request::delete(PATH), "").await.status, 403);
    assert_eq!(app.get_as(&reader, "/lode/v1/repositories/team/none/card").await.status, 404);
    assert_eq!(app.put_card(&writer, PATH, Some(&base), "# Mine").await.status, 200);
}

#[tokio::test]
async fn a_page_saves_and_removes_it() {
    let app = app().await;
    let writer = Browser::signed_in(&app, "writer").await;
    let overview = writer.get("/team/image").await;
    assert!(overview.text().contains("href=\"/team/image/-/card?of=repository\""), "{}", overview.text());
    let page = writer.get(PAGE).await;
    assert_eq!((page.status.as_u16(), base_of(&page)), (200, String::new()));
    assert!(!page.text().contains("value=\"remove\""), "{}", page.text());
    let preview = writer.post(PAGE, &form("preview", "", CARD)).await;
    assert!(preview.text().contains("href=\"/team/image/-/blob/latest/faq.md\""), "{}", preview.text());
    let saved = writer.post(PAGE, &form("save", "", CARD)).await;
    assert_eq!((saved.status.as_u16(), saved.header("location")), (303, "/team/image"));
    let overview = writer.get("/team/image?tag=v2").await;
    for text in ["Edit card", "/-/card?of=repository", "Write one for v2 alone"] {
        assert!(overview.text().contains(text), "{text}: {}", overview.text());
    }
    // A form that was made before keeps its text, and replaces nothing until it is sent again.
    let base = digest_of(CARD);
    for (action, text) in [("save", "# Mine"), ("remove", "")] {
        let sent = format!("{}&confirmed=yes", form(action, &digest_of("before"), text));
        let conflict = writer.post(PAGE, &sent).await;
        assert_eq!((conflict.status.as_u16(), base_of(&conflict)), (409, base.clone()), "{action}");
        assert!(conflict.text().contains("was changed after you read it"), "{}", conflict.text());
    }
    let page = writer.get(PAGE).await;
    assert_eq!(base_of(&page), base);
    assert!(page.text().contains("value=\"remove\""), "{}", page.text());
    let remove = form("remove", &base, "# Mine");
    let asked = writer.post(PAGE, &remove).await;
    for text in ["Remove the card of team/image?", "Nothing is changed yet.", "# Mine</textarea>"] {
        assert!(asked.text().contains(text), "{text}: {} {}", asked.status, asked.text());
    }
    assert!(!writer.get("/team/image").await.text().contains("No model card."));
    assert_eq!(writer.post(PAGE, &format!("{remove}&confirmed=yes")).await.status, 303);
    assert!(writer.get("/team/image").await.text().contains("No model card."));
    // Readers have no form.
    let reader = Browser::signed_in(&app, "reader").await;
    assert_eq!(reader.get(PAGE).await.status, 403);
    assert_eq!(reader.post(PAGE, &form("save", "", CARD)).await.status, 403);
    assert!(!reader.get("/team/image").await.text().contains("-/card"));
}

#[tokio::test]
async fn searches_find_the_card_that_a_page_shows() {
    let app = App::new().await;
    app.push_image("team/image", "latest", "one").await;
    app.create_repository("team/m").await;
    let weights = safetensors("model.embed_tokens.weight", 8);
    let files =
        [file("config.json", CONFIG), file("README.md", b"# Zebra"), file("model.safetensors", &weights)];
    app.committed("team/m", &files).await;
    close(&app).await;
    let admin = basic("admin", PASSWORD);
    app.finds("zebra", &["team/m"]).await;
    // The card of a repository, unless its model has one.
    for repository in ["team/image", "team/m"] {
        let path = format!("/lode/v1/repositories/{repository}/card");
        assert_eq!(app.put_card(&admin, &path, None, "# Giraffe").await.status, 200);
    }
    assert_eq!(app.found("giraffe").await, ["team/image"]);
    assert_eq!(app.put_card(&admin, PATH, Some(&digest_of("# Giraffe")), "# Okapi").await.status, 200);
    assert_eq!(
        (app.found("giraffe").await, app.found("okapi").await),
        (vec![], vec!["team/image".to_owned()])
    );
    // An attached card comes before it, and the last one before the others.
    let head = app.digest_of("team/image").await;
    let card = async |text: &str| {
        attach(&app, "team/image", &head, mt::LODE_CARD, &[("text/markdown", text.as_bytes())]).await
    };
    let lion = card("# Lion").await;
    app.finds("lion", &["team/image"]).await;
    assert_eq!(app.found("okapi").await, [""; 0]);
    let tiger = card("# Tiger").await;
    app.finds("tiger", &["team/image"]).await;
    assert_eq!(app.found("lion").await, [""; 0]);
    // What is deleted is no longer found.
    app.delete_as_admin(&format!("/v2/team/image/manifests/{tiger}")).await;
    assert_eq!((app.found("tiger").await, app.found("lion").await), (vec![], vec!["team/image".to_owned()]));
    app.delete_as_admin(&format!("/v2/team/image/manifests/{lion}")).await;
    assert_eq!(app.found("okapi").await, ["team/image"]);
    app.delete_as_admin(PATH).await;
    assert_eq!(app.found("okapi").await, [""; 0]);
    assert_eq!(app.found("zebra").await, ["team/m"]);
}
