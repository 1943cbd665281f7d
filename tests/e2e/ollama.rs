//! A real ollama pushes models and pulls them back: a GGUF with template, system prompt and parameters, and a
//! model of tensor blobs, for which ollama uses another registry client.

use std::fs;

use lode_tests::artifact::{fresh_seed, random_bytes, sha256};
use lode_tests::clients::Ollama;
use lode_tests::cluster::Deployment;
use lode_tests::command::run_successfully;
use serde_json::json;

/// A minimal valid GGUF with one tensor.
pub(crate) fn tiny_gguf() -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(1u64.to_le_bytes()); // tensors
    out.extend(2u64.to_le_bytes()); // keys
    text(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    text(&mut out, "llama");
    text(&mut out, "llama.block_count");
    out.extend(4u32.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    text(&mut out, "token_embd.weight");
    out.extend(2u32.to_le_bytes());
    for dimension in [32u64, 4] {
        out.extend(dimension.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes()); // F32
    out.extend(0u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(random_bytes(fresh_seed(), 32 * 4 * 4));
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn models_go_there_and_back() {
    there_and_back("ollama::models_go_there_and_back", &Deployment::single().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn models_go_there_and_back_through_two_replicas() {
    let test = "ollama::models_go_there_and_back_through_two_replicas";
    let Some(front) = Deployment::replicated(test).await else { return };
    there_and_back(test, &front).await;
}

async fn there_and_back(test: &str, front: &Deployment) {
    let Some(ollama) = Ollama::start(test, front.scratch()) else { return };
    let registry = front.registry();
    let blobs = ollama.models().join("blobs");

    // A GGUF with the additions of a Modelfile.
    let gguf = tiny_gguf();
    fs::write(front.scratch().join("tiny.gguf"), &gguf).unwrap();
    let modelfile = front.scratch().join("Modelfile");
    fs::write(
        &modelfile,
        "FROM ./tiny.gguf\nTEMPLATE {{ .Prompt }}\nSYSTEM be brief\nPARAMETER temperature 0.5\n",
    )
    .unwrap();
    let name = format!("{}/team/tiny:v1", registry.host());
    run_successfully(&mut ollama.command(&["create", &name, "-f", modelfile.to_str().unwrap()]));
    run_successfully(&mut ollama.command(&["push", "--insecure", &name]));
    let manifest = registry.manifest_get("team/tiny", "v1").await.expect(200).json();
    let layer = |kind: &str| {
        let layers = manifest["layers"].as_array().unwrap();
        let media_type = format!("application/vnd.ollama.image.{kind}");
        let layer = layers.iter().find(|layer| layer["mediaType"] == media_type.as_str());
        layer.unwrap_or_else(|| panic!("no {kind} layer in {manifest}"))["digest"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(layer("model"), sha256(&gguf));
    assert_eq!(layer("system"), sha256(b"be brief"));
    run_successfully(&mut ollama.command(&["rm", &name]));
    assert_eq!(fs::read_dir(&blobs).unwrap().count(), 0, "ollama kept blobs of the removed model");
    run_successfully(&mut ollama.command(&["pull", "--insecure", &name]));
    assert!(fs::read(blobs.join(sha256(&gguf).replace(':', "-"))).unwrap() == gguf);
    let shown = run_successfully(&mut ollama.command(&["show", "--modelfile", &name]));
    assert!(shown.contains("SYSTEM be brief") && shown.contains("PARAMETER temperature 0.5"), "{shown}");

    // The test writes tensor blobs into ollama's store, because ollama creates such models only where it can
    // run them.
    let store = |bytes: &[u8]| {
        let digest = sha256(bytes);
        fs::write(blobs.join(digest.replace(':', "-")), bytes).unwrap();
        digest
    };
    let tensors: Vec<_> = (0..12).map(|i| random_bytes(fresh_seed(), 1000 + 40_000 * i)).collect();
    let config = br#"{"model_format":"safetensors","architectures":["Tiny"]}"#;
    let layers: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(i, bytes)| {
            json!({"mediaType": "application/vnd.ollama.image.tensor", "digest": store(bytes), "size": bytes.len(),
                "name": format!("blk.{i}.attn_q.weight")})
        })
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": store(config), "size": config.len()},
        "layers": layers,
    })
    .to_string();
    let folder = ollama.models().join("manifests").join(registry.host()).join("team/tensors");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("v1"), &manifest).unwrap();
    let name = format!("{}/team/tensors:v1", registry.host());
    run_successfully(&mut ollama.command(&["push", "--insecure", &name]));
    let response = registry.manifest_get("team/tensors", "v1").await.expect(200);
    assert_eq!(response.text(), manifest, "the manifest's bytes have changed");
    run_successfully(&mut ollama.command(&["rm", &name]));
    run_successfully(&mut ollama.command(&["pull", "--insecure", &name]));
    for bytes in &tensors {
        assert!(fs::read(blobs.join(sha256(bytes).replace(':', "-"))).unwrap() == *bytes);
    }
    front.check().await;
}
