//! FP8 and int8 checkpoints, as large models are published. Stored unchanged, they are returned byte for byte
//! and run. Quantised on import, they have no trace of FP8.

use std::path::PathBuf;

use lode_tests::checkpoint::{
    demo, demo_expected, f32_values, read_folder, read_tensor_headers, write_fp8_demo,
};
use lode_tests::report::figure;
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

use crate::inference::exact_level;

#[tokio::test]
async fn an_fp8_checkpoint_is_returned_unchanged_and_runs() {
    let options = Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32").env("LODE_CPU", exact_level());
    let server = Folder::new().start(options).await;
    let lode = server.lode();
    let source = server.folder().path().join("fp8");
    write_fp8_demo(&source);
    let created = lode.create("team/fp8", &source, &[]).await.expect_success();
    assert!(!created.stderr.contains("stored as they are"), "{created:?}");
    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/fp8", "--to", back.to_str().unwrap()]).await.expect_success();
    assert!(read_folder(&back) == read_folder(&source));

    // Tensors are listed with their scales and exported as code times scale.
    let listed = lode.run(&["tensor", "list", "team/fp8"]).await.expect_success().stdout;
    assert!(listed.contains("F8_E4M3 g128x128") && !listed.contains("scale_inv"), "{listed}");
    let shown = lode.run(&["show", "team/fp8", "--json"]).await.expect_success().json();
    let expect = (&json!(4_196_608), &json!("fp8"));
    assert_eq!((&shown["parameters"], &shown["quantization"]), expect, "{shown}");
    let name = "model.layers.0.mlp.down_proj.weight";
    let weights = std::fs::read(source.join("model.safetensors")).unwrap();
    let stored = read_tensor_headers(&weights);
    let bytes = |name: &str| &weights[stored[name].begin..stored[name].end];
    let scales = f32_values("F32", bytes(&format!("{name}_scale_inv")));
    let value = |(at, code): (usize, &u8)| {
        let (row, column) = (at / 768, at % 768);
        let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = match exponent {
            0 => fraction / 512.0,
            _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
        };
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        sign * magnitude * scales[row / 128 * 6 + column / 128]
    };
    let expect: Vec<f32> = bytes(name).iter().enumerate().map(value).collect();
    let out = server.folder().path().join("out.safetensors");
    let export = ["tensor", "export", "team/fp8", name, "--to", out.to_str().unwrap()];
    lode.run(&[&export[..], &["--dtype", "f32"]].concat()).await.expect_success();
    let exported = std::fs::read(&out).unwrap();
    let tensor = &read_tensor_headers(&exported)[name];
    assert!(f32_values(&tensor.dtype, &exported[tensor.begin..tensor.end]) == expect);
    lode.run(&export).await.expect_success();
    let exported = std::fs::read(&out).unwrap();
    let tensors = read_tensor_headers(&exported);
    for name in [name.to_owned(), format!("{name}_scale_inv")] {
        assert!(exported[tensors[&name].begin..tensors[&name].end] == *bytes(&name), "{name}");
    }
    // A float32 GGUF has the same values.
    lode.create("team/floats", &source, &["--quantize", "f32"]).await.expect_success();
    let compared = lode.run(&["diff", "team/fp8", "team/floats", "--all"]).await.expect_success().stdout;
    let same = |line: &str| line.starts_with("same values") && line.contains(name);
    assert!(compared.lines().any(same) && compared.contains(" 0 changed"), "{compared}");

    // Workers compute with the same values.
    let (fp8, floats) =
        (nats_per_token(&server, "team/fp8").await, nats_per_token(&server, "team/floats").await);
    figure("nats per token over the demo model's reference outputs, in FP8", &format!("{fp8:.6}"));
    assert!((fp8 - floats).abs() < 1e-4, "{fp8} {floats}");

    // A worker refuses scales that do not fit, by name.
    let path = source.join("config.json");
    let config = std::fs::read_to_string(&path).unwrap().replace("[128,128]", "[64,64]");
    assert!(config.contains("[64,64]"), "{config}");
    std::fs::write(&path, config).unwrap();
    let created = lode.create("team/bad", &source, &[]).await.expect_success();
    assert!(created.stderr.contains("can be neither run nor quantised"), "{created:?}");
    let run = lode.run(&["run", "team/bad", "hello"]).await;
    run.expect_failure(&["model.layers.0.", "_scale_inv", "each block of 64 by 64"]);
}

/// Checkpoints of transformers' and llm-compressor's forms, with the ids that transformers generates.
#[tokio::test]
async fn scaled_checkpoints_answer_as_known() {
    let options = Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32").env("LODE_MAX_LOADED_MODELS", "1");
    let options = options.env("LODE_CPU", exact_level());
    let server = Folder::new().start(options).await;
    let (lode, registry) = (server.lode(), server.registry());
    for (folder, method, block, parameters) in [
        ("fp8-blocks", "fp8", "F8_E4M3 g128x128", 390_176),
        ("fp8-channels", "compressed-tensors", "F8_E4M3 g1x64", 94_528),
        ("fp8-tensors", "compressed-tensors", "F8_E4M3 g96x64", 94_528),
        ("int8-channels", "compressed-tensors", "I8 g1x64", 94_528),
    ] {
        let name = format!("scaled/{folder}");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/scaled").join(folder);
        lode.create(&name, &source, &[]).await.expect_success();
        let listed = lode.run(&["tensor", "ls", &name]).await.expect_success().stdout;
        assert!(listed.contains(block) && !listed.contains("weight_scale"), "{listed}");
        let shown = lode.run(&["show", &name, "--json"]).await.expect_success().json();
        let expect = (&json!(parameters), &json!(method));
        assert_eq!((&shown["parameters"], &shown["quantization"]), expect, "{shown}");
        let expected: Value =
            serde_json::from_slice(&std::fs::read(source.join("expected.json")).unwrap()).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let ids = |value: &Value| -> Vec<u64> { serde_json::from_value(value.clone()).unwrap() };
            let (prompt, known) = (ids(&case["token_ids"]), ids(&case["greedy"]));
            let end = known.iter().position(|id| *id == 2).unwrap_or(known.len());
            let body = json!({"model": name, "prompt": case["prompt"], "raw": true, "stream": false,
                "options": {"temperature": 0, "num_predict": known.len()}});
            let found = ids(&registry.post_json("/api/generate", &body).await.expect(200).json()["context"]);
            assert!(found.starts_with(&prompt), "{folder}: {found:?} does not begin with {prompt:?}");
            let generated = &found[prompt.len()..];
            assert!(
                generated.len() >= end && generated[..end] == known[..end],
                "{folder}: {found:?} {known:?}"
            );
        }
        // Quantised on import, no array of scales is left.
        let quantised = format!("{name}-q8");
        lode.create(&quantised, &source, &["--quantize", "Q8_0"]).await.expect_success();
        let shown = lode.run(&["show", &quantised, "--json"]).await.expect_success().json();
        assert_eq!(shown["parameters"], parameters, "{shown}");
    }
}

/// Nats per token over the demo model's reference outputs.
async fn nats_per_token(server: &Server, model: &str) -> f64 {
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
async fn an_fp8_checkpoint_runs_when_quantised() {
    let server = Folder::new().start(Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32")).await;
    let lode = server.lode();
    let source = server.folder().path().join("fp8");
    write_fp8_demo(&source);
    lode.create("team/demo", &demo(), &[]).await.expect_success();
    let known = nats_per_token(&server, "team/demo").await;
    let mut figures = vec![format!("bf16 {known:.4}")];
    for (kind, worst) in [("mxfp8", 0.05), ("int8", 0.05), ("BF16", 0.05), ("Q8_0", 0.05)] {
        let model = format!("team/{}", kind.to_lowercase());
        lode.create(&model, &source, &["--quantize", kind]).await.expect_success();
        let nats = nats_per_token(&server, &model).await;
        assert!((nats - known).abs() <= worst, "{kind}: {nats} nats per token, BF16 {known}");
        figures.push(format!("{kind} {nats:.4}"));
        let shown = lode.run(&["show", &model, "--json"]).await.expect_success().json();
        assert_eq!(
            (&shown["quantization"], &shown["parameters"]),
            (&kind.into(), &4_196_608.into()),
            "{shown}"
        );
    }
    figure("nats per token over the demo model's reference outputs, imported from FP8", &figures.join(", "));

    // No scales are left, and the config does not mention FP8.
    let listed = lode.run(&["tensor", "ls", "team/mxfp8"]).await.expect_success().stdout;
    assert!(
        listed.contains("mxfp8 g32") && !listed.contains("scale_inv") && !listed.contains("F8_"),
        "{listed}"
    );
    let back = server.folder().path().join("back");
    lode.run(&["pull", "team/mxfp8", "--to", back.to_str().unwrap()]).await.expect_success();
    let config: Value = serde_json::from_slice(&read_folder(&back)["config.json"]).unwrap();
    assert!(config.get("quantization_config").is_none() && config["model_type"] == "llama", "{config}");

    // A damaged tensor is refused by name, and no model becomes visible.
    let path = source.join("model.safetensors");
    let mut weights = std::fs::read(&path).unwrap();
    let name = "model.layers.1.mlp.up_proj.weight_scale_inv";
    let at = read_tensor_headers(&weights)[name].begin;
    weights[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, weights).unwrap();
    for kind in ["mxfp8", "Q8_0"] {
        let refused = lode.create("team/bad", &source, &["--quantize", kind]).await;
        refused.expect_failure(&["`model.layers.1.mlp.up_proj.weight`", "scale 0 is NaN"]);
    }
    lode.run(&["show", "team/bad"]).await.expect_failure(&["team/bad"]);
}
