//! Tokenizing and embedding texts: `lode tokenize` with a GGUF's vocabulary, `lode embed` and the embedding
//! routes, and the messages of a Modelfile.

use std::fs;
use std::path::{Path, PathBuf};

use lode_tests::checkpoint::demo;
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

pub(crate) async fn with_model() -> Server {
    let server = Folder::new().start(Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32")).await;
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    server
}

#[tokio::test]
async fn a_gguf_is_tokenized_without_a_worker() {
    let server = Server::fresh().await;
    let lode = server.lode();
    let expected: Value =
        serde_json::from_slice(&fs::read(fixture("vocab-small/expected.json")).unwrap()).unwrap();
    for (name, cases) in [("gpt2", "gpt2-gpt-2"), ("llama", "llama"), ("bert", "bert")] {
        let model = format!("team/{name}");
        lode.create(&model, &fixture(&format!("vocab-small/{name}.gguf")), &[]).await.expect_success();
        for case in expected[cases].as_array().unwrap().iter().step_by(5) {
            let text = case["text"].as_str().unwrap();
            for (flags, key) in [(&["--json"][..], "all"), (&["--json", "--no-special"], "none")] {
                let args = [&["tokenize", &model], flags].concat();
                let ids = lode.run_with_input(&args, text.as_bytes()).await.expect_success().json();
                // An empty text has no ids, not even special tokens.
                let expect = if text.is_empty() { json!([]) } else { case[key].clone() };
                assert_eq!(ids["ids"], expect, "{name} {key}: {text:?}");
                if name != "bert" && key == "none" {
                    let back = lode
                        .run_with_input(&["tokenize", &model, "--decode"], ids.to_string().as_bytes())
                        .await
                        .expect_success();
                    assert_eq!(back.stdout, text, "{name}: {text:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn every_embedding_route_returns_the_same_embeddings() {
    let server = with_model().await;
    let (lode, registry) = (server.lode(), server.registry());
    let texts = ["Define water.", "What is 40 plus 41?"];
    let body = json!({"model": "team/demo", "input": texts});
    let ollama = registry.post_json("/api/embed", &body).await.expect(200).json();
    let vectors = ollama["embeddings"].as_array().unwrap();
    assert_eq!((vectors.len(), vectors[0].as_array().unwrap().len()), (2, 256), "{ollama}");
    assert!(ollama["prompt_eval_count"].as_u64() > Some(5));
    let openai = registry.post_json("/v1/embeddings", &body).await.expect(200).json();
    let floats = |value: &Value| serde_json::from_value::<Vec<f32>>(value.clone()).unwrap();
    assert_eq!(floats(&openai["data"][1]["embedding"]), floats(&vectors[1]));
    let older = json!({"model": "team/demo", "prompt": texts[0]});
    let older = registry.post_json("/api/embeddings", &older).await.expect(200).json();
    assert_eq!(older["embedding"], vectors[0]);

    let one = lode.run(&["embed", "team/demo", texts[1]]).await.expect_success();
    assert_eq!(serde_json::from_str::<Value>(&one.stdout).unwrap(), vectors[1]);
    let lines =
        lode.run_with_input(&["embed", "team/demo"], texts.join("\n").as_bytes()).await.expect_success();
    let lines: Vec<Value> = lines.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(&lines, vectors);
    let none = lode.run_with_input(&["embed", "team/demo"], b"").await;
    none.expect_failure(&["no text to embed: standard input is empty"]);
    let cut = lode
        .run(&["embed", "team/demo", texts[0], "--dimensions", "8", "--json"])
        .await
        .expect_success()
        .json();
    assert_eq!(cut["embeddings"][0].as_array().unwrap().len(), 8);
    let long = "word ".repeat(4000);
    let refused = lode.run(&["embed", "team/demo", &long, "--no-truncate"]).await;
    assert_eq!(
        (refused.code, refused.stderr.contains("exceeds the context length")),
        (1, true),
        "{}",
        refused.stderr
    );
}

#[tokio::test]
async fn messages_of_a_modelfile_come_first() {
    let server = with_model().await;
    let (lode, registry) = (server.lode(), server.registry());
    let file = server.folder().path().join("Modelfile");
    fs::write(&file, "FROM team/demo\nMESSAGE user Define water.\nMESSAGE assistant a liquid\n").unwrap();
    lode.run(&["create", "team/taught", "-f", file.to_str().unwrap()]).await.expect_success();
    let count = async |model: &str, path: &str, more: Value| {
        let mut body = json!({"model": model, "stream": false, "options": {"num_predict": 1}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        registry.post_json(path, &body).await.expect(200).json()["prompt_eval_count"].as_u64().unwrap()
    };
    let turn = |text: &str, role: &str| json!({"role": role, "content": text});
    let (first, second, last) =
        (turn("Define water.", "user"), turn("a liquid", "assistant"), turn("Define fire.", "user"));
    let whole = count("team/demo", "/api/chat", json!({"messages": [first, second, last]})).await;
    assert_eq!(count("team/taught", "/api/chat", json!({"messages": [last]})).await, whole);
    assert_eq!(count("team/taught", "/api/generate", json!({"prompt": "Define fire."})).await, whole);
}

#[tokio::test]
async fn a_gguf_answers_as_its_checkpoint_does() {
    let server = with_model().await;
    let (lode, registry) = (server.lode(), server.registry());
    lode.create("team/packed", &demo(), &["--quantize", "Q8_0"]).await.expect_success();
    let options = json!({"temperature": 0});
    let messages = json!([{"role": "user", "content": "What is 40 plus 41?"}]);
    let chat = async |model: &str| {
        let body = json!({"model": model, "messages": messages, "stream": false, "options": options});
        registry.post_json("/api/chat", &body).await.expect(200).json()
    };
    let (packed, plain) = (chat("team/packed").await, chat("team/demo").await);
    assert_eq!((&packed["message"]["content"], &packed["done_reason"]), (&json!("81."), &json!("stop")));
    assert_eq!(packed["prompt_eval_count"], plain["prompt_eval_count"]);
}
