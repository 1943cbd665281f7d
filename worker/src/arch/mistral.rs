//! Mistral: llama with a window on every layer (transformers `modeling_mistral.py`). In later versions the
//! window is null: none.

use super::family::{Family, Planner};
use super::plan::{self, LLAMA_DEFAULTS, Plan};
use super::{Config, ConfigError, llama};

/// In GGUF files it is a llama.
pub(super) const FAMILY: Family = Family {
    class: "MistralForCausalLM",
    model_type: Some("mistral"),
    planner: Planner::Decoder(plan),
    gguf: None,
};

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    llama::refuse_partial_rotation(config)?;
    let mut plan = Plan::of(config, "mistral", &LLAMA_DEFAULTS)?;
    plan.pairing = llama::row_pairing(config);
    plan.set_layer_windows(config, plan::window(config, Some(4096))?, |_| true)?;
    Ok(plan)
}
