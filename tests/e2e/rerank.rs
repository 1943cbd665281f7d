//! Documents ranked by cross-encoders, on every route and with `lode rerank`, compared with the results of
//! transformers; and requests that are refused.

use std::path::{Path, PathBuf};

use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

use crate::onnx::has_runtime;

const ROUTES: [&str; 4] = ["/v1/rerank", "/v2/rerank", "/api/rerank", "/lode/v1/rerank"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

async fn server(models: &[(&str, &str)]) -> Server {
    let server = Folder::new().start(Options::new().worker()).await;
    for (name, folder) in models {
        server.lode().create(name, &fixture(folder), &[]).await.expect_success();
    }
    server
}

/// The queries of a fixture, each with its documents, their scores and the number of tokens of all pairs.
fn queries(model: &str, score: fn(f64) -> f64) -> Vec<(String, Vec<String>, Vec<f64>, usize)> {
    let expected = std::fs::read(fixture(&format!("reranker/{model}/expected.json"))).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let mut queries: Vec<(String, Vec<String>, Vec<f64>, usize)> = Vec::new();
    for case in expected["cases"].as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap().to_owned();
        if queries.last().is_none_or(|(query, ..)| *query != text("query")) {
            queries.push((text("query"), Vec::new(), Vec::new(), 0));
        }
        let (_, documents, scores, tokens) = queries.last_mut().unwrap();
        documents.push(text("document"));
        scores.push(score(case["logits"][0].as_f64().unwrap()));
        *tokens += case["token_ids"].as_array().unwrap().len();
    }
    queries
}

/// The indices by descending score.
fn order(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
}

fn indices(results: &Value) -> Vec<usize> {
    results.as_array().unwrap().iter().map(|found| found["index"].as_u64().unwrap() as usize).collect()
}

#[tokio::test]
async fn documents_are_ranked_as_by_transformers() {
    let gguf = ("team/gguf", "reranker/xlm-roberta.gguf");
    let server = server(&[("team/bert", "reranker/bert"), ("team/xlmr", "reranker/xlm-roberta"), gguf]).await;
    check_ranks(&server).await;
    check_model(&server, "team/gguf", "xlm-roberta", sigmoid).await;
}

/// The same models, exported to ONNX.
#[tokio::test]
async fn exported_models_rank_as_transformers() {
    if !has_runtime("rerank::exported_models_rank_as_transformers") {
        return;
    }
    let server = server(&[]).await;
    for (model, name) in [("team/bert", "bert"), ("team/xlmr", "xlm-roberta")] {
        let folder = server.folder().path().join(name);
        std::fs::create_dir(&folder).unwrap();
        for file in ["config.json", "tokenizer.json"] {
            std::fs::copy(fixture(&format!("reranker/{name}/{file}")), folder.join(file)).unwrap();
        }
        let graph = fixture(&format!("reranker/onnx/{name}.onnx"));
        std::fs::copy(graph, folder.join("model.onnx")).unwrap();
        server.lode().create(model, &folder, &[]).await.expect_success();
    }
    check_ranks(&server).await;
    // A graph that returns classes has no hidden states.
    let body = json!({"model": "team/bert", "input": "Water."});
    let refused = server.registry().post_json("/api/embed", &body).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("it returns no hidden states"), "{}", refused.text());
}

fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

async fn check_ranks(server: &Server) {
    // The configuration of the first one names the identity; the sigmoid is the default.
    check_model(server, "team/bert", "bert", |logit| logit).await;
    check_model(server, "team/xlmr", "xlm-roberta", sigmoid).await;
}

/// Compares a model with the scores of a fixture.
async fn check_model(server: &Server, model: &str, folder: &str, score: fn(f64) -> f64) {
    let registry = server.registry();
    for (query, documents, scores, tokens) in queries(folder, score) {
        let body = json!({"model": model, "query": query, "documents": documents, "return_documents": true,
            "user": "ignored"});
        let ranked = registry.post_json("/v1/rerank", &body).await.expect(200).json();
        assert_eq!(ranked["model"], model);
        assert_eq!(ranked["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
        let results = ranked["results"].as_array().unwrap();
        assert_eq!(indices(&ranked["results"]), order(&scores), "{query}: {ranked} {scores:?}");
        for found in results {
            let index = found["index"].as_u64().unwrap() as usize;
            let score = found["relevance_score"].as_f64().unwrap();
            assert!((score - scores[index]).abs() < 1e-4, "{query}: {found} {}", scores[index]);
            assert_eq!(found["document"], json!({"text": documents[index]}));
            // Alone, the document has the same score. It may be an object.
            let one = json!({"model": model, "query": query, "documents": [{"text": documents[index]}]});
            let one = registry.post_json("/v1/rerank", &one).await.expect(200).json();
            assert_eq!(one["results"], json!([{"index": 0, "relevance_score": found["relevance_score"]}]));
        }
        for route in ROUTES {
            let again = registry.post_json(route, &body).await.expect(200).json();
            assert_eq!(again, ranked, "{route}");
        }
        let body = json!({"model": model, "query": query, "documents": documents, "top_n": 2});
        let best = registry.post_json("/v1/rerank", &body).await.expect(200).json();
        assert_eq!(indices(&best["results"]), order(&scores)[..2]);
        assert!(best["results"][0].get("document").is_none(), "{best}");
    }
    let shown = registry.post_json("/api/show", &json!({"model": model})).await.expect(200).json();
    assert_eq!(shown["capabilities"], json!(["rerank"]));
}

#[tokio::test]
async fn the_command_line_ranks_arguments_and_lines() {
    let server = server(&[("team/bert", "reranker/bert")]).await;
    let lode = server.lode();
    let (query, documents, scores, _) = queries("bert", |logit| logit).remove(0);
    // A line of standard input cannot be empty text at the end.
    let documents: Vec<&str> = documents.iter().map(|text| text.trim()).collect();
    let expect: Vec<String> = order(&scores)
        .into_iter()
        .map(|index| format!("{:.4}\t{}", scores[index], documents[index]))
        .collect();
    let args = [&["rerank", "team/bert", &query], &documents[..]].concat();
    let printed = lode.run(&args).await.expect_success();
    assert_eq!(printed.stdout.lines().collect::<Vec<_>>(), expect);
    let lines = documents.join("\n");
    let top = lode
        .run_with_input(&["rerank", "team/bert", &query, "--top", "2"], lines.as_bytes())
        .await
        .expect_success();
    assert_eq!(top.stdout.lines().collect::<Vec<_>>(), expect[..2]);
    let json =
        lode.run(&["rerank", "team/bert", &query, documents[0], "--json"]).await.expect_success().json();
    assert_eq!(json["results"][0]["text"], documents[0]);
    assert_eq!((&json["results"][0]["index"], json["tokens"].as_u64() > Some(5)), (&json!(0), true));
    let refused = lode.run(&["rerank", "team/bert", &query, &"cat ".repeat(200), "--no-truncate"]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("exceeds the context length"), "{}", refused.stderr);
    let nothing = lode.run_with_input(&["rerank", "team/bert", &query], b"").await;
    assert!(nothing.stderr.contains("there are no documents"), "{}", nothing.stderr);
}

#[tokio::test]
async fn bad_requests_are_refused() {
    let server = server(&[
        ("team/bert", "reranker/bert"),
        ("team/three", "reranker/three-classes"),
        ("team/roberta", "encoder/roberta"),
    ])
    .await;
    let registry = server.registry();
    let body = |change: Value| {
        let mut body =
            json!({"model": "team/bert", "query": "What is water?", "documents": ["Water.", "Cats."]});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    };
    let many = |n: usize| vec!["cat"; n];
    for (change, expect) in [
        (json!({"model": "team/roberta"}), "it has no classification head, which rerank needs"),
        (json!({"model": "team/three"}), "it has 3 classes, but rerank needs a model with one"),
        (json!({"query": null}), "query is missing or empty"),
        (json!({"query": " "}), "query is missing or empty"),
        (json!({"query": ["a"]}), "query: invalid type: sequence"),
        (json!({"query": "cat ".repeat(500)}), "which leaves no space for a document within the limit of 96"),
        (json!({"documents": []}), "documents is missing or empty"),
        (json!({"documents": null}), "documents is missing or empty"),
        (json!({"documents": "Water."}), "documents: invalid type: string"),
        (json!({"documents": ["a", 5]}), "documents[1]: expected a string or an object with a string `text`"),
        (json!({"documents": many(10_001)}), "`documents` has more than 10000 entries"),
        (json!({"documents": ["cat ".repeat(200)], "truncate": false}), "exceeds the context length"),
        (json!({"top_n": 0}), "top_n must be at least 1"),
        (json!({"top_n": -1}), "top_n: invalid value: integer `-1`"),
        (json!({"rank_fields": ["title"]}), "`rank_fields` is not supported"),
        (json!({"options": {"num_ctx": 7}}), "leaves no space for a document within the limit of 7"),
    ] {
        for route in ROUTES {
            let response = registry.post_json(route, &body(change.clone())).await;
            let text = response.text().to_owned();
            assert_eq!(response.status, 400, "{route}: {text}");
            assert!(text.replace("\\\"", "\"").contains(expect), "{route}: {expect}: {text}");
        }
        let error = registry.post_json("/v2/rerank", &body(change)).await.json();
        assert!(error["error"]["message"].is_string(), "{error}");
    }
    let unknown = registry.post_json("/v1/rerank", &body(json!({"model": "team/none"}))).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
    // Thousands of documents are computed in parts, while the server responds to others.
    let ranked = registry.post_json("/v1/rerank", &body(json!({"documents": many(2000), "top_n": 3}))).await;
    assert_eq!(indices(&ranked.expect(200).json()["results"]), [0, 1, 2], "equal scores keep their order");
    // The cross-encoder does not generate.
    let refused = registry.post_json("/api/generate", &json!({"model": "team/bert", "prompt": "x"})).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}
