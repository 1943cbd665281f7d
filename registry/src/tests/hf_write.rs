//! Models as Hugging Face's clients publish them: repositories, commits, large files, branches and tags, and hostile
//! requests.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures::stream;
use http::Request;
use lode_model::digest::Digest;
use lode_model::media_type as mt;
use serde_json::{Value, json};
use uuid::Uuid;

use super::access::{PASSWORD, basic, closed};
use super::create::safetensors;
use super::models::push_model;
use super::{App, TestResponse};
use crate::Config;

pub(super) const CONFIG: &[u8] =
    br#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4}"#;

fn header(parent: Option<&str>) -> Value {
    json!({"key": "header", "value": {"summary": "A commit", "description": "", "parentCommit": parent}})
}

pub(super) fn file(path: &str, content: &[u8]) -> Value {
    let content = BASE64.encode(content);
    json!({"key": "file", "value": {"content": content, "path": path, "encoding": "base64"}})
}

pub(super) fn lfs_file(path: &str, content: &[u8]) -> Value {
    let oid = Digest::sha256(content);
    json!({"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": oid.hex(), "size": content.len()}})
}

fn deleted(path: &str) -> Value {
    let key = if path.ends_with('/') { "deletedFolder" } else { "deletedFile" };
    json!({"key": key, "value": {"path": path}})
}

pub(super) fn lines(parent: Option<&str>, operations: &[Value]) -> String {
    [&[header(parent)], operations].concat().iter().map(|line| format!("{line}\n")).collect()
}

pub(super) fn post(path: &str) -> http::request::Builder {
    Request::post(path).header("host", "localhost:5000")
}

impl App {
    pub(super) async fn create_repository(&self, name: &str) {
        let (organization, name) = name.split_once('/').unwrap();
        let body = json!({"name": name, "organization": organization});
        let created = self.send(post("/hf/api/repos/create"), body.to_string()).await;
        assert_eq!(created.status, 200, "{}", created.text());
    }

    pub(super) async fn commit(
        &self,
        repository: &str,
        parent: Option<&str>,
        operations: &[Value],
    ) -> TestResponse {
        let path = format!("/hf/api/models/{repository}/commit/main");
        self.send(post(&path), lines(parent, operations)).await
    }

    /// Commits; returns the id.
    pub(super) async fn committed(&self, repository: &str, operations: &[Value]) -> String {
        let response = self.commit(repository, None, operations).await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()["commitOid"].as_str().unwrap().to_owned()
    }

    async fn paths(&self, repository: &str) -> Vec<String> {
        let tree = self.get(&format!("/hf/api/models/{repository}/tree/main?recursive=true")).await;
        assert_eq!(tree.status, 200, "{}", tree.text());
        let files = tree.json();
        let files = files.as_array().unwrap().iter().filter(|entry| entry["type"] == "file");
        files.map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) async fn content(&self, repository: &str, path: &str) -> Bytes {
        let response = self.get(&format!("/hf/{repository}/resolve/main/{path}")).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        response.body
    }

    /// The layers of the manifest of `latest` with this media type, by digest.
    async fn layers(&self, repository: &str, kind: &str) -> Vec<String> {
        let manifest = self.get(&format!("/v2/{repository}/manifests/latest")).await.json();
        let layers = manifest["layers"].as_array().unwrap().iter().filter(|layer| layer["mediaType"] == kind);
        layers.map(|layer| layer["digest"].as_str().unwrap().to_owned()).collect()
    }

    async fn batch(&self, repository: &str, objects: &[(&str, u64)]) -> TestResponse {
        let objects: Vec<Value> =
            objects.iter().map(|(oid, size)| json!({"oid": oid, "size": size})).collect();
        let body = json!({
            "operation": "upload", "transfers": ["basic", "multipart", "xet"], "objects": objects,
            "hash_algo": "sha256", "ref": {"name": "main"},
        });
        self.send(post(&format!("/hf/{repository}.git/info/lfs/objects/batch")), body.to_string()).await
    }

    /// Sends a request to a URL that a batch has returned, without credentials.
    async fn send_to(&self, method: &str, url: &Value, body: impl Into<Body>) -> TestResponse {
        let path = url.as_str().unwrap().strip_prefix("http://localhost:5000").unwrap().to_owned();
        let request = Request::builder().method(method).uri(path).header("host", "localhost:5000");
        self.send(request, body).await
    }
}

fn failure(response: &TestResponse) -> (u16, String, String) {
    let header = |name: &str| {
        let value = response.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        value.unwrap_or_default()
    };
    (response.status.as_u16(), header("x-error-code"), header("x-error-message"))
}

#[tokio::test]
async fn a_repository_is_created_and_deleted() {
    let app = App::new().await;
    let create = async |body: Value| app.send(post("/hf/api/repos/create"), body.to_string()).await;
    let created = create(json!({"name": "M", "organization": "Team"})).await;
    assert_eq!(created.json()["url"], "http://localhost:5000/hf/team/m");
    let info = app.get("/hf/api/models/team/m").await.json();
    assert_eq!((&info["id"], &info["siblings"]), (&json!("team/m"), &json!([])));
    let again = create(json!({"name": "m", "organization": "team"})).await;
    assert_eq!((again.status.as_u16(), &again.json()["url"]), (409, &created.json()["url"]));
    for (body, message) in [
        (json!({"name": "x", "organization": "team", "type": "dataset"}), "only models"),
        (json!({"name": "..", "organization": "team"}), "not a repository name"),
        (json!({"name": "x", "organization": "v2"}), "reserved"),
        (json!({"name": "x"}), "`team/mini`"),
        (json!({"name": "x", "organization": "team", "visibility": "protected"}), "expected"),
    ] {
        let refused = create(body).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.text().contains(message), "{}", refused.text());
    }
    let delete = || Request::delete("/hf/api/repos/delete");
    let body = json!({"name": "m", "organization": "team"}).to_string();
    assert_eq!(app.send(delete(), body.clone()).await.status, 200);
    assert_eq!(failure(&app.send(delete(), body).await).1, "RepoNotFound");
    assert_eq!(failure(&app.get("/hf/api/models/team/m").await).1, "RepoNotFound");
    assert_eq!(failure(&app.commit("team/m", None, &[file("a", b"x")]).await).1, "RepoNotFound");
    app.create_repository("team/m").await;
}

#[tokio::test]
async fn a_commit_changes_the_files_of_its_branch() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let first = app.committed("team/m", &[file("a.txt", b"one"), file("dir/b.txt", b"two")]).await;
    assert_eq!(app.paths("team/m").await, ["a.txt", "dir/b.txt"]);
    assert_eq!(&app.content("team/m", "dir/b.txt").await[..], b"two");
    // The same commit again has the same outcome, also if it follows an older one.
    let again = app.commit("team/m", Some(&"0".repeat(40)), &[file("a.txt", b"one")]).await;
    assert_eq!(again.json()["commitOid"], first);
    assert_eq!(again.json()["commitUrl"], format!("http://localhost:5000/hf/team/m/commit/{first}"));
    // Clients print it, and people open it.
    let of_commit = format!("/team/m?tag={first}");
    for (path, expect) in [
        (&format!("/hf/team/m/commit/{first}")[..], &of_commit[..]),
        ("/hf/team/m", "/team/m"),
        ("/hf/Team/M", "/team/m"),
    ] {
        let page = app.get(path).await;
        assert_eq!((page.status.as_u16(), page.header("location")), (303, expect), "{path}");
    }
    // A parent is checked, whole or abbreviated.
    let operations = [file("a.txt", b"changed"), deleted("dir/")];
    let moved = app.commit("team/m", Some(&"0".repeat(40)), &operations).await;
    assert_eq!(failure(&moved).0, 412);
    assert!(failure(&moved).2.contains(&first), "{}", moved.text());
    let second = app.commit("team/m", Some(&first[..7]), &operations).await;
    assert_eq!(second.status, 200, "{}", second.text());
    let (retried, second) = (app.commit("team/m", Some(&first), &operations).await, second.json());
    assert_eq!(retried.json()["commitOid"], second["commitOid"], "the response may have been lost");
    assert_eq!(app.paths("team/m").await, ["a.txt"]);
    // A file that is to be deleted has to exist, and nothing else of the commit is applied.
    let absent = (404, "EntryNotFound".to_owned(), "A file with this name doesn't exist: none".to_owned());
    let changed = file("a.txt", b"changed");
    for operations in
        [vec![deleted("none")], vec![changed, deleted("none")], vec![deleted("a.txt"), deleted("none")]]
    {
        for parent in [None, second["commitOid"].as_str()] {
            assert_eq!(failure(&app.commit("team/m", parent, &operations).await), absent);
        }
        assert_eq!(app.paths("team/m").await, ["a.txt"]);
    }
    assert_eq!(failure(&app.commit("team/m", None, &[deleted("none/")]).await).1, "EntryNotFound");
    // Repeated once more, it is still no error; after another commit, it is.
    assert_eq!(app.commit("team/m", None, &operations).await.json()["commitOid"], second["commitOid"]);
    let missing = app.commit("team/m", None, &[deleted("none"), file("c", b"c")]).await;
    assert_eq!(failure(&missing), absent,);
    // Operations apply in their order, and a copy has the content of a stored file.
    let copy = json!({"key": "lfsFile", "value": {
        "path": "copy.txt", "algo": "sha256", "oid": Digest::sha256(b"changed").hex()}});
    app.committed("team/m", &[deleted("a.txt"), file("a.txt", b"back"), copy]).await;
    assert_eq!(&app.content("team/m", "copy.txt").await[..], b"changed");
    assert_eq!(&app.content("team/m", "a.txt").await[..], b"back");
    assert_eq!(failure(&app.commit("team/m", None, &[deleted("dir/")]).await).1, "EntryNotFound");
    // A repository without files is no other than a new one.
    app.committed("team/m", &[deleted("a.txt"), deleted("copy.txt")]).await;
    assert_eq!(app.paths("team/m").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_checkpoint_becomes_tensors() {
    let storage = format!("memory://{}", Uuid::new_v4().simple()).parse().unwrap();
    for config in [Config::default(), Config { storage: Some(storage), ..Config::default() }] {
        let app = App::with(config).await;
        app.create_repository("team/m").await;
        let weights = safetensors("model.embed_tokens.weight", 8);
        app.committed("team/m", &[file("config.json", CONFIG), file("model.safetensors", &weights)]).await;
        let tensors = app.layers("team/m", mt::OLLAMA_TENSOR).await;
        assert_eq!(tensors.len(), 1);
        assert_eq!(app.content("team/m", "model.safetensors").await, weights);
        // Another file does not change them.
        app.committed("team/m", &[file("README.md", b"# Mini\n")]).await;
        assert_eq!(app.layers("team/m", mt::OLLAMA_TENSOR).await, tensors);
        assert_eq!(app.content("team/m", "model.safetensors").await, weights);
        // Nor does the same content under another name, which was never uploaded whole to the other repository.
        let batch = app.batch("team/m", &[(Digest::sha256(&weights).hex(), weights.len() as u64)]).await;
        assert_eq!(batch.json()["objects"][0].get("actions"), None, "{}", batch.text());
        app.committed("team/m", &[deleted("model.safetensors"), lfs_file("x.safetensors", &weights)]).await;
        assert_eq!(app.content("team/m", "x.safetensors").await, weights);
        assert_eq!(app.layers("team/m", mt::OLLAMA_TENSOR).await, tensors);
    }
}

#[tokio::test]
async fn an_incomplete_checkpoint_is_stored_as_it_is_until_it_is_complete() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let shards = [safetensors("a.weight", 8), safetensors("b.weight", 4)];
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let partial = app.commit("team/m", None, &[file(first, &shards[0]), file("config.json", CONFIG)]).await;
    assert!(
        partial.json()["hookOutput"].as_str().unwrap().contains("number 2 is missing"),
        "{}",
        partial.text()
    );
    assert!(app.layers("team/m", mt::OLLAMA_TENSOR).await.is_empty());
    assert_eq!(app.layers("team/m", mt::OCTET_STREAM).await.len(), 2);
    app.committed("team/m", &[file(second, &shards[1])]).await;
    assert_eq!(app.layers("team/m", mt::OLLAMA_TENSOR).await.len(), 2);
    assert_eq!(app.paths("team/m").await, ["config.json", first, second]);
    // Incomplete again: the shard that stays is assembled.
    app.committed("team/m", &[deleted(second)]).await;
    assert!(app.layers("team/m", mt::OLLAMA_TENSOR).await.is_empty());
    assert_eq!(app.content("team/m", first).await, shards[0]);
    // What is no model at all, or a damaged one.
    app.create_repository("team/text").await;
    app.committed("team/text", &[file("notes.txt", b"x"), file("model.safetensors", b"damaged")]).await;
    assert_eq!(&app.content("team/text", "model.safetensors").await[..], b"damaged");
}

#[tokio::test]
async fn a_commit_keeps_what_was_added_to_a_model() {
    let app = App::new().await;
    let weights = safetensors("model.embed_tokens.weight", 8);
    app.create_repository("team/mini").await;
    app.committed("team/mini", &[file("model.safetensors", &weights), file("config.json", CONFIG)]).await;
    let create = json!({"model": "team/mini", "from": "team/mini", "system": "Be brief.", "stream": false});
    assert_eq!(app.post_json("/api/create", create).await.status, 200);
    let before = app.layers("team/mini", mt::OLLAMA_SYSTEM).await;
    assert_eq!(before.len(), 1);
    app.committed("team/mini", &[file("README.md", b"# Mini\n")]).await;
    assert_eq!(app.layers("team/mini", mt::OLLAMA_SYSTEM).await, before);
    assert!(app.paths("team/mini").await.contains(&"README.md".to_owned()));
    // Also while the model is incomplete.
    app.create_repository("team/broken").await;
    app.committed("team/broken", &[file("model.safetensors", &weights), file("config.json", CONFIG)]).await;
    let create =
        json!({"model": "team/broken", "from": "team/broken", "system": "Be brief.", "stream": false});
    assert_eq!(app.post_json("/api/create", create).await.status, 200);
    let system = app.layers("team/broken", mt::OLLAMA_SYSTEM).await;
    app.committed("team/broken", &[file("model.safetensors", b"damaged")]).await;
    assert!(app.layers("team/broken", mt::OLLAMA_TENSOR).await.is_empty());
    assert_eq!(app.layers("team/broken", mt::OLLAMA_SYSTEM).await, system);
    app.committed("team/broken", &[file("model.safetensors", &weights)]).await;
    assert_eq!(app.layers("team/broken", mt::OLLAMA_TENSOR).await.len(), 1);
    assert_eq!(app.layers("team/broken", mt::OLLAMA_SYSTEM).await, system);
}

#[tokio::test]
async fn commits_at_the_same_time_all_count() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let commits = (0..4).map(|number| {
        let app = &app;
        async move { app.commit("team/m", None, &[file(&format!("{number}.txt"), b"x")]).await.status }
    });
    for status in futures::future::join_all(commits).await {
        assert_eq!(status, 200);
    }
    assert_eq!(app.paths("team/m").await, ["0.txt", "1.txt", "2.txt", "3.txt"]);
}

#[tokio::test]
async fn large_files_are_uploaded_whole() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let content = vec![7; 100_000];
    let oid = Digest::sha256(&content).hex().to_owned();
    let batch = app.batch("team/m", &[(&oid, 100_000), ("zz", 1)]).await.json();
    assert_eq!(batch["transfer"], "basic");
    assert_eq!(batch["objects"][1]["error"]["code"], 422);
    let actions = &batch["objects"][0]["actions"];
    let href = &actions["upload"]["href"];
    // Not before it is there.
    let commit = async || app.commit("team/m", None, &[lfs_file("big.bin", &content)]).await;
    assert_eq!(commit().await.status, 400);
    let verify = json!({"oid": oid, "size": 100_000}).to_string();
    assert_eq!(app.send_to("POST", &actions["verify"]["href"], verify.clone()).await.status, 404);
    // Neither other bytes nor another object.
    for (body, url) in [
        (vec![8; 100_000], href.clone()),
        (vec![7; 99_999], href.clone()),
        (vec![7; 100_001], href.clone()),
        (content.clone(), json!(href.as_str().unwrap().replace("size=100000", "size=100001"))),
    ] {
        assert_eq!(app.send_to("PUT", &url, body).await.status, 400, "{url}");
    }
    let (other, none) = (Digest::sha256(b"other"), href.as_str().unwrap().split_once('?').unwrap().0);
    for url in
        [href.as_str().unwrap().replace(&oid, other.hex()), none.to_owned(), format!("{none}?size=1&link=x")]
    {
        assert_eq!(app.send_to("PUT", &json!(url), content.clone()).await.status, 403, "{url}");
    }
    assert_eq!(app.send_to("PUT", href, content.clone()).await.status, 200);
    assert_eq!(app.send_to("POST", &actions["verify"]["href"], verify).await.status, 200);
    // It is there now, for other repositories, too.
    app.create_repository("team/n").await;
    for repository in ["team/m", "team/n"] {
        let batch = app.batch(repository, &[(&oid, 100_000)]).await.json();
        assert_eq!(batch["objects"][0].get("actions"), None);
        let wrong = app.batch(repository, &[(&oid, 5)]).await.json();
        assert_eq!(wrong["objects"][0]["error"]["code"], 422);
    }
    let mut lying = lfs_file("big.bin", &content);
    lying["value"]["size"] = json!(5);
    let refused = app.commit("team/m", None, &[lying]).await;
    assert!(refused.status == 400 && refused.text().contains("100000 bytes"), "{}", refused.text());
    assert_eq!(commit().await.status, 200);
    assert_eq!(app.content("team/m", "big.bin").await, content);
}

#[tokio::test]
async fn large_files_are_uploaded_in_parts() {
    let storage = format!("memory://{}", Uuid::new_v4().simple()).parse().unwrap();
    for config in [Config::default(), Config { storage: Some(storage), ..Config::default() }] {
        send_in_parts(&App::with(config).await).await;
    }
}

async fn send_in_parts(app: &App) {
    app.create_repository("team/m").await;
    let size: usize = (64 << 20) + 1000;
    let content: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
    let oid = Digest::sha256(&content).hex().to_owned();
    let batch = app.batch("team/m", &[(&oid, size as u64)]).await.json();
    assert_eq!(batch["transfer"], "multipart");
    let upload = &batch["objects"][0]["actions"]["upload"];
    let part: usize = upload["header"]["chunk_size"].as_str().unwrap().parse().unwrap();
    assert_eq!((part, upload["header"].as_object().unwrap().len()), (64 << 20, 3));
    let finish = async || {
        let parts = json!([{"partNumber": 1, "etag": "a"}, {"partNumber": 2, "etag": "b"}]);
        app.send_to("POST", &upload["href"], json!({"oid": oid, "parts": parts}).to_string()).await
    };
    assert_eq!(finish().await.status, 400, "parts are missing");
    let (first, second) = (&upload["header"]["1"], &upload["header"]["2"]);
    assert_eq!(app.send_to("PUT", second, content[part..].to_vec()).await.status, 416, "out of order");
    // A cut part is sent again, and so is one whose response was lost.
    let cut =
        stream::iter([Ok(Bytes::copy_from_slice(&content[..1 << 20])), Err(std::io::Error::other("cut"))]);
    assert!(!app.send_to("PUT", first, Body::from_stream(cut)).await.status.is_success());
    for _ in 0..2 {
        let sent = app.send_to("PUT", first, content[..part].to_vec()).await;
        assert_eq!(sent.status, 200, "{}", sent.text());
        assert!(!sent.header("etag").is_empty());
    }
    assert_eq!(app.send_to("PUT", second, content[part..].to_vec()).await.status, 200);
    for _ in 0..2 {
        let finished = finish().await;
        assert_eq!(finished.status, 200, "{}", finished.text());
    }
    app.committed("team/m", &[lfs_file("big.bin", &content)]).await;
    assert!(app.content("team/m", "big.bin").await == content);
}

/// Each part has a URL in the response.
#[tokio::test]
async fn large_batches_have_larger_parts() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let size: u64 = 1 << 40;
    let oids: Vec<String> =
        (0..200).map(|n: u32| Digest::sha256(&n.to_le_bytes()).hex().to_owned()).collect();
    let mut objects: Vec<(&str, u64)> = oids.iter().map(|oid| (oid.as_str(), size)).collect();
    objects.insert(1, ("zz", 1));
    objects.push((&oids[0], size + 1));
    let response = app.batch("team/m", &objects).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(response.body.len() < 10 << 20, "{}", response.body.len());
    let batch = response.json();
    let answers = batch["objects"].as_array().unwrap();
    assert!(answers.iter().map(|answer| &answer["oid"]).eq(objects.iter().map(|(oid, _)| oid)));
    let mut urls = 0;
    for (answer, (_, size)) in answers.iter().zip(&objects) {
        if let Some(error) = answer.get("error") {
            assert_eq!(error["code"], 422);
            continue;
        }
        let header = answer["actions"]["upload"]["header"].as_object().unwrap();
        let part: u64 = header["chunk_size"].as_str().unwrap().parse().unwrap();
        let parts = header.len() as u64 - 1;
        assert!((parts - 1) * part < *size && *size <= parts * part, "{parts} of {part}");
        assert!(
            header[&parts.to_string()]
                .as_str()
                .unwrap()
                .contains(&format!("/{parts}?size={size}&part={part}&"))
        );
        urls += parts;
    }
    assert!((5_000..=10_000).contains(&urls), "{urls}");
    assert_eq!(answers.iter().filter(|answer| answer.get("error").is_some()).count(), 2);
}

#[tokio::test]
async fn files_within_a_commit_are_stored_as_they_arrive() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    // Longer than the buffer of a line, with the key `content` at any place.
    for (number, size) in [48_000, 49_152, 65_536, 300_001, 300_002].into_iter().enumerate() {
        let content: Vec<u8> = (0..size).map(|n| (n % 249) as u8).collect();
        let (text, path) = (BASE64.encode(&content), format!("{number}.bin"));
        let line = match number % 2 {
            0 => format!(r#"{{"key":"file","value":{{"content": "{text}", "path":"{path}"}}}}"#),
            _ => format!(
                r#"{{"value" : {{"path":"{path}","encoding":"base64","content" :"{text}"}},"key":"file"}}"#
            ),
        };
        let body = format!("{}\n{line}\n{}", header(None), file("after.txt", path.as_bytes()));
        // In pieces of a size that divides nothing.
        let pieces: Vec<_> = body
            .as_bytes()
            .chunks(7919)
            .map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece)))
            .collect();
        let request = post("/hf/api/models/team/m/commit/main");
        let response = app.send(request, Body::from_stream(stream::iter(pieces))).await;
        assert_eq!(response.status, 200, "{size}: {}", response.text());
        assert_eq!(app.content("team/m", &path).await, content, "{size}");
        assert_eq!(app.content("team/m", "after.txt").await, path.as_bytes());
    }
}

#[tokio::test]
async fn hostile_commits_change_nothing() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let head = app.committed("team/m", &[file("README.md", b"x"), file("dir/a", b"x")]).await;
    let long = |path: &str| format!("{{\"key\":\"file\",\"value\":{{\"path\":\"{path}\",\"content\":\"");
    let bodies = [
        (String::new(), 400, "no header"),
        (file("a", b"x").to_string(), 400, "no header"),
        (format!("{}{}", lines(None, &[]), header(None)), 400, "second header"),
        ("{\n".to_owned(), 400, "line 1"),
        ("[]\n".to_owned(), 400, "line 1"),
        (lines(None, &[json!({"key": "copyFile", "value": {}})]), 400, "the key `copyFile`"),
        (lines(None, &[json!({"key": "file", "value": {"path": "a"}})]), 400, "missing field `content`"),
        (lines(None, &[json!({"key": "file", "value": {"path": "a", "content": "?"}})]), 400, "not base64"),
        (
            lines(
                None,
                &[json!({"key": "file", "value": {"path": "a", "content": "", "encoding": "utf-8"}})],
            ),
            400,
            "encoding",
        ),
        (lines(None, &[json!({"key": "lfsFile", "value": {"path": "a", "oid": "12"}})]), 400, "no sha256"),
        (
            lines(
                None,
                &[json!({"key": "lfsFile", "value": {"path": "a", "oid": "0".repeat(64), "algo": "md5"}})],
            ),
            400,
            "algo",
        ),
        (lines(None, &[lfs_file("a", b"never uploaded")]), 400, "upload it first"),
        (format!("{}{}", lines(None, &[]), "x".repeat(100_000)), 400, "more than 65536 bytes"),
        (format!("{}{}{}", lines(None, &[]), long("a"), "?".repeat(100_000)), 400, "not base64"),
        (format!("{}{}{}", lines(None, &[]), long("a"), "A".repeat(100_000)), 400, "ends within"),
        (format!("{}{}{}\"", lines(None, &[]), long("a"), "A".repeat(100_001)), 400, "not base64"),
        (format!("{}{}{}==AA\"}}}}", lines(None, &[]), long("a"), "A".repeat(100_002)), 400, "not base64"),
        (
            format!("{}{}{}\"{}", lines(None, &[]), long("a"), "A".repeat(100_000), "x".repeat(70_000)),
            400,
            "besides the content",
        ),
        (
            format!("{}{}{}\"}}}}", lines(None, &[]), long("../a"), "A".repeat(100_000)),
            400,
            "cannot be the path",
        ),
        (lines(None, &vec![deleted("dir/a"); 10_001]), 413, "more than 10000 operations"),
        (lines(None, &[deleted(&"a".repeat(5000))]), 400, "a path of more than 4096 bytes"),
    ];
    for (body, status, message) in bodies {
        let response = app.send(post("/hf/api/models/team/m/commit/main"), body).await;
        let (got, _, text) = failure(&response);
        assert!(got == status && text.contains(message), "expected {status} {message}, got {got} {text}");
    }
    let paths = [
        ("", "expected"),
        ("/a", "expected"),
        ("a//b", "expected"),
        ("a/", "expected"),
        ("./a", "expected"),
        ("../a", "expected"),
        ("a/../../b", "expected"),
        ("a\\b", "expected"),
        ("a\nb", "expected"),
        ("a\u{7f}b", "expected"),
        (&"a".repeat(1025), "expected"),
        (&("a/".repeat(65) + "a"), "64 folders"),
        (".git/config", "`.git`"),
        ("x/.GIT", "`.git`"),
        ("lode.files.json", "reserved"),
        ("readme.md", "only in case"),
        ("README.md/x", "`README.md` is a file"),
        ("dir", "it is a folder"),
    ];
    for (path, message) in paths {
        let response = app.commit("team/m", None, &[file(path, b"y")]).await;
        let (status, _, text) = failure(&response);
        assert!(status == 400 && text.contains(message), "{path}: {status} {text}");
    }
    // A client that vanishes.
    let begun = lines(None, &[file("a", b"x")]) + &long("b") + &"A".repeat(200_000);
    let cut = stream::iter([Ok(Bytes::from(begun)), Err(std::io::Error::other("reset"))]);
    let request = post("/hf/api/models/team/m/commit/main");
    assert_eq!(app.send(request, Body::from_stream(cut)).await.status, 400);
    assert_eq!(app.get("/hf/api/models/team/m").await.json()["sha"], head);
    assert_eq!(app.paths("team/m").await, ["README.md", "dir/a"]);
}

#[tokio::test]
async fn a_file_within_a_commit_is_limited() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let begin = Bytes::from(lines(None, &[]) + "{\"key\":\"file\",\"value\":{\"path\":\"a\",\"content\":\"");
    let piece = Bytes::from(vec![b'A'; 1 << 20]);
    let body = std::iter::once(begin).chain(std::iter::repeat_n(piece, 90)).map(Ok::<_, std::io::Error>);
    let request = post("/hf/api/models/team/m/commit/main");
    let refused = app.send(request, Body::from_stream(stream::iter(body))).await;
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(refused.text().contains("LFS"), "{}", refused.text());
}

#[tokio::test]
async fn files_are_sent_as_the_server_says() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let preupload = async |files: Value, rules: &str| {
        let body = json!({"files": files, "gitIgnore": rules}).to_string();
        let response = app.send(post("/hf/api/models/team/m/preupload/main"), body).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let answers = response.json()["files"].as_array().unwrap().clone();
        let answer =
            |file: &Value| (file["uploadMode"].as_str().unwrap().to_owned(), file["shouldIgnore"] == true);
        answers.iter().map(answer).collect::<Vec<_>>()
    };
    let of = |path: &str, size: u64| json!({"path": path, "size": size, "sample": ""});
    let files = json!([of("a", 0), of("b.log", 5), of("c", 10_000_000), of("d", 10_000_001)]);
    let (inline, lfs) = (("regular".to_owned(), false), ("lfs".to_owned(), false));
    let expect = [inline.clone(), ("regular".to_owned(), true), inline.clone(), lfs.clone()];
    assert_eq!(preupload(files, "*.log").await, expect);
    // Paths that no commit can have are refused before they are matched, which would take hours.
    for (path, message) in [
        ("a/".repeat(500_000) + "a", "more than 1024 bytes"),
        ("a/".repeat(65) + "a", "more than 64 folders"),
        ("../a".to_owned(), "not a relative path"),
    ] {
        let body = json!({"files": [of(&path, 1)], "gitIgnore": "*a*\n".repeat(1000)}).to_string();
        let refused = app.send(post("/hf/api/models/team/m/preupload/main"), body).await;
        assert_eq!(refused.status, 400, "{message}");
        assert!(refused.text().contains(message), "{message}: {}", refused.text());
    }
    // A card is checked before it is sent.
    for (card, status) in
        [("# x", 200), ("---\nlicense: mit\n---\n", 200), ("---\na: [\n---\n", 400), ("---\n- a\n---\n", 400)]
    {
        let body = json!({"content": card, "repoType": "model"}).to_string();
        let checked = app.send(post("/hf/api/validate-yaml"), body).await;
        assert_eq!(checked.status, status, "{}", checked.text());
        assert_eq!(checked.json()["errors"].as_array().unwrap().len(), usize::from(status == 400));
    }
}

#[tokio::test]
async fn tags_and_branches_are_tags() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let first = app.committed("team/m", &[file("a", b"1")]).await;
    let send = async |method: &str, path: &str, body: Value| {
        let path = format!("/hf/api/models/team/m/{path}");
        let response = app.send(Request::builder().method(method).uri(path), body.to_string()).await;
        failure(&response)
    };
    assert_eq!(send("POST", "tag/main", json!({"tag": "v1", "message": "x"})).await.0, 200);
    assert_eq!(send("POST", "tag/main", json!({"tag": "v1"})).await.0, 409);
    assert_eq!(send("POST", "tag/none", json!({"tag": "v2"})).await.1, "RevisionNotFound");
    assert_eq!(send("POST", "tag/main", json!({"tag": "a/b"})).await.0, 400);
    assert_eq!(send("POST", "branch/next", json!({"startingPoint": "v1"})).await.0, 200);
    assert_eq!(send("POST", "branch/next", json!({})).await.0, 409);
    assert_eq!(send("POST", "branch/main", json!({})).await.0, 409);
    assert_eq!(send("POST", "branch/refs%2Fpr%2F1", json!({})).await.0, 400);
    let body = lines(None, &[file("b", b"2")]);
    let commit = async |branch: &str| {
        app.send(post(&format!("/hf/api/models/team/m/commit/{branch}")), body.clone()).await
    };
    assert_eq!(commit("next").await.status, 200);
    assert_eq!(failure(&commit("none").await).1, "RevisionNotFound");
    assert_eq!(commit("refs%2Fheads%2Fnext").await.status, 200);
    assert_eq!(commit("main?create_pr=1").await.status, 400);
    // The tag stays where it was, and so does `main`.
    for revision in ["v1", "main"] {
        assert_eq!(app.get(&format!("/hf/api/models/team/m/revision/{revision}")).await.json()["sha"], first);
    }
    assert_eq!(send("DELETE", "branch/main", json!({})).await.0, 400);
    assert_eq!(send("DELETE", "branch/next", json!({})).await.0, 200);
    assert_eq!(send("DELETE", "tag/v1", json!({})).await.0, 200);
    assert_eq!(send("DELETE", "tag/v1", json!({})).await.1, "RevisionNotFound");
    // A tag `main` is the branch, where there is one.
    let latest = app.get("/v2/team/m/manifests/latest").await.json();
    assert_eq!(app.push_manifest("team/m", "main", &latest).await.status, 201);
    let head = app.committed("team/m", &[file("c", b"3")]).await;
    assert_eq!(app.get("/hf/api/models/team/m/revision/main").await.json()["sha"], head);
    assert_ne!(app.get("/hf/api/models/team/m/revision/latest").await.json()["sha"], head);
}

/// What is no file of a branch stays where it is.
#[tokio::test]
async fn commits_drop_no_content() {
    let app = App::new().await;
    let image = app.push_image("team/image", "latest", "layer").await;
    for path in ["README.md", "config.json"] {
        let refused = app.commit("team/image", None, &[file(path, b"{}\n")]).await;
        assert_eq!(refused.status, 409, "{}", refused.text());
        assert!(refused.text().contains("tag latest has content that is no file"), "{}", refused.text());
    }
    // Tensors without a list of the original files.
    push_model(&app, "team/tensors", "latest").await;
    assert_eq!(app.commit("team/tensors", None, &[file("README.md", b"# Tensors\n")]).await.status, 409);
    let kept = app.get("/v2/team/image/manifests/latest").await;
    assert_eq!(kept.header("docker-content-digest"), image.as_str());
}

#[tokio::test]
async fn rights_rules_and_quotas_count() {
    let app = closed().await;
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    app.grant("team/*", "alice", "write").await;
    app.grant("team/*", "bob", "read").await;
    let create = async |credentials: &str, body: Value| {
        app.send_as(credentials, Request::post("/hf/api/repos/create"), body.to_string()).await
    };
    assert_eq!(create(&alice, json!({"name": "m", "organization": "team"})).await.status, 200);
    // Without an organisation it is the caller's own. Its owner may say who sees it.
    let own = create(&alice, json!({"name": "own", "visibility": "public"})).await;
    assert_eq!(own.json()["url"], "http://localhost:5000/hf/alice/own", "{}", own.text());
    assert_eq!(app.get("/hf/api/models/alice/own").await.json()["private"], false);
    let settings = Request::put("/hf/api/models/alice/own/settings");
    assert_eq!(app.send_as(&alice, settings, json!({"private": true}).to_string()).await.status, 200);
    assert_eq!(app.get("/hf/api/models/alice/own").await.status, 401);
    let public = json!({"name": "public", "organization": "team", "visibility": "public"});
    assert_eq!(create(&alice, public).await.status, 403, "a writer does not publish");
    let path = "/hf/api/models/team/m/commit/main";
    let commit = async |credentials: &str, content: &[u8]| {
        app.send_as(credentials, Request::post(path), lines(None, &[file("a", content)])).await
    };
    assert_eq!(commit(&alice, b"1").await.status, 200);
    assert_eq!(commit(&bob, b"2").await.status, 403);
    assert_eq!(commit("", b"2").await.status, 401);
    let wrong = commit("Bearer hf_wrong", b"2").await;
    assert_eq!(failure(&wrong).2, "Invalid credentials in Authorization header");
    // The URL of an upload has the rights of the one who got it, as long as they last.
    let batch =
        json!({"operation": "upload", "objects": [{"oid": Digest::sha256(b"large").hex(), "size": 5}]});
    let request = Request::post("/hf/team/m.git/info/lfs/objects/batch");
    let (token, id) = app.token(&alice, json!({"name": "x", "access": "write"})).await;
    let batch = app.send_as(&token, request, batch.to_string()).await.json();
    let href = &batch["objects"][0]["actions"]["upload"]["href"];
    let revoke = Request::delete(format!("/lode/v1/tokens/{id}"));
    assert_eq!(app.send_as(&alice, revoke, "").await.status, 204);
    assert_eq!(app.send_to("PUT", href, "large").await.status, 403);
    // Protected tags and quotas.
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": ["latest"]})).await;
    let protected = commit(&alice, b"3").await;
    assert!(protected.status == 403 && protected.text().contains("protected"), "{}", protected.text());
    let delete = json!({"name": "m", "organization": "team"}).to_string();
    let admin = basic("admin", PASSWORD);
    let kept = app.send_as(&admin, Request::delete("/hf/api/repos/delete"), delete.clone()).await;
    assert!(kept.status == 403 && kept.text().contains("protected"), "{}", kept.text());
    app.admin("PUT", "/lode/v1/protected-tags", json!({"target": "team/*", "patterns": []})).await;
    app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "team", "limit_bytes": 1_000_000})).await;
    // The objects of a batch count together.
    let announce = async |count: u8| {
        let object = |n: u8| json!({"oid": Digest::sha256(&[n]).hex(), "size": 400_000});
        let objects: Vec<Value> = (0..count).map(object).collect();
        let batch = json!({"operation": "upload", "objects": objects}).to_string();
        app.send_as(&alice, Request::post("/hf/team/m.git/info/lfs/objects/batch"), batch).await
    };
    assert_eq!(announce(1).await.status, 200);
    let full = announce(3).await;
    assert!(full.status == 403 && full.text().contains("quota"), "{}", full.text());
    app.admin("PUT", "/lode/v1/quotas", json!({"namespace": "team", "limit_bytes": 5000})).await;
    let full = commit(&alice, &[0; 100_000]).await;
    assert!(full.status == 403 && full.text().contains("quota"), "{}", full.text());
    assert_eq!(app.send_as(&bob, Request::delete("/hf/api/repos/delete"), delete.clone()).await.status, 403);
    assert_eq!(app.send_as(&admin, Request::delete("/hf/api/repos/delete"), delete).await.status, 200);
}
