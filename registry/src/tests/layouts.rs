//! One model in the layout of each tool: the database has the same facts for all of them; and comparisons and
//! lineage of two models.

use lode_model::media_type as mt;
use serde_json::{Value, json};

use super::App;

const CONFIG: &[u8] =
    br#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":8,"num_attention_heads":2}"#;

/// A safetensors file of BF16 tensors, each filled with one byte.
fn safetensors(tensors: &[(&str, u64, u8)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, rows, byte) in tensors {
        let begin = data.len();
        data.resize(begin + *rows as usize * 16, *byte);
        header.insert(
            (*name).to_owned(),
            json!({"dtype": "BF16", "shape": [rows, 8], "data_offsets": [begin, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn weights(last: u8) -> Vec<u8> {
    safetensors(&[("model.norm.weight", 1, 0x3f), ("model.layers.0.mlp.up_proj.weight", 16, last)])
}

/// A tar of these files, in plain ustar.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut all = Vec::new();
    for (path, bytes) in files {
        let mut block = vec![0u8; 512];
        block[..path.len()].copy_from_slice(path.as_bytes());
        block[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        block[156] = b'0';
        block[257..263].copy_from_slice(b"ustar\0");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        all.extend(block);
        all.extend_from_slice(bytes);
        all.resize(all.len().next_multiple_of(512), 0);
    }
    all.resize(all.len() + 1024, 0);
    all
}

/// Pushes layers, each with its type, additional fields and bytes.
async fn push(
    app: &App,
    name: &str,
    config_type: &str,
    config: &Value,
    layers: &[(&str, Value, Vec<u8>)],
    more: &Value,
) {
    let mut descriptors = Vec::new();
    for (kind, fields, bytes) in layers {
        let digest = app.push_blob(name, bytes.clone()).await;
        let mut layer = json!({"mediaType": kind, "digest": digest, "size": bytes.len()});
        for (key, value) in fields.as_object().into_iter().flatten() {
            layer[key] = value.clone();
        }
        descriptors.push(layer);
    }
    let config = config.to_string();
    let digest = app.push_blob(name, config.clone()).await;
    let mut manifest = json!({
        "schemaVersion": 2, "mediaType": mt::OCI_MANIFEST, "layers": descriptors,
        "config": {"mediaType": config_type, "digest": digest, "size": config.len()},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        manifest[key] = value.clone();
    }
    let response = app.push_manifest(name, "latest", &manifest).await;
    assert_eq!(response.status, 201, "{name}: {}", response.text());
}

fn at(key: &str, path: &str) -> Value {
    json!({"annotations": { key: path }})
}

async fn push_titled(app: &App, name: &str, last: u8, more: Value) {
    let layers = [
        (mt::OCI_LAYER_TAR, at(mt::TITLE_ANNOTATION, "model.safetensors"), weights(last)),
        (mt::OCI_LAYER_TAR, at(mt::TITLE_ANNOTATION, "config.json"), CONFIG.to_vec()),
    ];
    push(app, name, mt::OCI_EMPTY, &json!({}), &layers, &more).await;
}

#[tokio::test]
async fn every_layout_gives_the_same_model() {
    let app = App::new().await;
    let raw = "application/vnd.cncf.model.weight.v1.raw";
    let raw_config = "application/vnd.cncf.model.weight.config.v1.raw";
    let filepath = |path| at(mt::FILEPATH_ANNOTATION, path);
    let none = json!({});
    push_titled(&app, "oras", 1, json!({})).await;
    let layers = [
        (mt::DOCKER_MODEL_SAFETENSORS, filepath("model.safetensors"), weights(1)),
        (mt::DOCKER_MODEL_FILE, filepath("config.json"), CONFIG.to_vec()),
    ];
    let config = json!({"config": {"format": "safetensors", "architecture": "llama", "parameters": "136"}});
    push(&app, "docker", mt::DOCKER_MODEL_CONFIG_V02, &config, &layers, &none).await;
    let layers = [
        (raw, filepath("m/model.safetensors"), weights(1)),
        (raw_config, filepath("m/config.json"), CONFIG.to_vec()),
    ];
    let config =
        json!({"config": {"format": "safetensors", "architecture": "transformer", "paramSize": "8b"}});
    push(&app, "modelpack", mt::MODELPACK_CONFIG, &config, &layers, &none).await;
    let layers = [
        (
            "application/vnd.cncf.model.weight.v1.tar",
            none.clone(),
            tar(&[("model.safetensors", &weights(1))]),
        ),
        ("application/vnd.cncf.model.weight.config.v1.tar", none.clone(), tar(&[("config.json", CONFIG)])),
    ];
    push(&app, "modctl", mt::MODELPACK_CONFIG, &config, &layers, &none).await;
    let kit = tar(&[("kit/config.json", CONFIG), ("kit/model.safetensors", &weights(1))]);
    let layers = [("application/vnd.kitops.modelkit.model.v1.tar", none.clone(), kit)];
    push(&app, "kitops", mt::KITOPS_CONFIG, &json!({"model": {"path": "kit"}}), &layers, &none).await;
    let one = |name: &str, rows, byte| {
        (mt::OLLAMA_TENSOR, json!({"name": name}), safetensors(&[(name, rows, byte)]))
    };
    let json = |path: &str| (mt::OLLAMA_JSON, json!({"name": path}), CONFIG.to_vec());
    let layers = [
        one("model.norm.weight", 1, 0x3f),
        one("model.layers.0.mlp.up_proj.weight", 16, 1),
        json("config.json"),
    ];
    push(&app, "ollama", mt::DOCKER_CONFIG, &json!({"model_format": "safetensors"}), &layers, &none).await;
    // Older conventions: parameters in the media type, fields alongside the name, and one tensor's bytes
    // without a header.
    let norm = "application/vnd.ollama.image.tensor; name=model.norm.weight; dtype=BF16; shape=1,8";
    let up = json!({"name": "model.layers.0.mlp.up_proj.weight", "dtype": "BF16", "shape": [16, 8]});
    let layers = [
        (norm, none.clone(), vec![0x3f; 16]),
        (mt::OLLAMA_TENSOR, up, safetensors(&[("data", 16, 1)])),
        ("application/vnd.ollama.image.config; type=safetensors", none.clone(), CONFIG.to_vec()),
    ];
    push(&app, "older", mt::DOCKER_CONFIG, &none, &layers, &none).await;

    let models = app.get("/lode/v1/models").await.json();
    let models = models["models"].as_array().unwrap();
    assert_eq!(models.len(), 7);
    for model in models {
        let name = &model["repository"];
        assert_eq!(model["format"], "safetensors", "{name}");
        assert_eq!(model["architecture"], "llama", "{name}");
        assert_eq!((&model["parameters"], &model["tensor_count"]), (&json!(136), &json!(2)), "{name}");
        assert_eq!((&model["quantization"], &model["problem"]), (&json!("BF16"), &Value::Null), "{name}");
        let tensors = app.get(&format!("/lode/v1/tensors/{}/latest", name.as_str().unwrap())).await.json();
        for tensor in tensors["tensors"].as_array().unwrap() {
            let digest = tensor["digest"].as_str().unwrap();
            let blob = app.get(&format!("/v2/{}/blobs/{digest}", name.as_str().unwrap())).await.body;
            let (begin, size) =
                (tensor["offset"].as_u64().unwrap() as usize, tensor["size_bytes"].as_u64().unwrap());
            let byte = if tensor["name"] == "model.norm.weight" { 0x3f } else { 1 };
            assert!(blob[begin..begin + size as usize].iter().all(|b| *b == byte), "{name}: {tensor}");
        }
        let other = app.get(&format!("/lode/v1/diff/{}/latest?with=oras", name.as_str().unwrap())).await;
        let total: Value = serde_json::from_str(other.text().lines().last().unwrap()).unwrap();
        assert_eq!(
            (&total["total"]["same"], &total["total"]["changed"]),
            (&json!(2), &json!(0)),
            "{name}: {total}"
        );
    }
}

#[tokio::test]
async fn packed_weights_are_named() {
    let app = App::new().await;
    let layers = [("application/vnd.cncf.model.weight.v1.tar+gzip", json!({}), vec![0x1f, 0x8b, 8, 0])];
    let config = json!({"config": {"format": "safetensors", "architecture": "llama", "paramSize": "8b"}});
    push(&app, "packed", mt::MODELPACK_CONFIG, &config, &layers, &json!({})).await;
    let shown = app.get("/lode/v1/models/packed/latest").await.json();
    assert_eq!((&shown["format"], &shown["parameters"]), (&json!("safetensors"), &json!(8_000_000_000u64)));
    assert!(shown["problem"].as_str().unwrap().contains("compressed"), "{shown}");
}

#[tokio::test]
async fn two_models_are_compared() {
    let app = App::new().await;
    push_titled(&app, "team/base", 0x3f, json!({})).await;
    push_titled(
        &app,
        "team/tuned",
        0x40,
        json!({"annotations": {mt::BASE_NAME_ANNOTATION: "team/base:latest"}}),
    )
    .await;
    let response = app.get("/lode/v1/diff/team/base/latest?with=team/tuned:latest").await;
    assert_eq!((response.status.as_u16(), response.header("content-type")), (200, "application/x-ndjson"));
    let lines: Vec<Value> = response.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["tensor"]["status"], "same");
    let changed = &lines[1]["tensor"];
    assert_eq!(changed["status"], "changed");
    assert!(changed["relative_error"].as_f64().unwrap() > 1.0, "{changed}");
    let total = &lines[2]["total"];
    assert_eq!((&total["same"], &total["changed"]), (&json!(1), &json!(1)));
    assert_eq!(total["bytes_shared"], CONFIG.len());
    for path in ["team/base/latest?with=nobody", "nobody/latest?with=team/base"] {
        assert_eq!(app.get(&format!("/lode/v1/diff/{path}")).await.status, 404, "{path}");
    }
    assert_eq!(app.get("/lode/v1/diff/team/base/latest").await.status, 400);

    let lineage = app.get("/lode/v1/lineage/team/tuned/latest").await.json();
    let from = &lineage["from"][0];
    assert_eq!((&from["relation"], &from["here"]), (&json!("base"), &json!("team/base:latest")), "{lineage}");
    assert_eq!(app.get("/lode/v1/lineage/nobody/latest").await.status, 404);
}

#[tokio::test]
async fn a_lineage_has_generations() {
    let app = App::new().await;
    // A chain, whose first model names the last one.
    let chain = ["team/a", "team/b", "team/c", "team/d", "team/e", "team/f"];
    for (at, name) in chain.iter().enumerate() {
        let from = chain[at.checked_sub(1).unwrap_or(chain.len() - 1)];
        let annotation = json!({"annotations": {mt::BASE_NAME_ANNOTATION: format!("{from}:latest")}});
        push_titled(&app, name, at as u8, annotation).await;
        assert_eq!(app.get(&format!("/lode/v1/models/{name}/latest")).await.status, 200);
    }
    let lineage = app.get("/lode/v1/lineage/team/f/latest").await.json();
    let (mut origins, mut names) = (&lineage["from"], Vec::new());
    while let Some(origin) = origins.get(0) {
        names.push(origin["here"].as_str().unwrap());
        origins = &origin["from"];
    }
    assert_eq!(names, ["team/e:latest", "team/d:latest", "team/c:latest", "team/b:latest"], "{lineage}");
    let lineage = app.get("/lode/v1/lineage/team/b/latest").await.json();
    let derived = lineage["derived"].as_array().unwrap().iter();
    let derived: Vec<_> = derived
        .map(|model| (model["generation"].as_u64().unwrap(), model["repository"].as_str().unwrap()))
        .collect();
    assert_eq!(derived, [(1, "team/c"), (2, "team/d"), (3, "team/e"), (4, "team/f")]);
    let page = app.get("/team/b/-/lineage").await;
    let (origins, derived) = page.text().split_once("id=\"derived\"").unwrap();
    for (part, generation, name) in
        [(origins, 2, "team/f:latest"), (derived, 1, "team/c"), (derived, 4, "team/f")]
    {
        let (_, row) = part.split_once(&format!("class=\"generation-{generation}\"")).unwrap();
        assert!(row.split("</th>").next().unwrap().contains(name), "{generation} {name}: {part}");
    }
    // Two models that name each other do not derive from themselves.
    for (name, from) in [("pair/a", "pair/b"), ("pair/b", "pair/a")] {
        let annotation = json!({"annotations": {mt::BASE_NAME_ANNOTATION: format!("{from}:latest")}});
        push_titled(&app, name, name.as_bytes()[5], annotation).await;
        assert_eq!(app.get(&format!("/lode/v1/models/{name}/latest")).await.status, 200);
    }
    let lineage = app.get("/lode/v1/lineage/pair/a/latest").await.json();
    assert_eq!(lineage["derived"].as_array().unwrap().len(), 1, "{lineage}");
    assert_eq!(lineage["from"][0]["from"][0]["from"], Value::Null, "{lineage}");
}
