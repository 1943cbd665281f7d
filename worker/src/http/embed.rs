//! `POST /api/embed`: embeddings of texts.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Api;
use super::generate::merge_options;
use super::options::Options;
use super::request::{ModelRequest, is_json_string, run_with_model};
use super::response::json_response;
use crate::error::Error;
use crate::runner::protocol::{EmbedRequest, EmbedResponse};
use crate::scheduler::KeepAlive;

#[derive(Deserialize)]
pub(super) struct Body {
    input: Option<Box<RawValue>>,
    prompt_name: Option<String>,
    truncate: Option<bool>,
    dimensions: Option<i64>,
    keep_alive: Option<KeepAlive>,
    options: Option<Map<String, Value>>,
}

pub(super) async fn embed(
    State(api): State<Api>,
    mut request: ModelRequest<Body>,
) -> Result<Response, Error> {
    let started = Instant::now();
    let inputs = inputs(request.body.input.take())?;
    let body = &request.body;
    let mut options = Options::default();
    body.options.as_ref().map(|given| options.apply(given)).transpose()?;
    let dimensions = match body.dimensions {
        Some(dimensions) if dimensions < 0 => {
            return Err(Error::Invalid("dimensions must not be negative".into()));
        }
        dimensions => dimensions.and_then(|dimensions| usize::try_from(dimensions).ok()),
    };
    let (prompt_name, truncate) = (body.prompt_name.clone(), body.truncate.unwrap_or(true));
    let embed_request = &EmbedRequest { inputs, prompt_name, truncate, dimensions, num_ctx: None };
    let wanted = request.wanted(options.context(), body.keep_alive);
    if embed_request.inputs.is_empty() {
        let load = api.scheduler.preload(wanted).await.map(|_| started.elapsed())?;
        return embed_response(request.name, EmbedResponse::default(), started, load).await;
    }
    let (embedded, load) = run_with_model(&api, wanted, move |ticket| {
        Box::pin(async move {
            let load = ticket.load_duration();
            let num_ctx = merge_options(&ticket.model().model().params, body.options.as_ref())?.num_ctx;
            let embed_request = EmbedRequest { num_ctx, ..embed_request.clone() };
            let embedded = ticket.model().client().embed(&embed_request).await?;
            ticket.model().metrics().count_tokens(embedded.prompt_tokens, 0, 0);
            Ok((embedded, load))
        })
    })
    .await?;
    embed_response(request.name, embedded, started, load).await
}

/// One text or a list of texts. A single empty text means no inputs, as in ollama.
fn inputs(input: Option<Box<RawValue>>) -> Result<Vec<String>, Error> {
    let invalid = |_| Error::Invalid("invalid input type".into());
    match input {
        None => Ok(Vec::new()),
        Some(text) if is_json_string(&text) => {
            let text: String = serde_json::from_str(text.get()).map_err(invalid)?;
            Ok(if text.is_empty() { Vec::new() } else { vec![text] })
        }
        Some(list) => serde_json::from_str(list.get()).map_err(invalid),
    }
}

async fn embed_response(
    model: String,
    embedded: EmbedResponse,
    started: Instant,
    load: Duration,
) -> Result<Response, Error> {
    /// Not a JSON value, because that would print each number as a float64 with more digits.
    #[derive(Serialize)]
    struct EmbedBody {
        model: String,
        embeddings: Vec<Vec<f32>>,
        total_duration: u64,
        load_duration: u64,
        prompt_eval_count: usize,
    }
    let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let body = EmbedBody {
        model,
        embeddings: embedded.vectors,
        total_duration: nanoseconds(started.elapsed()),
        load_duration: nanoseconds(load),
        prompt_eval_count: embedded.prompt_tokens,
    };
    // Many numbers take long to print.
    let print = move || json_response(StatusCode::OK, &body);
    tokio::task::spawn_blocking(print).await.map_err(|_| Error::Stopping)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_text_or_many() {
        let check = |input: Value, expect: Option<&[&str]>| {
            let written: Option<Box<RawValue>> = serde_json::from_value(input.clone()).unwrap();
            let found = inputs(written).ok();
            assert_eq!(
                found.as_deref().map(|texts| texts.iter().map(String::as_str).collect()),
                expect.map(<[&str]>::to_vec),
                "{input}"
            );
        };
        check(Value::Null, Some(&[]));
        check(json!(""), Some(&[]));
        check(json!("a"), Some(&["a"]));
        check(json!([]), Some(&[]));
        check(json!(["a", ""]), Some(&["a", ""]));
        check(json!(["a", 3]), None);
        check(json!(3), None);
        check(json!({"a": "b"}), None);
    }
}
