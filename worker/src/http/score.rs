//! `POST /lode/v1/score`: log-probabilities of given ids, for perplexity and for comparing engines.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::Api;
use super::request::{ModelRequest, run_with_model};
use super::response::json_response;
use crate::error::Error;
use crate::runner::protocol::{ScoreRequest, WindowScores};
use crate::scheduler::{KeepAlive, ModelRequirements};

/// The same limit as for generated ids.
const MAX_TOP: usize = 20;

#[derive(Deserialize)]
pub(super) struct Body {
    windows: Vec<Vec<u32>>,
    keep_alive: Option<KeepAlive>,
    /// Whether to return every log-probability, in addition to the sums.
    logprobs: Option<bool>,
    /// How many of the likeliest ids to return at each position.
    top_logprobs: Option<usize>,
}

/// A window of n ids has n - 1 scores: one for each id after the first, given the ids before it in the
/// window.
pub(super) async fn score(State(api): State<Api>, request: ModelRequest<Body>) -> Result<Response, Error> {
    let longest = request.body.windows.iter().map(|window| window.len().saturating_sub(1)).max();
    let wanted =
        ModelRequirements { sequence_length: longest, ..request.wanted(None, request.body.keep_alive) };
    let with_logprobs = request.body.logprobs.unwrap_or(true);
    let top = request.body.top_logprobs.unwrap_or(0);
    if top > MAX_TOP {
        return Err(Error::Invalid(format!("top_logprobs must be between 0 and {MAX_TOP}")));
    }
    let score_request = &ScoreRequest { windows: request.body.windows, top };
    let scores = run_with_model(&api, wanted, move |ticket| {
        Box::pin(async move { Ok(ticket.model().client().score(score_request).await?) })
    })
    .await?;
    let sum = |window: &WindowScores| {
        let nll: f64 = window.logprobs.iter().map(|&logprob| -f64::from(logprob)).sum();
        json!({"nll": nll, "tokens": window.logprobs.len()})
    };
    let windows: Vec<_> = scores.windows.iter().map(sum).collect();
    let mut response = json!({"model": request.name, "windows": windows});
    if with_logprobs {
        response["logprobs"] = scores.windows.iter().map(|window| json!(window.logprobs)).collect();
    }
    if top > 0 {
        response["top_logprobs"] = scores.windows.iter().map(|window| json!(window.top)).collect();
    }
    Ok(json_response(StatusCode::OK, &response))
}
