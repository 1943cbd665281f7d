//! Qwen3 with a mixture of experts in most or all layers (transformers `modeling_qwen3_moe.py`).
//! The other layers have one gated part of another width.

use serde_json::json;

use super::family::{Family, Form, GgufFamily, Planner};
use super::gguf::keys::{GgufModel, Settings};
use super::plan::{self, ExpertPlan, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, llama, qwen3};

pub(super) const FAMILY: Family = Family {
    class: "Qwen3MoeForCausalLM",
    model_type: Some("qwen3_moe"),
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily { form: Form::Experts, ..GgufFamily::new("qwen3moe", gguf_settings) }),
};

fn gguf_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    llama::gguf_settings(model, settings)?;
    settings.set("num_experts", json!(model.experts));
    settings.set("num_experts_per_tok", json!(model.keys.require_count("expert_used_count")?));
    settings.set("moe_intermediate_size", json!(model.keys.require_count("expert_feed_forward_length")?));
    settings.set("norm_topk_prob", json!(true));
    settings.set("decoder_sparse_step", json!(1));
    Ok(())
}

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    let mut plan = qwen3::of(config, "qwen3moe", &LLAMA_DEFAULTS)?;
    let count = match config.integer("num_experts", 1, 1 << 12)? {
        Some(count) => count,
        None => config.integer("num_local_experts", 1, 1 << 12)?.unwrap_or(128),
    };
    plan.experts = Some(ExpertPlan {
        count,
        used: plan::experts_used(config, count, 8)?,
        hidden_dim: config.integer("moe_intermediate_size", 1, 1 << 22)?.unwrap_or(768),
        renormalise: config.flag("norm_topk_prob", false)?,
        names: ["mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj"],
    });
    let every = config.integer("decoder_sparse_step", 1, 1 << 12)?.unwrap_or(1);
    let plain = config.integers("mlp_only_layers", 1 << 12)?;
    for (index, layer) in plan.layers.iter_mut().enumerate() {
        layer.experts = !plain.contains(&index) && (index + 1).is_multiple_of(every);
    }
    Ok(plan)
}
