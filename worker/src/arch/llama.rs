//! The llama family: grouped-query attention with rotary halves, RMS norms, SwiGLU.
//! Covers Llama 1 to 3.x, with biases and tied embeddings.

use serde_json::json;

use super::family::{Family, GgufFamily, Planner};
use super::gguf::keys::{GgufModel, Settings};
use super::plan::{LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, Container};
use lode_kernels::Pairing;

pub(super) const FAMILY: Family = Family {
    class: "LlamaForCausalLM",
    model_type: Some("llama"),
    planner: Planner::Decoder(plan),
    gguf: Some(GgufFamily::new("llama", gguf_settings)),
};

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    refuse_partial_rotation(config)?;
    let mut plan = Plan::of(config, "llama", &LLAMA_DEFAULTS)?;
    plan.pairing = row_pairing(config);
    Ok(plan)
}

/// The settings of a family with llama's activation and no others.
pub(super) fn gguf_settings(_: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    settings.set("hidden_act", json!("silu"));
    Ok(())
}

/// The order of the rows of q and k in this family's files and in those of families with the same GGUF
/// architecture.
pub(super) fn row_pairing(config: &Config) -> Pairing {
    match config.container() {
        Container::Checkpoint => Pairing::Halves,
        Container::Gguf => Pairing::Adjacent,
    }
}

/// Refuses partial rotation of heads, which the reference code of these families does not support.
pub(super) fn refuse_partial_rotation(config: &Config) -> Result<(), ConfigError> {
    let share = config.number("partial_rotary_factor", 1.0, 0.0, 1.0)?;
    if share == 1.0 {
        return Ok(());
    }
    let (field, found) = ("partial_rotary_factor".to_owned(), share.to_string());
    Err(ConfigError::Unsupported { field, found, supported: "1" })
}
