//! `POST /api/chat`: continue a conversation, or load and unload a model with an empty one.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Api;
use super::generate::{format, load_or_unload, merged, think};
use super::options::{Common, Options};
use super::request::{Asked, with_model};
use super::stream::{self, Records, Shape};
use crate::error::Error;
use crate::runner::protocol::Input;
use crate::scheduler::KeepAlive;

#[derive(Deserialize)]
pub(super) struct Body {
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Vec<Value>>,
    stream: Option<bool>,
    format: Option<Value>,
    keep_alive: Option<KeepAlive>,
    options: Option<Map<String, Value>>,
    think: Option<Value>,
    truncate: Option<bool>,
    shift: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    #[serde(rename = "_debug_render_only")]
    debug_render_only: Option<bool>,
}

pub(super) async fn chat(State(api): State<Api>, asked: Asked<Body>) -> Result<Response, Error> {
    let started = Instant::now();
    let body = &asked.body;
    let mut options = Options::default();
    let asked_options = body.options.as_ref();
    asked_options.map(|asked| options.apply(asked)).transpose()?;
    let records = Records { shape: Shape::Chat, model: asked.name.clone(), started, load: Duration::ZERO };
    let messages = body.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return load_or_unload(&api, &asked, options.num_ctx, body.keep_alive, records).await;
    }
    let messages = messages
        .iter()
        .map(|message| self::message(&asked.name, message))
        .collect::<Result<Vec<Value>, Error>>()?;

    let common = Common {
        truncate: body.truncate,
        shift: body.shift,
        logprobs: body.logprobs,
        top_logprobs: body.top_logprobs,
        think: think(&body.think)?,
        format: format(&body.format)?,
    };
    let (common, records, messages) = (&common, &records, &messages);
    with_model(&api, asked.wanted(options.num_ctx, body.keep_alive), move |ticket| {
        Box::pin(async move {
            let model = ticket.model().model();
            // The model's own come first, and before them its system prompt unless the request has one.
            let asks_itself = messages.first().is_some_and(|message| message["role"] == "system");
            let mut messages = [&model.messages[..], messages].concat();
            if let Some(system) = &model.system
                && !asks_itself
            {
                messages.insert(0, json!({"role": "system", "content": system}));
            }
            let input = Input::Chat { messages, tools: body.tools.clone().unwrap_or_default() };
            let request = merged(&model.params, asked_options)?.request(input, common)?;
            let records = Records { load: ticket.load_duration(), ..records.clone() };
            if body.debug_render_only == Some(true) {
                return stream::rendered(ticket, &request, &records).await;
            }
            stream::answer(ticket, request, records, body.stream.unwrap_or(true)).await
        })
    })
    .await
}

/// A message as templates expect it: a known role, and content that is there.
fn message(model: &str, message: &Map<String, Value>) -> Result<Value, Error> {
    let mut message = message.clone();
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    if !matches!(role.as_str(), "system" | "user" | "assistant" | "tool") {
        return Err(Error::Invalid(format!(
            "invalid role {role:?}: must be system, user, assistant or tool"
        )));
    }
    message.insert("role".into(), json!(role));
    match message.remove("images") {
        None | Some(Value::Null) => {}
        Some(Value::Array(images)) if images.is_empty() => {}
        Some(_) => return Err(Error::Invalid(format!("{model:?} does not support images"))),
    }
    match message.get("content") {
        Some(Value::String(_)) => {}
        None | Some(Value::Null) => {
            message.insert("content".into(), json!(""));
        }
        Some(_) => return Err(Error::Invalid("a message's content must be a string".into())),
    }
    Ok(Value::Object(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let check = |json: Value| message("m", json.as_object().unwrap()).map_err(|error| error.to_string());
        assert_eq!(
            check(json!({"role": "User", "content": "x"})),
            Ok(json!({"role": "user", "content": "x"}))
        );
        let calls = json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}], "images": []});
        let expect = json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]});
        assert_eq!(check(calls), Ok(expect));
        for bad in [
            json!({}),
            json!({"role": "root"}),
            json!({"role": "user", "content": 1}),
            json!({"role": "user", "images": ["x"]}),
        ] {
            assert!(check(bad.clone()).is_err(), "{bad}");
        }
    }
}
