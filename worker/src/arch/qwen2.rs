//! Qwen2 and 2.5: llama with biases on q, k and v (transformers `modeling_qwen2.py`). A window applies only
//! if the configuration enables it, starting at a given layer.

use super::family::{Family, GgufFamily, Planner};
use super::plan::{self, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, llama};

pub(super) const FAMILY: Family = Family {
    class: "Qwen2ForCausalLM",
    model_type: Some("qwen2"),
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily::new("qwen2", llama::gguf_settings)),
};

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    llama::refuse_partial_rotation(config)?;
    let mut plan = Plan::of(config, "qwen2", &LLAMA_DEFAULTS)?;
    plan.qkv_bias = Some(true);
    plan.out_bias = Some(false);
    plan.mlp_bias = Some(false);
    set_sliding_windows(config, &mut plan)?;
    Ok(plan)
}

/// Sets Qwen's sliding windows.
pub(super) fn set_sliding_windows(config: &Config, plan: &mut Plan) -> Result<(), ConfigError> {
    if !config.flag("use_sliding_window", false)? {
        return Ok(());
    }
    let first = config.integer("max_window_layers", 0, 1 << 32)?.unwrap_or(28);
    plan.set_layer_windows(config, plan::window(config, Some(4096))?, |layer| layer >= first)
}
