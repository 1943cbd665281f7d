//! Models as Hugging Face's clients read them: files by revision, ranges, trees, lists, and errors.

use http::Request;
use lode_model::digest::Digest;
use lode_model::files_view::{FileEntry, FileView, LAYER_NAME, Segment, VERSION};
use lode_model::media_type as mt;
use serde_json::{Value, json};
use uuid::Uuid;

use super::access::{PASSWORD, basic, closed};
use super::hf_write::file;
use super::models::{push_model, push_model_with};
use super::{App, TestResponse};
use crate::{Config, Switch};

/// Pushes a manifest whose file `dir/big.bin` consists of literal bytes and parts of two blobs; returns the file.
async fn push_assembled(app: &App, repository: &str, tag: &str) -> Vec<u8> {
    let (first, second) = (vec![1; 3000], (0..5000_u32).map(|n| n as u8).collect::<Vec<u8>>());
    let mut layers = Vec::new();
    for bytes in [&first, &second] {
        let digest = app.push_blob(repository, bytes.clone()).await;
        layers.push(
            json!({"mediaType": mt::OLLAMA_TENSOR, "digest": digest, "size": bytes.len(), "name": "t"}),
        );
    }
    let blob = |bytes: &[u8], offset, length| Segment::Blob { digest: Digest::sha256(bytes), offset, length };
    let content = [b"header".as_slice(), &first[10..2010], &second].concat();
    let file = FileEntry {
        path: "dir/big.bin".to_owned(),
        size: content.len() as u64,
        digest: None,
        assembled: true,
        segments: vec![
            Segment::Inline { inline: b"header".to_vec() },
            blob(&first, 10, 2000),
            blob(&second, 0, 5000),
        ],
    };
    let text = Segment::Inline { inline: b"{}".to_vec() };
    let config = FileEntry::in_blob("config.json".to_owned(), Some(Digest::sha256(b"{}")), text);
    let view = FileView { version: VERSION, files: vec![file, config] }.to_bytes();
    let size = view.len();
    let digest = app.push_blob(repository, view).await;
    layers.push(json!({"mediaType": mt::OLLAMA_JSON, "digest": digest, "size": size, "name": LAYER_NAME}));
    let config = app.push_blob(repository, "{}").await;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": mt::DOCKER_MANIFEST, "layers": layers,
        "config": {"mediaType": mt::DOCKER_CONFIG, "digest": config, "size": 2},
    });
    let response = app.push_manifest(repository, tag, &manifest).await;
    assert_eq!(response.status, 201, "{}", response.text());
    content
}

/// Pushes a manifest whose file view has empty files with these paths.
async fn push_empty_files(app: &App, repository: &str, paths: impl Iterator<Item = String>) {
    let empty = |path| FileEntry { path, size: 0, digest: None, assembled: false, segments: vec![] };
    let view = FileView { version: VERSION, files: paths.map(empty).collect() }.to_bytes();
    let size = view.len();
    let digest = app.push_blob(repository, view).await;
    let config = app.push_blob(repository, "{}").await;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": mt::DOCKER_MANIFEST,
        "layers": [{"mediaType": mt::OLLAMA_JSON, "digest": digest, "size": size, "name": LAYER_NAME}],
        "config": {"mediaType": mt::DOCKER_CONFIG, "digest": config, "size": 2},
    });
    let response = app.push_manifest(repository, "latest", &manifest).await;
    assert_eq!(response.status, 201, "{}", response.text());
}

fn entry_paths(response: &TestResponse) -> Vec<String> {
    let entries = response.json();
    entries.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
}

async fn ranged(app: &App, path: &str, range: &str) -> TestResponse {
    app.send(Request::get(path).header("range", range), "").await
}

#[tokio::test]
async fn assembled_files_are_read_by_range() {
    let storage = format!("memory://{}", Uuid::new_v4().simple()).parse().unwrap();
    let bucket = Config { storage: Some(storage), redirect: Switch::Off, ..Config::default() };
    for config in [Config::default(), bucket] {
        let app = App::with(config).await;
        let content = push_assembled(&app, "team/m", "latest").await;
        let path = "/hf/team/m/resolve/main/dir/big.bin";
        let whole = app.get(path).await;
        assert_eq!((whole.status.as_u16(), &whole.body[..]), (200, &content[..]));
        for range in [0..1, 5..7, 6..2006, 2000..2010, 2005..7006, 100..100 + 1, 7005..7006] {
            let (first, last) = (range.start, range.end - 1);
            let part = ranged(&app, path, &format!("bytes={first}-{last}")).await;
            assert_eq!((part.status.as_u16(), &part.body[..]), (206, &content[range]), "{first}-{last}");
            assert_eq!(part.header("content-range"), format!("bytes {first}-{last}/7006"));
        }
        assert_eq!(&ranged(&app, path, "bytes=7000-").await.body[..], &content[7000..]);
        let beyond = ranged(&app, path, "bytes=7006-").await;
        assert_eq!((beyond.status.as_u16(), beyond.header("content-range")), (416, "bytes */7006"));

        let head = app.send(Request::head(path), "").await;
        assert_eq!((head.status.as_u16(), head.header("content-length")), (200, "7006"));
        // The digest of an assembled file is not known, so that it is not listed as one of git's large files.
        assert!(!head.headers.contains_key("x-linked-etag"));
        let etag = head.header("etag").to_owned();
        let same = app.send(Request::get(path).header("if-none-match", &etag), "").await;
        assert_eq!(same.status, 304);
        let other = Request::get(path).header("range", "bytes=0-1").header("if-range", "\"other\"");
        assert_eq!(app.send(other, "").await.status, 200);
        let known = app.get("/hf/team/m/resolve/main/config.json").await;
        let sha256 = format!("\"{}\"", Digest::sha256(b"{}").hex());
        assert_eq!((known.header("x-linked-etag"), known.header("x-linked-size")), (&*sha256, "2"));
        assert_eq!(&known.body[..], b"{}");
    }
}

#[tokio::test]
async fn a_revision_is_a_tag_or_the_beginning_of_a_digest() {
    let app = App::new().await;
    let old = push_assembled(&app, "team/m", "latest").await;
    let digest = app.get("/v2/team/m/manifests/latest").await.header("docker-content-digest").to_owned();
    let commit = digest.strip_prefix("sha256:").unwrap()[..40].to_owned();
    for revision in ["main", "latest", &commit, &digest] {
        let info = app.get(&format!("/hf/api/models/Team/M/revision/{revision}")).await;
        assert_eq!((info.status.as_u16(), &info.json()["sha"]), (200, &json!(commit)), "{revision}");
        let file = app.get(&format!("/hf/team/m/resolve/{revision}/dir/big.bin")).await;
        assert_eq!((&file.body[..], file.header("x-repo-commit")), (&old[..], &*commit));
    }
    // The tag moves, and the commit stays.
    push_model(&app, "team/m", "latest").await;
    assert_ne!(app.get("/hf/api/models/team/m").await.json()["sha"], commit);
    assert_eq!(app.get(&format!("/hf/team/m/resolve/{commit}/dir/big.bin")).await.status, 200);
    // A tag `main` is the branch.
    push_assembled(&app, "team/m", "main").await;
    assert_eq!(app.get("/hf/api/models/team/m").await.json()["sha"], commit);
    let refs = app.get("/hf/api/models/team/m/refs").await.json();
    assert_eq!(refs["branches"], json!([{"name": "main", "ref": "refs/heads/main", "targetCommit": commit}]));
    let names: Vec<&Value> = refs["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    assert_eq!(names, ["latest", "main"]);
    assert_eq!(refs["converts"], json!([]));
}

#[tokio::test]
async fn trees_have_folders_and_pages() {
    let app = App::new().await;
    push_assembled(&app, "team/m", "latest").await;
    let paths = entry_paths;
    let root = app.get("/hf/api/models/team/m/tree/main").await;
    assert_eq!(paths(&root), ["dir", "config.json"]);
    assert_eq!(root.json()[0]["type"], "directory");
    assert_eq!(root.json()[1]["lfs"]["oid"], Digest::sha256(b"{}").hex());
    let all = app.get("/hf/api/models/team/m/tree/main?recursive=True&expand=true").await;
    assert_eq!(paths(&all), ["dir", "config.json", "dir/big.bin"]);
    assert_eq!(all.json()[2]["lastCommit"]["id"], all.json()[0]["lastCommit"]["id"]);
    for path in ["dir", "dir/big.bin"] {
        let below = app.get(&format!("/hf/api/models/team/m/tree/main/{path}")).await;
        assert_eq!(paths(&below), ["dir/big.bin"]);
    }

    let mut path = "/hf/api/models/team/m/tree/main?recursive=true&limit=2".to_owned();
    let mut pages = Vec::new();
    loop {
        let page = app.send(Request::get(&path).header("host", "localhost:5000"), "").await;
        pages.push(paths(&page));
        let Some(link) = page.headers.get("link") else { break };
        // Clients request the address as it is.
        let next = link.to_str().unwrap().strip_prefix("<http://localhost:5000").unwrap();
        path = next.strip_suffix(">; rel=\"next\"").unwrap().to_owned();
    }
    assert_eq!(pages, [vec!["dir", "config.json"], vec!["dir/big.bin"]]);

    let paths_info = "/hf/api/models/team/m/paths-info/main";
    let form = app.send(Request::post(paths_info), "paths=dir&paths=none&paths=dir%2Fbig.bin").await;
    assert_eq!(paths(&form), ["dir", "dir/big.bin"]);
    let request = Request::post(paths_info).header("content-type", "application/json");
    let json = app.send(request, r#"{"paths":["config.json"],"expand":true}"#).await;
    assert_eq!(paths(&json), ["config.json"]);
    let large = vec![b'x'; (1 << 20) + 1];
    assert_eq!(app.send(Request::post(paths_info), large).await.status, 413);
    // Each path counts once.
    let twice = app.send(Request::post(paths_info), "paths=dir/&paths=dir&".repeat(500)).await;
    assert_eq!(paths(&twice), ["dir"]);
    let many = app.send(Request::post(paths_info), "paths=dir&".repeat(1001)).await;
    assert!(many.status == 400 && many.text().contains("more than 1000 paths"), "{}", many.text());
}

#[tokio::test]
async fn pages_of_trees_are_limited() {
    let app = App::new().await;
    // Files in as many folders as possible, which have none in common but the first.
    let deep = |n: usize| format!("top/{}f", format!("{n}-/").repeat(63));
    let names = |n: usize| [deep(n), format!("top/{n}.txt"), format!("top-{n}/a")];
    push_empty_files(&app, "team/m", (0..50).flat_map(names)).await;
    let tree = "/hf/api/models/team/m/tree/main";
    let mut path = format!("{tree}?recursive=true");
    let (mut pages, mut listed) = (Vec::new(), Vec::new());
    loop {
        let page = app.send(Request::get(&path).header("host", "localhost:5000"), "").await;
        assert_eq!(page.status, 200, "{}", page.text());
        pages.push(entry_paths(&page).len());
        listed.extend(entry_paths(&page));
        let Some(next) = page.next_page() else { break };
        path = next.strip_prefix("http://localhost:5000").unwrap().to_owned();
    }
    // 150 files, the folder `top`, 50 other folders, and 63 folders of each deep file.
    assert_eq!(pages, [1000, 1000, 1000, 351]);
    let count = listed.len();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), count, "each entry once");
    for expect in ["top", "top-7", "top/7-", "top/7-/7-", "top/7.txt", "top-49/a", &deep(49)] {
        assert!(listed.binary_search(&expect.to_owned()).is_ok(), "{expect}");
    }
    for (query, expect) in [
        ("?recursive=true&limit=5000", 1000),
        ("?recursive=true&limit=0", 1),
        ("?recursive=true&cursor=3350", 1),
        ("?recursive=true&cursor=3351", 0),
        ("?recursive=true&cursor=99999999999999999999", 0),
        ("", 51),
        ("/top", 100),
        ("/top/7-?recursive=true", 63),
        ("/top/7-/7-", 1),
    ] {
        let page = app.get(&format!("{tree}{query}")).await;
        assert_eq!((page.status.as_u16(), entry_paths(&page).len()), (200, expect), "{query}");
    }
    assert_eq!(app.get(&format!("{tree}/to")).await.status, 404);
}

#[tokio::test]
async fn models_of_too_many_or_deep_files_are_refused() {
    let app = App::new().await;
    push_empty_files(&app, "team/deep", ["a/".repeat(65) + "a"].into_iter()).await;
    push_empty_files(&app, "team/many", (0..20_001).map(|n| n.to_string())).await;
    for (repository, reason) in [("deep", "more than 64 folders"), ("many", "more than 20000 files")] {
        let refused = app.get(&format!("/hf/api/models/team/{repository}/tree/main")).await;
        assert_eq!(refused.status, 422, "{}", refused.text());
        assert!(refused.text().contains(reason), "{}", refused.text());
    }
    push_empty_files(&app, "team/full", (0..20_000).map(|n| n.to_string())).await;
    let full = app.commit("team/full", None, &[file("new", b"x")]).await;
    assert_eq!(full.status, 400, "{}", full.text());
    assert!(full.text().contains("would have 20001 files"), "{}", full.text());
}

#[tokio::test]
async fn errors_have_the_codes_of_the_hub() {
    let app = App::new().await;
    push_assembled(&app, "team/m", "v1").await;
    let layers = json!([{"mediaType": "x/y", "size": 2, "digest": Digest::sha256(b"{}"),
        "annotations": {mt::TITLE_ANNOTATION: "../up"}}]);
    let manifest = json!({"schemaVersion": 2, "mediaType": mt::OCI_MANIFEST, "layers": layers,
        "config": {"mediaType": "x/z", "size": 2, "digest": Digest::sha256(b"{}")}});
    app.push_blob("team/bad", "{}").await;
    assert_eq!(app.push_manifest("team/bad", "main", &manifest).await.status, 201);
    let index = json!({"schemaVersion": 2, "mediaType": mt::OCI_INDEX, "manifests": []});
    assert_eq!(app.push_manifest("team/m", "index", &index).await.status, 201);

    let cases = [
        ("/hf/api/models/team/none", 404, "RepoNotFound", "repository team/none does not exist"),
        ("/hf/team/none/resolve/main/a", 404, "RepoNotFound", "repository team/none does not exist"),
        ("/hf/api/models/team/none/refs", 404, "RepoNotFound", "repository team/none does not exist"),
        ("/hf/api/models/team/m", 404, "RevisionNotFound", "Invalid rev id: main (there are: index, v1)"),
        ("/hf/team/m/resolve/refs%2Fpr%2F1/a", 404, "RevisionNotFound", "Invalid rev id: refs/pr/1"),
        ("/hf/api/models/team/m/revision/index", 404, "RevisionNotFound", "index is an index of 0 manifests"),
        ("/hf/team/m/resolve/v1/none", 404, "EntryNotFound", "Entry not found: none"),
        ("/hf/team/m/resolve/v1/dir", 404, "EntryNotFound", "Entry not found: dir"),
        ("/hf/api/models/team/m/tree/v1/none", 404, "EntryNotFound", "Entry not found: none"),
        ("/hf/team/bad/resolve/main/..%2Fup", 422, "", "cannot be listed"),
        ("/hf/api/models?sort=name", 400, "", "query parameter `sort`"),
        ("/hf/api/models?num_parameters=6B", 400, "", "query parameter `num_parameters`"),
        ("/hf/api/models?cursor=x", 400, "", "query parameter `cursor`"),
    ];
    for (path, status, code, message) in cases {
        let response = app.get(path).await;
        assert_eq!(response.status.as_u16(), status, "{path}: {}", response.text());
        let given = response.headers.get("x-error-code").map(|value| value.to_str().unwrap());
        assert_eq!(given.unwrap_or_default(), code, "{path}");
        let text = response.json()["error"].as_str().unwrap().to_owned();
        assert!(text.contains(message), "{path}: {text}");
        assert_eq!(response.header("x-error-message"), text, "{path}");
        let has_commit = response.headers.contains_key("x-repo-commit");
        assert_eq!(has_commit, code == "EntryNotFound", "{path}");
    }
}

#[tokio::test]
async fn repositories_with_models_are_listed() {
    let app = App::new().await;
    for repository in ["team/b", "team/a", "other/c"] {
        push_model(&app, repository, "v1").await;
        push_model(&app, repository, "latest").await;
        app.get(&format!("/lode/v1/models/{repository}/latest")).await;
    }
    app.push_image("team/image", "latest", "no model").await;
    let list = async |query: &str| -> Vec<String> {
        let listed = app.get(&format!("/hf/api/models{query}")).await;
        assert_eq!(listed.status, 200, "{}", listed.text());
        let listed = listed.json();
        listed.as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    for (query, expect) in [
        ("", vec!["other/c", "team/a", "team/b"]),
        ("?limit=2", vec!["other/c", "team/a"]),
        ("?limit=2&cursor=0:team/a", vec!["team/b"]),
        ("?author=Team", vec!["team/a", "team/b"]),
        ("?author=tea", vec![]),
        ("?search=TEAM&search=b", vec!["team/b"]),
        ("?search=%25", vec![]),
        ("?search=&filter=", vec!["other/c", "team/a", "team/b"]),
        ("?search=team%00&author=te%00am&filter=llama%00", vec!["team/a", "team/b"]),
        ("?filter=safetensors&filter=llama&filter=BF16", vec!["other/c", "team/a", "team/b"]),
        ("?filter=gguf", vec![]),
        ("?num_parameters=min:44,max:44", vec!["other/c", "team/a", "team/b"]),
        ("?num_parameters=min:45", vec![]),
        ("?num_parameters=max:43", vec![]),
        ("?sort=createdAt", vec!["other/c", "team/a", "team/b"]),
        ("?gated=true", vec![]),
        ("?pipeline_tag=text-generation", vec!["other/c", "team/a", "team/b"]),
        ("?pipeline_tag=summarization", vec![]),
    ] {
        assert_eq!(list(query).await, expect, "{query}");
    }
    let facts = &app.get("/hf/api/models?search=team/a").await.json()[0];
    assert_eq!(facts["safetensors"], json!({"parameters": {"BF16": 44}, "total": 44}));
    assert_eq!((&facts["author"], &facts["private"]), (&json!("team"), &json!(false)));
    assert_eq!(facts["tags"], json!(["safetensors", "llama", "BF16", "text-generation"]));
    let some = &app.get("/hf/api/models?search=team/a&expand=sha&expand=none").await.json()[0];
    assert_eq!(some.as_object().unwrap().keys().collect::<Vec<_>>(), ["_id", "id", "sha"]);
}

/// Pushes a model with a card as `latest`, and waits until it is indexed.
async fn push_with_card(app: &App, repository: &str, card: &str) {
    push_model_with(app, repository, "latest", &[(mt::OLLAMA_JSON, "README.md", card)]).await;
    app.get(&format!("/lode/v1/models/{repository}/latest")).await;
}

#[tokio::test]
async fn models_state_what_their_cards_state() {
    let app = App::new().await;
    for (repository, card) in [
        (
            "team/a",
            "---\nlicense: apache-2.0\nlanguage: [en, de]\ntags: [Chat, en]\nlibrary_name: transformers\n\
             pipeline_tag: text-classification\ndatasets: org/data\nbase_model: Org/Base\nextra: {x: [1, true]}\n---\n# A\n",
        ),
        ("team/b", "---\nlicense: [\n---\n# Not YAML\n"),
        ("team/c", "# No metadata\n"),
    ] {
        push_with_card(&app, repository, card).await;
    }

    let model = app.get("/hf/api/models/team/a").await.json();
    assert_eq!(model["pipeline_tag"], "text-classification");
    assert_eq!(model["library_name"], "transformers");
    let tags = json!([
        "transformers",
        "safetensors",
        "llama",
        "BF16",
        "text-classification",
        "Chat",
        "en",
        "de",
        "license:apache-2.0",
        "base_model:org/base",
        "dataset:org/data"
    ]);
    assert_eq!(model["tags"], tags);
    assert_eq!(model["cardData"]["extra"], json!({"x": [1, true]}), "unknown fields are returned, too");
    assert_eq!(model["cardData"]["license"], "apache-2.0");
    for (path, has_card) in [
        ("/hf/api/models/team/b", false),
        ("/hf/api/models/team/c", false),
        ("/hf/api/models/team/a?expand=tags", false),
        ("/hf/api/models/team/a?expand=cardData", true),
    ] {
        let model = app.get(path).await.json();
        assert_eq!(model.get("cardData").is_some(), has_card, "{path}: {model}");
    }
    let listed = app.get("/hf/api/models?search=team/a").await.json();
    assert_eq!((&listed[0]["tags"], &listed[0]["library_name"]), (&tags, &json!("transformers")));

    let list = async |query: &str| -> Vec<String> {
        let listed = app.get(&format!("/hf/api/models?{query}")).await.json();
        listed.as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    for query in [
        "filter=CHAT",
        "filter=de&filter=safetensors",
        "filter=license:apache-2.0",
        "filter=base_model:Org/Base",
        "filter=transformers&filter=text-classification&sort=createdAt",
        "pipeline_tag=text-classification&limit=1",
        "trained_dataset=org/data",
        "trained_dataset=dataset:org/data&search=a",
    ] {
        assert_eq!(list(query).await, ["team/a"], "{query}");
    }
    assert_eq!(list("filter=safetensors").await, ["team/a", "team/b", "team/c"]);
    assert_eq!(list("pipeline_tag=text-generation").await, ["team/b", "team/c"]);
    for query in
        ["filter=hat", "filter=chat&filter=fr", "pipeline_tag=text", "trained_dataset=data", "filter=%0A"]
    {
        assert!(list(query).await.is_empty(), "{query}");
    }
    // The tags are those of the card of now.
    push_with_card(&app, "team/a", "---\ntags: [other]\n---\n").await;
    assert_eq!((list("filter=chat").await, list("filter=other").await), (vec![], vec!["team/a".to_owned()]));
}

#[tokio::test]
async fn hidden_repositories_look_like_missing_ones() {
    let app = closed().await;
    app.push_as(&basic("admin", PASSWORD), "team/mini").await;
    let reader = app.user("reader").await;
    let (token, _) = app.token(&reader, json!({"name": "t"})).await;
    for repository in ["team/mini", "team/none"] {
        for path in [
            format!("/hf/api/models/{repository}"),
            format!("/hf/api/models/{repository}/revision/{}", "0".repeat(40)),
            format!("/hf/{repository}/resolve/main/config.json"),
        ] {
            for (credentials, status) in [("", 401), (token.as_str(), 404)] {
                let response = app.get_as(credentials, &path).await;
                let got = (response.status.as_u16(), response.header("x-error-code"));
                assert_eq!(got, (status, "RepoNotFound"), "{path}");
                assert!(!response.headers.contains_key("x-repo-commit"), "{path}");
            }
        }
    }
    let wrong = app.get_as("Bearer hf_wrong", "/hf/api/models/team/mini").await;
    assert_eq!(wrong.status, 401);
    assert_eq!(wrong.header("x-error-message"), "Invalid credentials in Authorization header");
    assert!(!wrong.headers.contains_key("x-error-code"));
    assert_eq!(app.get("/hf/api/models").await.json(), json!([]));
    app.show("team/*", "public").await;
    assert_eq!(app.get("/hf/api/models/team/mini/refs").await.status, 200);
}
