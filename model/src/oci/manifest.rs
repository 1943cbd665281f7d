//! Manifests as they are pushed. This is the parsed view; callers keep the raw bytes, and nothing here is
//! ever written back in their place.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::digest::Digest;
use crate::media_type;

/// The largest accepted manifest, in bytes. OCI requires at least 4 MB.
pub const MAX_MANIFEST_BYTES: usize = 4 * 1024 * 1024;

/// A reference to content: its media type, digest and size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    /// ollama's name of a tensor or JSON layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The model or file that a layer came from, as noted by ollama.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The type and shape of the tensor, as older writers of ollama's tensor layers noted them, in any form.
    /// The blob's own header takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<serde_json::Value>,
    /// Other locations of the content. A layer that has URLs need not be stored here.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<serde_json::Value>,
    /// The content itself in base64. Never trusted in place of the blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

impl Descriptor {
    /// A descriptor with only the three required fields.
    pub fn new(media_type: impl Into<String>, digest: Digest, size: u64) -> Descriptor {
        Descriptor {
            media_type: media_type.into(),
            digest,
            size,
            name: None,
            from: None,
            dtype: None,
            shape: None,
            urls: Vec::new(),
            annotations: BTreeMap::new(),
            artifact_type: None,
            platform: None,
            data: None,
        }
    }

    /// Returns the path of the file that this layer is, if the manifest gives one: ollama's `name` (except of
    /// a tensor layer, whose name is not a path), then ModelPack's and oras' annotations. The text is
    /// untrusted: check it before use.
    pub fn file_path(&self) -> Option<&str> {
        let annotated = [
            media_type::FILEPATH_ANNOTATION,
            media_type::CNAI_FILEPATH_ANNOTATION,
            media_type::TITLE_ANNOTATION,
        ];
        let is_tensor = self.media_type == media_type::OLLAMA_TENSOR;
        self.name
            .as_deref()
            .filter(|_| !is_tensor)
            .or_else(|| annotated.iter().find_map(|key| self.annotations.get(*key)).map(String::as_str))
    }
}

/// An image manifest or an index.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The effective media type: that of the request, else the one in the manifest.
    pub media_type: String,
    pub artifact_type: Option<String>,
    /// Present in an image manifest, absent in an index.
    pub config: Option<Descriptor>,
    pub layers: Vec<Descriptor>,
    /// The children of an index.
    pub manifests: Vec<Descriptor>,
    /// The manifest to which this one refers. It need not exist.
    pub subject: Option<Descriptor>,
    pub annotations: BTreeMap<String, String>,
}

/// Why bytes are not an acceptable manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("manifest has {len} bytes, expected at most {MAX_MANIFEST_BYTES}")]
    TooLarge { len: usize },
    #[error("manifest is malformed")]
    Json(#[source] serde_json::Error),
    #[error("manifest has schemaVersion {found}, expected 2")]
    SchemaVersion { found: u64 },
    #[error("manifest has mediaType `{inside}`, but its Content-Type is `{content_type}`")]
    MediaTypeMismatch { inside: String, content_type: String },
    #[error("`{media_type}` is not a manifest type")]
    NotAManifest { media_type: String },
    #[error("manifest has no mediaType, and neither `config` nor `manifests` to infer it from")]
    Unrecognised,
    #[error("manifest of type `{media_type}` lacks `{field}`")]
    Missing { media_type: String, field: &'static str },
    #[error("manifest of type `{media_type}` must not have `{field}`")]
    Unexpected { media_type: String, field: &'static str },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawManifest {
    schema_version: u64,
    media_type: Option<String>,
    artifact_type: Option<String>,
    config: Option<Descriptor>,
    /// Outer `None`: the key is absent. Inner `None`: it is null, as Go writes an empty slice.
    #[serde(default, deserialize_with = "present")]
    layers: Option<Option<Vec<Descriptor>>>,
    #[serde(default, deserialize_with = "present")]
    manifests: Option<Option<Vec<Descriptor>>>,
    subject: Option<Descriptor>,
    #[serde(default, deserialize_with = "null_as_default")]
    annotations: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads a manifest that arrived with this `Content-Type`, whose parameters are ignored.
    ///
    /// A `mediaType` inside must equal the `Content-Type`. If both are absent, `config` or `manifests` tells
    /// the kind of OCI manifest. A manifest with the fields of both kinds is refused, so that no two readers
    /// interpret it differently.
    pub fn parse(content_type: Option<&str>, bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge { len: bytes.len() });
        }
        let raw: RawManifest = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        if raw.schema_version != 2 {
            return Err(ManifestError::SchemaVersion { found: raw.schema_version });
        }
        let content_type = content_type.map(media_type::essence).filter(|essence| !essence.is_empty());
        let inside = raw.media_type.as_deref().filter(|inside| !inside.is_empty());
        let media_type = match (content_type, inside) {
            (Some(content_type), Some(inside)) if content_type != inside => {
                return Err(ManifestError::MediaTypeMismatch {
                    inside: inside.to_owned(),
                    content_type: content_type.to_owned(),
                });
            }
            (Some(media_type), _) | (None, Some(media_type)) => media_type.to_owned(),
            (None, None) if raw.manifests.is_some() => media_type::OCI_INDEX.to_owned(),
            (None, None) if raw.config.is_some() => media_type::OCI_MANIFEST.to_owned(),
            (None, None) => return Err(ManifestError::Unrecognised),
        };

        let is_index = media_type::is_index(&media_type);
        if !media_type::is_manifest(&media_type) {
            return Err(ManifestError::NotAManifest { media_type });
        }
        let fields = [
            ("config", raw.config.is_some()),
            ("layers", raw.layers.is_some()),
            ("manifests", raw.manifests.is_some()),
        ];
        for (field, there) in fields {
            let of_this_kind = (field == "manifests") == is_index;
            if there && !of_this_kind {
                return Err(ManifestError::Unexpected { media_type, field });
            }
            // An artifact may omit its layers but not its config. An index may not omit its children.
            if !there && of_this_kind && field != "layers" {
                return Err(ManifestError::Missing { media_type, field });
            }
        }

        let mut layers = raw.layers.flatten().unwrap_or_default();
        layers.iter_mut().for_each(normalise_layer);
        Ok(Manifest {
            media_type,
            artifact_type: raw.artifact_type.filter(|text| !text.is_empty()),
            config: raw.config,
            layers,
            manifests: raw.manifests.flatten().unwrap_or_default(),
            subject: raw.subject,
            annotations: raw.annotations,
        })
    }

    pub fn is_index(&self) -> bool {
        media_type::is_index(&self.media_type)
    }

    /// The blobs that must exist before this manifest: config and layers, except layers that are stored
    /// elsewhere.
    pub fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        let held = |layer: &&Descriptor| {
            layer.urls.is_empty() && !media_type::is_nondistributable(&layer.media_type)
        };
        self.config.iter().chain(self.layers.iter().filter(held))
    }

    /// The manifests that an index lists.
    pub fn children(&self) -> impl Iterator<Item = &Descriptor> {
        self.manifests.iter()
    }

    /// The artifact type by which referrers are listed and filtered: its own, else the config's media type.
    pub fn referrer_type(&self) -> Option<&str> {
        self.artifact_type.as_deref().or(self.config.as_ref().map(|config| config.media_type.as_str()))
    }
}

/// Converts the older form of ollama's layers, with name, type and shape as parameters of the media type
/// (`...image.tensor; name=a.weight; dtype=F32; shape=1,2`), to the present one.
fn normalise_layer(layer: &mut Descriptor) {
    if !media_type::is_ollama(&layer.media_type) || !layer.media_type.contains(';') {
        return;
    }
    let text = std::mem::take(&mut layer.media_type);
    layer.media_type = media_type::essence(&text).to_owned();
    let is_tensor = layer.media_type == media_type::OLLAMA_TENSOR;
    let is_json = media_type::is_ollama_json(&layer.media_type);
    for (key, value) in text.split(';').skip(1).filter_map(|parameter| parameter.split_once('=')) {
        let value = value.trim().trim_matches('"');
        match key.trim() {
            "name" if (is_tensor || is_json) && layer.name.is_none() => layer.name = Some(value.to_owned()),
            "dtype" if is_tensor && layer.dtype.is_none() => layer.dtype = Some(value.into()),
            "shape" if is_tensor && layer.shape.is_none() => layer.shape = Some(value.into()),
            // A configuration in a checkpoint's own format is its config.json.
            "type" if is_json && layer.name.is_none() && value.starts_with("safetensor") => {
                layer.name = Some("config.json".to_owned());
            }
            _ => {}
        }
    }
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Option<T>, D::Error> {
    T::deserialize(d).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn descriptor(seed: u8, media_type: &str) -> serde_json::Value {
        json!({"mediaType": media_type, "digest": Digest::sha256(&[seed]), "size": 1})
    }

    fn image() -> serde_json::Value {
        json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_MANIFEST,
            "config": descriptor(0, media_type::OCI_CONFIG),
            "layers": [descriptor(1, media_type::OCI_LAYER_TAR)],
        })
    }

    fn parse(content_type: Option<&str>, value: &serde_json::Value) -> Result<Manifest, ManifestError> {
        Manifest::parse(content_type, &serde_json::to_vec(value).unwrap())
    }

    #[test]
    fn content_type_rules() {
        let mut untyped = image();
        untyped.as_object_mut().unwrap().remove("mediaType");
        let typed = image();
        for (content_type, value, expect) in [
            (Some(media_type::OCI_MANIFEST), &typed, media_type::OCI_MANIFEST),
            (
                Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8"),
                &typed,
                media_type::OCI_MANIFEST,
            ),
            (None, &typed, media_type::OCI_MANIFEST),
            (Some(media_type::DOCKER_MANIFEST), &untyped, media_type::DOCKER_MANIFEST),
            (None, &untyped, media_type::OCI_MANIFEST),
        ] {
            assert_eq!(parse(content_type, value).unwrap().media_type, expect);
        }
        let refused = |content_type: &str, value| parse(Some(content_type), value).unwrap_err();
        assert!(matches!(
            refused(media_type::DOCKER_MANIFEST, &typed),
            ManifestError::MediaTypeMismatch { .. }
        ));
        assert!(matches!(refused("application/json", &untyped), ManifestError::NotAManifest { .. }));
        assert!(matches!(
            refused(media_type::OCI_INDEX, &untyped),
            ManifestError::Unexpected { field: "config", .. }
        ));
    }

    #[test]
    fn invalid_manifests_are_refused() {
        for bytes in ["", "{", "[]", "null", "{}", "\"x\"", "{\"schemaVersion\":\"2\"}", "\u{feff}{}"] {
            assert!(
                matches!(Manifest::parse(None, bytes.as_bytes()), Err(ManifestError::Json(_))),
                "{bytes}"
            );
        }
        assert!(matches!(
            parse(None, &json!({"schemaVersion": 1})),
            Err(ManifestError::SchemaVersion { found: 1 })
        ));
        assert!(matches!(parse(None, &json!({"schemaVersion": 2})), Err(ManifestError::Unrecognised)));
        let mut both = image();
        both["manifests"] = json!([]);
        assert!(matches!(parse(None, &both), Err(ManifestError::Unexpected { field: "manifests", .. })));
        let mut negative = image();
        negative["config"]["size"] = json!(-1);
        assert!(matches!(parse(None, &negative), Err(ManifestError::Json(_))));
        let mut digest = image();
        digest["layers"][0]["digest"] = json!("sha256:short");
        assert!(matches!(parse(None, &digest), Err(ManifestError::Json(_))));
        let large = vec![b' '; MAX_MANIFEST_BYTES + 1];
        assert!(matches!(Manifest::parse(None, &large), Err(ManifestError::TooLarge { .. })));
        let deep = "[".repeat(100_000);
        assert!(Manifest::parse(None, deep.as_bytes()).is_err());
    }

    #[test]
    fn unusual_manifests_are_accepted() {
        let mut empty = image();
        empty["layers"] = json!(null);
        empty["annotations"] = json!(null);
        empty["org.example.custom"] = json!({"kept": "in the bytes"});
        assert!(parse(None, &empty).unwrap().layers.is_empty());
        let index = json!({"schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": []});
        assert!(parse(None, &index).unwrap().is_index());
        let untyped = json!({"schemaVersion": 2, "manifests": [descriptor(3, media_type::OCI_INDEX)]});
        assert_eq!(parse(None, &untyped).unwrap().children().count(), 1);
    }

    #[test]
    fn blobs_that_must_exist() {
        let mut value = image();
        value["layers"] = json!([
            descriptor(1, media_type::OCI_LAYER_TAR),
            descriptor(2, "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"),
            {"mediaType": "x/y", "digest": Digest::sha256(&[3]), "size": 3, "urls": ["https://elsewhere"]},
        ]);
        value["subject"] = descriptor(4, media_type::OCI_MANIFEST);
        value["artifactType"] = json!("application/x-signature");
        let manifest = parse(None, &value).unwrap();
        let blobs: Vec<_> = manifest.blobs().map(|d| d.digest.clone()).collect();
        assert_eq!(blobs, [Digest::sha256(&[0]), Digest::sha256(&[1])]);
        assert_eq!(manifest.subject.as_ref().unwrap().digest, Digest::sha256(&[4]));
        assert_eq!(manifest.referrer_type(), Some("application/x-signature"));
    }

    #[test]
    fn file_paths() {
        let mut layer = Descriptor::new("x/y", Digest::sha256(b""), 0);
        assert_eq!(layer.file_path(), None);
        layer.annotations.insert(media_type::TITLE_ANNOTATION.into(), "title".into());
        assert_eq!(layer.file_path(), Some("title"));
        layer.annotations.insert(media_type::FILEPATH_ANNOTATION.into(), "dir/path".into());
        assert_eq!(layer.file_path(), Some("dir/path"));
        layer.name = Some("name".into());
        assert_eq!(layer.file_path(), Some("name"));
        layer.media_type = media_type::OLLAMA_TENSOR.into();
        layer.annotations.clear();
        assert_eq!(layer.file_path(), None);
    }

    #[test]
    fn older_ollama_layers_are_normalised() {
        let mut value = image();
        value["layers"] = json!([
            descriptor(1, "application/vnd.ollama.image.tensor; name=a.weight; dtype=F32; shape=1,2"),
            descriptor(2, "application/vnd.ollama.image.config; type=safetensors"),
            descriptor(3, "application/vnd.ollama.image.config; type=gguf"),
            descriptor(4, "application/vnd.ollama.image.template; name=chatml"),
            descriptor(5, "text/plain; charset=utf-8"),
            {"mediaType": media_type::OLLAMA_TENSOR, "digest": Digest::sha256(b"x"), "size": 1, "name": "b",
             "dtype": "BF16", "shape": [3]},
        ]);
        let layers = parse(None, &value).unwrap().layers;
        let read: Vec<_> = layers.iter().map(|l| (l.media_type.as_str(), l.name.as_deref())).collect();
        assert_eq!(
            read,
            [
                (media_type::OLLAMA_TENSOR, Some("a.weight")),
                (media_type::OLLAMA_CONFIG, Some("config.json")),
                (media_type::OLLAMA_CONFIG, None),
                (media_type::OLLAMA_TEMPLATE, None),
                ("text/plain; charset=utf-8", None),
                (media_type::OLLAMA_TENSOR, Some("b")),
            ]
        );
        assert_eq!((&layers[0].dtype, &layers[0].shape), (&Some(json!("F32")), &Some(json!("1,2"))));
        assert_eq!(layers[5].shape, Some(json!([3])));
    }

    proptest! {
        #[test]
        fn parse_never_panics(bytes: Vec<u8>, content_type: Option<String>) {
            let _ = Manifest::parse(content_type.as_deref(), &bytes);
        }

        #[test]
        fn parse_never_panics_on_damaged_manifests(at in 0usize..400, byte: u8) {
            let mut bytes = serde_json::to_vec(&image()).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Manifest::parse(None, &bytes);
        }
    }
}
