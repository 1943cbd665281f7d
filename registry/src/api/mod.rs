//! JSON APIs: our own under `/lode/v1`, the APIs of ollama, OpenAI, Anthropic, Jina and Cohere for their clients,
//! and the operators' probes. Inference requests go through `gateway`.

pub(crate) mod access;
pub(crate) mod anthropic;
pub(crate) mod audit;
pub(crate) mod blobs;
pub(crate) mod cards;
pub(crate) mod connections;
pub(crate) mod copy;
pub(crate) mod diff;
pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod import;
pub(crate) mod inference;
pub(crate) mod jobs;
pub(crate) mod maintenance;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod openapi;
pub(crate) mod ps;
pub(crate) mod publishers;
pub(crate) mod repositories;
pub(crate) mod rerank;
pub(crate) mod rules;
pub(crate) mod search;
mod stated_facts;
pub(crate) mod status;
pub(crate) mod webhooks;
mod worker_chat;
mod worker_records;
pub(crate) mod workers;

/// The maximum size of a page.
const MAX_PAGE: u32 = 1000;
