//! Converts a GGUF's metadata into the config.json of the corresponding checkpoint, so that every family
//! reads one format, and maps its tensor names to that checkpoint's. For the keys see llama.cpp
//! `gguf-py/gguf/constants.py`.

pub(super) mod keys;
mod names;

use lode_model::gguf::Metadata;
use serde_json::{Map, Value as Json, json};

pub use keys::TensorLookup;
pub use names::{TensorLocation, locate_tensor};

use self::keys::{GgufModel, Keys, Settings, object};
use super::ConfigError;
use super::families;
use super::family::{Form, GgufFamily, Planner};

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
    let variants: Vec<_> = families::of_gguf(architecture).collect();
    let Some(first) = variants.first() else {
        return Ok(object(json!({"model_type": architecture, "architectures": [architecture]})));
    };
    let experts = keys.count("expert_count")?.unwrap_or(0);
    let form = match contents.shape("cls.output.weight") {
        Some(_) => Form::Classifier,
        None if experts > 0 => Form::Experts,
        None => Form::Plain,
    };
    let fits = |gguf: &GgufFamily| gguf.form == form;
    let (family, gguf) = variants.iter().find(|(_, gguf)| fits(gguf)).unwrap_or(first);
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
    let mut settings = Settings(object(json!({
        "model_type": family.model_type,
        "architectures": [family.class],
        "hidden_size": width,
        "intermediate_size": keys.count("feed_forward_length")?,
        "num_hidden_layers": keys.require_count("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "vocab_size": keys.vocabulary(contents)?,
        "tie_word_embeddings": contents.shape("output.weight").is_none(),
    })));
    let model = GgufModel { keys, contents, width, heads, head_dim, experts, window: None };
    match family.planner {
        Planner::Encoder(_) => (gguf.settings)(&model, &mut settings)?,
        Planner::Decoder(_) => {
            settings.set("rms_norm_eps", json!(keys.require_float("attention.layer_norm_rms_epsilon")?));
            let rotated = keys.count("rope.dimension_count")?.unwrap_or(head_dim);
            if rotated != head_dim {
                // Slightly more than the share, since the product with the head size is rounded down.
                settings.set("partial_rotary_factor", json!((rotated as f64 + 0.01) / head_dim as f64));
            }
            let window = keys.count("attention.sliding_window")?.filter(|window| *window > 0);
            (gguf.settings)(&GgufModel { window, ..model }, &mut settings)?;
        }
    }
    settings.set("rope_theta", json!(keys.float("rope.freq_base")?.unwrap_or(10_000.0)));
    let original = keys.count("rope.scaling.original_context_length")?;
    if let Some(original) = original {
        settings.set("original_max_position_embeddings", json!(original));
    }
    settings.set("rope_scaling", keys.rope_scaling(contents, original.unwrap_or(context))?);
    Ok(settings.0)
}

#[cfg(test)]
mod tests {
    use lode_model::gguf::{Array, Value};

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
