//! `POST /v1/embeddings`, implemented with `/api/embed`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;
use crate::api::inference::read_json;
use crate::api::worker_chat::{request_worker, to_json};
use crate::auth::Caller;
use crate::http::extract::{InferenceBody, null_as_default, parse};
use crate::http::forwarded::RequestOrigin;
use crate::http::state::ServerState;
use crate::http::{Failure, Json};

#[derive(Deserialize)]
struct Embeddings<'a> {
    #[serde(default, deserialize_with = "null_as_default")]
    model: String,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    dimensions: Option<u32>,
    /// The name of the model's prompt for these texts, as for `/api/embed`.
    prompt_name: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    encoding_format: EncodingFormat,
}

/// The request for a worker.
#[derive(Serialize)]
struct WorkerEmbed<'a> {
    model: &'a str,
    input: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_name: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

/// The response. Numbers are printed as float32, which has fewer digits than a JSON value's float64.
#[derive(Serialize)]
struct EmbeddingList {
    object: &'static str,
    data: Vec<EmbeddingObject>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct EmbeddingObject {
    object: &'static str,
    index: usize,
    embedding: Encoded,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Encoded {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

#[derive(Deserialize)]
struct EmbedResponse {
    embeddings: Vec<Vec<f32>>,
    #[serde(default)]
    prompt_eval_count: u64,
}

pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    body: InferenceBody,
) -> Result<Response, Failure> {
    let (body, (model, encoding_format)) = body.translate(translate).await?;
    let response = request_worker(&server, (&caller, client), &model, "/api/embed", body).await?;
    let EmbedResponse { embeddings, prompt_eval_count } = read_json(response).await?;
    let usage = Usage { prompt_tokens: prompt_eval_count, total_tokens: prompt_eval_count };
    let print = move || {
        let object = |(index, values)| {
            let embedding = Encoded::of(values, encoding_format);
            EmbeddingObject { object: "embedding", index, embedding }
        };
        let data = embeddings.into_iter().enumerate().map(object).collect();
        Json(EmbeddingList { object: "list", data, model, usage }).into_response()
    };
    // Many numbers take long to print.
    Ok(tokio::task::spawn_blocking(print).await.map_err(|_| Error::Interrupted)?)
}

/// Translates the request to ollama's format.
fn translate(body: &[u8]) -> Result<(Vec<u8>, (String, EncodingFormat)), Failure> {
    let Embeddings { model, input, dimensions, prompt_name, encoding_format } = parse(body)?;
    let is_empty = |input: &RawValue| {
        let mut rest = input.get().chars().filter(|c| !c.is_ascii_whitespace());
        matches!([rest.next(), rest.next()], [Some('['), Some(']')]) || input.get() == "\"\""
    };
    let input = input.filter(|input| !is_empty(input));
    let input =
        input.ok_or(Failure::Unsupported("input must be a string or a list of strings, and not empty"))?;
    let request = WorkerEmbed { model: &model, input, dimensions, prompt_name };
    let json = to_json(&request, body.len());
    Ok((json, (model, encoding_format)))
}

impl Encoded {
    /// Numbers, or their little-endian bytes in base64.
    fn of(values: Vec<f32>, format: EncodingFormat) -> Encoded {
        match format {
            EncodingFormat::Float => Encoded::Numbers(values),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
                Encoded::Base64(STANDARD.encode(bytes))
            }
        }
    }
}
