//! A checkpoint of FP8, as large models are published: stored as it is it comes back and is refused by a worker; quantised on
//! the way it runs, and says nothing of what it was.

use lode_tests::checkpoint::{demo, demo_expected, demo_in_fp8, read_folder};
use lode_tests::report::figure;
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

#[tokio::test]
async fn what_is_stored_as_fp8_comes_back_and_is_not_run() {
    let server = Folder::new().start(Options::new().worker()).await;
    let lode = server.lode();
    let source = server.folder().path().join("fp8");
    demo_in_fp8(&source);
    let created = lode.create("team/fp8", &source, &[]).await.ok();
    assert!(created.stderr.contains("weights of F8_E4M3 under scales are stored as they are"), "{created:?}");
    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/fp8", "--to", back.to_str().unwrap()]).await.ok();
    assert!(read_folder(&back) == read_folder(&source));
    // Its codes without their scales are other numbers; no worker computes with them.
    let run = lode.run(&["run", "team/fp8", "hello"]).await;
    run.refused(&["model.layers.0.", "F8_E4M3"]);
}

/// Nats a token of the demo model's own answers.
async fn nats(server: &Server, model: &str) -> f64 {
    let ids = |value: &Value| -> Vec<u64> { serde_json::from_value(value.clone()).unwrap() };
    let cases = demo_expected()["cases"].clone();
    let window = |case: &Value| [ids(&case["prompt_ids"]), ids(&case["answer_ids"])].concat();
    let windows: Vec<Vec<u64>> = cases.as_array().unwrap().iter().map(window).collect();
    let body = json!({"model": model, "windows": windows, "logprobs": false, "keep_alive": 0});
    let scores = server.registry().post_json("/lode/v1/score", &body).await.expect(200).json();
    let sum = |field: &str| -> f64 {
        scores["windows"].as_array().unwrap().iter().map(|score| score[field].as_f64().unwrap()).sum()
    };
    sum("nll") / sum("tokens")
}

#[tokio::test]
async fn quantised_from_fp8_it_runs() {
    let server = Folder::new().start(Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32")).await;
    let lode = server.lode();
    let source = server.folder().path().join("fp8");
    demo_in_fp8(&source);
    lode.create("team/demo", &demo(), &[]).await.ok();
    let known = nats(&server, "team/demo").await;
    let mut figures = vec![format!("bf16 {known:.4}")];
    for (kind, worst) in [("mxfp8", 0.05), ("int8", 0.05), ("BF16", 0.05), ("Q8_0", 0.05)] {
        let model = format!("team/{}", kind.to_lowercase());
        lode.create(&model, &source, &["--quantize", kind]).await.ok();
        let nats = nats(&server, &model).await;
        assert!((nats - known).abs() <= worst, "{kind}: {nats} a token, in BF16 {known}");
        figures.push(format!("{kind} {nats:.4}"));
        let shown = lode.run(&["show", &model, "--json"]).await.ok().json();
        assert_eq!(
            (&shown["quantization"], &shown["parameters"]),
            (&kind.into(), &4_196_608.into()),
            "{shown}"
        );
    }
    figure("nats a token of the demo model's own answers, by way of FP8", &figures.join(", "));

    // No scale is left, and nobody who reads the result is told that it is FP8.
    let listed = lode.run(&["tensor", "ls", "team/mxfp8"]).await.ok().stdout;
    assert!(
        listed.contains("mxfp8 g32") && !listed.contains("scale_inv") && !listed.contains("F8_"),
        "{listed}"
    );
    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/mxfp8", "--to", back.to_str().unwrap()]).await.ok();
    let config: Value = serde_json::from_slice(&read_folder(&back)["config.json"]).unwrap();
    assert!(config.get("quantization_config").is_none() && config["model_type"] == "llama", "{config}");

    // Damage is refused by the tensor's name, and nothing of it becomes visible.
    let path = source.join("model.safetensors");
    let mut weights = std::fs::read(&path).unwrap();
    let name = "model.layers.1.mlp.up_proj.weight_scale_inv";
    let at = lode_tests::checkpoint::tensors_of(&weights)[name].begin;
    weights[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, weights).unwrap();
    for kind in ["mxfp8", "Q8_0"] {
        let refused = lode.create("team/bad", &source, &["--quantize", kind]).await;
        refused.refused(&["`model.layers.1.mlp.up_proj.weight`", "scale 0 is NaN"]);
    }
    lode.run(&["show", "team/bad"]).await.refused(&["team/bad"]);
}
