//! Derives the manifest of a new model from a base and edits. The base's layers are referenced, never read: a
//! derived model shares every byte of its base. (ollama `server/create.go` has the same rules.)

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::command::{Command, Modelfile, Role};
use crate::digest::Digest;
use crate::go_template::{SyntaxError, Template};
use crate::manifest::{Descriptor, MAX_MANIFEST_BYTES, Manifest};
use crate::media_type::{self, BASE_DIGEST_ANNOTATION, BASE_NAME_ANNOTATION};
use crate::oci::new_manifest::{NewManifest, SmallBlob};

/// The base of a derived model.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    pub manifest: &'a Manifest,
    /// The bytes of its config.
    pub config: &'a [u8],
    /// The bytes of its options, if it has any.
    pub params: Option<&'a [u8]>,
    /// Its name and digest. `None` for files that were imported for this model alone.
    pub origin_name: Option<(&'a str, &'a Digest)>,
}

/// Changes to the base. An empty template or system text removes the base's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Edits {
    pub template: Option<String>,
    pub system: Option<String>,
    /// Merged over the base's, option by option.
    pub parameters: Map<String, Value>,
    /// Replace the base's, if there are any.
    pub messages: Vec<(Role, String)>,
    /// Added to the base's.
    pub licenses: Vec<String>,
    pub renderer: Option<String>,
    pub parser: Option<String>,
    pub requires: Option<String>,
    /// Adapters, projectors and other files of the new model.
    pub layers: Vec<Descriptor>,
    /// Annotations of the manifest, which replace those of the base with the same keys.
    pub annotations: BTreeMap<String, String>,
}

/// A model that is ready to be pushed: its small blobs, then its manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct DerivedModel {
    pub blobs: Vec<SmallBlob>,
    pub media_type: String,
    pub manifest: Vec<u8>,
    pub digest: Digest,
}

/// Why a model cannot be derived from a base.
#[derive(Debug, thiserror::Error)]
pub enum DeriveError {
    #[error("the base is an index; name one of its manifests by digest")]
    Index,
    #[error("the base has a config of type `{media_type}`, which cannot store RENDERER, PARSER and REQUIRES")]
    ForeignConfig { media_type: String },
    #[error("the template is not a Go template")]
    Template(#[source] SyntaxError),
    #[error("the base's config is not a JSON object")]
    Config,
    #[error("the base's options are not a JSON object")]
    Params,
    #[error("the manifest has {len} bytes, expected at most {MAX_MANIFEST_BYTES}")]
    TooLarge { len: usize },
}

impl Edits {
    /// Returns the edits of a Modelfile, except its files.
    pub fn from_modelfile(modelfile: &Modelfile) -> Edits {
        let mut edits = Edits { parameters: modelfile.parameters(), ..Edits::default() };
        for command in &modelfile.commands {
            match command {
                Command::Template(text) => edits.template = Some(text.as_str().to_owned()),
                Command::System(text) => edits.system = Some(text.as_str().to_owned()),
                Command::License(text) => edits.licenses.push(text.as_str().to_owned()),
                Command::Message { role, text } => edits.messages.push((*role, text.as_str().to_owned())),
                Command::Renderer(text) => edits.renderer = Some(text.as_str().to_owned()),
                Command::Parser(text) => edits.parser = Some(text.as_str().to_owned()),
                Command::Requires(text) => {
                    let version = text.as_str();
                    edits.requires = Some(version.strip_prefix('v').unwrap_or(version).to_owned());
                }
                Command::From(_) | Command::Adapter(_) | Command::Draft(_) | Command::Parameter { .. } => {}
            }
        }
        edits
    }

    /// Checks the edits without regard to a base. Otherwise an invalid template would be noticed only when
    /// the model is loaded.
    pub fn check(&self) -> Result<(), DeriveError> {
        let template = self.template.as_deref().map(Template::parse).transpose();
        template.map(drop).map_err(DeriveError::Template)
    }

    /// Whether the edits change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Edits::default()
    }
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: &'a str,
}

/// Derives a model from a base. The same base and edits always give the same manifest.
pub fn derive(base: &Base<'_>, edits: &Edits) -> Result<DerivedModel, DeriveError> {
    let manifest = base.manifest;
    let base_config = manifest.config.as_ref().ok_or(DeriveError::Index)?;
    edits.check()?;
    let mut blobs = Vec::new();

    // 1. The base's layers, except those that are replaced. Weights record where they came from.
    let replaced = |layer: &Descriptor| {
        let essence = media_type::essence(&layer.media_type);
        match essence {
            media_type::OLLAMA_TEMPLATE | media_type::OLLAMA_PROMPT => edits.template.is_some(),
            media_type::OLLAMA_SYSTEM => edits.system.is_some(),
            media_type::OLLAMA_PARAMS => !edits.parameters.is_empty(),
            media_type::OLLAMA_MESSAGES => !edits.messages.is_empty(),
            _ => false,
        }
    };
    let mut layers: Vec<Descriptor> =
        manifest.layers.iter().filter(|layer| !replaced(layer)).cloned().collect();
    if let Some((name, _)) = base.origin_name {
        for layer in layers.iter_mut().filter(|layer| is_weights_file(&layer.media_type)) {
            layer.from = Some(name.to_owned());
        }
    }
    for layer in &edits.layers {
        if !layers.iter().any(|held| is_same(held, layer)) {
            layers.push(layer.clone());
        }
    }

    // 2. Texts, each as a layer.
    let mut add = |media_type: &str, bytes: Vec<u8>| {
        let blob = SmallBlob::new(media_type, bytes);
        if !layers.iter().any(|held| is_same(held, &blob.descriptor)) {
            layers.push(blob.descriptor.clone());
            blobs.push(blob);
        }
    };
    for license in &edits.licenses {
        add(media_type::OLLAMA_LICENSE, license.clone().into_bytes());
    }
    for (kind, text) in
        [(media_type::OLLAMA_TEMPLATE, &edits.template), (media_type::OLLAMA_SYSTEM, &edits.system)]
    {
        if let Some(text) = text.as_ref().filter(|text| !text.is_empty()) {
            add(kind, text.clone().into_bytes());
        }
    }
    if !edits.parameters.is_empty() {
        let mut options: Map<String, Value> = match base.params {
            Some(params) => serde_json::from_slice(params).map_err(|_| DeriveError::Params)?,
            None => Map::new(),
        };
        options.extend(edits.parameters.clone());
        add(media_type::OLLAMA_PARAMS, json_bytes(&options));
    }
    if !edits.messages.is_empty() {
        let messages: Vec<Message<'_>> = edits
            .messages
            .iter()
            .map(|(role, text)| Message { role: role.as_str(), content: text })
            .collect();
        add(media_type::OLLAMA_MESSAGES, json_bytes(&messages));
    }

    // 3. The config, rewritten only if a value changes.
    let facts = [("renderer", &edits.renderer), ("parser", &edits.parser), ("requires", &edits.requires)];
    let mut config_descriptor = base_config.clone();
    if facts.iter().any(|(_, value)| value.is_some()) {
        if base_config.media_type != media_type::DOCKER_CONFIG {
            return Err(DeriveError::ForeignConfig { media_type: base_config.media_type.clone() });
        }
        let mut config: Map<String, Value> =
            serde_json::from_slice(base.config).map_err(|_| DeriveError::Config)?;
        for (key, value) in facts {
            if let Some(value) = value {
                config.insert(key.to_owned(), Value::String(value.clone()));
            }
        }
        // The list of layers that older clients stored here would now be wrong.
        config.remove("rootfs");
        let blob = SmallBlob::new(media_type::DOCKER_CONFIG, json_bytes(&config));
        config_descriptor = blob.descriptor.clone();
        blobs.push(blob);
    }

    // 4. The manifest, of the base's kind.
    let mut annotations: Map<String, Value> =
        manifest.annotations.iter().map(|(key, value)| (key.clone(), Value::String(value.clone()))).collect();
    if let Some((name, digest)) = base.origin_name {
        annotations.insert(BASE_NAME_ANNOTATION.to_owned(), Value::String(name.to_owned()));
        annotations.insert(BASE_DIGEST_ANNOTATION.to_owned(), Value::String(digest.to_string()));
    }
    annotations.extend(edits.annotations.iter().map(|(key, value)| (key.clone(), value.clone().into())));
    let mut written = NewManifest::new(&manifest.media_type, &config_descriptor, &layers);
    written.artifact_type = manifest.artifact_type.as_deref();
    written.annotations = annotations;
    let bytes = written.to_bytes();
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(DeriveError::TooLarge { len: bytes.len() });
    }
    let digest = Digest::sha256(&bytes);
    Ok(DerivedModel { blobs, media_type: manifest.media_type.clone(), manifest: bytes, digest })
}

fn is_weights_file(kind: &str) -> bool {
    matches!(
        media_type::essence(kind),
        media_type::OLLAMA_MODEL | media_type::OLLAMA_PROJECTOR | media_type::OLLAMA_ADAPTER
    )
}

fn is_same(a: &Descriptor, b: &Descriptor) -> bool {
    a.media_type == b.media_type && a.digest == b.digest && a.name == b.name
}

fn json_bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts, numbers and maps of them are always JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn blob(media_type: &str, bytes: &[u8]) -> Descriptor {
        Descriptor::new(media_type, Digest::sha256(bytes), bytes.len() as u64)
    }

    const CONFIG: &[u8] = br#"{"model_format":"gguf","remote_host":"kept","rootfs":{"type":"layers"}}"#;

    fn base_manifest() -> Manifest {
        let layers = vec![
            blob(media_type::OLLAMA_MODEL, b"weights"),
            blob(media_type::OLLAMA_TEMPLATE, b"old"),
            blob(media_type::OLLAMA_LICENSE, b"free"),
            blob(media_type::OLLAMA_PARAMS, br#"{"temperature":1,"stop":["x"]}"#),
        ];
        let bytes = json_bytes(&json!({
            "schemaVersion": 2, "mediaType": media_type::DOCKER_MANIFEST,
            "config": blob(media_type::DOCKER_CONFIG, CONFIG), "layers": layers,
        }));
        Manifest::parse(None, &bytes).unwrap()
    }

    fn made(edits: &Edits) -> (DerivedModel, Manifest) {
        let manifest = base_manifest();
        let digest = Digest::sha256(b"base");
        let base = Base {
            manifest: &manifest,
            config: CONFIG,
            params: Some(br#"{"temperature":1,"stop":["x"]}"#),
            origin_name: Some(("team/base:8b", &digest)),
        };
        let derived = derive(&base, edits).unwrap();
        let parsed = Manifest::parse(Some(&derived.media_type), &derived.manifest).unwrap();
        (derived, parsed)
    }

    fn of(text: &str) -> Edits {
        Edits::from_modelfile(&Modelfile::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn without_edits_the_base_is_unchanged() {
        let (derived, manifest) = made(&of("FROM team/base:8b"));
        assert!(derived.blobs.is_empty() && Edits::default().is_empty());
        let base = base_manifest();
        let digests = |manifest: &Manifest| {
            manifest.layers.iter().map(|layer| layer.digest.clone()).collect::<Vec<_>>()
        };
        assert_eq!(digests(&manifest), digests(&base));
        assert_eq!(manifest.config, base.config);
        assert_eq!(manifest.layers[0].from.as_deref(), Some("team/base:8b"));
        assert_eq!(manifest.layers[1].from, None);
        assert_eq!(manifest.annotations[BASE_NAME_ANNOTATION], "team/base:8b");
        assert_eq!(manifest.annotations[BASE_DIGEST_ANNOTATION], Digest::sha256(b"base").to_string());
    }

    #[test]
    fn edits_replace_merge_or_add() {
        let (derived, manifest) =
            made(&of("FROM b\nTEMPLATE new\nSYSTEM be brief\nPARAMETER temperature 0.5\n\
             MESSAGE user hi\nMESSAGE assistant ho\nLICENSE free\nLICENSE more"));
        let texts = |kind: &str| -> Vec<String> {
            let of_kind = manifest.layers.iter().filter(|layer| layer.media_type == kind);
            let bytes = of_kind.map(|layer| {
                let blob = derived.blobs.iter().find(|blob| blob.descriptor.digest == layer.digest);
                blob.map_or("(the base's)".to_owned(), |blob| String::from_utf8(blob.bytes.clone()).unwrap())
            });
            bytes.collect()
        };
        assert_eq!(texts(media_type::OLLAMA_MODEL), ["(the base's)"]);
        assert_eq!(texts(media_type::OLLAMA_TEMPLATE), ["new"]);
        assert_eq!(texts(media_type::OLLAMA_SYSTEM), ["be brief"]);
        assert_eq!(texts(media_type::OLLAMA_PARAMS), [r#"{"temperature":0.5,"stop":["x"]}"#]);
        assert_eq!(texts(media_type::OLLAMA_LICENSE), ["(the base's)", "more"]);
        assert_eq!(
            texts(media_type::OLLAMA_MESSAGES),
            [r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]"#]
        );
    }

    #[test]
    fn empty_texts_remove_the_bases() {
        let (derived, manifest) = made(&of("FROM b\nTEMPLATE \"\""));
        assert!(derived.blobs.is_empty());
        assert!(manifest.layers.iter().all(|layer| layer.media_type != media_type::OLLAMA_TEMPLATE));
    }

    #[test]
    fn unknown_config_keys_are_kept() {
        let (derived, manifest) = made(&of("FROM b\nRENDERER r\nREQUIRES v0.20.0"));
        let config: Value = serde_json::from_slice(&derived.blobs[0].bytes).unwrap();
        assert_eq!(
            config,
            json!({"model_format": "gguf", "remote_host": "kept", "renderer": "r", "requires": "0.20.0"})
        );
        assert_eq!(manifest.config.unwrap().digest, Digest::sha256(&derived.blobs[0].bytes));
    }

    #[test]
    fn impossible_edits_are_refused() {
        let mut manifest = base_manifest();
        let fails = |manifest: &Manifest, edits: &Edits, params: Option<&[u8]>| {
            derive(&Base { manifest, config: b"[]", params, origin_name: None }, edits)
                .unwrap_err()
                .to_string()
        };
        assert!(fails(&manifest, &of("FROM b\nPARSER p"), None).contains("not a JSON object"));
        let jinja = of("FROM b\nTEMPLATE {% for m in messages %}{{ m['role'] }}{% endfor %}");
        assert!(fails(&manifest, &jinja, None).contains("not a Go template"));
        assert!(fails(&manifest, &of("FROM b\nPARAMETER seed 1"), Some(b"[]")).contains("options"));
        manifest.config.as_mut().unwrap().media_type = media_type::MODELPACK_CONFIG.to_owned();
        assert!(fails(&manifest, &of("FROM b\nPARSER p"), None).contains(media_type::MODELPACK_CONFIG));
        manifest.config = None;
        assert!(fails(&manifest, &Edits::default(), None).contains("is an index"));
    }

    #[test]
    fn annotations_are_added_and_replaced() {
        let entries = [("org.example.run", "17"), (BASE_NAME_ANNOTATION, "upstream/base")];
        let annotations = entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let (_, manifest) = made(&Edits { annotations, ..Edits::default() });
        assert_eq!(manifest.annotations["org.example.run"], "17");
        assert_eq!(manifest.annotations[BASE_NAME_ANNOTATION], "upstream/base");
        assert_eq!(manifest.annotations[BASE_DIGEST_ANNOTATION], Digest::sha256(b"base").to_string());
    }

    #[test]
    fn files_are_added_once() {
        let adapter = blob(media_type::OLLAMA_ADAPTER, b"lora");
        let edits = Edits { layers: vec![adapter.clone(), adapter.clone()], ..Edits::default() };
        let (_, manifest) = made(&edits);
        assert_eq!(manifest.layers.iter().filter(|layer| layer.digest == adapter.digest).count(), 1);
    }
}
