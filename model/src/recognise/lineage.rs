//! The origins that a model's parts state: annotations, ollama's layers, ModelPack's and KitOps' configs, an
//! adapter's configuration, and the front matter of a README. Pure. Origins are reported as stated; they are
//! untrusted and not verified.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Artifact, Layout, ModelFile, Role, kit_parent};
use crate::digest::Digest;
use crate::formats::weight_format::WeightFormat;
use crate::gguf::Metadata;
use crate::manifest::Manifest;
use crate::media_type as mt;

/// The longest name that is reported.
const MAX_NAME_LEN: usize = 512;

/// How a model relates to its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Derived from the origin in an unstated way.
    Base,
    /// Fine-tuned from the origin.
    Finetune,
    /// Modifies the origin at run time.
    Adapter,
    /// The origin with fewer bits.
    Quantized,
    /// Merged from several origins.
    Merge,
    /// Refers to the origin as its subject.
    Subject,
    /// Published at the origin.
    Source,
}

/// One statement about the origin of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    pub relation: Relation,
    pub name: String,
    pub digest: Option<Digest>,
    /// The part of the model that states it.
    pub source: &'static str,
}

impl Origin {
    fn new(relation: Relation, name: &str, source: &'static str) -> Option<Origin> {
        let name = name.trim();
        let is_plain = !name.is_empty() && name.len() <= MAX_NAME_LEN && !name.chars().any(char::is_control);
        is_plain.then(|| Origin { relation, name: name.to_owned(), digest: None, source })
    }
}

/// Returns the origins that the manifest and its config state.
pub fn manifest_origins(manifest: &Manifest, artifact: &Artifact, config: Option<&[u8]>) -> Vec<Origin> {
    let mut origins = Vec::new();
    // A model stored with an adapter includes its base; an adapter alone modifies its base.
    let is_adapter = artifact.files.iter().any(|file| file.role == Role::Adapter);
    let holds =
        |file: &ModelFile| matches!(file.role, Role::Tensor | Role::Safetensors | Role::Gguf | Role::Onnx);
    let is_whole = artifact.files.iter().any(holds);
    let relation = if is_adapter && !is_whole { Relation::Adapter } else { Relation::Base };

    // 1. The image specification's annotations.
    let base_digest = manifest.annotations.get(mt::BASE_DIGEST_ANNOTATION).and_then(|text| text.parse().ok());
    let base_name = manifest.annotations.get(mt::BASE_NAME_ANNOTATION).map_or("", String::as_str);
    match (Origin::new(relation, base_name, mt::BASE_NAME_ANNOTATION), base_digest) {
        (Some(origin), digest) => origins.push(Origin { digest, ..origin }),
        (None, Some(digest)) => {
            let (name, source) = (String::new(), mt::BASE_DIGEST_ANNOTATION);
            origins.push(Origin { relation, name, digest: Some(digest), source });
        }
        (None, None) => {}
    }
    // 2. The subject.
    if let Some(subject) = &manifest.subject {
        let (relation, name) = (Relation::Subject, String::new());
        origins.push(Origin { relation, name, digest: Some(subject.digest.clone()), source: "subject" });
    }
    // 3. ollama's layers, which name the model that they came from. Names of files are ignored.
    for layer in manifest.layers.iter().filter(|layer| mt::is_ollama(&layer.media_type)) {
        let from = layer.from.as_deref().filter(|from| !from.contains('\\') && !is_file(from));
        origins.extend(from.and_then(|from| Origin::new(relation, from, "layer")));
    }
    // 4. Configs.
    let config = config.unwrap_or_default();
    match artifact.layout {
        Layout::ModelPack => {
            let pack: ModelPack = serde_json::from_slice(config).unwrap_or_default();
            origins.extend(Origin::new(Relation::Source, &pack.descriptor.source_url, "config"));
        }
        Layout::KitOps => {
            let parent = kit_parent(config);
            origins.extend(parent.and_then(|parent| Origin::new(relation, &parent, "Kitfile")));
        }
        _ => {}
    }
    origins
}

/// Whether a name is a path or, by its extension, a weights file.
fn is_file(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    name.starts_with(['/', '.', '@'])
        || WeightFormat::of_path(name).is_some()
        || [".bin", ".pt"].iter().any(|ending| lower.ends_with(ending))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelPack {
    descriptor: ModelPackDescriptor,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelPackDescriptor {
    #[serde(rename = "sourceURL")]
    source_url: String,
}

/// The most bases of a GGUF that are reported.
const MAX_BASES: u64 = 16;

/// Returns the origins that the keys of a GGUF file state (ggml `docs/gguf.md`, "Source metadata").
pub fn gguf_origins(metadata: &Metadata) -> Vec<Origin> {
    let relation = if metadata.is_adapter() { Relation::Adapter } else { Relation::Base };
    let count = metadata.u64("general.base_model.count").unwrap_or(0).min(MAX_BASES);
    let bases = (0..count).filter_map(|nth| {
        let value = |key: &str| metadata.str(&format!("general.base_model.{nth}.{key}"));
        let name =
            ["repo_url", "url", "name"].into_iter().find_map(|key| value(key).filter(|it| !it.is_empty()));
        Origin::new(relation, name?, "GGUF")
    });
    let source =
        ["general.source.repo_url", "general.source.url"].into_iter().find_map(|key| metadata.str(key));
    let source = source.and_then(|url| Origin::new(Relation::Source, url, "GGUF"));
    bases.chain(source).collect()
}

/// Whether [`file_origins`] reads files of this name.
pub fn has_origins(name: &str) -> bool {
    matches!(name, "README.md" | "adapter_config.json")
}

/// Returns the origins that a file of the model states.
pub fn file_origins(name: &str, bytes: &[u8]) -> Vec<Origin> {
    match name {
        "adapter_config.json" => {
            #[derive(Deserialize)]
            struct Adapter {
                base_model_name_or_path: String,
            }
            let adapter = serde_json::from_slice::<Adapter>(bytes).ok();
            let base = adapter.map(|adapter| adapter.base_model_name_or_path).filter(|base| !is_file(base));
            base.and_then(|base| Origin::new(Relation::Adapter, &base, "adapter_config.json"))
                .into_iter()
                .collect()
        }
        "README.md" => front_matter(&String::from_utf8_lossy(bytes)),
        _ => Vec::new(),
    }
}

/// Parses `base_model` and `base_model_relation` of a model card: on one line, as a list below, or in
/// brackets.
fn front_matter(text: &str) -> Vec<Origin> {
    let mut lines = text.lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return Vec::new();
    }
    let (mut bases, mut relation, mut in_list) = (Vec::new(), Relation::Base, false);
    for line in lines.take_while(|line| line.trim_end() != "---") {
        let item = line.trim_start().strip_prefix("- ");
        if let Some(item) = item.filter(|_| in_list) {
            bases.push(item);
            continue;
        }
        in_list = false;
        let Some((key, value)) = line.split_once(':') else { continue };
        match (key, value.trim()) {
            ("base_model", "") => in_list = true,
            ("base_model", value) => {
                let inside = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
                bases.extend(inside.map_or_else(|| vec![value], |inside| inside.split(',').collect()));
            }
            ("base_model_relation", value) => {
                relation = match value.trim_matches(['"', '\'']) {
                    "quantized" => Relation::Quantized,
                    "adapter" => Relation::Adapter,
                    "finetune" => Relation::Finetune,
                    "merge" => Relation::Merge,
                    _ => Relation::Base,
                }
            }
            _ => {}
        }
    }
    let plain = |base: &str| Origin::new(relation, base.trim().trim_matches(['"', '\'']), "README.md");
    bases.into_iter().filter_map(plain).collect()
}

/// Converts a model name from elsewhere to the name that it may have here: without a scheme, without a hub's
/// host, in lower case. `None` if nothing is left.
pub fn local_name(name: &str) -> Option<String> {
    let bare = name.strip_prefix("https://").or(name.strip_prefix("http://")).unwrap_or(name);
    let hosts =
        ["huggingface.co/", "hf.co/", "registry.ollama.ai/library/", "registry.ollama.ai/", "library/"];
    let bare = hosts.iter().find_map(|host| bare.strip_prefix(host)).unwrap_or(bare);
    let bare = bare.trim_end_matches('/');
    (!bare.is_empty()).then(|| bare.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn origins_of(manifest: Value, config: Value) -> Vec<(Relation, String, &'static str)> {
        let mut whole = json!({"schemaVersion": 2, "layers": [],
            "config": {"mediaType": mt::OCI_EMPTY, "digest": Digest::sha256(b"c"), "size": 2}});
        for (key, value) in manifest.as_object().into_iter().flatten() {
            whole[key] = value.clone();
        }
        let manifest = Manifest::parse(None, whole.to_string().as_bytes()).unwrap();
        let config = config.to_string();
        let artifact = Artifact::read(&manifest, Some(config.as_bytes()));
        let origins = manifest_origins(&manifest, &artifact, Some(config.as_bytes()));
        origins.into_iter().map(|origin| (origin.relation, origin.name, origin.source)).collect()
    }

    #[test]
    fn manifest_origins_are_read() {
        let layer = |kind: &str, from: &str| json!({"mediaType": kind, "digest": Digest::sha256(b"l"), "size": 1, "from": from});
        let annotations = json!({"annotations": {mt::BASE_NAME_ANNOTATION: "hub.local/team/base:1",
            mt::BASE_DIGEST_ANNOTATION: Digest::sha256(b"b")}});
        assert_eq!(
            origins_of(annotations, json!({})),
            [(Relation::Base, "hub.local/team/base:1".to_owned(), mt::BASE_NAME_ANNOTATION)]
        );
        let layers = json!({"layers": [layer(mt::OLLAMA_MODEL, "llama3.2"), layer(mt::OLLAMA_ADAPTER, "/tmp/lora.gguf")]});
        assert_eq!(origins_of(layers, json!({})), [(Relation::Base, "llama3.2".to_owned(), "layer")]);
        let alone = json!({"annotations": {mt::BASE_NAME_ANNOTATION: "team/base:1"},
            "layers": [layer(mt::OLLAMA_ADAPTER, "")]});
        assert_eq!(
            origins_of(alone, json!({})),
            [(Relation::Adapter, "team/base:1".to_owned(), mt::BASE_NAME_ANNOTATION)]
        );
        let pack = json!({"artifactType": mt::MODELPACK_MANIFEST});
        let config = json!({"descriptor": {"sourceURL": "https://example.com/m"}});
        assert_eq!(
            origins_of(pack, config),
            [(Relation::Source, "https://example.com/m".to_owned(), "config")]
        );
        let kit = json!({"artifactType": mt::KITOPS_MANIFEST});
        let config = json!({"model": {"path": "jozu.ml/team/base:2"}});
        assert_eq!(
            origins_of(kit.clone(), config),
            [(Relation::Base, "jozu.ml/team/base:2".to_owned(), "Kitfile")]
        );
        assert!(origins_of(kit, json!({"model": {"path": "./weights/model.gguf"}})).is_empty());
    }

    #[test]
    fn file_origins_are_read() {
        let origins_of = |name: &str, text: &str| -> Vec<(Relation, String)> {
            file_origins(name, text.as_bytes())
                .into_iter()
                .map(|origin| (origin.relation, origin.name))
                .collect()
        };
        assert_eq!(
            origins_of("adapter_config.json", r#"{"base_model_name_or_path":"org/Base"}"#),
            [(Relation::Adapter, "org/Base".to_owned())]
        );
        assert_eq!(
            origins_of(
                "README.md",
                "---\nlicense: mit\nbase_model: org/Base\nbase_model_relation: quantized\n---\n# x"
            ),
            [(Relation::Quantized, "org/Base".to_owned())]
        );
        assert_eq!(
            origins_of(
                "README.md",
                "---\nbase_model:\n- org/a\n  - \"org/b\"\ntags:\n- org/c\n---\nbase_model: no"
            ),
            [(Relation::Base, "org/a".to_owned()), (Relation::Base, "org/b".to_owned())]
        );
        assert_eq!(origins_of("README.md", "---\nbase_model: [org/a, org/b]\n").len(), 2);
        assert!(origins_of("README.md", "# base_model: x").is_empty());
        assert!(origins_of("adapter_config.json", r#"{"base_model_name_or_path":"/data/base"}"#).is_empty());
        assert!(origins_of("config.json", "{}").is_empty());
    }

    #[test]
    fn gguf_origins_are_read() {
        let origins_of = |keys: &[(&str, &str)], count: u32| -> Vec<(Relation, String)> {
            let mut metadata = Metadata::new();
            metadata.set("general.base_model.count", count);
            keys.iter().for_each(|(key, value)| metadata.set(*key, *value));
            gguf_origins(&metadata).into_iter().map(|origin| (origin.relation, origin.name)).collect()
        };
        let keys = [
            ("general.base_model.0.name", "Base 1B"),
            ("general.base_model.0.repo_url", "https://huggingface.co/org/base"),
            ("general.base_model.1.name", "Other"),
            ("general.source.url", "https://example.com/m"),
        ];
        let url = "https://huggingface.co/org/base".to_owned();
        let source = (Relation::Source, "https://example.com/m".to_owned());
        assert_eq!(
            origins_of(&keys, 2),
            [(Relation::Base, url.clone()), (Relation::Base, "Other".to_owned()), source]
        );
        let adapter = [keys[1], ("general.type", "adapter")];
        assert_eq!(origins_of(&adapter, u32::MAX), [(Relation::Adapter, url)]);
        assert!(origins_of(&[], 0).is_empty());
    }

    #[test]
    fn names_are_made_local() {
        for (name, expect) in [
            ("https://huggingface.co/Org/Base", Some("org/base")),
            ("registry.ollama.ai/library/llama3.2:1b", Some("llama3.2:1b")),
            ("team/base:1", Some("team/base:1")),
            ("", None),
        ] {
            assert_eq!(local_name(name).as_deref(), expect, "{name}");
        }
    }

    proptest! {
        #[test]
        fn files_never_panic(text in ".{0,200}") {
            front_matter(&text);
            front_matter(&format!("---\n{text}\n---"));
            local_name(&text);
            file_origins("adapter_config.json", text.as_bytes());
        }
    }
}
