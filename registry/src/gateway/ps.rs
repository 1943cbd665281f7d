//! `GET /api/ps`: the loaded models of all workers, as one list.
//! A worker that does not respond in time is left out.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use futures::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Gateway;
use super::forward::address;
use crate::Registry;
use crate::api::model_name;
use crate::app::Worker;
use crate::auth::Caller;
use crate::http::{Failure, Json, Links, Query, page};

/// The maximum size of a page.
const MAX_PAGE: u64 = 1000;

const WORKER_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct PsResponse {
    #[serde(default)]
    models: Vec<Value>,
}

/// `GET /api/ps`: all of them, with the names that `/api/tags` lists.
pub(crate) async fn ps_for_ollama(
    State(registry): State<Registry>,
    caller: Caller,
) -> Result<Json<Value>, Failure> {
    let mut models = loaded(&registry, &caller).await?;
    for model in &mut models {
        for field in ["name", "model"] {
            if let Some(name) = model.get_mut(field)
                && let Some(bare) = name.as_str().and_then(model_name::ollama_name_with_tag)
            {
                *name = bare.into();
            }
        }
    }
    Ok(Json(json!({ "models": models })))
}

/// `GET /lode/v1/ps`: the same in pages, with full names. `last` is the position of the previous page's last
/// entry, from 0.
pub(crate) async fn ps_page(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.number("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let from = query.number("last")?.map_or(0, |last| last.saturating_add(1));
    let skipped = usize::try_from(from).unwrap_or(usize::MAX);
    let mut models: Vec<Value> = loaded(&registry, &caller).await?.into_iter().skip(skipped).collect();
    let more = models.len() as u64 > n;
    models.truncate(n as usize);
    let last = (from + models.len() as u64).saturating_sub(1).to_string();
    let next = more.then(|| links.next("/lode/v1/ps", &[("n", &n.to_string()), ("last", &last)]));
    Ok(page(Json(json!({ "models": models })), next))
}

/// The loaded models of all workers, sorted by expiry, the latest first.
async fn loaded(registry: &Registry, caller: &Caller) -> Result<Vec<Value>, Failure> {
    let workers = registry.worker_list(caller).await?;
    let answers = join_all(workers.iter().map(|worker| loaded_by(registry.gateway(), worker))).await;
    let mut models: Vec<Value> = answers.into_iter().flatten().flat_map(|loaded| loaded.models).collect();
    // Sorts as text, because RFC 3339 times in one zone sort like times.
    models.sort_by(|a, b| b["expires_at"].as_str().cmp(&a["expires_at"].as_str()));
    Ok(models)
}

async fn loaded_by(gateway: &Gateway, worker: &Worker) -> Option<PsResponse> {
    let request = gateway.client.get(address(&worker.advertise, "/api/ps")).bearer_auth(&worker.secret);
    let answer = request.timeout(WORKER_TIMEOUT).send().await.ok()?.error_for_status().ok()?;
    serde_json::from_slice(&answer.bytes().await.ok()?).ok()
}
