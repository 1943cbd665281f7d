//! Phi3 and Phi 4: llama with q, k and v in one matrix and gate and up in another, optional partial rotation
//! of heads, and a window on every layer (transformers `modeling_phi3.py`).

use serde_json::json;

use super::family::{Family, GgufFamily, Planner};
use super::gguf::keys::{GgufModel, Settings};
use super::plan::{self, FamilyDefaults, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, llama};

pub(super) const FAMILY: Family = Family {
    class: "Phi3ForCausalLM",
    model_type: Some("phi3"),
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily::new("phi3", gguf_settings)),
};

fn gguf_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    llama::gguf_settings(model, settings)?;
    settings.set("sliding_window", json!(model.window));
    Ok(())
}

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    let mut plan = Plan::of(config, "phi3", &FamilyDefaults { norm_eps: 1e-5, ..LLAMA_DEFAULTS })?;
    plan.fused = true;
    plan.out_bias = Some(false);
    plan.mlp_bias = Some(false);
    plan.set_layer_windows(config, plan::window(config, None)?, |_| true)?;
    Ok(plan)
}
