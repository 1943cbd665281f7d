//! The demo model in BF16, int8 and int4: perplexity on held-out text, and generated text.
//! BF16 must reach the reference perplexity. The others may be slightly worse; the difference is printed.

use lode_tests::checkpoint::{demo, demo_expected, read_folder};
use lode_tests::report::figure;
use lode_tests::server::{Folder, Options};
use serde_json::{Value, json};

#[tokio::test]
async fn perplexity_and_answers_in_bf16_int8_and_int4() {
    let server = Folder::new().start(Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32")).await;
    let (registry, lode) = (server.registry(), server.lode());
    let expected = demo_expected();
    let known = expected["perplexity"]["value"].as_f64().unwrap();
    let heldout = demo().join("heldout.txt");
    let cases = expected["cases"].as_array().unwrap();
    let mut figures = Vec::new();
    for (name, more, worst) in [
        ("bf16", &[][..], 1.0005),
        ("int8", &["--quantize", "int8"][..], 1.05),
        ("int4", &["--quantize", "int4"][..], 1.6),
    ] {
        let model = format!("team/demo-{name}");
        lode.create(&model, &demo(), more).await.expect_success();
        let measured = lode
            .run(&["perplexity", &model, heldout.to_str().unwrap(), "--json"])
            .await
            .expect_success()
            .json();
        assert_eq!(measured["tokens"], expected["perplexity"]["tokens"], "{measured}");
        let perplexity = measured["perplexity"].as_f64().unwrap();
        assert!(
            perplexity < known * worst && perplexity > known * 0.97,
            "{name}: {perplexity}, BF16 {known}"
        );
        let mut right = 0;
        for case in cases {
            let body = json!({"model": model, "prompt": case["user"], "stream": false, "options": {"temperature": 0, "num_predict": 100}});
            let got = registry.post_json("/api/generate", &body).await.expect(200).json();
            assert!(!got["response"].as_str().unwrap().is_empty());
            right += usize::from(got["response"] == case["answer"]);
        }
        assert!(name != "bf16" || right == cases.len());
        let shown = lode.run(&["show", &model, "--json"]).await.expect_success().json();
        assert_eq!(shown["parameters"], 4_196_608, "{shown}");
        figures.push(format!("{name} {perplexity:.4} ({right} of {} responses as in float32)", cases.len()));
        lode.run(&["stop", &model]).await.expect_success();
    }
    figure("perplexity of the demo model on its held-out text", &figures.join(", "));
    // Pulling a quantised model writes assembled files and prints a notice.
    let back = server.folder().path().join("back");
    let pulled = lode.run(&["pull", "team/demo-int4", "--to", back.to_str().unwrap()]).await.expect_success();
    let output = format!("{}{}", pulled.stdout, pulled.stderr);
    assert!(output.contains("quantis") || output.contains("quantiz"), "{output}");
    assert!(read_folder(&back).contains_key("config.json"), "{:?}", read_folder(&back).keys());
    // The tensors decode to nearly the original values.
    let out = server.folder().path().join("int8.safetensors");
    let name = "model.layers.0.mlp.up_proj.weight";
    lode.run(&["tensor", "export", "team/demo-int8", name, "--to", out.to_str().unwrap(), "--dtype", "f32"])
        .await
        .expect_success();
    let (exported, source) =
        (std::fs::read(out).unwrap(), std::fs::read(demo().join("model.safetensors")).unwrap());
    let values = |file: &[u8]| {
        let tensor = lode_tests::checkpoint::read_tensor_headers(file)[name].clone();
        (
            tensor.shape.clone(),
            lode_tests::checkpoint::f32_values(&tensor.dtype, &file[tensor.begin..tensor.end]),
        )
    };
    let ((shape, got), (source_shape, want)) = (values(&exported), values(&source));
    assert_eq!(shape, source_shape);
    let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    assert!(
        got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= largest / 100.0),
        "an int8 value differs by more than a hundredth of the largest value"
    );
}

/// The likelihood of the reference outputs with the weights in each type.
#[tokio::test]
async fn every_quantisation_runs() {
    let server = Folder::new().start(Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32")).await;
    let (registry, lode) = (server.registry(), server.lode());
    let ids = |value: &Value| -> Vec<u64> { serde_json::from_value(value.clone()).unwrap() };
    let cases = demo_expected()["cases"].clone();
    let window = |case: &Value| [ids(&case["prompt_ids"]), ids(&case["answer_ids"])].concat();
    let windows: Vec<Vec<u64>> = cases.as_array().unwrap().iter().map(window).collect();
    let (mut known, mut figures) = (None, Vec::new());
    // The allowed difference from BF16 in nats per token.
    for (kind, worst) in [("bf16", 0.0), ("mxfp8", 0.02), ("nvfp4", 0.1), ("Q8_0", 0.01), ("Q4_K_M", 0.1)] {
        let model = format!("team/demo-{}", kind.to_lowercase());
        let more = if kind == "bf16" { vec![] } else { vec!["--quantize", kind] };
        lode.create(&model, &demo(), &more).await.expect_success();
        let body = json!({"model": model, "windows": windows, "logprobs": false, "keep_alive": 0});
        let scores = registry.post_json("/lode/v1/score", &body).await.expect(200).json();
        let sum = |field: &str| -> f64 {
            scores["windows"].as_array().unwrap().iter().map(|score| score[field].as_f64().unwrap()).sum()
        };
        let nll = sum("nll") / sum("tokens");
        let known = *known.get_or_insert(nll);
        assert!((nll - known).abs() <= worst, "{kind}: {nll} nats per token, BF16 {known}");
        figures.push(format!("{kind} {nll:.4}"));
    }
    figure("nats per token over the demo model's reference outputs", &figures.join(", "));
}
