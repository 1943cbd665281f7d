//! `POST /lode/v1/score`: how likely given ids are, for perplexity and for comparing engines.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::Api;
use super::request::{Asked, with_model};
use super::stream;
use crate::error::Error;
use crate::runner::protocol::ScoreRequest;
use crate::scheduler::KeepAlive;

#[derive(Deserialize)]
pub(super) struct Body {
    windows: Vec<Vec<u32>>,
    keep_alive: Option<KeepAlive>,
    /// Whether to answer with every single log-probability, beside the sums.
    logprobs: Option<bool>,
}

/// A window of n ids has n - 1 scores: of each id after the first, given those before it in the window.
pub(super) async fn score(State(api): State<Api>, asked: Asked<Body>) -> Result<Response, Error> {
    let longest = asked.body.windows.iter().map(|window| window.len().saturating_sub(1)).max();
    let wanted = asked.wanted(longest, asked.body.keep_alive);
    let with_logprobs = asked.body.logprobs.unwrap_or(true);
    let request = &ScoreRequest { windows: asked.body.windows };
    let scores = with_model(&api, wanted, move |ticket| {
        Box::pin(async move { Ok(ticket.model().client().score(request).await?) })
    })
    .await?;
    let sum = |window: &Vec<f32>| {
        let nll: f64 = window.iter().map(|&logprob| -f64::from(logprob)).sum();
        json!({"nll": nll, "tokens": window.len()})
    };
    let windows: Vec<_> = scores.logprobs.iter().map(sum).collect();
    let mut answer = json!({"model": asked.name, "windows": windows});
    if with_logprobs {
        answer["logprobs"] = json!(scores.logprobs);
    }
    Ok(stream::json(StatusCode::OK, &answer))
}
