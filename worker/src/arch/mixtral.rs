//! Mixtral: mistral with a mixture of experts in every layer (transformers `modeling_mixtral.py`). The router
//! weights of a token's experts are scaled to a sum of 1.

use serde_json::json;

use super::family::{Family, Form, GgufFamily, Planner};
use super::gguf::keys::{GgufModel, Settings};
use super::plan::{self, ExpertPlan, FamilyDefaults, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, llama};

/// In GGUF files it is a llama with experts.
pub(super) const FAMILY: Family = Family {
    class: "MixtralForCausalLM",
    model_type: Some("mixtral"),
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily { form: Form::Experts, ..GgufFamily::new("llama", gguf_settings) }),
};

fn gguf_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    llama::gguf_settings(model, settings)?;
    settings.set("num_local_experts", json!(model.experts));
    settings.set("num_experts_per_tok", json!(model.keys.require_count("expert_used_count")?));
    Ok(())
}

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    llama::refuse_partial_rotation(config)?;
    let silent = FamilyDefaults { theta: 1e6, norm_eps: 1e-5, ..LLAMA_DEFAULTS };
    let mut plan = Plan::of(config, "mixtral", &silent)?;
    plan.pairing = llama::row_pairing(config);
    plan.set_layer_windows(config, plan::window(config, None)?, |_| true)?;
    let count = config.integer("num_local_experts", 1, 1 << 12)?.unwrap_or(8);
    plan.experts = Some(ExpertPlan {
        count,
        used: plan::experts_used(config, count, 2)?,
        hidden_dim: plan.shape.hidden_dim,
        renormalise: true,
        names: ["block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"],
    });
    plan.layers.iter_mut().for_each(|layer| layer.experts = true);
    Ok(plan)
}
