//! What a request needs from the scheduler: a model, loaded with enough context.

use std::sync::Arc;

use lode_client::Urgency;
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde_json::{Map, Value};

use super::keep_alive::KeepAlive;

/// The model and the settings that a request needs loaded.
#[derive(Clone, Debug)]
pub struct ModelRequirements {
    pub repository: Repository,
    /// Digest of the manifest.
    pub digest: Digest,
    /// The name as the caller wrote it.
    pub name: String,
    /// Clients take turns when requests wait.
    pub client: Arc<str>,
    /// More urgent requests are served first.
    pub urgency: Urgency,
    /// Context length from the request's options.
    pub num_ctx: Option<usize>,
    /// Tokens of the request's longest sequence, if known beforehand.
    pub sequence_length: Option<usize>,
    pub keep_alive: Option<KeepAlive>,
}

impl ModelRequirements {
    /// The context length that the request needs, if any: its own, or that of the model's parameters.
    pub(super) fn context(&self, params: &Map<String, Value>) -> Option<usize> {
        self.num_ctx.or_else(|| model_context(params)).max(self.sequence_length)
    }
}

/// `num_ctx` from a model's parameters.
pub(super) fn model_context(params: &Map<String, Value>) -> Option<usize> {
    let num_ctx = params.get("num_ctx").and_then(Value::as_u64).filter(|num_ctx| *num_ctx > 0);
    num_ctx.map(|num_ctx| usize::try_from(num_ctx).unwrap_or(usize::MAX))
}
