//! Gemma 3: Gemma 2 with norms of the heads of q and k. One layer in six has full attention and a larger RoPE
//! theta (transformers `modeling_gemma3.py`).

use super::plan::{self, FamilyDefaults, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, RopeConfig, RopeKind, gemma2};

/// The text part of a multimodal model. Its configuration has only the values that differ from the defaults.
pub(super) fn plan_multimodal(config: &Config) -> Result<Plan, ConfigError> {
    plan(&config.nested_config("text_config")?)
}

pub(super) fn plan(config: &Config) -> Result<Plan, ConfigError> {
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
    plan.set_layer_windows(config, plan::window(config, Some(4096))?, |layer| {
        !(layer + 1).is_multiple_of(every)
    })?;

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
