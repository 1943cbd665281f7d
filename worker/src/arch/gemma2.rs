//! Gemma 2: embeddings scaled by the square root of the width, norms before and after each part, GELU, capped
//! scores and logits, alternating layers with a sliding window and with full attention (transformers
//! `modeling_gemma2.py`).

use serde_json::json;

use super::family::{Family, GgufFamily, Planner};
use super::gguf::keys::{GgufModel, Settings};
use super::plan::{self, FamilyDefaults, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, Container, llama};
use lode_kernels::Activation;

pub(super) const FAMILY: Family = Family {
    class: "Gemma2ForCausalLM",
    model_type: Some("gemma2"),
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily { has_post_norms: true, ..GgufFamily::new("gemma2", gguf_settings) }),
};

/// Number of layers of the largest model of the family.
const MAX_LAYERS: u64 = 46;

fn gguf_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    set_common_settings(model, settings, MAX_LAYERS)?;
    settings.set("attn_logit_softcapping", json!(model.keys.float("attn_logit_softcapping")?));
    settings.set("final_logit_softcapping", json!(model.keys.float("final_logit_softcapping")?));
    Ok(())
}

/// Sets the settings shared with Gemma 3. The largest model of each family, with this number of layers,
/// scales scores by its width per head, the others by the head size.
pub(super) fn set_common_settings(
    model: &GgufModel<'_>,
    settings: &mut Settings,
    max_layers: u64,
) -> Result<(), ConfigError> {
    settings.set("hidden_activation", json!("gelu_pytorch_tanh"));
    settings.set("sliding_window", json!(model.window));
    let is_largest = model.keys.require_count("block_count")? == max_layers;
    let width_per_head = model.width.checked_div(model.heads).unwrap_or(0);
    let scaled = if is_largest { width_per_head } else { model.head_dim };
    settings.set("query_pre_attn_scalar", json!(scaled));
    Ok(())
}

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    let mut plan = of(config, "gemma2", &FamilyDefaults { context_length: 8192, ..LLAMA_DEFAULTS })?;
    // Layers 0, 2, 4 and so on use a sliding window.
    plan.set_layer_windows(config, plan::window(config, Some(4096))?, |layer| layer.is_multiple_of(2))?;
    Ok(plan)
}

/// The part shared with Gemma 3.
pub(super) fn of(
    config: &Config,
    architecture: &'static str,
    silent: &FamilyDefaults,
) -> Result<Plan, ConfigError> {
    llama::refuse_partial_rotation(config)?;
    let silent = FamilyDefaults { head_dim: Some(256), tied: true, ..*silent };
    let mut plan = Plan::of(config, architecture, &silent)?;
    // A checkpoint stores its norm weights minus 1.
    plan.norm_plus = match config.container() {
        Container::Checkpoint => 1.0,
        Container::Gguf => 0.0,
    };
    plan.embedding_scale = (plan.shape.embedding_length as f32).sqrt();
    let scalar = config.number("query_pre_attn_scalar", 256.0, 1e-3, 1e9)?;
    plan.attention_scale = (scalar as f32).powf(-0.5);
    plan.attention_cap = plan::soft_cap(config, "attn_logit_softcapping")?;
    plan.logits_cap = plan::soft_cap(config, "final_logit_softcapping")?;
    plan.post_norms = true;
    // The default, also when an older file names another activation in `hidden_act`.
    if config.text("hidden_activation")?.is_none() {
        plan.activation = Activation::GeluTanh;
    }
    Ok(plan)
}
