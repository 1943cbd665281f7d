//! `GET /api/tags`: the models, newest first, in ollama's format.
//! Repositories that ollama's clients cannot name are left out.

use std::cmp::Reverse;
use std::collections::HashSet;

use axum::extract::State;
use serde::Serialize;

use super::Details;
use crate::Registry;
use crate::app::TaggedModel;
use crate::auth::Caller;
use crate::http::model_name::ollama_name;
use crate::http::{Failure, Json};
use crate::time::rfc3339;

#[derive(Serialize)]
pub(crate) struct Tags {
    models: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    model: String,
    modified_at: String,
    size: u64,
    /// Hexadecimal, without the algorithm.
    digest: String,
    details: Details,
}

pub(crate) async fn list(State(registry): State<Registry>, caller: Caller) -> Result<Json<Tags>, Failure> {
    let mut models = registry.model_list_all(&caller).await?;
    models.sort_by_key(|model| Reverse(model.modified_at));
    // If both spellings of a name have a tag, reads find the one without the namespace.
    let bare: HashSet<String> = models
        .iter()
        .filter(|model| !model.repository.as_str().contains('/'))
        .map(|model| format!("{}:{}", model.repository, model.tag))
        .collect();
    let entry = |model: TaggedModel| {
        let name = format!("{}:{}", ollama_name(&model.repository)?, model.tag);
        let is_hidden = model.repository.as_str().contains('/') && bare.contains(&name);
        (!is_hidden).then(|| Entry::new(name, &model))
    };
    Ok(Json(Tags { models: models.into_iter().filter_map(entry).collect() }))
}

impl Entry {
    fn new(name: String, model: &TaggedModel) -> Entry {
        // A model that is not indexed yet is listed without details, because it can already be used.
        let summary = model.summary().cloned().unwrap_or_default();
        Entry {
            model: name.clone(),
            name,
            modified_at: rfc3339(model.modified_at),
            size: summary.size_bytes,
            digest: model.digest.hex().to_owned(),
            details: Details::new(&summary, None),
        }
    }
}
