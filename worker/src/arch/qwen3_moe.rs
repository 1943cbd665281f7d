//! Qwen3 with a mixture of experts in most or all layers (transformers `modeling_qwen3_moe.py`).
//! The other layers have one gated part of another width.

use super::plan::{self, ExpertPlan, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, qwen3};

pub(super) fn plan(config: &Config) -> Result<Plan, ConfigError> {
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
