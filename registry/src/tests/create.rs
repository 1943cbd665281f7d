//! Models created over `/api`: from an existing model, and from uploaded files.

use std::time::Duration;

use http::Request;
use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::gguf::{Header, Metadata, NewTensor};
use lode_model::media_type;
use lode_model::quant::ggml::Type;
use lode_model::safetensors::{Dtype, write_header};
use serde_json::{Value, json};
use uuid::Uuid;

use super::App;
use super::access::{PASSWORD, basic, closed};
use super::import::{Fault, Source, problem, push_layer};
use super::models::push_model;
use super::wire::within;
use crate::{Config, MirrorConfig};

/// The records of a stream.
async fn records(app: &App, path: &str, body: Value) -> Vec<Value> {
    let response = app.post_json(path, body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), "application/x-ndjson");
    response.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) async fn stage(app: &App, bytes: &[u8]) -> Digest {
    let digest = Digest::sha256(bytes);
    let sent = app.send(Request::post(format!("/api/blobs/{digest}")), bytes.to_vec()).await;
    assert!(sent.status.is_success(), "{}", sent.text());
    digest
}

pub(super) fn safetensors(name: &str, rows: usize) -> Vec<u8> {
    let size = rows * 4 * 4;
    let header = json!({ name: {"dtype": "F32", "shape": [rows, 4], "data_offsets": [0, size]} }).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![1; size]].concat()
}

fn layer<'a>(manifest: &'a Value, kind: &str) -> Vec<&'a Value> {
    manifest["layers"].as_array().unwrap().iter().filter(|layer| layer["mediaType"] == kind).collect()
}

#[tokio::test]
async fn files_are_sent_before_they_have_a_name() {
    let app = App::new().await;
    let digest = Digest::sha256(b"content");
    let path = format!("/api/blobs/{digest}");
    assert_eq!(app.send(Request::head(&path), "").await.status, 404);
    assert_eq!(app.send(Request::post(&path), "content").await.status, 201);
    assert_eq!(app.send(Request::head(&path), "").await.status, 200);
    assert_eq!(app.send(Request::post(&path), "content").await.status, 200);
    assert_eq!(app.send(Request::head(path.replace("sha256:", "sha256-")), "").await.status, 200);
    // A blob that another repository has need not be sent.
    let held = app.push_blob("team/mini", "held").await;
    assert_eq!(app.send(Request::head(format!("/api/blobs/{held}")), "").await.status, 200);

    let wrong = app.send(Request::post(format!("/api/blobs/{}", Digest::sha256(b"other"))), "content").await;
    assert_eq!(wrong.status, 400);
    let error = wrong.json()["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("digest mismatch, expected \"sha256:"), "{error}");
    let odd = app.send(Request::post("/api/blobs/sha256:12"), "content").await;
    assert_eq!(odd.status, 400);
    assert!(odd.text().contains("invalid digest format"));
    let catalog = app.get("/v2/_catalog").await.json();
    assert_eq!(
        catalog["repositories"],
        json!(["lode-staging", "team/mini"]),
        "the staging repository is listed like any other"
    );
}

#[tokio::test]
async fn an_unreadable_blob_does_not_reveal_its_path() {
    let app = App::new().await;
    let digest = stage(&app, &safetensors("a", 2)).await;
    std::fs::remove_file(app._data.path().join("blobs/sha256").join(digest.hex())).unwrap();
    let body = json!({"model": "a/b", "files": {"model.safetensors": digest}, "stream": false});
    let response = app.post_json("/api/create", body).await;
    assert!(!response.status.is_success(), "{}", response.text());
    assert!(response.text().contains("model.safetensors"), "{}", response.text());
    assert!(
        !response.text().contains("blobs/") && !response.text().contains("os error"),
        "{}",
        response.text()
    );
}

#[tokio::test]
async fn a_derived_model_shares_its_base() {
    let app = App::new().await;
    push_model(&app, "team/base", "8b").await;
    let records = records(
        &app,
        "/api/create",
        json!({
            "model": "other/brief", "from": "team/base:8b", "system": "Be briefer.", "template": "{{ .Prompt }}",
            "parameters": {"temperature": 0.1, "top_k": 3}, "license": ["free", "as beer"],
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
            "renderer": "qwen3-coder",
        }),
    )
    .await;
    assert_eq!(records.last().unwrap(), &json!({"status": "success"}));
    assert!(records.contains(&json!({"status": "writing manifest"})));
    let existing = |record: &&Value| record["status"].as_str().unwrap().starts_with("using existing layer");
    assert_eq!(records.iter().filter(existing).count(), 7);

    let base = app.get("/v2/team/base/manifests/8b").await;
    let made = app.get("/v2/other/brief/manifests/latest").await.json();
    let tensors = layer(&made, media_type::OLLAMA_TENSOR);
    assert_eq!(tensors, layer(&base.json(), media_type::OLLAMA_TENSOR));
    assert_eq!(layer(&made, media_type::OLLAMA_SYSTEM).len(), 1);
    assert_eq!(made["annotations"]["org.opencontainers.image.base.name"], "team/base:8b");
    assert_eq!(
        made["annotations"]["org.opencontainers.image.base.digest"],
        Digest::sha256(&base.body).to_string()
    );

    let shown = app.post_json("/api/show", json!({"model": "other/brief"})).await.json();
    assert_eq!(shown["system"], "Be briefer.");
    assert_eq!(shown["template"], "{{ .Prompt }}");
    assert_eq!(shown["license"], "free\nas beer");
    assert_eq!(shown["renderer"], "qwen3-coder");
    assert_eq!(shown["messages"][1], json!({"role": "assistant", "content": "ho"}));
    assert_eq!(shown["details"]["parent_model"], "team/base:8b");
    let parameters = shown["parameters"].as_str().unwrap();
    for part in ["temperature", "0.1", "top_k", "3", "stop", "\"END\""] {
        assert!(parameters.contains(part), "{parameters}");
    }
    let modelfile = shown["modelfile"].as_str().unwrap();
    for line in ["FROM other/brief", "SYSTEM Be briefer.", "PARAMETER top_k 3", "MESSAGE user hi", "LICENSE "]
    {
        assert!(modelfile.contains(line), "{modelfile}");
    }
}

#[tokio::test]
async fn a_model_is_made_from_files() {
    let app = App::new().await;
    let weights = stage(&app, &safetensors("model.embed_tokens.weight", 8)).await;
    let config = stage(
        &app,
        br#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4,"vocab_size":8}"#,
    )
    .await;
    let adapter = stage(&app, &safetensors("lora_a", 2)).await;
    let body = json!({
        "model": "made", "stream": false, "system": "Be brief.",
        "files": {"model.safetensors": weights, "config.json": config},
        "adapters": {"adapter.safetensors": adapter},
    });
    let response = app.post_json("/api/create", body.clone()).await;
    assert_eq!((response.status.as_u16(), response.json()), (200, json!({"status": "success"})));
    let made = app.get("/v2/made/manifests/latest").await;
    let manifest = made.json();
    assert_eq!(layer(&manifest, media_type::OLLAMA_TENSOR)[0]["name"], "model.embed_tokens.weight");
    let adapters = layer(&manifest, media_type::OLLAMA_ADAPTER);
    assert_eq!(
        (&adapters[0]["name"], &adapters[0]["digest"]),
        (&json!("adapter/adapter.safetensors"), &json!(adapter))
    );
    assert_eq!(app.get("/api/tags").await.json()["models"][0]["name"], "made:latest");
    let shown = app.post_json("/api/show", json!({"model": "made"})).await.json();
    assert_eq!((&shown["system"], &shown["details"]["family"]), (&json!("Be brief."), &json!("llama")));
    // Repeating the request creates exactly the same model.
    assert_eq!(app.post_json("/api/create", body).await.status, 200);
    assert_eq!(app.get("/v2/made/manifests/latest").await.body, made.body);
}

/// A GGUF with one matrix whose bytes all have this value.
pub(super) fn gguf(ty: Type, byte: u8) -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let tensor = NewTensor { name: "blk.0.ffn_up.weight".to_owned(), dims: vec![64, 4], ty };
    let header = Header::new(metadata, [tensor]).unwrap();
    let mut bytes = header.to_bytes();
    bytes.resize(header.file_len() as usize, byte);
    bytes
}

/// A checkpoint with one mxfp8 matrix whose bytes, including the scales, are all 255.
fn packed() -> Vec<u8> {
    let metadata = [("quant_type", "mxfp8"), ("group_size", "32")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let keys: [(&str, Dtype, &[u64]); 2] =
        [("model.up_proj.weight", Dtype::U32, &[4, 16]), ("model.up_proj.weight.scale", Dtype::U8, &[4, 2])];
    let mut bytes = write_header(&keys, &metadata.into());
    bytes.extend([0x38; 4 * 16 * 4]);
    bytes.extend([0xff; 4 * 2]);
    bytes
}

#[tokio::test]
async fn a_model_is_quantised_here() {
    let app = App::new().await;
    let floats = stage(&app, &gguf(Type::F32, 0x3d)).await;
    let body = |quantize: &str| json!({"model": "made", "stream": false, "files": {"m.gguf": floats}, "quantize": quantize});
    for quantize in ["q8_0", "Q4_0"] {
        let response = app.post_json("/api/create", body(quantize)).await;
        assert_eq!((response.status.as_u16(), response.json()), (200, json!({"status": "success"})));
        let shown = app.post_json("/api/show", json!({"model": "made", "verbose": true})).await.json();
        assert_eq!(shown["tensors"][0]["type"], quantize.to_uppercase(), "{shown}");
    }
    let made = app.get("/v2/made/manifests/latest").await.json();
    let model = &layer(&made, media_type::OLLAMA_MODEL)[0];
    let blob = app.get(&format!("/v2/made/blobs/{}", model["digest"].as_str().unwrap())).await;
    assert_eq!(blob.body.len(), model["size"].as_u64().unwrap() as usize);
    assert_eq!(Digest::sha256(&blob.body).to_string(), model["digest"].as_str().unwrap());
    // Repeating the request gives the same model.
    assert_eq!(app.post_json("/api/create", body("Q4_0")).await.status, 200);
    assert_eq!(app.get("/v2/made/manifests/latest").await.json(), made);
    // Values that no type can represent, and unusable scales.
    for (name, file, quantize, part) in [
        ("m.gguf", gguf(Type::F32, 0xff), json!("q8_0"), "blk.0.ffn_up.weight"),
        (
            "m.gguf",
            gguf(Type::Q8_0, 0xff),
            Value::Null,
            "`blk.0.ffn_up.weight`: block 0 of Q8_0 has a scale of NaN",
        ),
        ("model.safetensors", packed(), Value::Null, "`model.up_proj.weight`: scale 0 is NaN"),
    ] {
        let file = stage(&app, &file).await;
        let response = app
            .post_json("/api/create", json!({"model": "m", "files": {name: file}, "quantize": quantize}))
            .await;
        let last: Value = serde_json::from_str(response.text().lines().last().unwrap()).unwrap();
        assert!(last["error"].as_str().unwrap().contains(part), "{last}");
        assert_eq!(app.get("/v2/m/manifests/latest").await.status, 404);
    }
}

/// A checkpoint with one float matrix that every format of tensor blobs can represent.
fn checkpoint(app: &App) -> impl Future<Output = Value> {
    let keys: [(&str, Dtype, &[u64]); 2] = [
        ("model.layers.0.mlp.up_proj.weight", Dtype::F32, &[16, 64]),
        ("model.norm.weight", Dtype::F32, &[64]),
    ];
    let mut weights = write_header(&keys, &Default::default());
    weights.extend((0..17 * 64).flat_map(|at| ((at % 13) as f32).to_le_bytes()));
    async move {
        let weights = stage(app, &weights).await;
        let config = stage(app, br#"{"architectures":["LlamaForCausalLM"],"model_type":"llama"}"#).await;
        json!({"model.safetensors": weights, "config.json": config})
    }
}

#[tokio::test]
async fn a_stored_model_is_quantised_like_its_files() {
    let bucket = format!("memory://{}", Uuid::new_v4().simple()).parse().unwrap();
    quantise_stored(App::new().await).await;
    quantise_stored(App::with(Config { storage: Some(bucket), ..Config::default() }).await).await;
}

async fn quantise_stored(app: App) {
    let create = async |body: Value| {
        let response = app.post_json("/api/create", body).await;
        assert_eq!((response.status.as_u16(), response.json()), (200, json!({"status": "success"})));
    };
    let weights = |model: &Value| {
        let kinds = [media_type::OLLAMA_TENSOR, media_type::OLLAMA_MODEL, media_type::OLLAMA_JSON];
        let layers = model["layers"].as_array().unwrap().iter();
        let of_weights = layers.filter(|layer| kinds.iter().any(|kind| layer["mediaType"] == *kind));
        let stored = of_weights.map(|layer| (layer["name"].clone(), layer["digest"].clone()));
        stored.collect::<Vec<_>>()
    };
    let (float_gguf, float_checkpoint) =
        (json!({"m.gguf": stage(&app, &gguf(Type::F32, 0x3d)).await}), checkpoint(&app).await);
    for (files, quantize) in [(float_gguf, "q8_0"), (float_checkpoint, "int8")] {
        create(json!({"model": "team/base", "files": files, "system": "Be brief.", "stream": false,
            "parameters": {"temperature": 0.5, "top_k": 3}, "renderer": "qwen3-coder"}))
        .await;
        create(json!({"model": "direct", "files": files, "quantize": quantize, "stream": false})).await;
        create(json!({"model": "small", "from": "team/base", "quantize": quantize, "stream": false,
            "parameters": {"top_k": 4}, "license": "free"}))
        .await;
        let direct = app.get("/v2/direct/manifests/latest").await.json();
        let small = app.get("/v2/small/manifests/latest").await.json();
        assert_eq!(weights(&small), weights(&direct), "{quantize}");
        // The texts, options and names of the base are kept, below those of the request.
        let shown = app.post_json("/api/show", json!({"model": "small"})).await.json();
        assert_eq!((&shown["system"], &shown["license"]), (&json!("Be brief."), &json!("free")));
        assert_eq!(shown["renderer"], "qwen3-coder");
        let parameters = shown["parameters"].as_str().unwrap();
        assert!(parameters.contains("0.5") && parameters.contains('4'), "{parameters}");
        let base = Digest::sha256(&app.get("/v2/team/base/manifests/latest").await.body);
        assert_eq!(small["annotations"]["org.opencontainers.image.base.digest"], base.to_string());
        // What is quantised already is not quantised again.
        let again = json!({"model": "m", "from": "small", "quantize": "int4", "stream": false});
        let response = app.post_json("/api/create", again).await;
        assert_eq!(response.status, 400, "{quantize}: {}", response.text());
        assert!(response.text().contains("quantised"), "{}", response.text());
    }
}

#[tokio::test]
async fn a_stored_model_is_quantised_by_a_job() {
    let app = closed().await;
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    let post = async |credentials: &str, path: &str, body: Value| {
        let request = Request::post(path).header("content-type", "application/json");
        app.send_as(credentials, request, body.to_string()).await
    };
    let file = gguf(Type::F32, 0x3d);
    let digest = Digest::sha256(&file);
    let staged = Request::post(format!("/api/blobs/{digest}")).header("authorization", &alice);
    let staged = app.send(staged.header("host", "localhost:5000"), file).await;
    assert_eq!(staged.status, 201, "{}", staged.text());
    let base = json!({"model": "alice/base", "files": {"m.gguf": digest}, "stream": false});
    assert_eq!(post(&alice, "/api/create", base).await.status, 200);

    let create = |model: &str| json!({"model": model, "from": "alice/base", "quantize": "q8_0"});
    let started = post(&alice, "/lode/v1/models", create("alice/a/b/small")).await;
    assert_eq!(started.status, 202, "{}", started.text());
    let job = format!("{}?wait=60", started.header("location"));
    // The account that started the job follows it; another one learns nothing.
    let finished = app.get_as(&alice, &job).await.json();
    assert_eq!(
        (&finished["kind"], &finished["state"]),
        (&json!("create"), &json!("succeeded")),
        "{finished}"
    );
    assert_eq!(app.get_as(&bob, &job).await.status, 403);
    let made = app.get_as(&alice, "/v2/alice/a/b/small/manifests/latest").await;
    assert_eq!(finished["result"]["digest"], Digest::sha256(&made.body).to_string());
    let cancelled = app.send_as(&alice, Request::delete(started.header("location")), "").await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());

    // The rights are checked when the job starts, and again when it runs.
    assert_eq!(post(&bob, "/lode/v1/models", create("bob/small")).await.status, 404);
    app.grant("alice/base", "bob", "read").await;
    assert_eq!(post(&bob, "/lode/v1/models", create("alice/base")).await.status, 403);
    let files = json!({"model": "alice/m", "files": {"m.gguf": digest}});
    let refused = post(&alice, "/lode/v1/models", files).await;
    assert!(refused.text().contains("/api/create"), "{}", refused.text());
    let long = json!({"model": "alice/m", "from": "alice/base", "system": "x".repeat(70_000)});
    assert_eq!(post(&alice, "/lode/v1/models", long).await.status, 413);
}

/// A server with the administrator `admin`, below whose `hub/` are the models of `there`.
async fn mirror_of(there: &Source) -> App {
    let mirror = MirrorConfig {
        prefix: "hub/".into(),
        upstream: format!("http://{}", there.address).parse().unwrap(),
        username: None,
        password: None,
        check_after: Duration::from_secs(3600),
        plain_http: false,
    };
    let admin_password = Some(Secret::new(PASSWORD));
    let app = App::with(Config { admin_password, mirror: vec![mirror], ..Config::default() }).await;
    app.show("hub/*", "internal").await;
    app
}

#[tokio::test]
async fn a_job_ends_with_the_rights_of_its_account() {
    let there = Source::start().await;
    let app = mirror_of(&there).await;
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    let (token, id) = app.token(&alice, json!({"name": "ci"})).await;
    app.grant("alice/made", "bob", "write").await;
    let (revoke, no_grant) =
        (format!("/lode/v1/tokens/{id}?account=alice"), json!({"target": "alice/made", "subject": "bob"}));
    let hidden = json!({"target": "hub/*", "visibility": "private"});
    for (name, credentials, method, path, body, reason) in [
        ("one", &token, "DELETE", &revoke[..], json!({}), "or its token or key was revoked"),
        ("two", &bob, "PUT", "/lode/v1/grants", no_grant, "may no longer push to alice/made"),
        ("three", &alice, "PUT", "/lode/v1/visibility", hidden, "may no longer read hub/team/three"),
        (
            "four",
            &alice,
            "PATCH",
            "/lode/v1/accounts/alice",
            json!({"disabled": true}),
            "was disabled or deleted",
        ),
    ] {
        let layer = push_layer(&there.app, &format!("team/{name}"), "latest", name).await;
        there.set(&layer, Fault::Hold);
        let create = json!({"model": "alice/made", "from": format!("hub/team/{name}")});
        let started = app.send_as(credentials, Request::post("/lode/v1/models"), create.to_string()).await;
        assert_eq!(started.status, 202, "{name}: {}", started.text());
        there.is_asked_for(&layer).await;
        app.admin(method, path, body).await;
        // The job ends while it waits for the layer.
        let location = format!("{}?wait=60", started.header("location"));
        let job = within(app.get_as(&basic("admin", PASSWORD), &location)).await.json();
        assert!(problem(&job).contains(reason), "{name}: {job}");
        let made = app.get_as(&basic("admin", PASSWORD), "/v2/alice/made/manifests/latest").await;
        assert_eq!(made.status, 404, "{name}");
        there.repair();
        app.show("hub/*", "internal").await;
    }
}

/// Nothing checks the rights of a long request while it runs.
#[tokio::test]
async fn the_rights_are_checked_again_before_the_manifest_is_stored() {
    let there = Source::start().await;
    let app = mirror_of(&there).await;
    let alice = app.user("alice").await;
    let layer = push_layer(&there.app, "app", "latest", "layer").await;
    for (at, is_revoked) in [true, false].into_iter().enumerate() {
        let (token, id) = app.token(&alice, json!({"name": "ci"})).await;
        there.set(&layer, Fault::Hold);
        let model = format!("alice/made{at}");
        let create = json!({"model": model, "from": "hub/app", "stream": false}).to_string();
        let request = Request::post("/api/create").header("content-type", "application/json");
        let (response, ()) = futures::join!(app.send_as(&token, request, create), async {
            if is_revoked {
                there.is_asked_for(&layer).await;
                app.admin("DELETE", &format!("/lode/v1/tokens/{id}?account=alice"), json!(null)).await;
            }
            there.repair();
        });
        let made = app.get_as(&alice, &format!("/v2/{model}/manifests/latest")).await;
        let expected = if is_revoked { (403, 404) } else { (200, 200) };
        assert_eq!((response.status.as_u16(), made.status.as_u16()), expected, "{}", response.text());
        assert_eq!(response.text().contains("was revoked"), is_revoked, "{}", response.text());
    }
}

#[tokio::test]
async fn invalid_create_requests_are_refused() {
    let app = App::new().await;
    push_model(&app, "base", "latest").await;
    let zero = format!("sha256:{}", "0".repeat(64));
    let broken = stage(&app, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}").await;
    for (body, status, part) in [
        (json!({"model": "m"}), 400, "neither 'from' or 'files' was specified"),
        (json!({"from": "base"}), 400, "model is required"),
        (json!({"model": "a/b/c", "from": "base"}), 400, "a/b/c"),
        (json!({"model": "m", "from": "gone"}), 404, "model 'gone' not found"),
        (json!({"model": "m", "from": "m"}), 404, "model 'm' not found"),
        (json!({"model": "m", "files": {}}), 400, "no files provided"),
        (json!({"model": "m", "files": {"/etc/passwd": zero}}), 400, "file path must be relative"),
        (json!({"model": "m", "files": {"../x": zero}}), 400, "file path must be relative"),
        (json!({"model": "m", "files": {"x": "md5:1"}}), 400, "invalid digest format"),
        (json!({"model": "m", "files": {"model.safetensors": zero}}), 400, "was not sent"),
        (json!({"model": "m", "from": "base", "adapters": {"a.gguf": zero}}), 400, "was not sent"),
        (json!({"model": "m", "from": "base", "parameters": {"top_k": "many"}}), 400, "'top_k'"),
        (
            json!({"model": "m", "from": "base", "messages": [{"role": "tool", "content": "x"}]}),
            400,
            "`tool`",
        ),
        (
            json!({"model": "m", "from": "base", "template": "\n{{ if }}"}),
            400,
            "missing value for if (line 2, column 7)",
        ),
        (json!({"model": "m", "from": "base", "quantize": "q9"}), 400, "`q9`"),
        (json!({"model": "m", "from": "base", "format": "onnx"}), 400, "`onnx` is not a format of models"),
        (
            json!({"model": "m", "from": "base", "format": "checkpoint", "quantize": "q4_0"}),
            400,
            "`q4_0` is not a type of a checkpoint's floats",
        ),
        (json!({"model": "m", "from": "base", "remote_host": "https://x"}), 400, "remote models"),
    ] {
        let response = app.post_json("/api/create", body.clone()).await;
        assert_eq!(response.status, status, "{body}: {}", response.text());
        let error = response.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(part), "{body}: {error}");
    }
    // Errors that only the files reveal come as the last record, and no model is created.
    let body = json!({"model": "m", "files": {"model.safetensors": broken}});
    let response = app.post_json("/api/create", body).await;
    let last: Value = serde_json::from_str(response.text().lines().last().unwrap()).unwrap();
    assert!(last["error"].as_str().unwrap().contains("model.safetensors"), "{last}");
    assert_eq!(app.get("/v2/m/manifests/latest").await.status, 404);
}
