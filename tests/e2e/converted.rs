//! Checkpoints and GGUF files quantised on import: the resulting tensor types, the rounding error, that a
//! checkpoint and its unquantised GGUF give the same file, and that a repeated import sends nothing; and GGUF
//! files converted back to checkpoints.

use std::collections::BTreeMap;

use lode_tests::checkpoint::{demo, f32_values, read_folder, read_tensor_headers};
use lode_tests::server::{Folder, Options};
use serde_json::{Value, json};

#[tokio::test]
async fn a_checkpoint_and_its_gguf_give_the_same_q4_k_m() {
    let server = Folder::new().start(Options::new()).await;
    let lode = server.lode();
    let folder = server.folder().path().to_owned();
    let created = lode.create("team/q4", &demo(), &["--quantize", "q4_K_M"]).await.expect_success();
    assert!(created.stderr.contains("model-Q4_K_M.gguf"), "{}", created.stderr);

    let shown = lode.run(&["show", "team/q4", "--json"]).await.expect_success().json();
    assert_eq!(
        (&shown["parameters"], &shown["architecture"]),
        (&4_196_608.into(), &"llama".into()),
        "{shown}"
    );
    let listed = lode.run(&["tensor", "ls", "team/q4", "--json"]).await.expect_success().json();
    let types: BTreeMap<&str, &str> = listed["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| (tensor["name"].as_str().unwrap(), tensor["dtype"].as_str().unwrap()))
        .collect();
    // The embedding is tied, so it is also the output. Of four layers, the last (4 * 7 / 8) and every third
    // get more bits.
    for (name, expect) in [
        ("token_embd.weight", "Q6_K"),
        ("blk.0.attn_q.weight", "Q4_K"),
        ("blk.0.attn_v.weight", "Q4_K"),
        ("blk.2.attn_v.weight", "Q6_K"),
        ("blk.3.ffn_down.weight", "Q6_K"),
        ("blk.1.ffn_down.weight", "Q4_K"),
        ("blk.0.attn_norm.weight", "F32"),
    ] {
        assert_eq!(types.get(name), Some(&expect), "{name}");
    }

    // The same file results from an unquantised GGUF, so almost nothing is sent again.
    lode.create("team/floats", &demo(), &["--quantize", "bf16"]).await.expect_success();
    let back = folder.join("back");
    lode.run(&["pull", "team/floats", "--to", back.to_str().unwrap()]).await.expect_success();
    let floats = back.join("model-BF16.gguf");
    let again =
        lode.create("team/twice", &floats, &["--quantize", "Q4_K_M", "--json"]).await.expect_success().json();
    assert!(again["sent_bytes"].as_u64().unwrap() < 10_000, "{again}");
    assert!(again["shared_bytes"].as_u64().unwrap() > 2_000_000, "{again}");
    let pulled = folder.join("pulled");
    lode.run(&["pull", "team/twice", "--to", pulled.to_str().unwrap()]).await.expect_success();
    let files = read_folder(&pulled);
    assert_eq!(files.keys().collect::<Vec<_>>(), ["model-Q4_K_M.gguf"]);
    assert!(files["model-Q4_K_M.gguf"].starts_with(b"GGUF"));

    // A quantised file is refused by name, and no model becomes visible.
    let file = pulled.join("model-Q4_K_M.gguf");
    lode.create("team/worse", &file, &["--quantize", "q8_0"])
        .await
        .expect_failure(&["model-Q4_K_M.gguf", "already"]);
    lode.run(&["show", "team/worse"]).await.expect_failure(&["team/worse"]);
}

#[tokio::test]
async fn a_server_quantises_a_model_that_it_stores() {
    let server = Folder::new().start(Options::new()).await;
    let lode = server.lode();
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    let blobs = |shown: &Value| shown["layers"].as_array().unwrap().clone();
    for (quantize, tag) in [("q4_K_M", "q4"), ("int4", "int4")] {
        let small = format!("team/mini:{tag}");
        let created = ["create", &small, "--from", "team/mini", "--quantize", quantize];
        let created = lode.run(&created).await.expect_success();
        assert!(
            created.stdout.contains(&small) && created.stdout.contains("team/mini:latest"),
            "{}",
            created.stdout
        );
        // The same layers as from the original files.
        let direct = format!("team/direct:{tag}");
        lode.create(&direct, &demo(), &["--quantize", quantize]).await.expect_success();
        let shown = async |name: &str| lode.run(&["show", name, "--json"]).await.expect_success().json();
        let (small, direct) = (shown(&small).await, shown(&direct).await);
        let digests =
            |shown: &Value| blobs(shown).iter().map(|layer| layer["digest"].clone()).collect::<Vec<_>>();
        assert_eq!(digests(&small), digests(&direct), "{quantize}");
    }
    // Errors of the job, and mistakes that are found before it starts.
    let refused = lode.run(&["create", "team/worse", "--from", "team/mini:q4", "--quantize", "q8_0"]).await;
    refused.expect_failure(&["team/mini:q4", "already"]);
    let unknown = lode.run(&["create", "team/worse", "--from", "team/gone", "--quantize", "q8_0"]).await;
    unknown.expect_failure(&["team/gone"]);
    lode.run(&["show", "team/worse"]).await.expect_failure(&["team/worse"]);
}

#[tokio::test]
async fn values_stay_near_and_rows_in_their_order() {
    let server = Folder::new().start(Options::new()).await;
    let lode = server.lode();
    let source = std::fs::read(demo().join("model.safetensors")).unwrap();
    let tensors = read_tensor_headers(&source);
    let want = &tensors["model.layers.0.mlp.up_proj.weight"];
    let want = f32_values(&want.dtype, &source[want.begin..want.end]);
    let size = want.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    for (ty, bound) in [("f32", 0.0), ("q8_0", 0.006), ("q6_k", 0.02), ("q4_0", 0.11), ("q4_K_S", 0.09)] {
        let model = format!("team/{}", ty.to_lowercase());
        lode.create(&model, &demo(), &["--quantize", ty]).await.expect_success();
        let out = server.folder().path().join("out.safetensors");
        let to = out.to_str().unwrap();
        lode.run(&["tensor", "export", &model, "blk.0.ffn_up.weight", "--to", to, "--dtype", "f32"])
            .await
            .expect_success();
        let exported = std::fs::read(&out).unwrap();
        let tensor = &read_tensor_headers(&exported)["blk.0.ffn_up.weight"];
        let got = f32_values(&tensor.dtype, &exported[tensor.begin..tensor.end]);
        let error = got.iter().zip(&want).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt() / size;
        assert!(error <= bound, "{ty}: relative error {error}, expected at most {bound}");
    }
}

#[tokio::test]
async fn a_gguf_becomes_a_checkpoint_that_answers_alike() {
    let options = Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32").env("LODE_MAX_LOADED_MODELS", "2");
    let server = Folder::new().start(options).await;
    let (lode, registry) = (server.lode(), server.registry());
    lode.create("team/demo", &demo(), &[]).await.expect_success();
    let convert = async |from: &str, to: &str, more: &[&str]| {
        let mut args = vec!["convert", from, to];
        args.extend_from_slice(more);
        lode.run(&args).await
    };
    // Without a type, the weights keep theirs; norms are F32 in every GGUF.
    let made = convert("team/demo", "team/demo:gguf", &["--to", "gguf"]).await.expect_success();
    assert!(made.stdout.contains("as GGUF") && made.stderr.contains("model-BF16.gguf"), "{made:?}");
    let back = ["--to", "checkpoint", "--type", "bf16"];
    let made = convert("team/demo:gguf", "team/back", &back).await.expect_success();
    assert!(made.stdout.contains("created") && made.stdout.contains("as BF16 checkpoint"), "{made:?}");

    // Every tensor is the blob of the original.
    let shown = async |name: &str| lode.run(&["show", name, "--json"]).await.expect_success().json();
    let tensors = |shown: &Value| -> BTreeMap<String, String> {
        let layers = shown["layers"].as_array().unwrap().iter();
        let layers = layers.filter(|layer| layer["mediaType"] == "application/vnd.ollama.image.tensor");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        layers.map(|layer| (text(&layer["name"]), text(&layer["digest"]))).collect()
    };
    let (original, converted) = (shown("team/demo").await, shown("team/back").await);
    assert_eq!(tensors(&converted), tensors(&original));
    assert!(!tensors(&original).is_empty(), "{original}");
    assert_eq!(converted["architecture"], original["architecture"]);

    // The same tokens, for a chat and for a completion; and the same ids of a text.
    let answers = async |model: &str| {
        let chat = json!({
            "model": model, "stream": false, "options": {"temperature": 0, "num_predict": 24},
            "messages": [{"role": "user", "content": "What is 40 plus 41?"}],
        });
        let chat = registry.post_json("/api/chat", &chat).await.expect(200).json();
        let text = json!({
            "model": model, "prompt": "What is water?", "stream": false,
            "options": {"temperature": 0, "num_predict": 24},
        });
        let text = registry.post_json("/api/generate", &text).await.expect(200).json();
        (
            chat["message"].clone(),
            chat["done_reason"].clone(),
            text["response"].clone(),
            text["context"].clone(),
        )
    };
    let known = answers("team/demo").await;
    assert_eq!(known.0["content"], "81.");
    assert_eq!(answers("team/back").await, known);

    // Blocks are decoded, which a notice says. The result is a model of its own, with the GGUF as its base.
    convert("team/demo", "team/demo:q8", &["--to", "gguf", "--type", "q8_0"]).await.expect_success();
    let decoded = convert("team/demo:q8", "team/floats", &["--to", "checkpoint"]).await.expect_success();
    assert!(decoded.stderr.contains("decoded to BF16") && decoded.stderr.contains("Q8_0"), "{decoded:?}");
    assert_eq!(answers("team/floats").await.0["content"], "81.");
    let manifest = registry.get("/v2/team/floats/manifests/latest").await.expect(200).json();
    assert_eq!(manifest["annotations"]["org.opencontainers.image.base.name"], "team/demo:q8");

    // The files, and a conversion of a local one.
    let folder = server.folder().path();
    let pulled = folder.join("floats");
    lode.run(&["pull", "team/floats", "--to", pulled.to_str().unwrap()]).await.expect_success();
    let files = read_folder(&pulled);
    for file in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        assert!(files.contains_key(file), "{file}: {:?}", files.keys());
    }
    assert!(!files.keys().any(|file| file.ends_with(".gguf")), "{:?}", files.keys());
    let gguf = folder.join("gguf");
    lode.run(&["pull", "team/demo:q8", "--to", gguf.to_str().unwrap()]).await.expect_success();
    let local = gguf.join("model-Q8_0.gguf");
    convert(local.to_str().unwrap(), "team/local", &["--to", "checkpoint"]).await.expect_success();
    assert_eq!(tensors(&shown("team/local").await), tensors(&shown("team/floats").await));

    // Refusals name what was expected, and nothing becomes visible.
    for (from, more, expect) in [
        ("team/demo", &["--to", "checkpoint"] as &[&str], "`model.safetensors` is not a GGUF file"),
        ("team/demo:q8", &["--to", "gguf"], "is a GGUF file already"),
        ("team/demo:q8", &["--to", "checkpoint", "--type", "q4_0"], "is not a type of a checkpoint's floats"),
        ("team/demo", &["--to", "gguf", "--type", "int4"], "is not a type of GGUF files"),
        ("team/gone", &["--to", "gguf"], "team/gone"),
        ("hf://acme/mini", &["--to", "gguf"], "lode create"),
    ] {
        convert(from, "team/never", more).await.expect_failure(&[expect]);
    }
    lode.run(&["show", "team/never"]).await.expect_failure(&["team/never"]);
}
