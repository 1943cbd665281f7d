//! JSON for programs: our own API under `/lode/v1`, what ollama's and OpenAI's clients ask of a model list, and the operators' probes.
//! What a model has to answer goes through `gateway`.

pub(crate) mod blobs;
pub(crate) mod copy;
pub(crate) mod diff;
pub(crate) mod error;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod maintenance;
pub(crate) mod model_name;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod webhooks;
pub(crate) mod workers;

/// The longest page of a listing.
const MAX_PAGE: u32 = 1000;
