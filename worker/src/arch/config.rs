//! Parses and range-checks a checkpoint's `config.json` for the arch modules. Supports both published
//! spellings of RoPE: `rope_theta` with `rope_scaling`, and `rope_parameters`.

use lode_model::tensor::scaled::{self, BlockError};
use serde_json::{Map, Value};

use super::rope::{RopeConfig, RopeKind};

/// Why a configuration was refused. The field has its name in the file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("it is not a JSON object")]
    NotAnObject,
    #[error("it is not JSON")]
    Json(#[from] serde_json::Error),
    #[error("`{field}` is missing")]
    Missing { field: &'static str },
    #[error("`{field}` is {found}, expected {expected}")]
    Type { field: String, found: String, expected: &'static str },
    #[error("`{field}` is {found}, which is outside {min} to {max}")]
    Range { field: String, found: f64, min: f64, max: f64 },
    #[error("`{field}` {found} is not supported (supported: {supported})")]
    Unsupported { field: String, found: String, supported: &'static str },
    #[error("`{field}`: {rule}")]
    Relation { field: &'static str, rule: String },
}

/// The format that the model was read from. Converters change weights, so the same configuration has a
/// slightly different meaning in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Container {
    /// A Hugging Face checkpoint, or tensor blobs imported from one.
    #[default]
    Checkpoint,
    /// A GGUF: in the llama family the rows of q and k are permuted so that adjacent rows rotate together,
    /// and gemma's norm weights already include the added 1.
    Gguf,
}

/// The configuration as JSON. Errors of its accessors name the field.
pub struct Config {
    fields: Map<String, Value>,
    container: Container,
}

impl Config {
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        match serde_json::from_slice(bytes)? {
            Value::Object(fields) => Ok(Self { fields, container: Container::Checkpoint }),
            _ => Err(ConfigError::NotAnObject),
        }
    }

    /// A configuration from the metadata of a GGUF.
    pub fn from_gguf(fields: Map<String, Value>) -> Self {
        Self { fields, container: Container::Gguf }
    }

    /// The rows and columns that share a scale in weights of FP8 or int8.
    pub fn scale_block(&self) -> Result<[u64; 2], BlockError> {
        scaled::block(Some(&self.fields))
    }

    pub fn container(&self) -> Container {
        self.container
    }

    /// The nested configuration in `field`.
    pub fn nested_config(&self, field: &'static str) -> Result<Self, ConfigError> {
        let fields = object(field, self.get(field))?.ok_or(ConfigError::Missing { field })?;
        Ok(Self { fields: fields.clone(), container: self.container })
    }

    /// The first of `architectures`, else `model_type`, for errors.
    pub fn architecture(&self) -> String {
        let first = self.fields.get("architectures").and_then(|v| v.get(0)).and_then(Value::as_str);
        first.or(self.model_type()).unwrap_or("").to_owned()
    }

    pub fn model_type(&self) -> Option<&str> {
        self.fields.get("model_type").and_then(Value::as_str)
    }

    fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|v| !v.is_null())
    }

    /// A whole number within `min..=max`; absent (or null) is `None`.
    pub fn integer(&self, field: &'static str, min: u64, max: u64) -> Result<Option<usize>, ConfigError> {
        self.get(field).map(|v| integer(field, v, min, max)).transpose()
    }

    /// As [`Config::integer`], for a required field.
    pub fn require_integer(&self, field: &'static str, min: u64, max: u64) -> Result<usize, ConfigError> {
        self.integer(field, min, max)?.ok_or(ConfigError::Missing { field })
    }

    /// A number within `min..=max`, or `default` when absent.
    pub fn number(&self, field: &'static str, default: f64, min: f64, max: f64) -> Result<f64, ConfigError> {
        self.get(field).map_or(Ok(default), |v| number(field, v, min, max))
    }

    pub fn flag(&self, field: &'static str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.optional_flag(field)?.unwrap_or(default))
    }

    pub fn optional_flag(&self, field: &'static str) -> Result<Option<bool>, ConfigError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(type_error(field, other, "true or false")),
        }
    }

    pub fn text(&self, field: &'static str) -> Result<Option<&str>, ConfigError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(type_error(field, other, "text")),
        }
    }

    /// Whether the field is present, even if it is null.
    pub fn has_field(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// The attention type of each layer, with the names of transformers' `layer_types`.
    pub fn layer_types(&self, layers: usize) -> Result<Option<Vec<&str>>, ConfigError> {
        let Some(value) = self.get("layer_types") else { return Ok(None) };
        let found = value.as_array().ok_or_else(|| type_error("layer_types", value, "a list"))?;
        if found.len() != layers {
            let rule = format!("{} entries for {layers} layers", found.len());
            return Err(ConfigError::Relation { field: "layer_types", rule });
        }
        let known = |v: &'_ Value| matches!(v.as_str(), Some("full_attention" | "sliding_attention"));
        if let Some(other) = found.iter().find(|v| !known(v)) {
            let (field, found) = ("layer_types".to_owned(), other.to_string());
            let supported = "full_attention, sliding_attention";
            return Err(ConfigError::Unsupported { field, found, supported });
        }
        Ok(Some(found.iter().filter_map(Value::as_str).collect()))
    }

    /// The list of integers in `field`, each at most `max`; empty when absent.
    pub fn integers(&self, field: &'static str, max: u64) -> Result<Vec<usize>, ConfigError> {
        match self.get(field) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() as u64 <= max => {
                list.iter().map(|v| integer(field, v, 0, max)).collect()
            }
            Some(other) => Err(type_error(field, other, "a short list")),
        }
    }

    /// Number of classes of a classification head: `id2label`, else `num_labels`, else two, as in transformers.
    pub fn classes(&self) -> Result<usize, ConfigError> {
        match object("id2label", self.get("id2label"))?.map(Map::len) {
            Some(0) => Err(ConfigError::Relation { field: "id2label", rule: "it has no classes".to_owned() }),
            Some(classes) => Ok(classes),
            None => Ok(self.integer("num_labels", 1, 1 << 16)?.unwrap_or(2)),
        }
    }

    /// The rotary embedding in either spelling. If both are present, `rope_parameters` takes precedence, as
    /// in transformers.
    pub fn rope(&self, default_theta: f64) -> Result<RopeConfig, ConfigError> {
        let empty = Map::new();
        let newer = object("rope_parameters", self.get("rope_parameters"))?;
        let older = object("rope_scaling", self.get("rope_scaling"))?;
        match (newer, older) {
            (Some(fields), _) => self.rope_of("rope_parameters", fields, default_theta),
            (None, older) => self.rope_of("rope_scaling", older.unwrap_or(&empty), default_theta),
        }
    }

    /// The rotary embedding of one layer type. Only the newer spelling has one per layer type.
    pub fn rope_of_layers(
        &self,
        layer_type: &str,
        default_theta: f64,
    ) -> Result<Option<RopeConfig>, ConfigError> {
        let all = object("rope_parameters", self.get("rope_parameters"))?;
        let own = all.and_then(|all| all.get(layer_type));
        let own = object("rope_parameters", own)?;
        own.map(|fields| self.rope_of("rope_parameters", fields, default_theta)).transpose()
    }

    fn rope_of(
        &self,
        prefix: &'static str,
        fields: &Map<String, Value>,
        default_theta: f64,
    ) -> Result<RopeConfig, ConfigError> {
        let field = |name: &str| (format!("{prefix}.{name}"), fields.get(name).filter(|v| !v.is_null()));
        let optional = |name: &str, min: f64, max: f64| match field(name) {
            (path, Some(v)) => number(&path, v, min, max).map(Some),
            (_, None) => Ok(None),
        };
        let wanted = |name: &str, min: f64, max: f64| {
            let absent = || ConfigError::Type {
                field: format!("{prefix}.{name}"),
                found: "absent".into(),
                expected: "a number",
            };
            optional(name, min, max)?.ok_or_else(absent)
        };
        let factors = |name: &str| match field(name) {
            (path, Some(Value::Array(list))) => {
                list.iter().map(|v| number(&path, v, 1e-6, 1e9).map(|v| v as f32)).collect()
            }
            (path, Some(other)) => Err(type_error(&path, other, "a list of numbers")),
            (path, None) => {
                Err(ConfigError::Type { field: path, found: "absent".into(), expected: "a list of numbers" })
            }
        };
        let trained = || self.number("max_position_embeddings", 2048.0, 1.0, 1e9);
        // Phi3 has this field at the top level, other models within the RoPE object.
        let original = || match optional("original_max_position_embeddings", 1.0, 1e9)? {
            Some(original) => Ok(original),
            None => self.number("original_max_position_embeddings", trained()?, 1.0, 1e9),
        };

        let theta = match field("rope_theta") {
            (path, Some(v)) => number(&path, v, 1.0, 1e12)?,
            (_, None) => self.number("rope_theta", default_theta, 1.0, 1e12)?,
        };
        // Older files use `type`. If both are present, `rope_type` takes precedence.
        let (path, kind) = match (field("rope_type"), field("type")) {
            ((path, Some(v)), _) | (_, (path, Some(v))) => (path, v.as_str().unwrap_or("?")),
            ((path, None), _) => (path, "default"),
        };
        let kind = match kind {
            "default" => RopeKind::Default,
            "linear" => RopeKind::Linear { factor: wanted("factor", 1e-3, 1e6)? },
            "llama3" => RopeKind::Llama3 {
                factor: wanted("factor", 1e-3, 1e6)?,
                low_freq_factor: wanted("low_freq_factor", 1e-3, 1e6)?,
                high_freq_factor: wanted("high_freq_factor", 1e-3, 1e6)?,
                original_context: wanted("original_max_position_embeddings", 1.0, 1e9)?,
            },
            "yarn" => {
                let factor = wanted("factor", 1e-3, 1e6)?;
                let scale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
                let mscale = optional("mscale", 0.0, 1e3)?.filter(|v| *v != 0.0);
                let all = optional("mscale_all_dim", 0.0, 1e3)?.filter(|v| *v != 0.0);
                let usual = match (mscale, all) {
                    (Some(mscale), Some(all)) => scale(mscale) / scale(all),
                    _ => scale(1.0),
                };
                let truncate = field("truncate").1.is_none_or(|v| v.as_bool() != Some(false));
                RopeKind::Yarn {
                    factor,
                    beta_fast: optional("beta_fast", 1e-3, 1e6)?.unwrap_or(32.0),
                    beta_slow: optional("beta_slow", 1e-3, 1e6)?.unwrap_or(1.0),
                    original_context: original()?,
                    attention_factor: optional("attention_factor", 0.0, 1e3)?.unwrap_or(usual),
                    truncate,
                }
            }
            // Phi3's first files use the name `su`.
            "longrope" | "su" => {
                let original = original()?;
                let factor = match optional("factor", 1e-3, 1e6)? {
                    Some(factor) if !self.has_field("original_max_position_embeddings") => factor,
                    _ => trained()? / original,
                };
                let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
                RopeKind::LongRope {
                    short: factors("short_factor")?,
                    long: factors("long_factor")?,
                    original_context: original,
                    attention_factor: optional("attention_factor", 0.0, 1e3)?.unwrap_or(usual),
                }
            }
            other => {
                let supported = "default, linear, llama3, yarn, longrope";
                return Err(ConfigError::Unsupported { field: path, found: format!("`{other}`"), supported });
            }
        };
        if let RopeKind::Llama3 { low_freq_factor, high_freq_factor, .. } = kind
            && high_freq_factor <= low_freq_factor
        {
            let rule = "high_freq_factor must be above low_freq_factor".to_owned();
            return Err(ConfigError::Relation { field: prefix, rule });
        }
        Ok(RopeConfig { theta, kind })
    }
}

fn object<'a>(field: &str, value: Option<&'a Value>) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
    match value {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(other) => Err(type_error(field, other, "an object")),
    }
}

fn type_error(field: &str, found: &Value, expected: &'static str) -> ConfigError {
    let mut found = found.to_string();
    if found.len() > 40 {
        let cut = (0..=37).rev().find(|&i| found.is_char_boundary(i)).unwrap_or(0);
        found.truncate(cut);
        found.push_str("...");
    }
    ConfigError::Type { field: field.to_owned(), found, expected }
}

fn integer(field: &str, value: &Value, min: u64, max: u64) -> Result<usize, ConfigError> {
    let number = match value.as_u64() {
        Some(n) => n,
        None if value.is_number() => {
            let found = value.as_f64().unwrap_or(f64::NAN);
            return Err(ConfigError::Range { field: field.into(), found, min: min as f64, max: max as f64 });
        }
        None => return Err(type_error(field, value, "a whole number")),
    };
    match usize::try_from(number) {
        Ok(n) if (min..=max).contains(&number) => Ok(n),
        _ => Err(ConfigError::Range {
            field: field.into(),
            found: number as f64,
            min: min as f64,
            max: max as f64,
        }),
    }
}

fn number(field: &str, value: &Value, min: f64, max: f64) -> Result<f64, ConfigError> {
    let found = value.as_f64().ok_or_else(|| type_error(field, value, "a number"))?;
    if (min..=max).contains(&found) {
        Ok(found)
    } else {
        Err(ConfigError::Range { field: field.to_owned(), found, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_in_both_spellings() {
        let check = |json: &str, theta: f64, kind: RopeKind| {
            let config = Config::parse(json.as_bytes()).unwrap();
            assert_eq!(config.rope(10_000.0).unwrap(), RopeConfig { theta, kind }, "{json}");
        };
        let llama3 = RopeKind::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64.0,
        };
        check("{}", 10_000.0, RopeKind::Default);
        check(r#"{"rope_theta": 5e5, "rope_scaling": null}"#, 5e5, RopeKind::Default);
        check(r#"{"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}"#, 1e6, RopeKind::Default);
        check(
            r#"{"rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 2}}"#,
            7.0,
            RopeKind::Linear { factor: 2.0 },
        );
        check(
            r#"{"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}"#,
            5e5,
            llama3.clone(),
        );
        check(
            r#"{"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}"#,
            5e5,
            llama3,
        );
    }

    #[test]
    fn stretched_ropes() {
        let check = |json: &str, kind: RopeKind| {
            let config = Config::parse(json.as_bytes()).unwrap();
            assert_eq!(config.rope(10_000.0).unwrap().kind, kind, "{json}");
        };
        let yarn = |beta_fast, attention_factor| RopeKind::Yarn {
            factor: 4.0,
            beta_fast,
            beta_slow: 1.0,
            original_context: 64.0,
            attention_factor,
            truncate: true,
        };
        check(
            r#"{"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}"#,
            yarn(32.0, 0.1 * 4f64.ln() + 1.0),
        );
        check(
            r#"{"max_position_embeddings": 64, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16,
                "attention_factor": 1.5, "rope_theta": 1e4}}"#,
            yarn(16.0, 1.5),
        );
        let long = |attention_factor| RopeKind::LongRope {
            short: vec![1.0, 1.5],
            long: vec![2.0, 4.0],
            original_context: 4096.0,
            attention_factor,
        };
        check(
            r#"{"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "su", "short_factor": [1, 1.5], "long_factor": [2, 4]}}"#,
            long((1.0 + 32f64.ln() / 4096f64.ln()).sqrt()),
        );
        check(
            r#"{"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096, "attention_factor": 1.0,
                "short_factor": [1, 1.5], "long_factor": [2, 4]}}"#,
            long(1.0),
        );
    }

    #[test]
    fn refusals_name_the_field() {
        let check = |json: &str, expect: &str| {
            let config = Config::parse(json.as_bytes()).unwrap();
            let error = config
                .require_integer("hidden_size", 1, 1 << 20)
                .err()
                .or_else(|| config.rope(1e4).err())
                .or_else(|| config.flag("attention_bias", false).err());
            assert_eq!(error.map(|e| e.to_string()).as_deref(), Some(expect), "{json}");
        };
        check("{}", "`hidden_size` is missing");
        check(r#"{"hidden_size": 0}"#, "`hidden_size` is 0, which is outside 1 to 1048576");
        check(r#"{"hidden_size": -5}"#, "`hidden_size` is -5, which is outside 1 to 1048576");
        check(r#"{"hidden_size": "64"}"#, "`hidden_size` is \"64\", expected a whole number");
        check(
            r#"{"hidden_size": 4, "rope_theta": 0}"#,
            "`rope_theta` is 0, which is outside 1 to 1000000000000",
        );
        check(
            r#"{"hidden_size": 4, "rope_scaling": {"type": "dynamic"}}"#,
            "`rope_scaling.type` `dynamic` is not supported (supported: default, linear, llama3, yarn, longrope)",
        );
        check(
            r#"{"hidden_size": 4, "rope_scaling": {"type": "linear"}}"#,
            "`rope_scaling.factor` is absent, expected a number",
        );
        check(
            r#"{"hidden_size": 4, "rope_scaling": {"type": "longrope", "short_factor": [0]}}"#,
            "`rope_scaling.short_factor` is 0, which is outside 0.000001 to 1000000000",
        );
        check(r#"{"hidden_size": 4, "attention_bias": 1}"#, "`attention_bias` is 1, expected true or false");
    }
}
