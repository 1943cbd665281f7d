//! Finds the blobs of a manifest's model that running it needs. `lode_model::recognise` determines the role
//! of each file, as for the registry. Models that cannot run here are refused with a reason, if possible
//! before anything is pulled.

use std::collections::BTreeMap;

use lode_model::gguf::PartName;
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::media_type as mt;
use lode_model::recognise::tar::Member;
use lode_model::recognise::{Artifact, Layout, ModelFile, Role, is_dense_module};

use crate::files::Format;

/// The small files that running a model needs; other files of a checkpoint are not pulled.
const FILES: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
];

/// A model as its manifest describes it.
#[derive(Debug, Default, PartialEq)]
pub struct RecognisedModel {
    /// Small files by their name in the checkpoint, with the weights of linear layers after the pooling.
    pub files: BTreeMap<String, ModelFile>,
    pub tensors: Vec<TensorLayer>,
    /// Layers from ollama's Modelfile.
    pub template: Option<Descriptor>,
    pub system: Option<Descriptor>,
    pub params: Option<Descriptor>,
    pub messages: Option<Descriptor>,
    /// The config blob, if it describes a model.
    pub config: Option<Descriptor>,
}

#[derive(Debug, PartialEq)]
pub struct TensorLayer {
    pub file: ModelFile,
    /// A checkpoint file with many tensors, rather than a tensor blob.
    pub whole_file: bool,
    pub format: Format,
}

/// A model, or the tar files that have to be read first.
#[derive(Debug, PartialEq)]
pub enum Recognition {
    Known(Box<RecognisedModel>),
    Packed(Box<Archives>),
}

/// A manifest whose files are in tar layers.
#[derive(Debug, PartialEq)]
pub struct Archives {
    artifact: Artifact,
    config: Option<Descriptor>,
}

/// Why this worker cannot run a manifest's model.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unrunnable {
    #[error("it has several GGUF models ({0}), and the worker cannot tell which one to run")]
    SeveralGguf(String),
    #[error("layer {digest} of type `{media_type}` is packed; only unpacked files can be mapped")]
    Packed { media_type: String, digest: String },
    #[error("it has an adapter (layer {0}), and adapters cannot be run yet")]
    Adapter(String),
    #[error("it has an image projector (layer {0}), and images cannot be run yet")]
    Projector(String),
    #[error(
        "it has several ONNX files ({0}), and none is `model.onnx` or `decoder_model_merged.onnx`, also in `onnx/`"
    )]
    SeveralOnnx(String),
    #[error("no layer is a tensor (layers: {0})")]
    NoTensors(usize),
    #[error("it has no config.json, so its architecture is unknown")]
    NoConfig,
}

impl Recognition {
    /// Recognises the model of an image manifest.
    pub fn read(manifest: &Manifest) -> Result<Recognition, Unrunnable> {
        let artifact = Artifact::read(manifest, None);
        let config = manifest.config.clone().filter(|config| {
            let of_ollama = matches!(config.media_type.as_str(), mt::DOCKER_CONFIG | mt::OCI_CONFIG)
                || config.media_type.starts_with(mt::OLLAMA_CONFIG);
            mt::is_docker_model_config(&config.media_type) || (artifact.layout == Layout::Ollama && of_ollama)
        });
        let is_known = match artifact.format() {
            Some("gguf") => true,
            format => format.is_some() && artifact.find("config.json").is_some(),
        };
        if artifact.archives().next().is_some() && !is_known {
            return Ok(Recognition::Packed(Box::new(Archives { artifact, config })));
        }
        RecognisedModel::from_artifact(&artifact, config).map(|model| Recognition::Known(Box::new(model)))
    }
}

impl Archives {
    /// The tar layers with their numbers, which [`Archives::open`] expects.
    pub fn layers(&self) -> impl Iterator<Item = (usize, &Descriptor)> {
        self.artifact.archives().map(|(at, file)| (at, &*file.layer))
    }

    /// The model, given the members of the tar layers.
    pub fn open(self, members: BTreeMap<usize, Vec<Member>>) -> Result<RecognisedModel, Unrunnable> {
        RecognisedModel::from_artifact(&self.artifact.replace_tars(members), self.config)
    }
}

impl RecognisedModel {
    fn from_artifact(artifact: &Artifact, config: Option<Descriptor>) -> Result<RecognisedModel, Unrunnable> {
        let mut model = RecognisedModel { config, ..RecognisedModel::default() };
        let root = artifact.root();
        for file in artifact.files.iter().filter(|file| file.is_plain()) {
            let label = || file.label().to_owned();
            let on_top = |file: &ModelFile| Some(Descriptor::clone(&file.layer));
            match file.role {
                // Adapters and projectors from a Modelfile change the model's output, so they cannot be
                // ignored.
                Role::Adapter if artifact.layout == Layout::Ollama => {
                    return Err(Unrunnable::Adapter(label()));
                }
                Role::Projector if artifact.layout == Layout::Ollama => {
                    return Err(Unrunnable::Projector(label()));
                }
                Role::Template => model.template = on_top(file),
                Role::System => model.system = on_top(file),
                Role::Params => model.params = on_top(file),
                Role::Messages => model.messages = on_top(file),
                _ => {}
            }
            let Some(name) = file.path.as_deref().and_then(|path| path.strip_prefix(root)) else { continue };
            let is_needed = match file.role {
                Role::File => FILES.contains(&name) || is_dense_module(name),
                Role::Safetensors => is_dense_module(name),
                _ => false,
            };
            if is_needed {
                model.files.insert(name.to_owned(), file.clone());
            }
        }
        let packed = || {
            artifact.first_packed().map(|file| Unrunnable::Packed {
                media_type: file.layer.media_type.clone(),
                digest: file.layer.digest.to_string(),
            })
        };
        let weights = artifact.weights();
        match artifact.format() {
            Some("gguf") if !is_one_gguf(artifact, &weights) => {
                let labels: Vec<&str> = weights.iter().map(|at| artifact.files[*at].label()).collect();
                return Err(Unrunnable::SeveralGguf(labels.join(", ")));
            }
            _ => {}
        }
        if artifact.format() == Some("onnx") {
            model.tensors = onnx_files(artifact, &weights)?;
        }
        let weights = if model.tensors.is_empty() { weights } else { Vec::new() };
        for file in weights.iter().map(|at| &artifact.files[*at]) {
            let whole_file = file.role != Role::Tensor;
            let format = if file.role == Role::Gguf { Format::Gguf } else { Format::Safetensors };
            model.tensors.push(TensorLayer { file: file.clone(), whole_file, format });
        }
        if model.tensors.is_empty() {
            let adapter = artifact.files.iter().find(|file| file.role == Role::Adapter);
            let adapter = adapter.map(|file| Unrunnable::Adapter(file.label().to_owned()));
            return Err(packed().or(adapter).unwrap_or(Unrunnable::NoTensors(artifact.files.len())));
        }
        let is_gguf = model.tensors.iter().any(|layer| layer.format == Format::Gguf);
        if !is_gguf && !model.files.contains_key("config.json") {
            return Err(packed().unwrap_or(Unrunnable::NoConfig));
        }
        Ok(model)
    }

    /// All blobs that running the model needs.
    pub fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        let tensors = self.tensors.iter().map(|layer| &*layer.file.layer);
        let files = self.files.values().map(|file| &*file.layer);
        let on_top = [&self.template, &self.system, &self.params, &self.messages, &self.config];
        files.chain(tensors).chain(on_top.into_iter().flatten())
    }

    /// Bytes of tensors.
    pub fn tensor_bytes(&self) -> u64 {
        let dense = self.files.values().filter(|file| file.role == Role::Safetensors);
        let files = self.tensors.iter().map(|layer| &layer.file).chain(dense);
        files.fold(0, |sum, file| sum.saturating_add(file.size))
    }
}

/// The ONNX file that is run, of several. Exporters write the branches of a merged decoder to files as well.
const ONNX_NAMES: [&str; 4] =
    ["model.onnx", "onnx/model.onnx", "decoder_model_merged.onnx", "onnx/decoder_model_merged.onnx"];

/// The ONNX file that is run, then the files that may hold its weights: those in its folder whose names begin
/// with its own, or end in `.data`.
fn onnx_files(artifact: &Artifact, weights: &[usize]) -> Result<Vec<TensorLayer>, Unrunnable> {
    let files: Vec<&ModelFile> = weights.iter().map(|at| &artifact.files[*at]).collect();
    let named = |name: &str| {
        files.iter().find(|file| {
            file.path.as_deref().and_then(|path| path.strip_prefix(artifact.root())) == Some(name)
        })
    };
    let main = match files[..] {
        [only] => only,
        _ => ONNX_NAMES.iter().find_map(|name| named(name)).copied().ok_or_else(|| {
            let labels: Vec<&str> = files.iter().map(|file| file.label()).collect();
            Unrunnable::SeveralOnnx(labels.join(", "))
        })?,
    };
    let layer = |file: &ModelFile, format| TensorLayer { file: file.clone(), whole_file: true, format };
    let mut layers = vec![layer(main, Format::Onnx)];
    if let Some(path) = main.path.as_deref() {
        let folder = path.rfind('/').map_or("", |at| &path[..=at]);
        let is_data = |other: &str| {
            let name = other.strip_prefix(folder).unwrap_or_default();
            other.starts_with(path) || (!name.is_empty() && name.ends_with(".data"))
        };
        let rest = artifact.files.iter().filter(|file| file.is_plain() && file.role == Role::File);
        let data = rest.filter(|file| file.path.as_deref().is_some_and(is_data));
        layers.extend(data.map(|file| layer(file, Format::OnnxData)));
    }
    Ok(layers)
}

/// Whether GGUF files are one file, or parts of one according to their names. The parts are checked at load.
fn is_one_gguf(artifact: &Artifact, weights: &[usize]) -> bool {
    let mut names = weights.iter().filter_map(|at| artifact.files[*at].path.as_deref());
    let prefix = |name| PartName::parse(name).map(|part| part.prefix);
    let first = names.next().map(prefix);
    weights.len() <= 1 || names.all(|name| prefix(name).is_some() && Some(prefix(name)) == first)
}

#[cfg(test)]
mod tests {
    use lode_model::digest::Digest;
    use serde_json::{Value, json};

    use super::*;

    /// Media type, ollama's layer name, annotation.
    type Layer<'a> = (&'a str, Option<&'a str>, Option<(&'a str, &'a str)>);

    fn recognise(config_type: &str, layers: &[Layer]) -> Result<RecognisedModel, Unrunnable> {
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
        match Recognition::read(&Manifest::parse(None, manifest.to_string().as_bytes()).unwrap())? {
            Recognition::Known(model) => Ok(*model),
            Recognition::Packed(archives) => archives.open(BTreeMap::new()),
        }
    }

    fn names(model: &RecognisedModel) -> Vec<&str> {
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
                (mt::OLLAMA_TEMPLATE, None, None),
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
                && model.template.is_some()
                && model.config.is_some()
        );
        assert_eq!((model.tensor_bytes(), model.blobs().count()), (10, 8));
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
    fn gguf_needs_nothing_else() {
        let title = |path| (mt::OCTET_STREAM, None, Some((mt::TITLE_ANNOTATION, path)));
        let model = recognise(mt::DOCKER_CONFIG, &[(mt::OLLAMA_MODEL, None, None)]).unwrap();
        let layer = &model.tensors[0];
        assert!(layer.whole_file && layer.format == Format::Gguf && model.files.is_empty());
        let parts = [title("m-00001-of-00002.gguf"), title("m-00002-of-00002.gguf")];
        assert_eq!(recognise(mt::OCI_EMPTY, &parts).unwrap().tensors.len(), 2);
    }

    #[test]
    fn onnx_files_and_their_weights() {
        let title = |path| (mt::OCTET_STREAM, None, Some((mt::TITLE_ANNOTATION, path)));
        let all = [
            "config.json",
            "tokenizer.json",
            "onnx/model_int8.onnx",
            "onnx/model.onnx",
            "onnx/model.onnx_data",
            "onnx/weights.data",
            "model.onnx_data",
            "onnx/notes.txt",
        ];
        let model = recognise(mt::OCI_EMPTY, &all.map(title)).unwrap();
        let found: Vec<_> = model.tensors.iter().map(|layer| (layer.file.label(), layer.format)).collect();
        let data = Format::OnnxData;
        let expect =
            [("onnx/model.onnx", Format::Onnx), ("onnx/model.onnx_data", data), ("onnx/weights.data", data)];
        assert_eq!((found, names(&model)), (expect.to_vec(), vec!["config.json", "tokenizer.json"]));
        let model = recognise(mt::OCI_EMPTY, &[title("config.json"), title("encoder.onnx")]).unwrap();
        assert_eq!(model.tensors.len(), 1);
        let branches = ["config.json", "decoder_model.onnx", "decoder_model_merged.onnx"];
        let model = recognise(mt::OCI_EMPTY, &branches.map(title)).unwrap();
        assert_eq!(model.tensors[0].file.label(), "decoder_model_merged.onnx");
    }

    #[test]
    fn unsupported_models_are_refused_with_a_reason() {
        let check = |layers: &[Layer], expect: &str| {
            let error = recognise(mt::OCI_EMPTY, layers).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        let title = |path| (mt::OCTET_STREAM, None, Some((mt::TITLE_ANNOTATION, path)));
        check(&[], "no layer is a tensor");
        check(&[title("x.gguf"), title("y.gguf")], "several GGUF models (x.gguf, y.gguf)");
        check(&[(mt::OLLAMA_MODEL, None, None), (mt::OLLAMA_ADAPTER, None, None)], "adapter");
        check(&[title("x.onnx")], "no config.json");
        check(
            &[title("x.onnx"), title("y.onnx"), title("config.json")],
            "several ONNX files (x.onnx, y.onnx)",
        );
        check(&[title("x.safetensors")], "no config.json");
        check(&[(mt::OCI_LAYER_TAR_GZIP, None, None)], "is packed");
        check(
            &[("application/vnd.cncf.model.weight.v1.tar+zstd", None, None), title("config.json")],
            "is packed",
        );
        check(&[(mt::OLLAMA_TENSOR, Some("a"), None), (mt::OLLAMA_ADAPTER, None, None)], "adapter");
    }

    #[test]
    fn tar_members_are_needed_to_recognise_a_model() {
        let tar =
            |kind: &str| json!({"mediaType": kind, "digest": Digest::sha256(kind.as_bytes()), "size": 9000});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": mt::OCI_MANIFEST,
            "config": {"mediaType": mt::KITOPS_CONFIG, "digest": Digest::sha256(b"c"), "size": 2},
            "layers": [tar("application/vnd.kitops.modelkit.model.v1.tar"),
                tar("application/vnd.kitops.modelkit.dataset.v1.tar")],
        });
        let manifest = Manifest::parse(None, manifest.to_string().as_bytes()).unwrap();
        let Ok(Recognition::Packed(archives)) = Recognition::read(&manifest) else { panic!("not packed") };
        assert_eq!(archives.layers().map(|(at, _)| at).collect::<Vec<_>>(), [0], "data sets are not pulled");
        let member = |path: &str, offset| Member { path: path.to_owned(), offset, size: 100 };
        let members = vec![member("kit/config.json", 512), member("kit/model.safetensors", 1536)];
        let model = archives.open(BTreeMap::from([(0, members)])).unwrap();
        assert_eq!((names(&model), model.tensors[0].file.offset), (vec!["config.json"], 1536));
        assert_eq!((model.tensor_bytes(), model.blobs().count()), (100, 2));
    }
}
