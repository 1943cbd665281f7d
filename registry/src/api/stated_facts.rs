//! What a model's card, its annotations and its configuration state, in JSON.

use serde::Serialize;
use utoipa::ToSchema;

use crate::app::ModelFacts;

/// What the client that pushed a model states of it.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct StatedFacts {
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// An SPDX identifier where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    license: Option<String>,
    /// Such as `text-generation`.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    /// In tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u64>,
    /// Names of the models that it was made from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bases: Vec<String>,
}

impl From<ModelFacts> for StatedFacts {
    fn from(facts: ModelFacts) -> StatedFacts {
        let ModelFacts { title, description, license, task, context_length, bases, .. } = facts;
        StatedFacts { title, description, license, task, context_length, bases }
    }
}
