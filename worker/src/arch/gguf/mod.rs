//! Converts a GGUF's metadata into the config.json of the corresponding checkpoint, so that every family
//! reads one format, and maps its tensor names to that checkpoint's. For the keys see llama.cpp
//! `gguf-py/gguf/constants.py`.

mod names;

use lode_model::gguf::{Array, Header, Metadata, TensorEntry, Value};
use serde_json::{Map, Value as Json, json};

pub use names::{TensorLocation, locate_tensor};

use super::ConfigError;

/// `general.architecture`, `model_type`, the class in `architectures`.
const FAMILIES: [(&str, &str, &str); 8] = [
    ("llama", "llama", "LlamaForCausalLM"),
    ("qwen2", "qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "qwen3", "Qwen3ForCausalLM"),
    ("qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"),
    ("gemma2", "gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "gemma3_text", "Gemma3ForCausalLM"),
    ("phi3", "phi3", "Phi3ForCausalLM"),
    ("bert", "bert", "BertModel"),
];

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

/// Builds the configuration. An unknown architecture keeps its name, so that the error names it.
pub fn config(metadata: &Metadata, contents: &dyn TensorLookup) -> Result<Map<String, Json>, ConfigError> {
    let architecture = metadata.architecture().unwrap_or_default();
    if let Some(kind) = metadata.str("general.type").filter(|kind| *kind != "model") {
        return Err(ConfigError::Unsupported {
            field: "general.type".into(),
            found: format!("`{kind}`"),
            supported: "model",
        });
    }
    let keys = Keys { metadata, architecture };
    let family = FAMILIES.iter().find(|(name, ..)| *name == architecture);
    let Some((_, model_type, class)) = family else {
        return Ok(object(json!({"model_type": architecture, "architectures": [architecture]})));
    };
    let experts = keys.count("expert_count")?.unwrap_or(0);
    let (model_type, class) = match (architecture, experts) {
        ("llama", 1..) => ("mixtral", "MixtralForCausalLM"),
        _ => (*model_type, *class),
    };
    let width = keys.require_count("embedding_length")?;
    let heads = keys.require_count("attention.head_count")?;
    let head_dim = match keys.count("attention.key_length")? {
        Some(head_dim) => head_dim,
        None => width.checked_div(heads).unwrap_or(0),
    };
    if let Some(value_length) = keys.count("attention.value_length")?
        && value_length != head_dim
    {
        let field = keys.name("attention.value_length");
        let found = format!("{value_length}, and keys have {head_dim}");
        return Err(ConfigError::Unsupported { field, found, supported: "the length of keys" });
    }
    let context = keys.require_count("context_length")?;
    let mut config = object(json!({
        "model_type": model_type,
        "architectures": [class],
        "hidden_size": width,
        "intermediate_size": keys.count("feed_forward_length")?,
        "num_hidden_layers": keys.require_count("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "vocab_size": keys.vocabulary(contents)?,
        "tie_word_embeddings": contents.shape("output.weight").is_none(),
    }));
    let mut set = |key: &str, value: Json| config.insert(key.to_owned(), value);
    if architecture == "bert" {
        set("layer_norm_eps", json!(keys.require_float("attention.layer_norm_epsilon")?));
        set("type_vocab_size", json!(contents.shape("token_types.weight").and_then(|s| s.first().copied())));
        set("hidden_act", json!("gelu"));
        return Ok(config);
    }
    set("rms_norm_eps", json!(keys.require_float("attention.layer_norm_rms_epsilon")?));
    let rotated = keys.count("rope.dimension_count")?.unwrap_or(head_dim);
    if rotated != head_dim {
        // Slightly more than the share, since the product with the head size is rounded down.
        set("partial_rotary_factor", json!((rotated as f64 + 0.01) / head_dim as f64));
    }
    let window = keys.count("attention.sliding_window")?.filter(|window| *window > 0);
    match model_type {
        "gemma2" | "gemma3_text" => {
            set("hidden_activation", json!("gelu_pytorch_tanh"));
            set("sliding_window", json!(window));
            // The largest model of each family scales scores by its width per head, the others by the head
            // size.
            let largest = if model_type == "gemma2" { 46 } else { 62 };
            let is_largest = keys.require_count("block_count")? == largest;
            let scaled = if is_largest { width.checked_div(heads).unwrap_or(0) } else { head_dim };
            set("query_pre_attn_scalar", json!(scaled));
        }
        _ => {
            set("hidden_act", json!("silu"));
        }
    }
    match model_type {
        "gemma2" => {
            set("attn_logit_softcapping", json!(keys.float("attn_logit_softcapping")?));
            set("final_logit_softcapping", json!(keys.float("final_logit_softcapping")?));
        }
        "gemma3_text" => {
            set("rope_local_base_freq", json!(keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0)));
            match keys.get("attention.sliding_window_pattern").and_then(Value::as_array) {
                // A flag per layer: whether it uses a sliding window.
                Some(Array::Bool(slides)) => {
                    let types = slides.iter().map(|slides| match slides {
                        true => "sliding_attention",
                        false => "full_attention",
                    });
                    set("layer_types", types.collect());
                }
                _ => {
                    let pattern = keys.count("attention.sliding_window_pattern")?.unwrap_or(6);
                    set("sliding_window_pattern", json!(pattern));
                }
            }
        }
        "phi3" => {
            set("sliding_window", json!(window));
        }
        "mixtral" => {
            set("num_local_experts", json!(experts));
            set("num_experts_per_tok", json!(keys.require_count("expert_used_count")?));
        }
        "qwen3_moe" => {
            set("num_experts", json!(experts));
            set("num_experts_per_tok", json!(keys.require_count("expert_used_count")?));
            set("moe_intermediate_size", json!(keys.require_count("expert_feed_forward_length")?));
            set("norm_topk_prob", json!(true));
            set("decoder_sparse_step", json!(1));
        }
        _ => {}
    }
    let theta = keys.float("rope.freq_base")?.unwrap_or(10_000.0);
    set("rope_theta", json!(theta));
    let original = keys.count("rope.scaling.original_context_length")?;
    if let Some(original) = original {
        set("original_max_position_embeddings", json!(original));
    }
    set("rope_scaling", keys.rope_scaling(contents, original.unwrap_or(context))?);
    Ok(config)
}

fn object(value: Json) -> Map<String, Json> {
    if let Json::Object(map) = value { map } else { Map::new() }
}

/// The metadata keys of the architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&self.name(key))
    }

    fn absent(&self, key: &str) -> ConfigError {
        ConfigError::Type { field: self.name(key), found: "absent".into(), expected: "a number" }
    }

    /// A number, or a list with the same number for every layer.
    fn count(&self, key: &str) -> Result<Option<u64>, ConfigError> {
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

    fn require_count(&self, key: &str) -> Result<u64, ConfigError> {
        self.count(key)?.ok_or_else(|| self.absent(key))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(key, value, "a number"))
    }

    fn require_float(&self, key: &str) -> Result<f64, ConfigError> {
        self.float(key)?.ok_or_else(|| self.absent(key))
    }

    fn wrong(&self, key: &str, value: &Value, expected: &'static str) -> ConfigError {
        let found = value.to_json().to_string().chars().take(40).collect();
        ConfigError::Type { field: self.name(key), found, expected }
    }

    /// Rows of the embedding: from the key, else the number of tokens, else from the tensor.
    fn vocabulary(&self, contents: &dyn TensorLookup) -> Result<Option<u64>, ConfigError> {
        if let Some(size) = self.count("vocab_size")? {
            return Ok(Some(size));
        }
        let tokens = self.metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
        let rows = || contents.shape("token_embd.weight").and_then(|shape| shape.first().copied());
        Ok(tokens.map(|tokens| tokens.len() as u64).or_else(rows))
    }

    /// Factors in tensors become `longrope`, which is one divisor for each frequency.
    fn rope_scaling(&self, contents: &dyn TensorLookup, original: u64) -> Result<Json, ConfigError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A model without tables.
    struct Plain;

    impl TensorLookup for Plain {
        fn shape(&self, name: &str) -> Option<Vec<u64>> {
            (name == "token_embd.weight").then(|| vec![320, 64])
        }

        fn table(&self, _: &str) -> Result<Option<Vec<f32>>, ConfigError> {
            Ok(None)
        }
    }

    struct Tables;

    impl TensorLookup for Tables {
        fn shape(&self, _: &str) -> Option<Vec<u64>> {
            None
        }

        fn table(&self, name: &str) -> Result<Option<Vec<f32>>, ConfigError> {
            Ok((name == "rope_freqs.weight").then(|| vec![1.0, 8.0]))
        }
    }

    fn metadata(architecture: &str, more: &[(&str, Value)]) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", architecture);
        for (key, value) in [
            ("embedding_length", Value::U32(64)),
            ("block_count", Value::U64(2)),
            ("attention.head_count", Value::Array(Array::U32(vec![4, 4]))),
            ("context_length", Value::I32(512)),
            ("feed_forward_length", Value::U16(128)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ] {
            metadata.set(format!("{architecture}.{key}"), value);
        }
        for (key, value) in more {
            metadata.set(*key, value.clone());
        }
        metadata
    }

    #[test]
    fn a_llama() {
        let config = config(&metadata("llama", &[]), &Plain).unwrap();
        for (key, expect) in [
            ("model_type", json!("llama")),
            ("hidden_size", json!(64)),
            ("num_attention_heads", json!(4)),
            ("num_key_value_heads", json!(4)),
            ("head_dim", json!(16)),
            ("vocab_size", json!(320)),
            ("tie_word_embeddings", json!(true)),
            ("rope_theta", json!(10_000.0)),
            ("rope_scaling", Json::Null),
        ] {
            assert_eq!(config[key], expect, "{key}");
        }
        let stretched = super::config(&metadata("llama", &[]), &Tables).unwrap();
        assert_eq!(stretched["rope_scaling"]["long_factor"], json!([1.0, 8.0]));
        assert_eq!(stretched["rope_scaling"]["attention_factor"], json!(1.0));
    }

    #[test]
    fn experts_make_a_mixtral() {
        let more = [("llama.expert_count", Value::U32(8)), ("llama.expert_used_count", Value::U32(2))];
        let config = config(&metadata("llama", &more), &Plain).unwrap();
        assert_eq!((&config["model_type"], &config["num_local_experts"]), (&json!("mixtral"), &json!(8)));
    }

    #[test]
    fn layers_that_slide() {
        let more = [
            ("gemma3.attention.sliding_window", Value::U32(64)),
            ("gemma3.attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true, false]))),
        ];
        let config = config(&metadata("gemma3", &more), &Plain).unwrap();
        assert_eq!(config["layer_types"], json!(["sliding_attention", "full_attention"]));
        assert_eq!((&config["sliding_window"], &config["query_pre_attn_scalar"]), (&json!(64), &json!(16)));
    }

    #[test]
    fn yarn_has_the_whole_factor() {
        let more = [
            ("qwen2.rope.scaling.type", Value::from("yarn")),
            ("qwen2.rope.scaling.factor", Value::F32(4.0)),
            ("qwen2.rope.scaling.attn_factor", Value::F32(2.0)),
        ];
        let config = config(&metadata("qwen2", &more), &Plain).unwrap();
        let factor = config["rope_scaling"]["attention_factor"].as_f64().unwrap();
        assert!((factor - 2.0 * (1.0 + 0.1 * 4f64.ln())).abs() < 1e-9);
        assert_eq!(config["rope_scaling"]["original_max_position_embeddings"], json!(512));
    }

    #[test]
    fn errors_name_the_key() {
        let check = |more: &[(&str, Value)], expect: &str| {
            let error = config(&metadata("llama", more), &Plain).unwrap_err().to_string();
            assert_eq!(error, expect);
        };
        let per_layer = Value::Array(Array::U32(vec![4, 8]));
        check(
            &[("llama.attention.head_count", per_layer)],
            "`llama.attention.head_count` different for some layers is not supported (supported: one for all layers)",
        );
        check(
            &[("llama.block_count", Value::F32(2.0))],
            "`llama.block_count` is 2.0, expected a whole number",
        );
        check(
            &[("general.type", Value::from("adapter"))],
            "`general.type` `adapter` is not supported (supported: model)",
        );
        check(
            &[("llama.rope.scaling.type", Value::from("spiral"))],
            "`llama.rope.scaling.type` `spiral` is not supported (supported: none, linear, yarn, longrope)",
        );
        let mut without = metadata("llama", &[]);
        without.remove("llama.context_length");
        let error = config(&without, &Plain).unwrap_err().to_string();
        assert_eq!(error, "`llama.context_length` is absent, expected a number");
        let unknown = config(&metadata("mamba", &[]), &Plain).unwrap();
        assert_eq!(unknown["architectures"], json!(["mamba"]));
    }
}
