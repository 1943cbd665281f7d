//! The page that edits a model card: who may save, what a preview and a save do, and texts that are refused.

use http::Request;
use lode_model::digest::Digest;
use lode_model::media_type as mt;
use lode_model::quant::ggml::Type;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic};
use super::create::{gguf, safetensors};
use super::hf_write::{CONFIG, file};
use super::models::push_model;
use super::sign_in::{Browser, from_page};
use super::{App, TestResponse};
use crate::card::MAX_CARD_BYTES;

const PAGE: &str = "/team/m/-/card?tag=latest";
const CARD: &str = "---\nlicense: mit\n---\n# Mini\n\nAnswers questions.\n";

/// A server with the model `team/m`, the administrator `admin`, and a user for each role.
async fn app() -> App {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let weights = safetensors("model.embed_tokens.weight", 8);
    app.committed("team/m", &[file("config.json", CONFIG), file("model.safetensors", &weights)]).await;
    close(&app).await;
    app
}

pub(super) async fn close(app: &App) {
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    for (name, role) in [("reader", "read"), ("writer", "write")] {
        app.user(name).await;
        app.grant("team/*", name, role).await;
    }
}

pub(super) fn form(action: &str, base: &str, text: &str) -> String {
    let fields = [("action", action), ("base", base), ("text", text)];
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// The manifest that the form of a page was made from.
pub(super) fn base_of(page: &TestResponse) -> String {
    let (_, rest) = page.text().split_once("name=\"base\" value=\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

impl App {
    pub(super) async fn as_admin(&self, path: &str) -> TestResponse {
        self.get_as(&basic("admin", PASSWORD), path).await
    }

    pub(super) async fn digest_of(&self, repository: &str) -> String {
        let found = self.as_admin(&format!("/v2/{repository}/manifests/latest")).await;
        found.header("docker-content-digest").to_owned()
    }
}

#[tokio::test]
async fn a_writer_saves_a_card_for_all_clients() {
    let app = app().await;
    let writer = Browser::signed_in(&app, "writer").await;
    let overview = writer.get("/team/m").await;
    assert!(overview.text().contains("Write a card"), "{}", overview.text());
    let page = writer.get("/team/m/-/card").await;
    assert_eq!(page.status, 200, "{}", page.text());
    let before = app.digest_of("team/m").await;
    assert_eq!(base_of(&page), before);
    // Browsers send line breaks in their own way.
    let saved = writer.post(PAGE, &form("save", &before, &CARD.replace('\n', "\r\n"))).await;
    assert_eq!((saved.status.as_u16(), saved.header("location")), (303, "/team/m?tag=latest"));
    let read = app.as_admin("/hf/team/m/resolve/main/README.md").await;
    assert_eq!(read.text(), CARD);
    // It is a revision of its own, by the one who saved it, and shares the weights with the one before.
    let moves = app.as_admin("/lode/v1/repositories/team/m/history").await.json();
    let last = &moves["moves"][0];
    assert_eq!((&last["from"], &last["actor"]), (&json!(before), &json!("user:writer")));
    assert_eq!(last["to"], app.digest_of("team/m").await);
    let tensors = async |digest: &str| {
        let manifest = app.as_admin(&format!("/v2/team/m/manifests/{digest}")).await.json();
        let layers = manifest["layers"].as_array().unwrap().clone();
        layers.into_iter().filter(|layer| layer["mediaType"] == mt::OLLAMA_TENSOR).collect::<Vec<Value>>()
    };
    assert_eq!(tensors(&before).await, tensors("latest").await);
    let overview = writer.get("/team/m").await;
    for text in ["Edit card", "Answers questions.", "license=MIT"] {
        assert!(overview.text().contains(text), "{text}: {}", overview.text());
    }
    // The page has the text again, and saving the same text changes nothing.
    let page = writer.get(PAGE).await;
    assert!(page.text().contains("\n---\nlicense: mit\n---\n# Mini\n\nAnswers questions.\n</textarea>"));
    let head = base_of(&page);
    assert_eq!(writer.post(PAGE, &form("save", &head, CARD)).await.status, 303);
    assert_eq!(app.digest_of("team/m").await, head);
}

#[tokio::test]
async fn only_writers_edit_cards() {
    let app = app().await;
    app.show("team/m", "public").await;
    let before = app.digest_of("team/m").await;
    let body = form("save", &before, CARD);
    let anonymous = app.send(from_page(Request::get(PAGE)).header("accept", "text/html"), "").await;
    assert_eq!(anonymous.status, 303);
    assert!(anonymous.header("location").starts_with("/login?next="), "{:?}", anonymous.headers);
    assert_eq!(app.send(from_page(Request::post(PAGE)), body.clone()).await.status, 401);
    let reader = Browser::signed_in(&app, "reader").await;
    assert!(!reader.get("/team/m").await.text().contains("-/card"));
    assert_eq!(reader.get(PAGE).await.status, 403);
    assert_eq!(reader.post(PAGE, &body).await.status, 403);
    // A form of another site, or of another session.
    let writer = Browser::signed_in(&app, "writer").await;
    let request = || Request::post(PAGE).header("cookie", &writer.cookie);
    let foreign = request().header("host", "localhost:5000").header("sec-fetch-site", "cross-site");
    assert_eq!(app.send(foreign, format!("csrf={}&{body}", writer.csrf)).await.status, 403);
    assert_eq!(app.send(from_page(request()), format!("csrf={}&{body}", reader.csrf)).await.status, 403);
    // A protected tag, and a namespace that is full. The text is kept.
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": ["latest"]})).await;
    let refused = writer.post(PAGE, &body).await;
    assert_eq!(refused.status, 403);
    for text in ["is protected by the pattern", "role=\"alert\"", "Answers questions.\n</textarea>"] {
        assert!(refused.text().contains(text), "{text}: {}", refused.text());
    }
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": []})).await;
    app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "team", "limit_bytes": 1})).await;
    let refused = writer.post(PAGE, &body).await;
    assert!(refused.status == 403 && refused.text().contains("quota"), "{}", refused.text());
    assert_eq!(app.digest_of("team/m").await, before);
}

#[tokio::test]
async fn programs_read_and_save_cards() {
    const PATH: &str = "/lode/v1/card/team/m/latest";
    let app = app().await;
    let (reader, writer) = (basic("reader", PASSWORD), basic("writer", PASSWORD));
    let none = app.get_as(&reader, PATH).await.json();
    let base = app.digest_of("team/m").await;
    assert_eq!((&none["digest"], &none["path"], &none["text"]), (&json!(base), &Value::Null, &Value::Null));
    let put = async |credentials: &str, path: &str, base: &str, text: &str| {
        let body = json!({"base": base, "text": text}).to_string();
        app.send_as(credentials, Request::put(path), body).await
    };
    let saved = put(&writer, PATH, &base, CARD).await;
    assert_eq!(saved.status, 200, "{}", saved.text());
    let head = app.digest_of("team/m").await;
    assert_eq!((&saved.json()["digest"], head == base), (&json!(head), false));
    let read = app.get_as(&reader, PATH).await.json();
    for (name, expect) in [
        ("digest", json!(head)),
        ("path", json!("README.md")),
        ("text", json!(CARD)),
        ("metadata", json!({"license": "mit"})),
        ("is_cut", json!(false)),
    ] {
        assert_eq!(read[name], expect, "{name}");
    }
    // An earlier revision has none.
    let earlier = app.get_as(&reader, &format!("/lode/v1/card/team/m/{base}")).await.json();
    assert_eq!(earlier["text"], Value::Null);
    // The same request again, one made from an earlier manifest, and others that are refused.
    assert_eq!(put(&writer, PATH, &base, CARD).await.json()["digest"], head);
    let limit = MAX_CARD_BYTES as usize;
    let by_digest = format!("/lode/v1/card/team/m/{head}");
    for (credentials, path, base, text, status, problem) in [
        (&writer, PATH, &base, "# Mine\n", 409, "was changed after you read it"),
        (&writer, PATH, &head, " ", 400, "the card is empty"),
        (&writer, PATH, &head, "---\nlicense: [mit\n---\n", 400, "is not valid YAML"),
        (&writer, PATH, &head, &"a".repeat(limit + 1), 413, "has 1048577 bytes"),
        (&writer, PATH, &head, &"a".repeat(7 * limit), 413, ""),
        (&writer, &by_digest, &head, CARD, 422, "choose a tag"),
        (&writer, PATH, &"latest".to_owned(), CARD, 400, "digest"),
        (&reader, PATH, &head, "# Mine\n", 403, ""),
        (&String::new(), PATH, &head, "# Mine\n", 401, ""),
    ] {
        let refused = put(credentials, path, base, text).await;
        assert_eq!(refused.status, status, "{problem}: {}", refused.text());
        assert!(refused.text().contains(problem), "{problem}: {}", refused.text());
    }
    assert_eq!(app.digest_of("team/m").await, head);
    // The longest text: its line breaks take two bytes in JSON.
    let longest = format!("{}#", "\n".repeat(limit - 1));
    assert_eq!(put(&writer, PATH, &head, &longest).await.status, 200);
    assert_eq!(app.get_as(&reader, PATH).await.json()["text"], longest);
}

#[tokio::test]
async fn a_preview_writes_nothing() {
    let app = app().await;
    let writer = Browser::signed_in(&app, "writer").await;
    let before = app.digest_of("team/m").await;
    let text = "# Title\n\n<script>alert(1)</script>\n\n**bold** [file](a.txt)\n</textarea><b>";
    let page = writer.post(PAGE, &form("preview", &before, text)).await;
    assert_eq!((page.status.as_u16(), base_of(&page)), (200, before.clone()));
    for expect in [
        "# Title\n\n&#60;script&#62;alert(1)&#60;/script&#62;",
        "&#60;/textarea&#62;&#60;b&#62;</textarea>",
        "<strong>bold</strong>",
        "href=\"/team/m/-/blob/latest/a.txt\"",
    ] {
        assert!(page.text().contains(expect), "{expect}: {}", page.text());
    }
    assert!(!page.text().contains("<script>alert"), "{}", page.text());
    // Wrong metadata is reported with the preview, and not saved.
    let text = "---\nlicense: [mit\n---\n# Title";
    for (action, status, has_preview) in [("preview", 200, true), ("save", 400, false)] {
        let page = writer.post(PAGE, &form(action, &before, text)).await;
        assert_eq!(page.status, status, "{action}");
        assert!(page.text().contains("is not valid YAML"), "{}", page.text());
        assert!(page.text().contains("license: [mit\n---\n# Title</textarea>"), "{}", page.text());
        assert_eq!(page.text().contains("id=\"preview\""), has_preview, "{action}");
    }
    let empty = writer.post(PAGE, &form("save", &before, " \r\n")).await;
    assert!(empty.status == 400 && empty.text().contains("the card is empty"), "{}", empty.text());
    // At the limit and beyond. Line breaks take the most room in a form.
    let limit = MAX_CARD_BYTES as usize;
    let long = writer.post(PAGE, &form("save", &before, &"a".repeat(limit + 1))).await;
    assert_eq!(long.status, 413);
    assert!(long.text().contains("has 1048577 bytes, expected at most 1048576"));
    let far = "a".repeat(6 * limit + (1 << 20));
    assert_eq!(writer.post(PAGE, &form("save", &before, &far)).await.status, 413);
    assert_eq!(app.digest_of("team/m").await, before);
    let longest = format!("{}#", "\n".repeat(limit - 1)).replace('\n', "\r\n");
    assert_eq!(writer.post(PAGE, &form("save", &before, &longest)).await.status, 303);
}

#[tokio::test]
async fn no_change_of_others_is_lost() {
    let app = app().await;
    let writer = Browser::signed_in(&app, "writer").await;
    let old = app.digest_of("team/m").await;
    assert_eq!(writer.post(PAGE, &form("save", &old, "# Theirs\n")).await.status, 303);
    let now = app.digest_of("team/m").await;
    // The same form again changes nothing, and is no conflict.
    assert_eq!(writer.post(PAGE, &form("save", &old, "# Theirs\n")).await.status, 303);
    assert_eq!(app.digest_of("team/m").await, now);
    let conflict = writer.post(PAGE, &form("save", &old, "# Mine\n")).await;
    assert_eq!((conflict.status.as_u16(), base_of(&conflict)), (409, now.clone()));
    for text in ["was changed after you read it", "\n# Mine\n</textarea>", "<code># Theirs\n"] {
        assert!(conflict.text().contains(text), "{text}: {}", conflict.text());
    }
    // A preview does not forget what the form was made from.
    let preview = writer.post(PAGE, &form("preview", &old, "# Mine\n")).await;
    assert_eq!(base_of(&preview), old);
    assert_eq!(app.digest_of("team/m").await, now);
    // After a look, it is saved.
    assert_eq!(writer.post(PAGE, &form("save", &now, "# Mine\n")).await.status, 303);
    assert_eq!(app.as_admin("/hf/team/m/resolve/main/README.md").await.text(), "# Mine\n");
}

/// Pushes a model as ollama does, with these bytes as its GGUF file, and more layers; returns its layers.
async fn push_as_ollama(app: &App, repository: &str, weights: Vec<u8>, more: &[&str]) -> Vec<Value> {
    let texts =
        [(mt::OLLAMA_TEMPLATE, "{{ .Prompt }}"), (mt::OLLAMA_LICENSE, "MIT"), (mt::OLLAMA_LICENSE, "BSD")];
    let more = more.iter().map(|kind| (*kind, "more"));
    let texts = texts.into_iter().chain(more).map(|(kind, text)| (kind, text.as_bytes().to_vec()));
    let mut layers = Vec::new();
    for (kind, bytes) in [(mt::OLLAMA_MODEL, weights)].into_iter().chain(texts) {
        let size = bytes.len();
        let digest = app.push_blob(repository, bytes).await;
        layers.push(json!({"mediaType": kind, "digest": digest, "size": size}));
    }
    let config = app.push_blob(repository, &b"{\"model_format\":\"gguf\"}"[..]).await;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": mt::DOCKER_MANIFEST, "layers": layers,
        "config": {"mediaType": mt::DOCKER_CONFIG, "digest": config, "size": 23},
    });
    let pushed = app.push_manifest(repository, "latest", &manifest).await;
    assert_eq!(pushed.status, 201, "{}", pushed.text());
    layers
}

#[tokio::test]
async fn a_model_of_ollama_keeps_its_layers() {
    let app = App::new().await;
    let before = push_as_ollama(&app, "team/m", gguf(Type::F32, 0x3d), &[]).await;
    close(&app).await;
    let writer = Browser::signed_in(&app, "writer").await;
    let saved = writer.post(PAGE, &form("save", &app.digest_of("team/m").await, CARD)).await;
    assert_eq!(saved.status, 303, "{}", saved.text());
    let manifest = app.as_admin("/v2/team/m/manifests/latest").await.json();
    let after = manifest["layers"].as_array().unwrap();
    for layer in before {
        let is_same =
            |other: &&Value| ["mediaType", "digest", "size"].iter().all(|key| other[key] == layer[key]);
        assert!(after.iter().any(|other| is_same(&other)), "{layer} in {manifest}");
    }
    assert!(writer.get("/team/m").await.text().contains("Answers questions."));
    assert_eq!(app.as_admin("/hf/team/m/resolve/main/README.md").await.text(), CARD);
}

/// Pushes an artifact that refers to a manifest, as `oras attach` does; returns its digest.
pub(super) async fn attach(
    app: &App,
    repository: &str,
    subject: &str,
    kind: &str,
    layers: &[(&str, &[u8])],
) -> String {
    let manifest = app.as_admin(&format!("/v2/{repository}/manifests/{subject}")).await;
    let admin = basic("admin", PASSWORD);
    let blob = async |bytes: &[u8]| {
        let digest = Digest::sha256(bytes).to_string();
        let path = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
        let request = Request::post(path).header("authorization", &admin).header("host", "localhost:5000");
        assert_eq!(app.send(request, bytes.to_vec()).await.status, 201);
        digest
    };
    let mut written = Vec::new();
    for (media_type, bytes) in layers {
        let digest = blob(bytes).await;
        written.push(json!({"mediaType": media_type, "digest": digest, "size": bytes.len()}));
    }
    let attached = json!({
        "schemaVersion": 2, "mediaType": mt::OCI_MANIFEST, "artifactType": kind, "layers": written,
        "config": {"mediaType": mt::OCI_EMPTY, "digest": blob(b"{}").await, "size": 2},
        "subject": {
            "mediaType": manifest.header("content-type"), "digest": subject, "size": manifest.body.len(),
        },
    })
    .to_string();
    let digest = Digest::sha256(attached.as_bytes()).to_string();
    let request = Request::put(format!("/v2/{repository}/manifests/{digest}"));
    let pushed = app.send_as(&admin, request.header("content-type", mt::OCI_MANIFEST), attached).await;
    assert_eq!(pushed.status, 201, "{}", pushed.text());
    digest
}

#[tokio::test]
async fn every_manifest_can_have_an_attached_card() {
    const KIND: &str = mt::LODE_CARD;
    let app = App::new().await;
    for repository in ["team/image", "other/image"] {
        app.push_image(repository, "latest", "layer").await;
    }
    close(&app).await;
    let writer = Browser::signed_in(&app, "writer").await;
    let head = app.digest_of("team/image").await;
    let shows = async |text: &str| {
        let page = writer.get("/team/image").await;
        assert!(page.text().contains(text), "{text}: {}", page.text());
    };
    // Neither is a card: another type, and no Markdown.
    attach(&app, "team/image", &head, "application/x-notes", &[("text/markdown", b"# Notes")]).await;
    attach(&app, "team/image", &head, KIND, &[("application/x-unknown", b"# Unknown")]).await;
    shows("No model card.").await;
    attach(&app, "team/image", &head, KIND, &[("text/markdown", CARD.as_bytes())]).await;
    shows("Answers questions.").await;
    shows("This card is attached to the manifest").await;
    // The last one counts, also if its text was there before.
    attach(&app, "team/image", &head, KIND, &[("text/markdown", b"# Second\n")]).await;
    shows(">Second<").await;
    let again = attach(&app, "team/image", &head, KIND, &[("text/markdown", CARD.as_bytes())]).await;
    shows("Answers questions.").await;
    let card = app.get_as(&basic("reader", PASSWORD), "/lode/v1/card/team/image/latest").await.json();
    for (name, expect) in [
        ("digest", json!(head)),
        ("attached", json!(again)),
        ("is_of_repository", json!(false)),
        ("path", json!("README.md")),
        ("text", json!(CARD)),
        ("metadata", json!({"license": "mit"})),
    ] {
        assert_eq!(card[name], expect, "{name}");
    }
    // The same manifest in another repository has no card.
    let other = app.as_admin("/lode/v1/card/other/image/latest").await.json();
    assert_eq!((&other["digest"], &other["text"]), (&json!(head), &Value::Null));
    // A card that is deleted is no longer shown.
    let request = Request::delete(format!("/v2/team/image/manifests/{again}"));
    assert_eq!(app.send_as(&basic("admin", PASSWORD), request, "").await.status, 202);
    shows(">Second<").await;
}

#[tokio::test]
async fn a_card_is_attached_where_a_commit_would_lose_content() {
    let app = App::new().await;
    app.push_image("team/image", "latest", "layer").await;
    let child = app.push_image("team/index", "amd64", "layer").await;
    let size = app.get("/v2/team/index/manifests/amd64").await.body.len();
    let index = json!({
        "schemaVersion": 2, "mediaType": mt::OCI_INDEX,
        "manifests": [{"mediaType": mt::OCI_MANIFEST, "digest": child, "size": size}],
    });
    assert_eq!(app.push_manifest("team/index", "latest", &index).await.status, 201);
    push_as_ollama(&app, "team/more", gguf(Type::F32, 0x3d), &["application/x-unknown"]).await;
    push_model(&app, "team/unlisted", "latest").await;
    close(&app).await;
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": ["*"]})).await;
    let writer = Browser::signed_in(&app, "writer").await;
    for repository in ["team/image", "team/index", "team/more", "team/unlisted"] {
        let (path, head) = (format!("/{repository}/-/card?tag=latest"), app.digest_of(repository).await);
        assert!(writer.get(&format!("/{repository}")).await.text().contains("Write a card"), "{repository}");
        let page = writer.get(&path).await;
        assert!(page.text().contains("attaches the card"), "{repository}: {}", page.text());
        assert_eq!(base_of(&page), head);
        assert_eq!(writer.post(&path, &form("save", &head, CARD)).await.status, 303, "{repository}");
        // The form was made before the card.
        let conflict = writer.post(&path, &form("save", &head, "# Mine\n")).await;
        assert_eq!(conflict.status, 409, "{repository}: {}", conflict.text());
        assert!(conflict.text().contains("<code>---\nlicense: mit"), "{}", conflict.text());
        let base = base_of(&conflict);
        assert_eq!(writer.post(&path, &form("save", &base, "# Mine\n")).await.status, 303, "{repository}");
        // A text that returns.
        let base = base_of(&writer.get(&path).await);
        assert_eq!(writer.post(&path, &form("save", &base, CARD)).await.status, 303, "{repository}");
        let card = app.as_admin(&format!("/lode/v1/card/{repository}/latest")).await.json();
        assert_eq!(card["text"], CARD);
        assert_eq!(app.digest_of(repository).await, head);
    }
    let reader = Browser::signed_in(&app, "reader").await;
    assert!(!reader.get("/team/image").await.text().contains("-/card"));
}

#[tokio::test]
async fn an_attached_card_stays_attached() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    app.committed("team/m", &[file("config.json", CONFIG)]).await;
    app.create_repository("team/own").await;
    app.committed("team/own", &[file("README.md", b"# Own\n")]).await;
    close(&app).await;
    let head = app.digest_of("team/m").await;
    let card = attach(&app, "team/m", &head, mt::LODE_CARD, &[("text/markdown", b"# First\n")]).await;
    let writer = Browser::signed_in(&app, "writer").await;
    assert_eq!(base_of(&writer.get(PAGE).await), card);
    assert_eq!(writer.post(PAGE, &form("save", &card, "# Second\n")).await.status, 303);
    assert_eq!(app.digest_of("team/m").await, head);
    assert!(writer.get("/team/m").await.text().contains(">Second<"));
    // Texts that cannot be edited.
    let limit = MAX_CARD_BYTES as usize;
    for (bytes, reason) in
        [(&b"\xff\xfe"[..], "is not UTF-8"), (&vec![b'a'; limit + 1][..], "a page edits at most 1048576")]
    {
        attach(&app, "team/m", &head, mt::LODE_CARD, &[("text/markdown", bytes)]).await;
        let page = writer.get(PAGE).await;
        assert_eq!(page.status, 422, "{}", page.text());
        assert!(page.text().contains(reason), "{}", page.text());
    }
    assert!(writer.get("/team/m").await.text().contains("The card is longer than 1 MiB."));
    // A card among the files comes first.
    let own = app.digest_of("team/own").await;
    attach(&app, "team/own", &own, mt::LODE_CARD, &[("text/markdown", b"# Attached\n")]).await;
    let page = writer.get("/team/own").await;
    assert!(page.text().contains(">Own<") && !page.text().contains(">Attached<"), "{}", page.text());
}

#[tokio::test]
async fn a_file_that_a_page_cannot_change_has_no_form() {
    let app = App::new().await;
    push_as_ollama(&app, "team/damaged", b"no GGUF".to_vec(), &[]).await;
    app.create_repository("team/text").await;
    app.committed("team/text", &[file("readme.md", b"\xff\xfe")]).await;
    app.create_repository("team/m").await;
    app.committed("team/m", &[file("dir/config.json", CONFIG), file("dir/ReadMe.md", b"# Here\n")]).await;
    let config = app.push_blob("team/oras", &b"{}"[..]).await;
    let readme = app.push_blob("team/oras", &b"# Own\n"[..]).await;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": mt::OCI_MANIFEST, "artifactType": "application/x-notes",
        "config": {"mediaType": mt::OCI_EMPTY, "digest": config, "size": 2},
        "layers": [{
            "mediaType": "text/markdown", "digest": readme, "size": 6, "annotations": {mt::TITLE_ANNOTATION: "README.md"},
        }],
    });
    assert_eq!(app.push_manifest("team/oras", "latest", &manifest).await.status, 201);
    close(&app).await;
    let writer = Browser::signed_in(&app, "writer").await;
    for (repository, reason) in
        [("team/text", "`readme.md` is not UTF-8"), ("team/oras", "push it again by the tool that made it")]
    {
        let (path, head) = (format!("/{repository}/-/card?tag=latest"), app.digest_of(repository).await);
        for page in [writer.get(&path).await, writer.post(&path, &form("save", &head, CARD)).await] {
            assert_eq!(page.status, 422, "{repository}");
            assert!(page.text().contains(reason), "{repository}: {}", page.text());
            assert!(!page.text().contains("<textarea"), "{repository}");
        }
        assert_eq!(app.digest_of(repository).await, head);
    }
    assert!(!writer.get("/team/oras").await.text().contains("-/card"));
    let head = app.digest_of("team/damaged").await;
    let damaged = writer.post("/team/damaged/-/card?tag=latest", &form("save", &head, CARD)).await;
    assert_eq!(damaged.status, 422, "{}", damaged.text());
    assert!(damaged.text().contains("cannot be stored with a card"), "{}", damaged.text());
    assert_eq!(app.digest_of("team/damaged").await, head);
    // A digest, tags and fields that do not exist.
    let head = app.digest_of("team/m").await;
    let page = writer.get(&format!("/team/m/-/card?tag={head}")).await;
    assert!(page.status == 422 && page.text().contains("choose a tag"), "{}", page.text());
    assert_eq!(writer.get("/team/m/-/card?tag=none").await.status, 404);
    assert_eq!(writer.get("/team/m/-/card?tag=%3Cb%3E").await.status, 400);
    assert_eq!(writer.post("/team/m/-/card", &form("save", &head, CARD)).await.status, 400);
    assert_eq!(writer.post(PAGE, &form("save", "<b>", CARD)).await.status, 400);
    // A card in a folder and in another case stays where it is.
    assert!(writer.get(PAGE).await.text().contains("\n# Here\n</textarea>"));
    assert_eq!(writer.post(PAGE, &form("save", &head, "# There\n")).await.status, 303);
    let read = app.as_admin("/hf/team/m/resolve/main/dir/ReadMe.md").await;
    assert_eq!(read.text(), "# There\n");
    assert_eq!(app.as_admin("/hf/team/m/resolve/main/README.md").await.status, 404);
}

#[tokio::test]
async fn an_empty_repository_gets_its_first_card() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    // A server without accounts: everyone may, from its own pages.
    let page = app.send(from_page(Request::get(PAGE)), "").await;
    assert!(page.text().contains("Write a card"), "{}", page.text());
    let body = form("save", &base_of(&page), CARD);
    let foreign = Request::post(PAGE).header("host", "localhost:5000").header("sec-fetch-site", "cross-site");
    assert_eq!(app.send(foreign, body.clone()).await.status, 403);
    assert_eq!(app.send(from_page(Request::post(PAGE)), body).await.status, 303);
    assert_eq!(app.content("team/m", "README.md").await, CARD);
}

#[tokio::test]
async fn pages_of_files_have_colours_and_are_bounded() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let digits = "1.".repeat(MAX_CARD_BYTES as usize / 2);
    let attributes: String = (0..40_000).map(|n| format!("{n} ")).collect();
    let files = [
        file("a.json", b"{\"a\":\"<b>\"}"),
        file("notes.txt", b"<i>plain</i>"),
        file("docs/b.md", b"# Title\n\n**bold**"),
        file("digits.sh", digits.as_bytes()),
        file("attributes.md", format!("<div {attributes}>").as_bytes()),
    ];
    app.committed("team/m", &files).await;
    for (path, expect) in [
        (
            "a.json",
            "<pre class=\"file\" tabindex=\"0\"><code>{\n  <span class=\"hl-name\">&quot;a&quot;</span>: ",
        ),
        ("notes.txt", "plain&#60;/i&#62;</code></pre>"),
        ("docs/b.md", "<strong>bold</strong>"),
        // Either would take minutes.
        ("digits.sh", "1.1.1."),
        ("attributes.md", "too many attributes"),
    ] {
        let page = app.get(&format!("/team/m/-/blob/latest/{path}")).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(page.text().contains(expect), "{path}: {}", &page.text()[..page.body.len().min(4000)]);
        assert!(!page.text().contains("<i>") && !page.text().contains("<b>"), "{path}");
    }
}
