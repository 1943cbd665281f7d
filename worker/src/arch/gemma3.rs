//! Gemma 3: Gemma 2 with norms of the heads of q and k. One layer in six has full attention and a larger RoPE
//! theta (transformers `modeling_gemma3.py`). In EmbeddingGemma, tokens also attend to later ones.

use lode_model::gguf::{Array, Value};
use serde_json::json;

use super::family::{Family, GgufFamily, Planner};
use super::gguf::keys::{GgufModel, Settings};
use super::plan::{self, FamilyDefaults, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, RopeConfig, RopeKind, gemma2};

pub(super) const FAMILY: Family = Family {
    class: "Gemma3ForCausalLM",
    model_type: Some("gemma3_text"),
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily { has_post_norms: true, ..GgufFamily::new("gemma3", gguf_settings) }),
};

pub(super) const MULTIMODAL: Family = Family {
    class: "Gemma3ForConditionalGeneration",
    model_type: Some("gemma3"),
    planner: Planner::Decoder(plan_multimodal),
    gguf: None,
};

/// EmbeddingGemma, an encoder.
pub(super) const EMBEDDING: Family = Family {
    class: "Gemma3TextModel",
    model_type: None,
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily {
        has_post_norms: true,
        ..GgufFamily::new("gemma-embedding", gguf_embedding_settings)
    }),
};

/// Number of layers of the largest model of the family.
const MAX_LAYERS: u64 = 62;

fn gguf_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    gemma2::set_common_settings(model, settings, MAX_LAYERS)?;
    let keys = model.keys;
    settings.set("rope_local_base_freq", json!(keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0)));
    match keys.get("attention.sliding_window_pattern").and_then(Value::as_array) {
        // A flag per layer: whether it uses a sliding window.
        Some(Array::Bool(slides)) => {
            let types = slides.iter().map(|slides| match slides {
                true => "sliding_attention",
                false => "full_attention",
            });
            settings.set("layer_types", types.collect());
        }
        _ => {
            let pattern = keys.count("attention.sliding_window_pattern")?.unwrap_or(6);
            settings.set("sliding_window_pattern", json!(pattern));
        }
    }
    Ok(())
}

fn gguf_embedding_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    settings.set("use_bidirectional_attention", json!(true));
    gguf_settings(model, settings)
}

/// The text part of a multimodal model. Its configuration has only the values that differ from the defaults.
fn plan_multimodal(config: &Config) -> Result<Plan, ConfigError> {
    plan(&config.nested_config("text_config")?)
}

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    let silent = FamilyDefaults {
        theta: 1e6,
        heads: Some([8, 4]),
        vocab_size: Some(262_208),
        context_length: 131_072,
        ..LLAMA_DEFAULTS
    };
    let mut plan = gemma2::of(config, "gemma3", &silent)?;
    plan.head_norms = true;
    let every = match config.integer("sliding_window_pattern", 1, 1 << 12)? {
        Some(every) => every,
        None => config.integer("_sliding_window_pattern", 1, 1 << 12)?.unwrap_or(6),
    };
    plan.causal = !config.flag("use_bidirectional_attention", false)?;
    let window = plan::window(config, Some(4096))?;
    let window = match plan.causal {
        true => window,
        // Half of the window is on each side of a token.
        false => window.map(|window| window / 2 + 1),
    };
    plan.set_layer_windows(config, window, |layer| !(layer + 1).is_multiple_of(every))?;

    let local = match config.rope_of_layers("sliding_attention", 10_000.0)? {
        Some(rope) => rope,
        None => {
            let theta = config.number("rope_local_base_freq", 10_000.0, 1.0, 1e12)?;
            RopeConfig { theta, kind: RopeKind::Default }
        }
    };
    if let Some(rope) = config.rope_of_layers("full_attention", 1e6)? {
        plan.ropes = vec![rope];
    }
    plan.ropes.push(local);
    plan.layers.iter_mut().for_each(|layer| layer.rope = usize::from(layer.window.is_some()));
    Ok(plan)
}
