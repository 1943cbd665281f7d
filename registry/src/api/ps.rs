//! `GET /api/ps`: the loaded models of all workers, as one list.
//! A worker that does not respond in time is left out.

use axum::extract::State;
use axum::response::Response;
use futures::future::join_all;
use lode_model::reference::Name;
use serde::Serialize;
use serde_json::Value;

use crate::auth::{Action, Caller, Target};
use crate::http::model_name;
use crate::http::state::ServerState;
use crate::http::{self, Failure, Json, Links, Query};

/// The maximum size of a page.
const MAX_PAGE: u64 = 1000;

/// Loaded models, those that are unloaded last first.
#[derive(Serialize)]
pub(crate) struct LoadedModels {
    /// As the workers describe them.
    models: Vec<Value>,
}

/// `GET /api/ps`: all of them, with the names that `/api/tags` lists.
pub(crate) async fn list(
    State(server): State<ServerState>,
    caller: Caller,
) -> Result<Json<LoadedModels>, Failure> {
    let mut models = loaded(&server, &caller).await?;
    for model in &mut models {
        for field in ["name", "model"] {
            if let Some(name) = model.get_mut(field)
                && let Some(bare) = name.as_str().and_then(model_name::ollama_name_with_tag)
            {
                *name = bare.into();
            }
        }
    }
    Ok(Json(LoadedModels { models }))
}

/// `GET /lode/v1/ps`: the same in pages, with full names. `last` is the position of the previous page's last
/// entry, from 0.
pub(crate) async fn page(
    State(server): State<ServerState>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.number("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let from = query.number("last")?.map_or(0, |last| last.saturating_add(1));
    let skipped = usize::try_from(from).unwrap_or(usize::MAX);
    let mut models: Vec<Value> = loaded(&server, &caller).await?.into_iter().skip(skipped).collect();
    let more = models.len() as u64 > n;
    models.truncate(n as usize);
    let last = (from + models.len() as u64).saturating_sub(1).to_string();
    let next = more.then(|| links.next("/lode/v1/ps", &[("n", &n.to_string()), ("last", &last)]));
    Ok(http::page(Json(LoadedModels { models }), next))
}

/// The loaded models of all workers that the caller may run, sorted by expiry, the latest first.
async fn loaded(server: &ServerState, caller: &Caller) -> Result<Vec<Value>, Failure> {
    server.registry.authorize(caller, Action::List, Target::Catalog).await?;
    let workers = server.registry.worker_list(&Caller::INTERNAL).await?;
    let listings = join_all(workers.iter().map(|worker| server.gateway.loaded_models(worker))).await;
    let mut models: Vec<Value> = Vec::new();
    for model in listings.into_iter().flatten().flatten() {
        let name = model["name"].as_str().and_then(|name| name.parse::<Name>().ok());
        let may_run = match name {
            Some(name) => server.registry.may(caller, Action::Infer, &name.repository).await?,
            None => false,
        };
        if may_run {
            models.push(model);
        }
    }
    // Sorts as text, because RFC 3339 times in one zone sort like times.
    models.sort_by(|a, b| b["expires_at"].as_str().cmp(&a["expires_at"].as_str()));
    Ok(models)
}
