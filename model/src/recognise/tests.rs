//! The same model in every layout, and manifests that are not models.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::digest::Digest;
use crate::media_type as mt;

const RAW: &str = "application/vnd.cncf.model.weight.v1.raw";
const CONFIG: &str = "application/vnd.cncf.model.weight.config.v1.raw";

fn layer(kind: &str, seed: usize, more: Value) -> Value {
    let mut layer = json!({"mediaType": kind, "digest": Digest::sha256(&seed.to_le_bytes()), "size": 10});
    for (key, value) in more.as_object().into_iter().flatten() {
        layer[key] = value.clone();
    }
    layer
}

fn at(key: &str, path: &str) -> Value {
    json!({"annotations": { key: path }})
}

fn read(config_type: &str, config: Value, more: Value, layers: &[(&str, Value)]) -> Artifact {
    let layers: Vec<Value> =
        layers.iter().enumerate().map(|(seed, (kind, more))| layer(kind, seed, more.clone())).collect();
    let mut manifest = json!({
        "schemaVersion": 2, "mediaType": mt::OCI_MANIFEST, "layers": layers,
        "config": {"mediaType": config_type, "digest": Digest::sha256(b"config"), "size": 2},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        manifest[key] = value.clone();
    }
    let manifest = Manifest::parse(None, manifest.to_string().as_bytes()).unwrap();
    Artifact::read(&manifest, Some(config.to_string().as_bytes()))
}

fn paths(artifact: &Artifact) -> Vec<(Option<&str>, Role)> {
    artifact.files.iter().map(|file| (file.path.as_deref(), file.role)).collect()
}

#[test]
fn one_checkpoint_in_every_layout() {
    let title = |path| at(mt::TITLE_ANNOTATION, path);
    let filepath = |path| at(mt::FILEPATH_ANNOTATION, path);
    let layouts = [
        (
            Layout::Ollama,
            read(
                mt::DOCKER_CONFIG,
                json!({}),
                json!({}),
                &[
                    (mt::OLLAMA_TENSOR, json!({"name": "model.norm.weight"})),
                    (mt::OLLAMA_JSON, json!({"name": "config.json"})),
                    (mt::OCTET_STREAM, json!({"name": "extra.safetensors"})),
                ],
            ),
        ),
        (
            Layout::ModelPack,
            read(
                mt::MODELPACK_CONFIG,
                json!({}),
                json!({}),
                &[(RAW, filepath("m/model.safetensors")), (CONFIG, filepath("m/config.json"))],
            ),
        ),
        (
            Layout::ModelPack,
            read(
                "application/vnd.cnai.model.config.v1+json",
                json!({}),
                json!({}),
                &[
                    (
                        "application/vnd.cnai.model.weight.v1.raw",
                        at(mt::CNAI_FILEPATH_ANNOTATION, "model.safetensors"),
                    ),
                    (
                        "application/vnd.cnai.model.weight.config.v1.raw",
                        at(mt::CNAI_FILEPATH_ANNOTATION, "config.json"),
                    ),
                ],
            ),
        ),
        (
            Layout::ModelPack,
            read(
                mt::MODELPACK_CONFIG,
                json!({"config": {"format": "safetensors"}}),
                json!({}),
                &[
                    (RAW, json!({})),
                    (CONFIG, at("org.cncf.model.file.metadata+json", r#"{"name":"config.json","mode":420}"#)),
                ],
            ),
        ),
        (
            Layout::DockerModel,
            read(
                mt::DOCKER_MODEL_CONFIG_V02,
                json!({}),
                json!({}),
                &[
                    (mt::DOCKER_MODEL_SAFETENSORS, json!({})),
                    (mt::DOCKER_MODEL_FILE, filepath("config.json")),
                ],
            ),
        ),
        (
            Layout::Files,
            read(
                mt::OCI_EMPTY,
                json!({}),
                json!({}),
                &[
                    (mt::OCI_LAYER_TAR, title("./model.safetensors")),
                    (mt::OCI_LAYER_TAR, title("./config.json")),
                ],
            ),
        ),
        (
            Layout::KitOps,
            read(
                mt::KITOPS_CONFIG,
                json!({"model": {"path": "model.safetensors", "parts": [{"path": "config.json"}]}}),
                json!({}),
                &[
                    ("application/vnd.kitops.modelkit.model.v1.raw", json!({})),
                    ("application/vnd.kitops.modelkit.modelpart.v1.raw", json!({})),
                ],
            ),
        ),
    ];
    for (layout, artifact) in &layouts {
        assert_eq!(artifact.layout, *layout);
        assert_eq!((artifact.format(), artifact.weights()), (Some("safetensors"), vec![0]), "{layout:?}");
        assert!(artifact.find("config.json").is_some(), "{layout:?}: {:?}", paths(artifact));
    }
}

#[test]
fn one_gguf_in_every_layout() {
    let layouts = [
        read(
            mt::DOCKER_CONFIG,
            json!({}),
            json!({}),
            &[
                ("application/vnd.ollama.image.model", json!({"from": "base"})),
                (mt::OLLAMA_PROJECTOR, json!({})),
                (mt::OLLAMA_ADAPTER, json!({})),
            ],
        ),
        read(
            mt::DOCKER_MODEL_CONFIG_V01,
            json!({}),
            json!({}),
            &[
                (mt::DOCKER_MODEL_GGUF, json!({})),
                ("application/vnd.docker.ai.gguf.v3.mmproj", json!({})),
                ("application/vnd.docker.ai.gguf.v3.lora", json!({})),
            ],
        ),
        read(
            mt::MODELPACK_CONFIG,
            json!({}),
            json!({}),
            &[
                ("application/vnd.cncf.model.weight.v1.gguf", json!({})),
                (RAW, at(mt::FILEPATH_ANNOTATION, "mmproj-f16.gguf")),
            ],
        ),
        read(
            mt::OCI_EMPTY,
            json!({}),
            json!({}),
            &[("application/x-gguf", at(mt::TITLE_ANNOTATION, "m.GGUF"))],
        ),
    ];
    for artifact in &layouts {
        assert_eq!((artifact.format(), artifact.weights()), (Some("gguf"), vec![0]), "{:?}", artifact.layout);
        assert!(artifact.files.iter().all(|file| file.kind().is_some()));
    }
    let split: Vec<_> = (0..2).map(|_| (mt::DOCKER_MODEL_GGUF, json!({}))).collect();
    let split = read(mt::DOCKER_MODEL_CONFIG_V01, json!({}), json!({}), &split);
    assert_eq!(split.files[1].path.as_deref(), Some("model-00002-of-00002.gguf"));
}

#[test]
fn tars_are_opened_and_packed_ones_named() {
    let kit = read(
        mt::KITOPS_CONFIG,
        json!({"model": {"path": "./m"}}),
        json!({}),
        &[
            ("application/vnd.kitops.modelkit.model.v1.tar", json!({})),
            ("application/vnd.kitops.modelkit.docs.v1.tar+gzip", json!({})),
        ],
    );
    assert_eq!((kit.format(), kit.archives().map(|(at, _)| at).collect::<Vec<_>>()), (None, vec![0]));
    assert_eq!(kit.first_packed().map(|file| &file.layer), Some(&kit.files[1].layer));
    let member = |path: &str, offset| Member { path: path.to_owned(), offset, size: 3 };
    let members = vec![member("m/config.json", 512), member("m/model.safetensors", 1536)];
    let kit = kit.replace_tars(BTreeMap::from([(0, members)]));
    assert_eq!((kit.format(), kit.root(), kit.weights()), (Some("safetensors"), "m/", vec![1]));
    assert_eq!((kit.files[1].offset, kit.files[1].is_layer()), (1536, false));
    let folder = at(mt::TITLE_ANNOTATION, "folder");
    let oras = read(mt::OCI_EMPTY, json!({}), json!({}), &[(mt::OCI_LAYER_TAR_GZIP, folder)]);
    assert!(oras.first_packed().is_some() && oras.archives().count() == 0);
}

#[test]
fn other_weights_are_set_apart() {
    let title = |path| (mt::OCTET_STREAM, at(mt::TITLE_ANNOTATION, path));
    let files = [
        "sub/config.json",
        "config.json",
        "a.safetensors",
        "original/b.safetensors",
        "consolidated.safetensors",
        "adapter_model.safetensors",
        "model.gguf",
    ];
    let files: Vec<_> = files.into_iter().map(title).collect();
    assert_eq!(read(mt::OCI_EMPTY, json!({}), json!({}), &files).weights(), [2]);
    let image = ["model_index.json", "vae/model.safetensors", "transformer/model.safetensors"];
    let image: Vec<_> = image.into_iter().map(title).collect();
    let image = read(mt::OCI_EMPTY, json!({}), json!({}), &image);
    assert!(image.is_image_model() && image.weights() == [1, 2]);
    let draft = read(
        mt::DOCKER_CONFIG,
        json!({}),
        json!({}),
        &[(mt::OLLAMA_TENSOR, json!({"name": "draft.a"})), (mt::OLLAMA_TENSOR, json!({"name": "a"}))],
    );
    assert_eq!((draft.weights(), draft.files[0].role), (vec![1], Role::Draft));
}

#[test]
fn non_models_are_recognised() {
    let signature = json!({"subject": {"mediaType": mt::OCI_MANIFEST, "digest": Digest::sha256(b"s"), "size": 1},
        "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json"});
    let signature = read(mt::OCI_EMPTY, json!({}), signature, &[(mt::OCTET_STREAM, json!({}))]);
    assert_eq!((signature.layout, signature.files.len()), (Layout::Attachment, 0));
    let layers = [(mt::OCI_LAYER_TAR_GZIP, json!({})), (mt::OCI_LAYER_TAR, json!({}))];
    let image = read(mt::OCI_CONFIG, json!({"config": {"Labels": null}}), json!({}), &layers);
    assert_eq!((image.layout, image.format()), (Layout::Unknown, None));
    let labels = json!({"config": {"Labels": {"org.containers.type": "ai.image.model.raw"}}});
    assert_eq!(read(mt::OCI_CONFIG, labels, json!({}), &layers).layout, Layout::Image);
    assert_eq!(read("x/y", json!("no object"), json!({}), &[]).layout, Layout::Unknown);
}
