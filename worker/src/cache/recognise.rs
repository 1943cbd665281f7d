//! What a manifest's model consists of, whatever pushed it: which layers are tensors, which are the small files.
//! Pure: it looks at the manifest alone. What cannot be run here is refused by name, before anything is pulled.

use std::collections::BTreeMap;

use lode_model::manifest::{Descriptor, Manifest};
use lode_model::media_type as mt;

/// The files that running a model needs; everything else a checkpoint carries stays in the registry.
const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// A model as its manifest describes it.
#[derive(Debug, Default, PartialEq)]
pub struct Recognised {
    /// Small files by their name in the checkpoint.
    pub files: BTreeMap<String, Descriptor>,
    pub tensors: Vec<TensorLayer>,
    /// What ollama's Modelfile added.
    pub system: Option<Descriptor>,
    pub params: Option<Descriptor>,
    /// The config blob, where it describes a model.
    pub config: Option<Descriptor>,
}

#[derive(Debug, PartialEq)]
pub struct TensorLayer {
    pub descriptor: Descriptor,
    /// A checkpoint's own file with many tensors, rather than a blob of one.
    pub whole_file: bool,
}

/// What a manifest holds that is no model this worker can run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unrunnable {
    #[error("it is a GGUF model (layer {0}), which cannot be run yet; safetensors models can")]
    Gguf(String),
    #[error("layer {digest} of type `{media_type}` is packed; only unpacked files can be mapped")]
    Packed { media_type: String, digest: String },
    #[error("it has an adapter (layer {0}), and adapters cannot be run yet")]
    Adapter(String),
    #[error("it has an image projector (layer {0}), and images cannot be run yet")]
    Projector(String),
    #[error("its ONNX file `{0}` cannot be run yet; safetensors models can")]
    Onnx(String),
    #[error("none of its {0} layers is a tensor")]
    NoTensors(usize),
    #[error("it has no config.json, so its architecture is unknown")]
    NoConfig,
}

impl Recognised {
    /// Sorts the layers of an image manifest.
    pub fn read(manifest: &Manifest) -> Result<Recognised, Unrunnable> {
        let mut model = Recognised {
            config: manifest.config.clone().filter(|config| {
                config.media_type != mt::OCI_EMPTY
                    && (mt::is_docker_model_config(&config.media_type) || is_ollama_config(manifest, config))
            }),
            ..Recognised::default()
        };
        let root = root(manifest);
        let mut packed = None;
        let mut foreign = None;
        for layer in &manifest.layers {
            let digest = || layer.digest.to_string();
            let path = layer.file_path().map(|path| path.trim_start_matches("./"));
            match layer.media_type.as_str() {
                // The second model of a draft pair runs beside the first, which we do not do.
                mt::OLLAMA_TENSOR if layer.name.as_deref().is_some_and(|name| name.starts_with("draft.")) => {
                }
                mt::OLLAMA_TENSOR => {
                    model.tensors.push(TensorLayer { descriptor: layer.clone(), whole_file: false })
                }
                mt::OLLAMA_MODEL | mt::DOCKER_MODEL_GGUF => return Err(Unrunnable::Gguf(digest())),
                mt::OLLAMA_ADAPTER => return Err(Unrunnable::Adapter(digest())),
                mt::OLLAMA_PROJECTOR => return Err(Unrunnable::Projector(digest())),
                mt::OLLAMA_SYSTEM | mt::OLLAMA_PROMPT => model.system = Some(layer.clone()),
                mt::OLLAMA_PARAMS => model.params = Some(layer.clone()),
                mt::DOCKER_MODEL_SAFETENSORS => {
                    model.tensors.push(TensorLayer { descriptor: layer.clone(), whole_file: true });
                }
                media_type if is_packed(layer) => {
                    packed.get_or_insert(Unrunnable::Packed {
                        media_type: media_type.to_owned(),
                        digest: digest(),
                    });
                }
                _ => {
                    let Some(name) = path.and_then(|path| path.strip_prefix(root)) else { continue };
                    if FILES.contains(&name) {
                        model.files.insert(name.to_owned(), layer.clone());
                    } else if is_checkpoint_file(name) {
                        model.tensors.push(TensorLayer { descriptor: layer.clone(), whole_file: true });
                    } else if name.ends_with(".gguf") {
                        foreign.get_or_insert(Unrunnable::Gguf(name.to_owned()));
                    } else if name.ends_with(".onnx") {
                        foreign.get_or_insert(Unrunnable::Onnx(name.to_owned()));
                    }
                }
            }
        }
        if model.tensors.is_empty() {
            return Err(foreign.or(packed).unwrap_or(Unrunnable::NoTensors(manifest.layers.len())));
        }
        if !model.files.contains_key("config.json") {
            return Err(packed.unwrap_or(Unrunnable::NoConfig));
        }
        Ok(model)
    }

    /// Everything that has to be on this machine to run the model.
    pub fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        let tensors = self.tensors.iter().map(|layer| &layer.descriptor);
        self.files.values().chain(tensors).chain(&self.system).chain(&self.params).chain(&self.config)
    }

    /// Bytes of tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, layer| sum.saturating_add(layer.descriptor.size))
    }
}

fn is_ollama_config(manifest: &Manifest, config: &Descriptor) -> bool {
    let ollama_layers = manifest.layers.iter().any(|layer| mt::is_ollama(&layer.media_type));
    ollama_layers && matches!(config.media_type.as_str(), mt::DOCKER_CONFIG | mt::OCI_CONFIG)
}

/// The folder that the model's files lie in: that of the config.json nearest to the top, with its slash.
fn root(manifest: &Manifest) -> &str {
    let paths = manifest.layers.iter().filter_map(|layer| layer.file_path());
    let paths = paths.map(|path| path.trim_start_matches("./"));
    let folders = paths
        .filter_map(|path| path.strip_suffix("config.json"))
        .filter(|folder| folder.is_empty() || folder.ends_with('/'));
    folders.min_by_key(|folder| folder.matches('/').count()).unwrap_or("")
}

/// Archives cannot be mapped. A titled layer of the plain tar type is what oras calls any file it is given no type for.
fn is_packed(layer: &Descriptor) -> bool {
    let media_type = layer.media_type.as_str();
    if media_type == mt::OCI_LAYER_TAR {
        return !layer.annotations.contains_key(mt::TITLE_ANNOTATION);
    }
    let packed =
        media_type.ends_with(".tar") || media_type.ends_with("+gzip") || media_type.ends_with("+zstd");
    packed && (mt::is_modelpack(media_type) || media_type.contains("layer") || media_type.contains("rootfs"))
}

/// A safetensors file of the model itself: in its folder, and no adapter or second copy in another layout.
fn is_checkpoint_file(name: &str) -> bool {
    name.ends_with(".safetensors")
        && !name.contains('/')
        && !name.starts_with("adapter_")
        && !name.starts_with("consolidated")
}

#[cfg(test)]
mod tests {
    use lode_model::digest::Digest;
    use serde_json::{Value, json};

    use super::*;

    /// Media type, ollama's name, an annotation.
    type Layer<'a> = (&'a str, Option<&'a str>, Option<(&'a str, &'a str)>);

    fn recognise(config_type: &str, layers: &[Layer]) -> Result<Recognised, Unrunnable> {
        let digest = |at: usize| Digest::sha256(&at.to_le_bytes());
        let layers: Vec<Value> = layers
            .iter()
            .enumerate()
            .map(|(at, (media_type, name, annotation))| {
                let mut layer = json!({"mediaType": media_type, "digest": digest(at), "size": 10});
                if let Some(name) = name {
                    layer["name"] = json!(name);
                }
                if let Some((key, value)) = annotation {
                    layer["annotations"] = json!({ *key: value });
                }
                layer
            })
            .collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": mt::OCI_MANIFEST,
            "config": {"mediaType": config_type, "digest": digest(999), "size": 2}, "layers": layers,
        });
        Recognised::read(&Manifest::parse(None, manifest.to_string().as_bytes()).unwrap())
    }

    fn names(model: &Recognised) -> Vec<&str> {
        model.files.keys().map(String::as_str).collect()
    }

    #[test]
    fn ollama_tensors() {
        let model = recognise(
            mt::DOCKER_CONFIG,
            &[
                (mt::OLLAMA_TENSOR, Some("model.norm.weight"), None),
                (mt::OLLAMA_TENSOR, Some("draft.model.norm.weight"), None),
                (mt::OLLAMA_JSON, Some("config.json"), None),
                (mt::OLLAMA_JSON, Some("tokenizer.json"), None),
                (mt::OLLAMA_JSON, Some("lode.files.json"), None),
                (mt::OLLAMA_JSON, Some("draft/config.json"), None),
                (mt::OCTET_STREAM, Some("chat_template.jinja"), None),
                (mt::OCTET_STREAM, Some("README.md"), None),
                (mt::OLLAMA_SYSTEM, None, None),
                (mt::OLLAMA_PARAMS, None, None),
                (mt::OLLAMA_LICENSE, None, None),
            ],
        )
        .unwrap();
        assert_eq!(names(&model), ["chat_template.jinja", "config.json", "tokenizer.json"]);
        assert_eq!(model.tensors.len(), 1);
        assert!(
            !model.tensors[0].whole_file
                && model.system.is_some()
                && model.params.is_some()
                && model.config.is_some()
        );
        assert_eq!((model.tensor_bytes(), model.blobs().count()), (10, 7));
    }

    #[test]
    fn plain_files_and_modelpack() {
        let title = |path| (mt::OCTET_STREAM, None, Some((mt::TITLE_ANNOTATION, path)));
        let model = recognise(
            mt::OCI_EMPTY,
            &[
                title("sub/config.json"),
                (mt::OCI_LAYER_TAR, None, Some((mt::TITLE_ANNOTATION, "./config.json"))),
                title("model-00001-of-00002.safetensors"),
                title("model-00002-of-00002.safetensors"),
                title("original/consolidated.safetensors"),
                title("adapter_model.safetensors"),
                title("model.gguf"),
            ],
        )
        .unwrap();
        assert_eq!((names(&model), model.tensors.len()), (vec!["config.json"], 2));
        assert!(model.tensors.iter().all(|layer| layer.whole_file) && model.config.is_none());

        let raw = "application/vnd.cncf.model.weight.v1.raw";
        let path = |media_type, path| (media_type, None, Some((mt::FILEPATH_ANNOTATION, path)));
        let model = recognise(
            mt::MODELPACK_CONFIG,
            &[
                path(raw, "m/model.safetensors"),
                path("application/vnd.cncf.model.weight.config.v1.raw", "m/config.json"),
                path("application/vnd.cncf.model.doc.v1.tar", "doc"),
            ],
        )
        .unwrap();
        assert_eq!((names(&model), model.tensors.len()), (vec!["config.json"], 1));
        let model = recognise(
            mt::DOCKER_MODEL_CONFIG_V02,
            &[(mt::DOCKER_MODEL_SAFETENSORS, None, None), path(mt::DOCKER_MODEL_FILE, "config.json")],
        )
        .unwrap();
        assert!(model.config.is_some() && model.tensors[0].whole_file);
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        let check = |layers: &[Layer], expect: &str| {
            let error = recognise(mt::OCI_EMPTY, layers).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        let title = |path| (mt::OCTET_STREAM, None, Some((mt::TITLE_ANNOTATION, path)));
        check(&[], "none of its 0 layers");
        check(&[(mt::OLLAMA_MODEL, None, None)], "GGUF");
        check(&[title("x.gguf")], "GGUF model (layer x.gguf)");
        check(&[title("x.onnx")], "ONNX file `x.onnx`");
        check(&[title("x.safetensors")], "no config.json");
        check(&[(mt::OCI_LAYER_TAR_GZIP, None, None)], "is packed");
        check(&[("application/vnd.cncf.model.weight.v1.tar", None, None), title("config.json")], "is packed");
        check(&[(mt::OLLAMA_TENSOR, Some("a"), None), (mt::OLLAMA_ADAPTER, None, None)], "adapter");
    }
}
