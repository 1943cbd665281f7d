//! Qwen3: an explicit head size, a norm of each head of q and k before the rotation, and no biases
//! (transformers `modeling_qwen3.py`).

use super::family::{Family, GgufFamily, Planner};
use super::plan::{FamilyDefaults, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, llama, qwen2};

pub(super) const FAMILY: Family = Family {
    class: "Qwen3ForCausalLM",
    model_type: Some("qwen3"),
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily::new("qwen3", llama::gguf_settings)),
};

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    of(config, "qwen3", &FamilyDefaults { head_dim: Some(128), ..LLAMA_DEFAULTS })
}

/// The part shared with the mixture-of-experts models.
pub(super) fn of(
    config: &Config,
    architecture: &'static str,
    silent: &FamilyDefaults,
) -> Result<Plan, ConfigError> {
    llama::refuse_partial_rotation(config)?;
    let mut plan = Plan::of(config, architecture, silent)?;
    plan.head_norms = true;
    plan.mlp_bias = Some(false);
    qwen2::set_sliding_windows(config, &mut plan)?;
    Ok(plan)
}
