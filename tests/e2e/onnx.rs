//! ONNX encoders, run with the ONNX Runtime: their embeddings are those of the same weights as safetensors, and
//! without the runtime the error says what to install. `ORT_DYLIB_PATH` names the runtime's library.

use std::fs;
use std::path::{Path, PathBuf};

use lode_tests::checkpoint::{demo, read_tensor_headers};
use lode_tests::onnx::{Bert, FLOAT, Graph, INT64, bytes, external, int, node, tensor};
use lode_tests::report::skip;
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/encoder/roberta")
}

fn config() -> Value {
    serde_json::from_slice(&fs::read(fixture().join("config.json")).unwrap()).unwrap()
}

/// The graph of the fixture's checkpoint.
fn graph() -> Graph {
    let first_position = config()["pad_token_id"].as_i64().unwrap() + 1;
    graph_of(&fixture(), first_position)
}

/// The graph of a BERT checkpoint in F32, whose first token has this row of the position table.
pub(crate) fn graph_of(folder: &Path, first_position: i64) -> Graph {
    let file = fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = read_tensor_headers(&file);
    let weight = |name: &str| {
        let tensor = &tensors[name];
        let raw = file[tensor.begin..tensor.end].chunks_exact(4);
        (tensor.shape.clone(), raw.map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect())
    };
    let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let number = |field: &str| config[field].as_u64().unwrap() as usize;
    let bert = Bert {
        width: number("hidden_size"),
        heads: number("num_attention_heads"),
        layers: number("num_hidden_layers"),
        norm_eps: config["layer_norm_eps"].as_f64().unwrap() as f32,
        first_position,
        id_type: INT64,
    };
    bert.graph(&weight)
}

/// Reports the test as skipped without the library of the ONNX Runtime.
pub(crate) fn has_runtime(test: &str) -> bool {
    let is_named = std::env::var_os("ORT_DYLIB_PATH").is_some();
    if !is_named {
        skip(test, "ORT_DYLIB_PATH does not name the library of the ONNX Runtime");
    }
    is_named
}

/// Writes a checkpoint: the fixture's small files, the texts of sentence-transformers, and more files.
fn folder(server: &Server, name: &str, pooling: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let path = server.folder().path().join(name);
    fs::create_dir_all(path.join("1_Pooling")).unwrap();
    fs::create_dir_all(path.join("onnx")).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(fixture().join(file), path.join(file)).unwrap();
    }
    let modes = json!({ pooling: true, "word_embedding_dimension": 48 });
    fs::write(path.join("1_Pooling/config.json"), modes.to_string()).unwrap();
    fs::write(path.join("sentence_bert_config.json"), json!({"max_seq_length": 40}).to_string()).unwrap();
    for (file, bytes) in files {
        fs::write(path.join(file), bytes).unwrap();
    }
    path
}

fn vectors(response: &Value) -> Vec<Vec<f32>> {
    serde_json::from_value(response["embeddings"].clone()).unwrap()
}

fn assert_close(found: &[Vec<f32>], expect: &[Vec<f32>]) {
    assert_eq!(found.len(), expect.len());
    for (found, expect) in found.iter().flatten().zip(expect.iter().flatten()) {
        assert!((found - expect).abs() < 1e-4, "{found} {expect}");
    }
}

#[tokio::test]
async fn embeddings_are_those_of_the_checkpoint() {
    if !has_runtime("onnx::embeddings_are_those_of_the_checkpoint") {
        return;
    }
    let server = Server::fresh_with_worker().await;
    let (lode, registry) = (server.lode(), server.registry());
    let weights = fs::read(fixture().join("model.safetensors")).unwrap();
    let file = graph().file();
    let long = "many words ".repeat(60);
    let texts = ["Define water.", "a", "What is 40 plus 41? And a longer sentence after it.", &long];
    for pooling in ["pooling_mode_mean_tokens", "pooling_mode_cls_token"] {
        let native = folder(&server, "native", pooling, &[("model.safetensors", &weights)]);
        lode.create("team/native", &native, &[]).await.expect_success();
        let onnx = folder(&server, "onnx", pooling, &[("onnx/model.onnx", &file)]);
        lode.create("team/onnx", &onnx, &[]).await.expect_success();
        let embed = async |model: &str, input: Value| {
            registry
                .post_json("/api/embed", &json!({"model": model, "input": input}))
                .await
                .expect(200)
                .json()
        };
        let expect = vectors(&embed("team/native", json!(texts)).await);
        let found = embed("team/onnx", json!(texts)).await;
        assert_close(&vectors(&found), &expect);
        for (text, expect) in texts.iter().zip(&expect) {
            assert_close(&vectors(&embed("team/onnx", json!(text)).await), std::slice::from_ref(expect));
        }
        let body = json!({"model": "team/onnx", "input": texts[2]});
        let openai = registry.post_json("/v1/embeddings", &body).await.expect(200).json();
        let of_openai: Vec<f32> = serde_json::from_value(openai["data"][0]["embedding"].clone()).unwrap();
        assert_close(&[of_openai], &expect[2..3]);
        let listed = registry.get("/api/ps").await.expect(200).json();
        let models = listed["models"].as_array().unwrap();
        assert!(models.iter().any(|model| model["details"]["format"] == "onnx"), "{listed}");
        lode.run(&["stop", "team/onnx"]).await.expect_success();
    }
}

/// Writes a checkpoint with the prompts of `roberta-prompts.json`, and a pooling that leaves them out.
pub(crate) fn folder_with_prompts(server: &Server, name: &str, files: &[(&str, &[u8])]) -> (PathBuf, Value) {
    let path = folder(server, name, "pooling_mode_mean_tokens", files);
    let known = fs::read(fixture().with_file_name("roberta-prompts.json")).unwrap();
    let known: Value = serde_json::from_slice(&known).unwrap();
    let pooling = json!({"pooling_mode": "mean", "include_prompt": false});
    fs::write(path.join("1_Pooling/config.json"), pooling.to_string()).unwrap();
    let prompts = json!({"prompts": known["prompts"]});
    fs::write(path.join("config_sentence_transformers.json"), prompts.to_string()).unwrap();
    (path, known)
}

/// Embeds all texts of `roberta-prompts.json`, at once and one by one.
pub(crate) async fn assert_prompts_are_left_out(server: &Server, model: &str, known: &Value) {
    let cases = known["cases"].as_array().unwrap();
    for name in ["query", "document"] {
        let cases: Vec<&Value> = cases.iter().filter(|case| case["prompt_name"] == name).collect();
        let embed = async |cases: &[&Value]| {
            let texts: Vec<&Value> = cases.iter().map(|case| &case["text"]).collect();
            let body = json!({"model": model, "input": texts, "prompt_name": name});
            let response = server.registry().post_json("/api/embed", &body).await.expect(200).json();
            let tokens: u64 = cases.iter().map(|case| case["tokens"].as_u64().unwrap()).sum();
            assert_eq!(response["prompt_eval_count"], tokens, "{model}");
            let known: Vec<Vec<f32>> =
                cases.iter().map(|case| serde_json::from_value(case["embedding"].clone()).unwrap()).collect();
            assert_close(&vectors(&response), &known);
        };
        embed(&cases).await;
        for case in cases {
            embed(&[case]).await;
        }
    }
}

/// The mean leaves out the tokens of a prompt, unless the graph computes it.
#[tokio::test]
async fn prompts_are_left_out_of_the_mean() {
    if !has_runtime("onnx::prompts_are_left_out_of_the_mean") {
        return;
    }
    let server = Server::fresh_with_worker().await;
    let lode = server.lode();
    let (path, known) = folder_with_prompts(&server, "states", &[("model.onnx", &graph().file())]);
    lode.create("team/states", &path, &[]).await.expect_success();
    assert_prompts_are_left_out(&server, "team/states", &known).await;

    let mut pooled = graph();
    let is_output = |field: &Vec<u8>| field.starts_with(&[12 << 3 | 2]);
    pooled.fields.retain(|field| !is_output(field));
    let axes = pooled.integers(&[1]);
    let inputs = ["last_hidden_state", &axes];
    pooled.push(node("ReduceSum", &inputs, &["sentence_embedding"], &[int("keepdims", 0)]));
    pooled.output("sentence_embedding", FLOAT, &["batch", "48"]);
    let (path, _) = folder_with_prompts(&server, "pooled", &[("model.onnx", &pooled.file())]);
    lode.create("team/pooled", &path, &[]).await.expect_success();
    let embed = async |prompt: &str, status| {
        let body = json!({"model": "team/pooled", "input": "a", "prompt_name": prompt});
        server.registry().post_json("/api/embed", &body).await.expect(status).text()
    };
    embed("document", 200).await;
    let error = embed("query", 400).await;
    assert!(error.contains("its ONNX file returns pooled embeddings"), "{error}");
}

/// Exported decoders generate the ids that transformers chose, alone and at the same time as others.
#[tokio::test]
async fn decoders_generate() {
    if !has_runtime("onnx::decoders_generate") {
        return;
    }
    let options = Options::new().worker().env("LODE_NUM_PARALLEL", "3");
    let server = Folder::new().start(options).await;
    let (lode, registry) = (server.lode(), server.registry());
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for (name, checkpoint, file) in [
        ("gpt2", "onnx-decoder/gpt2", "model.onnx"),
        ("llama3-rope", "arch/llama3-rope", "model.onnx"),
        ("merged", "onnx-decoder/merged", "decoder_model_merged.onnx"),
    ] {
        let (model, path) = (format!("team/{name}"), server.folder().path().join(name));
        fs::create_dir_all(path.join("onnx")).unwrap();
        fs::copy(fixtures.join(checkpoint).join("config.json"), path.join("config.json")).unwrap();
        fs::copy(fixtures.join("arch/tokenizer.json"), path.join("tokenizer.json")).unwrap();
        let graph = fixtures.join("onnx-decoder").join(name).join("model.onnx");
        fs::copy(graph, path.join("onnx").join(file)).unwrap();
        lode.create(&model, &path, &[]).await.expect_success();
        let expected = fs::read(fixtures.join(checkpoint).join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let cases = expected["cases"].as_array().unwrap();
        let generate = async |case: &Value| {
            let mut body = json!({
                "model": model, "raw": true, "stream": false, "options": {"temperature": 0, "num_predict": 40},
            });
            match case.get("prompt") {
                Some(prompt) => body["prompt"] = prompt.clone(),
                None => body["prompt_ids"] = case["token_ids"].clone(),
            }
            let response = registry.post_json("/api/generate", &body).await.expect(200).json();
            let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
            let (prompt, known, found) =
                (ids(&case["token_ids"]), ids(&case["greedy"]), ids(&response["context"]));
            // The reference does not stop at the end-of-sequence id.
            let end = known.iter().position(|id| *id == 2).unwrap_or(known.len());
            let found = found.strip_prefix(&prompt[..]).expect("the prompt");
            assert!(found.len() >= end && found[..end] == known[..end], "{model}: {found:?} {known:?}");
        };
        for case in cases {
            generate(case).await;
        }
        // Each shares its prompt with an earlier one.
        futures::future::join_all(cases.iter().chain(cases).map(generate)).await;
        let shown = registry.post_json("/api/show", &json!({"model": model})).await.expect(200).json();
        assert_eq!(shown["capabilities"], json!(["completion"]));
        let context = if name == "gpt2" { "gpt2.context_length" } else { "llama.context_length" };
        assert!(shown["model_info"][context].is_number(), "{shown}");
        let body = json!({"model": model, "input": "a"});
        let error = registry.post_json("/api/embed", &body).await.expect(400).text();
        assert!(error.contains("it returns no hidden states, so it computes no embeddings"), "{error}");
        let listed = registry.get("/api/ps").await.expect(200).json();
        let models = listed["models"].as_array().unwrap();
        assert!(models.iter().any(|loaded| loaded["name"] == format!("{model}:latest")), "{listed}");
    }
}

#[tokio::test]
async fn without_the_runtime_the_error_says_what_to_install() {
    let options = Options::new().worker().env("ORT_DYLIB_PATH", "/nowhere/libonnxruntime.so");
    let server = Folder::new().start(options).await;
    let (lode, registry) = (server.lode(), server.registry());
    let path = folder(&server, "onnx", "pooling_mode_mean_tokens", &[("model.onnx", &graph().file())]);
    lode.create("team/onnx", &path, &[]).await.expect_success();
    let body = json!({"model": "team/onnx", "input": "a"});
    let error = registry.post_json("/api/embed", &body).await.expect(503).text();
    assert!(error.contains("team/onnx") && error.contains("ORT_DYLIB_PATH"), "{error}");
    assert!(error.contains("libonnxruntime.so") && !error.contains("nowhere"), "{error}");
    // The terminal shows that, and no advice about servers without a worker.
    let shown = lode.run(&["run", "team/onnx", "a"]).await;
    shown.expect_failure(&["ORT_DYLIB_PATH"]);
    assert!(!shown.stderr.contains("--no-worker"), "{}", shown.stderr);
    // Everything else works.
    lode.create("team/demo", &demo(), &[]).await.expect_success();
    registry.post_json("/api/embed", &json!({"model": "team/demo", "input": "a"})).await.expect(200);
}

/// A graph is refused before the runtime is loaded, by the name of what is wrong in it.
#[tokio::test]
async fn graphs_that_must_not_be_run_are_refused() {
    let server = Server::fresh_with_worker().await;
    let (lode, registry) = (server.lode(), server.registry());
    let refused = async |name: &str, change: &dyn Fn(&mut Graph), data: &[(&str, &[u8])], expect: &str| {
        let mut graph = graph();
        change(&mut graph);
        let file = graph.file();
        let files = [&[("model.onnx", &file[..])], data].concat();
        let path = folder(&server, name, "pooling_mode_mean_tokens", &files);
        let model = format!("team/{name}");
        lode.create(&model, &path, &[]).await.expect_success();
        let body = json!({"model": model, "input": "a"});
        let error = registry.post_json("/api/embed", &body).await.expect(400).text();
        assert!(error.contains(expect) && error.contains(&model), "{error}");
    };
    refused(
        "custom",
        &|g| g.push(node("Run", &["input_ids"], &["x"], &[bytes(3, "n1"), bytes(7, "evil.ops")])),
        &[],
        "node `n1`: operator `Run` is of domain `evil.ops`",
    )
    .await;
    refused(
        "cycle",
        &|g| g.push(node("Abs", &["x2"], &["x1"], &[])),
        &[],
        "the node that gives `x1` reads `x2`",
    )
    .await;
    refused(
        "beams",
        &|g| {
            g.input("past_key_values.0.key", FLOAT, &["batch"]);
            g.input("beam_idx", FLOAT, &["1"]);
        },
        &[],
        "its input `beam_idx` is not supported",
    )
    .await;
    refused(
        "odd-data",
        &|g| g.initializer(tensor("far", FLOAT, &[4], &external("./weights.data", 0, 16))),
        &[("weights.data", &[0; 16])],
        "initializer `far` is stored in `./weights.data`, expected the relative path",
    )
    .await;
}
