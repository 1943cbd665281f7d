//! `POST /v1/completions`, by way of `/api/generate`.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::reply::{Reply, Shape};
use super::{Sampling, StreamOptions, ask};
use crate::Registry;
use crate::auth::Caller;
use crate::http::{Failure, Json};

#[derive(Deserialize)]
pub(crate) struct Completion {
    #[serde(default)]
    model: String,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    suffix: Option<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    sampling: Sampling,
    #[serde(default)]
    logprobs: Option<u32>,
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    Json(completion): Json<Completion>,
) -> Result<Response, Failure> {
    let answer = ask(&registry, &caller, &completion.model, "/api/generate", completion.for_worker()).await?;
    let include_usage = completion.stream_options.unwrap_or_default().include_usage;
    Reply::new(Shape::Completion, completion.model, include_usage).answer(answer, completion.stream).await
}

impl Completion {
    fn for_worker(&self) -> Value {
        let mut body = json!({
            "model": self.model,
            "prompt": self.prompt,
            // The prompt is continued, not answered: no template goes around it.
            "raw": true,
            "stream": self.stream,
            "options": self.sampling.options(),
        });
        if let Some(suffix) = &self.suffix {
            body["suffix"] = json!(suffix);
            body["raw"] = json!(false);
        }
        if let Some(top_logprobs) = self.logprobs {
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!(top_logprobs);
        }
        body
    }
}
