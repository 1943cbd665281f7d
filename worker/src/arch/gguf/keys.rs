//! The metadata of a GGUF, as the families read it, and the configuration that they write. Errors name the
//! key.

use lode_model::gguf::{Header, Metadata, TensorEntry, Value};
use serde_json::{Map, Value as Json, json};

use super::super::config::ConfigError;

/// The information about tensors that the configuration depends on.
pub trait TensorLookup {
    /// The row-major shape of a tensor, by its name in the file.
    fn shape(&self, name: &str) -> Option<Vec<u64>>;

    /// The values of a small table; `None` if there is none, or if only the header is available.
    fn table(&self, name: &str) -> Result<Option<Vec<f32>>, ConfigError>;
}

/// A header alone has no tables.
impl TensorLookup for Header {
    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        self.tensors.iter().find(|entry| entry.name == name).map(TensorEntry::shape)
    }

    fn table(&self, _: &str) -> Result<Option<Vec<f32>>, ConfigError> {
        Ok(None)
    }
}

/// A GGUF as a family sees it: its keys, and numbers that several families need.
#[derive(Clone, Copy)]
pub(crate) struct GgufModel<'a> {
    pub(crate) keys: Keys<'a>,
    pub(crate) contents: &'a dyn TensorLookup,
    pub(crate) width: u64,
    pub(crate) heads: u64,
    pub(crate) head_dim: u64,
    /// Number of experts; 0 without a mixture of experts.
    pub(crate) experts: u64,
    /// The sliding window of a decoder, if it has one.
    pub(crate) window: Option<u64>,
}

impl GgufModel<'_> {
    /// Number of rows of a matrix. One with a single row may have one dimension.
    pub(crate) fn rows(&self, name: &str) -> Option<u64> {
        match self.contents.shape(name)?[..] {
            [_] => Some(1),
            [rows, ..] => Some(rows),
            [] => None,
        }
    }
}

/// The fields of a configuration.
pub(crate) struct Settings(pub(super) Map<String, Json>);

impl Settings {
    pub(crate) fn set(&mut self, field: &str, value: Json) {
        self.0.insert(field.to_owned(), value);
    }
}

/// The metadata keys of the architecture.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&self.name(key))
    }

    fn absent(&self, key: &str) -> ConfigError {
        ConfigError::Type { field: self.name(key), found: "absent".into(), expected: "a number" }
    }

    /// A number, or a list with the same number for every layer.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value.as_array() {
            Some(array) => {
                let mut all = array.iter().map(|value| value.as_u64());
                let first = all.next().flatten();
                if !all.all(|number| number == first) {
                    let (field, found) = (self.name(key), "different for some layers".to_owned());
                    return Err(ConfigError::Unsupported { field, found, supported: "one for all layers" });
                }
                first
            }
            None => value.as_u64(),
        };
        number.map(Some).ok_or_else(|| self.wrong(key, value, "a whole number"))
    }

    pub(crate) fn require_count(&self, key: &str) -> Result<u64, ConfigError> {
        self.count(key)?.ok_or_else(|| self.absent(key))
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(key, value, "a number"))
    }

    pub(crate) fn require_float(&self, key: &str) -> Result<f64, ConfigError> {
        self.float(key)?.ok_or_else(|| self.absent(key))
    }

    fn wrong(&self, key: &str, value: &Value, expected: &'static str) -> ConfigError {
        let found = value.to_json().to_string().chars().take(40).collect();
        ConfigError::Type { field: self.name(key), found, expected }
    }

    /// Rows of the embedding: from the key, else the number of tokens, else from the tensor.
    pub(super) fn vocabulary(&self, contents: &dyn TensorLookup) -> Result<Option<u64>, ConfigError> {
        if let Some(size) = self.count("vocab_size")? {
            return Ok(Some(size));
        }
        let tokens = self.metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
        let rows = || contents.shape("token_embd.weight").and_then(|shape| shape.first().copied());
        Ok(tokens.map(|tokens| tokens.len() as u64).or_else(rows))
    }

    /// Factors in tensors become `longrope`, which is one divisor for each frequency.
    pub(super) fn rope_scaling(
        &self,
        contents: &dyn TensorLookup,
        original: u64,
    ) -> Result<Json, ConfigError> {
        let factor = match self.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        let kind = self.get("rope.scaling.type").and_then(Value::as_str);
        let attn_factor = self.float("rope.scaling.attn_factor")?;
        let freqs = contents.table("rope_freqs.weight")?;
        let long = contents.table("rope_factors_long.weight")?.or_else(|| freqs.clone());
        let short = contents.table("rope_factors_short.weight")?.or(freqs);
        if let (Some(long), Some(short)) = (long, short) {
            let stretch = if kind == Some("linear") { factor.unwrap_or(1.0) } else { 1.0 };
            let scaled = |all: Vec<f32>| all.into_iter().map(|x| f64::from(x) * stretch).collect::<Vec<_>>();
            return Ok(json!({
                "rope_type": "longrope",
                "long_factor": scaled(long),
                "short_factor": scaled(short),
                "attention_factor": attn_factor.unwrap_or(1.0),
                "original_max_position_embeddings": original,
            }));
        }
        match (kind, factor) {
            (Some("none"), _) | (None | Some("linear" | "longrope"), None) => Ok(Json::Null),
            (None | Some("linear"), Some(factor)) if factor == 1.0 || factor == 0.0 => Ok(Json::Null),
            (None | Some("linear"), Some(factor)) => Ok(json!({"rope_type": "linear", "factor": factor})),
            (Some("yarn"), factor) => {
                let factor = factor.ok_or_else(|| self.absent("rope.scaling.factor"))?;
                let mut yarn = object(json!({
                    "rope_type": "yarn",
                    "factor": factor,
                    "original_max_position_embeddings": original,
                }));
                for name in ["beta_fast", "beta_slow"] {
                    if let Some(value) = self.float(&format!("rope.scaling.yarn_{name}"))? {
                        yarn.insert(name.to_owned(), json!(value));
                    }
                }
                // In GGUF this multiplies the usual factor; `attention_factor` is the product.
                if let Some(more) = attn_factor {
                    let usual = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
                    yarn.insert("attention_factor".to_owned(), json!(more * usual));
                }
                Ok(Json::Object(yarn))
            }
            // Without its tables longrope has no effect.
            (Some("longrope"), Some(_)) => Ok(Json::Null),
            (Some(other), _) => Err(ConfigError::Unsupported {
                field: self.name("rope.scaling.type"),
                found: format!("`{other}`"),
                supported: "none, linear, yarn, longrope",
            }),
        }
    }
}

pub(super) fn object(value: Json) -> Map<String, Json> {
    if let Json::Object(map) = value { map } else { Map::new() }
}
