//! Models in the database: list, show, copy and delete, each correct as soon as the push has returned.

use http::Request;
use lode_model::gguf::{self, Array, Header, Metadata, NewTensor};
use lode_model::media_type;
use lode_model::quant::ggml::Type;
use serde_json::{Value, json};

use super::App;

/// A safetensors file of one BF16 tensor.
fn tensor_blob(key: &str, rows: usize, columns: usize) -> Vec<u8> {
    let size = rows * columns * 2;
    let header =
        json!({ key: {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, size]} }).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![7; size]].concat()
}

pub(super) async fn push_model(app: &App, repository: &str, tag: &str) {
    push_model_with(app, repository, tag, &[]).await;
}

/// Media type, name and content of each.
type Layers<'a> = &'a [(&'a str, &'a str, &'a str)];

/// The same model with more layers.
pub(super) async fn push_model_with(app: &App, repository: &str, tag: &str, more: Layers<'_>) {
    let mut layers = Vec::new();
    let more = more.iter().map(|(kind, name, text)| (*kind, *name, text.as_bytes().to_vec()));
    let files = [
        (media_type::OLLAMA_TENSOR, "embed.weight", tensor_blob("embed.weight", 8, 4)),
        (media_type::OLLAMA_TENSOR, "head.weight", tensor_blob("data", 3, 4)),
        (
            media_type::OLLAMA_JSON,
            "config.json",
            br#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4,"max_position_embeddings":64}"#.to_vec(),
        ),
        (media_type::OLLAMA_JSON, "tokenizer.json", b"{}".to_vec()),
        (media_type::OLLAMA_PARAMS, "", br#"{"temperature":0.5,"stop":["END"]}"#.to_vec()),
        (media_type::OLLAMA_SYSTEM, "", b"Be brief.".to_vec()),
    ];
    for (kind, name, bytes) in files.into_iter().chain(more) {
        let size = bytes.len();
        let digest = app.push_blob(repository, bytes).await;
        layers.push(json!({"mediaType": kind, "digest": digest, "size": size, "name": name}));
    }
    // As `lode create` writes it.
    let config = br#"{"model_format":"safetensors","model_family":"llama","file_type":"BF16","capabilities":["completion"]}"#;
    let digest = app.push_blob(repository, &config[..]).await;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type::DOCKER_MANIFEST,
        "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": digest, "size": config.len()},
        "layers": layers,
    });
    let response = app.push_manifest(repository, tag, &manifest).await;
    assert_eq!(response.status, 201, "{}", response.text());
}

fn names(list: &Value) -> Vec<&str> {
    list["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_pushed_model_is_known_at_once() {
    let app = App::new().await;
    push_model(&app, "team/sub/mini", "8b").await;
    app.push_image("team/image", "latest", "no model").await;

    let list = app.get("/lode/v1/models").await.json();
    assert_eq!(list["models"].as_array().unwrap().len(), 1);
    let model = &list["models"][0];
    assert_eq!((&model["repository"], &model["tag"]), (&json!("team/sub/mini"), &json!("8b")));
    assert_eq!((&model["format"], &model["architecture"]), (&json!("safetensors"), &json!("llama")));
    assert_eq!((&model["parameters"], &model["tensor_count"]), (&json!(44), &json!(2)));
    assert_eq!(model["quantization"], "BF16");

    let tensors = app.get("/lode/v1/tensors/team/sub/mini/8b").await.json();
    let tensors = tensors["tensors"].as_array().unwrap();
    assert_eq!((&tensors[0]["name"], &tensors[0]["shape"]), (&json!("embed.weight"), &json!([8, 4])));
    assert_eq!((&tensors[1]["name"], &tensors[1]["shape"]), (&json!("head.weight"), &json!([3, 4])));

    let shown = app.get("/lode/v1/models/team/sub/mini/8b").await.json();
    assert_eq!(shown["layers"].as_array().unwrap().len(), 6);
    assert_eq!(shown["digest"], model["digest"]);
    let digest = shown["digest"].as_str().unwrap();
    assert_eq!(
        app.get(&format!("/lode/v1/tensors/team/sub/mini/{digest}")).await.json()["tensors"][0],
        tensors[0]
    );

    let image = app.get("/lode/v1/models/team/image/latest").await;
    assert_eq!((image.status.as_u16(), &image.json()["format"]), (200, &Value::Null));
    assert_eq!(app.get("/lode/v1/tensors/team/image/latest").await.json(), json!({"tensors": []}));
    assert_eq!(
        app.get("/lode/v1/models/nobody/latest").await.json()["error"],
        "model 'nobody:latest' not found"
    );
}

#[tokio::test]
async fn models_are_shown_in_ollamas_format() {
    let app = App::new().await;
    push_model(&app, "mini", "latest").await;
    push_model(&app, "team/sub/mini", "latest").await;
    let tags = app.get("/api/tags").await.json();
    assert_eq!(names(&tags), ["mini:latest"], "ollama's clients cannot use longer names");
    assert_eq!(tags["models"][0]["digest"].as_str().unwrap().len(), 64);

    for body in [json!({"model": "mini"}), json!({"name": "library/MINI:latest"})] {
        let shown = app.post_json("/api/show", body).await.json();
        assert_eq!(shown["details"]["family"], "llama");
        assert_eq!(shown["model_info"]["llama.context_length"], 64);
        assert_eq!(shown["model_info"]["general.parameter_count"], 44);
        assert_eq!(shown["capabilities"], json!(["completion"]));
        assert_eq!(shown["system"], "Be brief.");
        assert!(shown["parameters"].as_str().unwrap().contains("END"));
        assert!(shown.get("tensors").is_none());
    }
    let verbose = app.post_json("/api/show", json!({"model": "mini", "verbose": true})).await.json();
    assert_eq!(verbose["tensors"].as_array().unwrap().len(), 2);

    assert_eq!(app.get("/v1/models").await.json()["data"][1]["owned_by"], "team/sub");
    assert_eq!(app.get("/v1/models/team/sub/mini:latest").await.json()["id"], "team/sub/mini:latest");
}

#[tokio::test]
async fn gguf_capabilities_and_lineage_are_shown() {
    let app = App::new().await;
    push_model(&app, "org/base", "latest").await;
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "bert");
    metadata.set("bert.pooling_type", 1u32);
    metadata.set("tokenizer.chat_template", "{{ tools }}</think>");
    metadata.set("general.base_model.count", 1u32);
    metadata.set("general.base_model.0.repo_url", "https://huggingface.co/Org/Base");
    metadata.set("tokenizer.ggml.tokens", gguf::Value::Array(Array::String(["a"].into_iter().collect())));
    push_gguf(&app, "embedder", metadata, 1).await;
    let shown = app.post_json("/api/show", json!({"model": "embedder"})).await.json();
    assert_eq!(shown["capabilities"], json!(["embedding"]), "{shown}");
    let lineage = app.get("/lode/v1/lineage/embedder/latest").await.json();
    let expect = json!({"relation": "base", "name": "https://huggingface.co/Org/Base", "source": "GGUF",
        "here": "org/base:latest"});
    assert_eq!(lineage["from"], json!([expect]));
}

/// Pushes a GGUF file with this number of tensors.
async fn push_gguf(app: &App, repository: &str, metadata: Metadata, tensors: usize) {
    let tensor = |at| NewTensor { name: format!("t{at}"), dims: vec![8], ty: Type::F32 };
    let header = Header::new(metadata, (0..tensors).map(tensor)).unwrap();
    let mut file = header.to_bytes();
    file.resize(header.file_len() as usize, 0);
    let (size, digest) = (file.len(), app.push_blob(repository, file).await);
    let config = app.push_blob(repository, &b"{}"[..]).await;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type::DOCKER_MANIFEST,
        "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": config, "size": 2},
        "layers": [{"mediaType": media_type::OLLAMA_MODEL, "digest": digest, "size": size}],
    });
    assert_eq!(app.push_manifest(repository, "latest", &manifest).await.status, 201);
}

/// A manifest in ollama's layout, of JSON files and one tensor.
async fn push_checkpoint(app: &App, repository: &str, files: &[(&str, &str)]) {
    let mut layers = Vec::new();
    let tensor = (media_type::OLLAMA_TENSOR, "w", tensor_blob("w", 2, 2));
    let files = files.iter().map(|(name, text)| (media_type::OLLAMA_JSON, *name, text.as_bytes().to_vec()));
    for (kind, name, bytes) in files.chain([tensor]) {
        let size = bytes.len();
        let digest = app.push_blob(repository, bytes).await;
        layers.push(json!({"mediaType": kind, "digest": digest, "size": size, "name": name}));
    }
    let config = r#"{"model_format":"safetensors","capabilities":["completion"]}"#;
    let digest = app.push_blob(repository, config).await;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type::DOCKER_MANIFEST,
        "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": digest, "size": config.len()},
        "layers": layers,
    });
    assert_eq!(app.push_manifest(repository, "latest", &manifest).await.status, 201);
}

/// Each model, whether a worker could run it, is stored; only one that can run has capabilities and lines that run it.
#[tokio::test]
async fn models_that_cannot_run_say_why() {
    let app = App::new().await;
    let gguf = |architecture: &str, has_tokens: bool| {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", architecture);
        if has_tokens {
            metadata
                .set("tokenizer.ggml.tokens", gguf::Value::Array(Array::String(["a"].into_iter().collect())));
        }
        metadata
    };
    push_gguf(&app, "gguf/good", gguf("llama", true), 1).await;
    push_gguf(&app, "gguf/strange", gguf("strange", true), 1).await;
    push_gguf(&app, "gguf/mute", gguf("llama", false), 1).await;
    push_gguf(&app, "gguf/empty", gguf("llama", true), 0).await;
    let llama = ("config.json", r#"{"architectures":["LlamaForCausalLM"]}"#);
    let strange = ("config.json", r#"{"architectures":["StrangeForCausalLM"],"model_type":"llama"}"#);
    let tokenizer = ("tokenizer.json", "{}");
    push_checkpoint(&app, "st/good", &[llama, tokenizer]).await;
    push_checkpoint(&app, "st/type", &[("config.json", r#"{"model_type":"llama"}"#), tokenizer]).await;
    push_checkpoint(&app, "st/bare", &[]).await;
    push_checkpoint(&app, "st/strange", &[strange, tokenizer]).await;
    push_checkpoint(&app, "st/mute", &[llama]).await;
    push_checkpoint(&app, "st/nameless", &[("config.json", "{}"), tokenizer]).await;
    for (name, reason) in [
        ("gguf/good", None),
        ("gguf/strange", Some("workers do not support its architecture `strange`")),
        ("gguf/mute", Some("it has no tokenizer, so text cannot be turned into token ids")),
        ("gguf/empty", Some("it has no tensors")),
        ("st/good", None),
        ("st/type", None),
        ("st/bare", Some("it has no `config.json`, so its architecture is unknown")),
        ("st/strange", Some("workers do not support its architecture `StrangeForCausalLM`")),
        ("st/mute", Some("it has no tokenizer, so text cannot be turned into token ids")),
        ("st/nameless", Some("its `config.json` names no architecture")),
    ] {
        let capabilities = if reason.is_none() { json!(["completion"]) } else { json!([]) };
        for path in ["/api/show", "/lode/v1/show"] {
            let shown = app.post_json(path, json!({"model": name})).await.json();
            assert_eq!(shown["capabilities"], capabilities, "{path} {name}");
        }
        let details = app.get(&format!("/lode/v1/models/{name}/latest")).await.json();
        assert_eq!(details["cannot_run"], json!(reason), "{name}");
        let (page, tried) = (app.get(&format!("/{name}")).await, app.get(&format!("/{name}/-/try")).await);
        for offer in ["lode run ", "/v1/chat/completions", "/-/try"] {
            assert_eq!(page.text().contains(offer), reason.is_none(), "{name}: {offer}");
        }
        assert!(page.text().contains("lode pull "), "{name}");
        assert_eq!(tried.text().contains("<form class=\"try\""), reason.is_none(), "{name}");
        if let Some(reason) = reason {
            assert!(page.text().contains(&format!("The workers cannot run this model: {reason}.")), "{name}");
            assert!(tried.text().contains(&format!("The workers cannot run it: {reason}.")), "{name}");
        }
    }
}

#[tokio::test]
async fn template_capabilities_are_shown() {
    let app = App::new().await;
    let (go, file) = (media_type::OLLAMA_TEMPLATE, media_type::OLLAMA_JSON);
    let listed = r#"{"chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "{{ tools }}"}]}"#;
    let cuts = "{{ messages[0].content.split('</think>')[-1] }}";
    let calls = "{{ tools }}{% if message.tool_calls %}{% endif %}{% if message.role == 'tool' %}{% endif %}";
    let thinks = "{{ range .Messages }}<think>{{ .Thinking }}</think>{{ .Content }}{{ end }}";
    let cases: [(Layers<'_>, &[&str]); 8] = [
        (&[(file, "tokenizer_config.json", listed)], &["tools"]),
        (&[(file, "chat_template.jinja", cuts), (file, "tokenizer_config.json", listed)], &["thinking"]),
        (&[(file, "chat_template.jinja", calls)], &["tools"]),
        (&[(go, "", thinks)], &["thinking"]),
        (&[(go, "", "{{ .Prompt }}{{ .Suffix }}")], &["insert"]),
        // Of two templates, only the one that a worker uses counts.
        (&[(go, "", thinks), (file, "chat_template.jinja", calls)], &["thinking"]),
        (&[(go, "", "{{ .Prompt }}"), (file, "chat_template.jinja", calls)], &["tools"]),
        // The template has a switch for thinking, but no markers of reasoning.
        (&[(go, "", "{{ if .Think }}think{{ end }}{{ .Prompt }}")], &[]),
    ];
    for (at, (layers, expect)) in cases.into_iter().enumerate() {
        let name = format!("m{at}");
        push_model_with(&app, &name, "latest", layers).await;
        let shown = app.post_json("/api/show", json!({"model": name})).await.json();
        let expect: Vec<&str> = ["completion"].into_iter().chain(expect.iter().copied()).collect();
        assert_eq!(shown["capabilities"], json!(expect), "{layers:?}");
    }
}

#[tokio::test]
async fn copied_and_deleted() {
    let app = App::new().await;
    push_model(&app, "mini", "latest").await;
    let copied = app.post_json("/api/copy", json!({"source": "mini", "destination": "team/copy:1"})).await;
    assert_eq!((copied.status.as_u16(), copied.text()), (200, ""));
    let both = (app.get("/v2/mini/manifests/latest").await, app.get("/v2/team/copy/manifests/1").await);
    assert_eq!(both.0.body, both.1.body);

    let delete = |name: &str| app.send(Request::delete("/api/delete"), json!({"model": name}).to_string());
    assert_eq!(delete("mini").await.status, 200);
    assert_eq!(delete("mini").await.json()["error"], "model 'mini' not found");
    assert_eq!(names(&app.get("/api/tags").await.json()), ["team/copy:1"]);
    let tensors = app.get("/lode/v1/tensors/team/copy/1").await.json();
    assert_eq!(tensors["tensors"].as_array().unwrap().len(), 2);

    let deeper = json!({"source": "team/copy:1", "destination": "team/copy/deeper:2"});
    assert_eq!(app.post_json("/lode/v1/copy", deeper).await.status, 200);
    assert_eq!(app.get("/v2/team/copy/deeper/manifests/2").await.body, both.1.body);
}

#[tokio::test]
async fn malformed_tensor_headers_are_reported() {
    let app = App::new().await;
    let good = tensor_blob("a", 2, 2);
    let cases = [
        ("short", vec![1, 2, 3]),
        ("huge", u64::MAX.to_le_bytes().to_vec()),
        ("cut", good[..good.len() - 1].to_vec()),
        ("garbage", [&9_u64.to_le_bytes()[..], b"{not json"].concat()),
    ];
    let config = app.push_blob("m", "{}").await;
    for (tag, bytes) in cases {
        let size = bytes.len();
        let digest = app.push_blob("m", bytes).await;
        let layer =
            json!({"mediaType": media_type::OLLAMA_TENSOR, "digest": digest, "size": size, "name": "a"});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": media_type::DOCKER_MANIFEST,
            "config": {"mediaType": media_type::DOCKER_CONFIG, "digest": config, "size": 2}, "layers": [layer],
        });
        assert_eq!(app.push_manifest("m", tag, &manifest).await.status, 201, "{tag}");
        let shown = app.get(&format!("/lode/v1/models/m/{tag}")).await.json();
        assert!(shown["problem"].as_str().unwrap().starts_with("a: "), "{tag}: {shown}");
    }
    assert_eq!(app.get("/lode/v1/models").await.json()["models"].as_array().unwrap().len(), 4);
}

/// Models of a few hundred bytes are relatives by their tensors, and not by other small files.
#[tokio::test]
async fn tiny_models_have_relatives() {
    let app = App::new().await;
    push_model(&app, "team/a", "latest").await;
    push_model_with(&app, "team/b", "v1", &[(media_type::OLLAMA_LICENSE, "", "MIT")]).await;
    push_checkpoint(&app, "team/other", &[("tokenizer.json", "{}")]).await;
    let lineage = app.get("/lode/v1/lineage/team/a/latest").await.json();
    let relatives = lineage["relatives"].as_array().unwrap();
    assert_eq!(relatives.len(), 1, "{lineage}");
    assert_eq!((&relatives[0]["repository"], &relatives[0]["tag"]), (&json!("team/b"), &json!("v1")));
    let tensors = (tensor_blob("embed.weight", 8, 4).len() + tensor_blob("data", 3, 4).len()) as u64;
    assert_eq!(relatives[0]["bytes_shared"], tensors);
}
