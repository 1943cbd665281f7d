//! Everything that a registry stores, as `lode repo list`, `lode tag list` and `lode manifest` show it: images,
//! indexes, other artifacts and models.

use lode_tests::artifact::{Image, fresh_seed, sha256};
use lode_tests::checkpoint::{demo, read_folder};
use lode_tests::command::{CommandOutput, wait_for};
use lode_tests::oci::{IMAGE_INDEX, IMAGE_MANIFEST, Registry};
use lode_tests::server::{Folder, Options, Server};
use lode_tests::terminal::Terminal;
use serde_json::{Value, json};

/// The entries of a list in the JSON output.
#[track_caller]
fn entries(output: CommandOutput, list: &str) -> Vec<Value> {
    output.expect_success().json()[list].as_array().expect("a list").clone()
}

/// Pushes an image, an index that lists it, and an artifact that describes it. Returns their digests.
async fn push_everything(registry: &Registry) -> [String; 3] {
    let image = Image::random(fresh_seed(), 2, 1000);
    let digest = image.push(registry, "team/image", "v1").await;
    let child = json!({"mediaType": IMAGE_MANIFEST, "digest": digest, "size": image.manifest.len(),
        "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}});
    let index = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [child]}).to_string();
    registry.manifest_put("team/image", "all", IMAGE_INDEX, index.as_bytes()).await.expect(201);
    let subject = json!({"mediaType": IMAGE_MANIFEST, "digest": digest, "size": image.manifest.len()});
    let extra = json!({"subject": subject, "artifactType": "application/vnd.example.sbom"});
    let sbom = Image::of(b"{}".to_vec(), vec![b"an sbom".to_vec()], &extra);
    let sbom = sbom.push(registry, "team/image", &sbom.digest()).await;
    [digest, sha256(index.as_bytes()), sbom]
}

#[tokio::test]
async fn every_repository_tag_and_manifest_is_listed() {
    let server = Server::fresh().await;
    let (registry, lode) = (server.registry(), server.lode());
    let empty = lode.run(&["repo", "list"]).await.expect_success();
    assert!(empty.stdout.is_empty() && empty.stderr.contains("no repositories"), "{}", empty.stderr);
    let [image, index, sbom] = push_everything(&registry).await;
    lode.create("team/mini", &demo(), &[]).await.expect_success();

    let repositories = entries(lode.run(&["repo", "list", "--json"]).await, "repositories");
    let names: Vec<&str> = repositories.iter().map(|found| found["repository"].as_str().unwrap()).collect();
    assert_eq!(names, ["team/image", "team/mini"]);
    assert_eq!((&repositories[0]["tags"], &repositories[0]["manifests"]), (&json!(2), &json!(3)));
    assert!(repositories[1]["size_bytes"].as_u64().unwrap() > 8_000_000, "{}", repositories[1]);
    let below = entries(lode.run(&["repo", "list", "team/mini", "--json"]).await, "repositories");
    assert_eq!(below.len(), 1);
    // Times have a zone where standard output is not a terminal.
    let text = lode.run(&["repo", "list"]).await.expect_success().stdout;
    assert!(text.starts_with("REPOSITORY") && text.lines().nth(1).unwrap().ends_with('Z'), "{text}");

    // A server indexes an image shortly after its push.
    let kinds = wait_for("the kinds are known", || async {
        let tags = entries(lode.run(&["tag", "list", "team/image", "--json"]).await, "tags");
        let kinds: Vec<String> = tags.iter().map(|tag| tag["kind"].as_str().unwrap().to_owned()).collect();
        (!kinds.contains(&"pending".to_owned())).then_some(kinds)
    })
    .await;
    assert_eq!(kinds, ["index", "image"]);
    let tags = lode.run(&["tag", "list", "team/image"]).await.expect_success().stdout;
    let v1 = tags.lines().find(|line| line.starts_with("v1 ")).unwrap();
    assert!(v1.contains(" image ") && v1.contains("2.0 kB") && v1.contains(&image[7..19]), "{tags}");
    let model = entries(lode.run(&["tag", "list", "team/mini", "--json"]).await, "tags");
    assert_eq!((&model[0]["kind"], &model[0]["tag"]), (&json!("model"), &json!("latest")));

    let manifests = entries(lode.run(&["manifest", "list", "team/image", "--json"]).await, "manifests");
    let find = |digest: &str| manifests.iter().find(|found| found["digest"] == digest).unwrap();
    assert_eq!(manifests.len(), 3);
    assert_eq!(find(&image)["tags"], json!(["v1"]));
    assert_eq!(find(&index)["tags"], json!(["all"]));
    assert_eq!((&find(&sbom)["tags"], &find(&sbom)["subject"]), (&json!([]), &json!(image)));
    let text = lode.run(&["manifest", "list", "team/image"]).await.expect_success().stdout;
    assert!(text.contains("application/vnd.example.sbom"), "{text}");

    for command in [["tag", "list", "team/none"], ["manifest", "list", "team/none"]] {
        lode.run(&command).await.expect_failure(&["team/none", "lode repo list"]);
    }
}

#[tokio::test]
async fn models_are_found_by_words_and_facts() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    lode.create("team/mini-q4", &demo(), &["--quantize", "q4_K_M"]).await.expect_success();
    Image::random(fresh_seed(), 1, 1000).push(&server.registry(), "ops/image", "v1").await;

    // An image counts as a model until it is indexed, shortly after its push.
    let found = wait_for("the image is indexed", || async {
        let found = lode.run(&["search", "--sort", "name"]).await.expect_success().stdout;
        (!found.contains("ops/image")).then_some(found)
    })
    .await;
    let lines: Vec<&str> = found.lines().collect();
    assert!(
        lines.len() == 3 && lines[0].starts_with("NAME ") && lines[1].starts_with("team/mini "),
        "{found}"
    );
    assert!(lines[2].contains(" gguf ") && lines[2].contains("Q4_K_M"), "{found}");
    for (arguments, expect) in [
        (&["mini-q4"][..], vec!["team/mini-q4"]),
        (&["--format", "gguf"], vec!["team/mini-q4"]),
        (&["--quantization", "Q4_K_M", "--architecture", "llama", "mini"], vec!["team/mini-q4"]),
        (&["--max", "1B", "--fits", "1GiB", "--sort", "name"], vec!["team/mini", "team/mini-q4"]),
        (&["--min", "1B"], vec![]),
        (&["image"], vec![]),
        (&["image", "--all"], vec!["ops/image"]),
        (&["--sort", "name", "--limit", "1"], vec!["team/mini"]),
    ] {
        let command = [&["search", "--json"], arguments].concat();
        let found = entries(lode.run(&command).await, "repositories");
        let names: Vec<&str> = found.iter().map(|hit| hit["repository"].as_str().unwrap()).collect();
        assert_eq!(names, expect, "{arguments:?}");
    }
    let none = lode.run(&["search", "nothing"]).await.expect_success();
    assert!(none.stdout.is_empty() && none.stderr.contains("no models match"), "{}", none.stderr);
    let first = lode.run(&["search", "--limit", "1"]).await.expect_success();
    assert!(first.stderr.contains("the first 1 of 2; `--limit COUNT` shows more"), "{}", first.stderr);
    lode.run(&["search", "--fits", "much"]).await.expect_failure(&["`fits` is `much`", "24GiB"]);
}

#[tokio::test]
async fn a_tag_is_moved_back() {
    let server = Server::fresh().await;
    let (registry, lode) = (server.registry(), server.lode());
    let (first, second) = (Image::random(fresh_seed(), 1, 1000), Image::random(fresh_seed(), 1, 1000));
    let before = first.push(&registry, "team/image", "v1").await;
    let after = second.push(&registry, "team/image", "v1").await;
    let moves = entries(lode.run(&["tag", "history", "team/image", "--json"]).await, "moves");
    assert_eq!((&moves[0]["from"], &moves[0]["to"]), (&json!(before), &json!(after)));
    let text = lode.run(&["tag", "history", "team/image", "--wide"]).await.expect_success().stdout;
    assert!(text.contains(&before[7..19]) && text.contains("(new)"), "{text}");
    let undone = lode.run(&["tag", "undo", "team/image:v1"]).await.expect_success();
    assert!(undone.stderr.contains(&before), "{}", undone.stderr);
    first.check(&registry, "team/image", "v1").await;
    registry.delete("/v2/team/image/manifests/v1").await.expect(202);
    lode.run(&["tag", "undo", "team/image:v1", "--position", "2"]).await.expect_success();
    // A manifest that was deleted does not come back.
    registry.delete(&format!("/v2/team/image/manifests/{before}")).await.expect(202);
    lode.run(&["tag", "undo", "team/image:v1"]).await.expect_failure(&["was deleted", "lode gc undo"]);
    let moves = entries(lode.run(&["tag", "history", "team/image", "-n", "3", "--json"]).await, "moves");
    assert_eq!(moves.len(), 3);
    lode.run(&["tag", "history", "team/none"]).await.expect_failure(&["team/none"]);
}

#[tokio::test]
async fn a_manifest_is_shown_whatever_it_is() {
    let server = Server::fresh().await;
    let (registry, lode) = (server.registry(), server.lode());
    let [image, index, sbom] = push_everything(&registry).await;
    let stored = registry.manifest_get("team/image", "v1").await.expect(200);
    let raw = lode.run(&["manifest", "inspect", "team/image:v1", "--raw"]).await.expect_success();
    assert_eq!(raw.stdout.as_bytes(), stored.body, "the bytes are printed unchanged");

    let shown = lode.run(&["manifest", "inspect", "team/image:v1", "--json"]).await.expect_success().json();
    assert_eq!((&shown["digest"], &shown["kind"]), (&json!(image), &json!("image")));
    assert_eq!(shown["manifest"], stored.json());
    assert_eq!(shown["referrers"][0]["digest"], sbom.as_str());
    assert!(shown["modified_at"].as_str().unwrap().ends_with('Z'), "{shown}");
    let text = lode.run(&["manifest", "inspect", "team/image:v1"]).await.expect_success().stdout;
    for part in ["(config)", "REFERRER", "application/vnd.example.sbom", "1.0 kB", &image] {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
    let text = lode.run(&["manifest", "inspect", "team/image:all"]).await.expect_success().stdout;
    assert!(text.contains("linux/arm64/v8") && text.contains(&index), "{text}");
    let name = format!("team/image@{sbom}");
    let text = lode.run(&["manifest", "inspect", &name]).await.expect_success().stdout;
    assert!(text.contains("subject") && text.contains(&image) && text.contains("artifact"), "{text}");
    lode.run(&["manifest", "inspect", "team/image:v9"]).await.expect_failure(&["team/image:v9"]);
}

#[tokio::test]
async fn annotations_are_set_on_create_and_push() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let (run, version) = ("org.example.run=17", "org.opencontainers.image.version=a=b");
    lode.create("team/mini", &demo(), &["--annotation", run]).await.expect_success();
    // A model keeps the annotations of its base, also when the server quantises it.
    let derived =
        ["create", "team/mini:q8", "--from", "team/mini", "--quantize", "q8_0", "--annotation", version];
    lode.run(&derived).await.expect_success();
    let file = demo().join("config.json");
    let push = ["push", file.to_str().unwrap(), "team/file", "--annotation", run, "--annotation", version];
    lode.run(&push).await.expect_success();
    for (name, expect) in [
        ("team/mini", &[("org.example.run", "17")][..]),
        ("team/mini:q8", &[("org.example.run", "17"), ("org.opencontainers.image.version", "a=b")]),
        ("team/file", &[("org.example.run", "17"), ("org.opencontainers.image.version", "a=b")]),
    ] {
        let shown = lode.run(&["manifest", "inspect", name, "--json"]).await.expect_success().json();
        for (key, value) in expect {
            assert_eq!(shown["manifest"]["annotations"][key], *value, "{name}: {shown}");
        }
    }
    let shown = lode.run(&["show", "team/mini:q8"]).await.expect_success().stdout;
    for annotation in [run, version] {
        assert!(shown.contains(&format!("annotation    {annotation}\n")), "{shown}");
    }
    let twice = ["--annotation", run, "--annotation", "org.example.run=18"];
    let twice = [&["push", file.to_str().unwrap(), "team/twice"], &twice[..]].concat();
    lode.run(&twice).await.expect_failure(&["two values for `org.example.run`: `17` and `18`"]);
    let wrong = lode.run(&["push", file.to_str().unwrap(), "team/file", "--annotation", "run"]).await;
    assert!(wrong.code == 2 && wrong.stderr.contains("expected KEY=VALUE"), "{}", wrong.stderr);
}

#[tokio::test]
async fn single_files_are_fetched_without_the_weights() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    for file in ["config.json", "tokenizer.json"] {
        let printed = lode.run(&["cat", "team/mini", file]).await.expect_success();
        assert_eq!(printed.stdout.as_bytes(), std::fs::read(demo().join(file)).unwrap(), "{file}");
    }
    lode.run(&["cat", "team/mini", "absent.json"]).await.expect_failure(&["absent.json", "`config.json`"]);

    let folder = server.folder().path().join("part");
    let to = folder.to_str().unwrap();
    let pulled = lode
        .run(&["pull", "team/mini", "--to", to, "--include", "*.json", "--exclude", "token*", "--json"])
        .await
        .expect_success()
        .json();
    let files = read_folder(&folder);
    assert!(files.contains_key("config.json") && !files.contains_key("tokenizer.json"), "{:?}", files.keys());
    assert!(files.keys().all(|name| name.ends_with(".json")), "{:?}", files.keys());
    let expected: u64 = files.values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(pulled["bytes"], expected);
    for (name, bytes) in files {
        assert_eq!(bytes, std::fs::read(demo().join(name)).unwrap());
    }
    // Later, the whole model in the same folder.
    lode.run(&["pull", "team/mini", "--to", to]).await.expect_success();
    assert!(read_folder(&folder) == read_folder(&demo()));
    lode.run(&["pull", "team/mini", "--to", to, "--include", "*.pdf"])
        .await
        .expect_failure(&["select no file", "`config.json`"]);
}

#[tokio::test]
async fn tables_fit_on_a_terminal() {
    const COLUMNS: u16 = 80;
    let server = Folder::new().start(Options::new().worker()).await;
    let lode = server.lode();
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    for quantize in ["int8", "q8_0"] {
        let name = format!("team/mini:{quantize}");
        lode.run(&["create", &name, "--from", "team/mini", "--quantize", quantize]).await.expect_success();
    }
    for (args, title, detail) in [
        (&["diff", "team/mini", "team/mini:int8"][..], "TENSOR", "(BF16 [256, 768], int8 [256, 768])"),
        (&["diff", "team/mini", "team/mini:q8_0"], "TENSOR", " = blk.0.attn_q.weight  ("),
        (&["status"], "STATE", "LAST SEEN"),
    ] {
        let mut terminal = Terminal::start(lode.command(args), 200, COLUMNS);
        assert!(terminal.end().await.success());
        terminal.text(title).await;
        let shown = terminal.bytes();
        let table: Vec<&str> = shown.lines().skip_while(|line| !line.contains(title)).collect();
        assert!(table.len() > 1, "{shown}");
        for line in table.iter().take_while(|line| !line.contains(" same, ")) {
            assert!(line.trim_end().chars().count() <= usize::from(COLUMNS), "{line}");
        }
        // In a pipe nothing is left out.
        let piped = lode.run(args).await.expect_success();
        assert!(!shown.contains(detail) && piped.stdout.contains(detail), "{}", piped.stdout);
        let wide = Terminal::start(lode.command(&[args, &["--wide"]].concat()), 200, 200);
        wide.text(detail).await;
    }
}
