//! `POST /v1/embeddings`, by way of `/api/embed`.

use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ask;
use crate::Registry;
use crate::auth::Caller;
use crate::gateway::read_json;
use crate::http::extract::null_as_default;
use crate::http::{Failure, Json};

#[derive(Deserialize)]
pub(crate) struct Embeddings {
    #[serde(default, deserialize_with = "null_as_default")]
    model: String,
    #[serde(default)]
    input: Value,
    dimensions: Option<u32>,
    #[serde(default, deserialize_with = "null_as_default")]
    encoding_format: EncodingFormat,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

#[derive(Deserialize)]
struct Embedded {
    embeddings: Vec<Vec<f32>>,
    #[serde(default)]
    prompt_eval_count: u64,
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    Json(request): Json<Embeddings>,
) -> Result<Json<Value>, Failure> {
    let Embeddings { model, input, dimensions, encoding_format } = request;
    let is_empty = input.as_str().is_some_and(str::is_empty) || input.as_array().is_some_and(Vec::is_empty);
    if input.is_null() || is_empty {
        return Err(Failure::Unsupported("input is a text or a list of texts, and not empty"));
    }
    let mut body = json!({ "model": model, "input": input });
    if let Some(dimensions) = dimensions {
        body["dimensions"] = json!(dimensions);
    }
    let answer = ask(&registry, &caller, &model, "/api/embed", body).await?;
    let Embedded { embeddings, prompt_eval_count } = read_json(answer).await?;
    let vector = |(index, values): (usize, Vec<f32>)| json!({ "object": "embedding", "index": index, "embedding": encoded(values, encoding_format) });
    let data: Vec<Value> = embeddings.into_iter().enumerate().map(vector).collect();
    let usage = json!({ "prompt_tokens": prompt_eval_count, "total_tokens": prompt_eval_count });
    Ok(Json(json!({ "object": "list", "data": data, "model": model, "usage": usage })))
}

/// Numbers, or their little-endian bytes in base64.
fn encoded(values: Vec<f32>, format: EncodingFormat) -> Value {
    match format {
        EncodingFormat::Float => json!(values),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
            json!(STANDARD.encode(bytes))
        }
    }
}
