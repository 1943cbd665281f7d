//! Every model family that a worker supports: imported with `lode create` as a checkpoint or a GGUF, it
//! generates the expected ids.

use std::path::PathBuf;

use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

use crate::gguf::fixture;
use crate::inference::exact_level;
use crate::onnx::{assert_prompts_are_left_out, folder_with_prompts};

/// A folder for each family, with a small checkpoint and its expected outputs.
fn families() -> Vec<(String, PathBuf)> {
    let all = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/arch");
    let folders = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path());
    let mut families: Vec<(String, PathBuf)> = folders
        .filter(|path| path.is_dir())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    families.sort();
    assert!(families.len() >= 11, "{families:?}");
    families
}

/// The families with a GGUF. mistral-swa has none, because GGUF's llama architecture does not store its
/// window.
pub(crate) fn gguf_families() -> impl Iterator<Item = (String, PathBuf)> {
    families().into_iter().filter(|(family, _)| family != "mistral-swa")
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[tokio::test]
async fn every_family_answers_as_known() {
    let options = Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32").env("LODE_MAX_LOADED_MODELS", "2");
    let options = options.env("LODE_CPU", exact_level());
    let server = Folder::new().start(options).await;
    let registry = server.registry();
    for (family, folder) in families() {
        let name = format!("arch/{family}");
        server.lode().create(&name, &folder, &[]).await.expect_success();
        let expected: Value =
            serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let (prompt, known) = (ids(&case["token_ids"]), ids(&case["greedy"]));
            // The fixture continues after the end-of-sequence id; the model stops there.
            let end = known.iter().position(|id| *id == 2).unwrap_or(known.len());
            let body = json!({
                "model": name, "prompt": case["prompt"], "raw": true, "stream": false,
                "options": {"temperature": 0, "num_predict": known.len()},
            });
            let got = registry.post_json("/api/generate", &body).await.expect(200).json();
            let found = ids(&got["context"]);
            assert!(found.starts_with(&prompt), "{family}: {found:?} does not begin with {prompt:?}");
            let generated = &found[prompt.len()..];
            assert!(
                generated.len() >= end && generated[..end] == known[..end],
                "{family}: got {generated:?}, expected {known:?}"
            );
        }
    }
}

/// The same with GGUF files in Q8_0, which contain the vocabulary, the config and stacked experts.
#[tokio::test]
async fn every_family_answers_from_a_gguf() {
    let options = Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32").env("LODE_MAX_LOADED_MODELS", "2");
    let server = Folder::new().start(options).await;
    let registry = server.registry();
    for (family, _) in gguf_families() {
        let name = format!("gguf/{family}");
        server.lode().create(&name, &fixture(&format!("{family}-q8_0.gguf")), &[]).await.expect_success();
        let expected = std::fs::read(fixture(&format!("{family}-q8_0.expected.json"))).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let (prompt, known) = (ids(&case["token_ids"]), ids(&case["greedy"]));
            let body = json!({
                "model": name, "prompt": case["prompt"], "raw": true, "stream": false,
                "options": {"temperature": 0, "num_predict": 1},
            });
            let got = registry.post_json("/api/generate", &body).await.expect(200).json();
            let found = ids(&got["context"]);
            assert!(found.starts_with(&prompt), "{family}: {found:?} does not begin with {prompt:?}");
            // Activations quantised to 8 bits may change the order of nearly equal logits, or the selected
            // expert.
            let margin = case["greedy_margin"][0].as_f64().unwrap();
            if margin > 0.3 && known[0] != 2 {
                assert_eq!(found.get(prompt.len()), Some(&known[0]), "{family}, with a margin of {margin}");
            }
        }
    }
}

/// Encoders: the ids of their tokenizers, and their embeddings: the L2-normalised means of the hidden states,
/// or what linear layers make of the means.
#[tokio::test]
async fn encoders_make_the_known_vectors() {
    let server = Folder::new().start(Options::new().worker()).await;
    let (lode, registry) = (server.lode(), server.registry());
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/encoder");
    for (model, source, folder, field) in [
        ("encoder/roberta", "roberta", "roberta", "mean"),
        ("encoder/nomic", "nomic-bert", "nomic-bert", "mean"),
        ("encoder/nomic-gguf", "nomic-bert.gguf", "nomic-bert", "mean"),
        ("encoder/gemma", "embedding-gemma", "embedding-gemma", "embedding"),
        ("encoder/gemma-gguf", "embedding-gemma.gguf", "embedding-gemma", "gguf_embedding"),
    ] {
        lode.create(model, &fixtures.join(source), &[]).await.expect_success();
        let expected = std::fs::read(fixtures.join(folder).join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let body = json!({"model": model, "input": case["text"]});
            let got = registry.post_json("/api/embed", &body).await.expect(200).json();
            let numbers = |value: &Value| serde_json::from_value::<Vec<f64>>(value.clone()).unwrap();
            let (vector, known) = (numbers(&got["embeddings"][0]), numbers(&case[field]));
            let length = known.iter().map(|value| value * value).sum::<f64>().sqrt();
            assert_eq!(vector.len(), known.len());
            for (found, known) in vector.iter().zip(known) {
                let known = known / length;
                assert!((found - known).abs() < 1e-5, "{model}, {}: {found} {known}", case["text"]);
            }
            let text = case["text"].as_str().unwrap();
            if let Some(query) = case.get("query_embedding").filter(|_| field == "embedding") {
                let embed = ["embed", model, "--prompt", "query", text];
                let of_lode = lode.run(&embed).await.expect_success().json();
                let body = json!({"model": model, "input": text, "prompt_name": "query"});
                let of_openai = registry.post_json("/v1/embeddings", &body).await.expect(200).json();
                for vector in [&of_lode, &of_openai["data"][0]["embedding"]] {
                    assert_eq!(numbers(vector).len(), numbers(query).len());
                    for (found, known) in numbers(vector).iter().zip(numbers(query)) {
                        assert!((found - known).abs() < 1e-5, "{model}, query {text}: {found} {known}");
                    }
                }
            }
            let found = lode.run_with_input(&["tokenize", model, "--json"], text.as_bytes()).await;
            assert_eq!(
                ids(&found.expect_success().json()["ids"]),
                ids(&case["token_ids"]),
                "{model}: {text}"
            );
        }
    }
}

/// A mean without the tokens of a prompt is that of transformers and numpy.
#[tokio::test]
async fn prompts_are_left_out_of_the_mean() {
    let server = Server::fresh_with_worker().await;
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/encoder");
    let weights = std::fs::read(fixtures.join("roberta/model.safetensors")).unwrap();
    let (path, known) = folder_with_prompts(&server, "prompts", &[("model.safetensors", &weights)]);
    server.lode().create("team/prompts", &path, &[]).await.expect_success();
    assert_prompts_are_left_out(&server, "team/prompts", &known).await;
}
