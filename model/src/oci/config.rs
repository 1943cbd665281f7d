//! The config blob of an ollama manifest. It describes a model for display and for choosing how to run it.
//! Unknown keys are ignored and absent keys have defaults, because several versions of ollama wrote this
//! blob.

use serde::{Deserialize, Deserializer, Serialize};

/// The config blob of a model (ollama `types/model/config.go`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// `gguf` or `safetensors`.
    #[serde(deserialize_with = "text")]
    pub model_format: String,
    /// The architecture's short name, such as `llama`.
    #[serde(deserialize_with = "text")]
    pub model_family: String,
    #[serde(deserialize_with = "list")]
    pub model_families: Vec<String>,
    /// The number of parameters for display, such as `3.2B`.
    #[serde(deserialize_with = "text")]
    pub model_type: String,
    /// The quantisation for display, such as `Q4_K_M`, `BF16` or `int4`.
    #[serde(deserialize_with = "text")]
    pub file_type: String,
    #[serde(deserialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub renderer: String,
    #[serde(deserialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub parser: String,
    /// The oldest ollama that reads this model, without `v`.
    #[serde(deserialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub requires: String,
    #[serde(deserialize_with = "text", skip_serializing_if = "String::is_empty")]
    pub base_name: String,
    /// `completion`, `embedding`, `tools`, `insert`, `vision`, `thinking`, `image`, `audio`.
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_length: Option<u64>,
    #[serde(deserialize_with = "text")]
    pub architecture: String,
    #[serde(deserialize_with = "text")]
    pub os: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<RootFs>,
}

/// A copy of the layer list. ollama wrote it up to 0.32.6; readers accept configs with and without it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootFs {
    #[serde(rename = "type", deserialize_with = "text")]
    pub kind: String,
    #[serde(deserialize_with = "list")]
    pub diff_ids: Vec<String>,
}

impl ModelConfig {
    /// Reads a config blob.
    pub fn parse(bytes: &[u8]) -> Result<ModelConfig, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Writes a config blob as compact JSON. The same value always gives the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of strings and numbers is always JSON")
    }
}

/// Formats a number of parameters for people: `4.2M`, `8.0B`.
pub fn format_parameter_count(parameters: u64) -> String {
    let scaled = |unit: f64, name: &str| format!("{:.1}{name}", parameters as f64 / unit);
    match parameters {
        1_000_000_000_000.. => scaled(1e12, "T"),
        1_000_000_000.. => scaled(1e9, "B"),
        1_000_000.. => scaled(1e6, "M"),
        1_000.. => scaled(1e3, "K"),
        _ => parameters.to_string(),
    }
}

fn text<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

fn list<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_ollama_writes() {
        let config = ModelConfig::parse(
            br#"{"model_format":"gguf","model_family":"llama","model_families":null,"model_type":"8.0B","file_type":"Q4_0",
                "renderer":"","capabilities":[],"context_length":0,"architecture":"amd64","os":"linux","draft":{"x":1},
                "rootfs":{"type":"layers","diff_ids":["sha256:00"]}}"#,
        )
        .unwrap();
        assert_eq!(config.model_format, "gguf");
        assert_eq!(config.file_type, "Q4_0");
        assert_eq!(config.rootfs.as_ref().unwrap().diff_ids, ["sha256:00"]);
        assert_eq!(ModelConfig::parse(&config.to_bytes()).unwrap(), config);
        assert_eq!(ModelConfig::parse(b"{}").unwrap(), ModelConfig::default());
        assert!(ModelConfig::parse(b"[").is_err());
    }

    #[test]
    fn parameter_counts_are_formatted() {
        for (parameters, expect) in [
            (12, "12"),
            (4_100, "4.1K"),
            (4_196_608, "4.2M"),
            (8_030_000_000, "8.0B"),
            (1_000_000_000_000, "1.0T"),
        ] {
            assert_eq!(format_parameter_count(parameters), expect);
        }
    }
}
