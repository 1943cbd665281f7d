//! Mistral: llama with a window on every layer (transformers `modeling_mistral.py`). In later versions the
//! window is null: none.

use super::plan::{self, Plan, SILENT};
use super::{Config, ConfigError, llama};

pub(super) fn plan(config: &Config) -> Result<Plan, ConfigError> {
    llama::whole_heads(config)?;
    let mut plan = Plan::of(config, "mistral", &SILENT)?;
    plan.pairing = llama::pairing(config);
    plan.slide(config, plan::window(config, Some(4096))?, |_| true)?;
    Ok(plan)
}
