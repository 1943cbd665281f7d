//! `lode run NAME [PROMPT]`: streams generated text to standard output, or holds a chat on a terminal.

use std::io::{BufRead, Read};

use futures::StreamExt;
use lode_client::Registry;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    args::Run,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    ui,
};

/// Limit for a prompt from standard input.
const MAX_PROMPT: u64 = 64 << 20;
/// Limit for one record of a stream. The last record has the ids of the whole context.
const MAX_RECORD: usize = 64 << 20;

/// The relevant fields of a record of `/api/generate` or `/api/chat`.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Record {
    response: String,
    thinking: String,
    message: Message,
    done: bool,
    done_reason: Option<String>,
    error: Option<String>,
    prompt_eval_count: Option<u64>,
    prompt_eval_duration: Option<u64>,
    eval_count: Option<u64>,
    eval_duration: Option<u64>,
    load_duration: Option<u64>,
    total_duration: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message {
    content: String,
    thinking: String,
}

pub(crate) async fn run(connection: &Connection, args: Run) -> Outcome {
    let target = connection.target(&args.name)?;
    let prompt = match &args.prompt {
        Some(prompt) => Some(prompt.clone()),
        None if ui::stdin_is_terminal() => None,
        None => {
            let mut text = String::new();
            std::io::stdin().lock().take(MAX_PROMPT).read_to_string(&mut text)?;
            Some(text)
        }
    };
    match prompt {
        Some(prompt) => generate_once(&target, &args, prompt).await,
        None => conversation(&target, &args).await,
    }
}

async fn generate_once(target: &Target, args: &Run, prompt: String) -> Outcome {
    let mut request = request(target, args)?;
    request.insert("prompt".into(), prompt.into());
    if let Some(system) = &args.system {
        request.insert("system".into(), system.as_str().into());
    }
    if args.raw {
        request.insert("raw".into(), true.into());
    }
    let mut last = String::new();
    let record = stream(&target.registry, "lode/v1/generate", &request, |record| {
        if !record.response.is_empty() {
            last.clone_from(&record.response);
        }
        ui::print_bytes(record.response.as_bytes())
    })
    .await
    .map_err(|error| convert_error(target, error))?;
    // The shell's prompt starts on a new line. A file gets the text and one newline, nothing else.
    if !last.ends_with('\n') {
        ui::print_bytes(b"\n")?;
    }
    finish(&record, args.verbose);
    Ok(())
}

async fn conversation(target: &Target, args: &Run) -> Outcome {
    ui::print_message(format!("chatting with {target}; /bye or Ctrl-D ends the chat"));
    let mut messages: Vec<Value> = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({ "role": "system", "content": system }));
    }
    loop {
        ui::print_bytes(b">>> ")?;
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return ui::print_bytes(b"\n");
        }
        let input = line.trim();
        match input {
            "" => continue,
            "/bye" | "/exit" | "/quit" => return Ok(()),
            _ => messages.push(json!({ "role": "user", "content": input })),
        }
        let mut request = request(target, args)?;
        request.insert("messages".into(), messages.clone().into());
        let mut output = String::new();
        let outcome = stream(&target.registry, "lode/v1/chat", &request, |record| {
            output.push_str(&record.message.content);
            ui::print_bytes(record.message.content.as_bytes())
        })
        .await;
        ui::print_bytes(b"\n\n")?;
        match outcome {
            Ok(record) => {
                finish(&record, args.verbose);
                messages.push(json!({ "role": "assistant", "content": output }));
            }
            // The chat continues without the failed turn, except if the first turn fails.
            Err(error) if messages.len() > 2 => {
                ui::print_message(convert_error(target, error).to_string());
                messages.pop();
            }
            Err(error) => return Err(convert_error(target, error)),
        }
    }
}

/// The `format` field of a request.
fn format(value: &str) -> Outcome<Value> {
    const HINT: &str = "--format must be `json` or a file with a JSON schema";
    if value == "json" {
        return Ok(value.into());
    }
    let text = std::fs::read(value).map_err(|error| Failure::new(format!("{value}: {error}")).hint(HINT))?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::new(format!("{value} is not valid JSON: {error}")).hint(HINT))
}

fn request(target: &Target, args: &Run) -> Outcome<Map<String, Value>> {
    let mut options = Map::new();
    if let Some(temperature) = args.temperature {
        options.insert("temperature".into(), temperature.into());
    }
    if let Some(seed) = args.seed {
        options.insert("seed".into(), seed.into());
    }
    if let Some(num_predict) = args.num_predict {
        options.insert("num_predict".into(), num_predict.into());
    }
    let mut request = Map::new();
    request.insert("model".into(), target.model().into());
    request.insert("stream".into(), true.into());
    if !options.is_empty() {
        request.insert("options".into(), options.into());
    }
    if let Some(keep_alive) = &args.keep_alive {
        request.insert("keep_alive".into(), keep_alive.as_str().into());
    }
    if let Some(value) = &args.format {
        request.insert("format".into(), format(value)?);
    }
    Ok(request)
}

enum StreamError {
    Client(lode_client::Error),
    Other(Failure),
}

impl From<Failure> for StreamError {
    fn from(failure: Failure) -> Self {
        StreamError::Other(failure)
    }
}

fn convert_error(target: &Target, error: StreamError) -> Failure {
    match error {
        StreamError::Client(error) if error.status().is_some_and(|status| status.as_u16() == 503) => {
            Failure::from(error)
                .hint("no worker is available: `lode serve` starts one unless --no-worker is set")
        }
        StreamError::Client(error) => target.not_found(error),
        StreamError::Other(failure) => failure,
    }
}

/// Sends `request`, passes each NDJSON record to `on_record` and returns the last one. A stream that ends
/// without its last record is an error.
async fn stream(
    registry: &Registry,
    path: &str,
    request: &Map<String, Value>,
    mut on_record: impl FnMut(&Record) -> Outcome,
) -> Result<Record, StreamError> {
    let response =
        registry.json_stream(reqwest::Method::POST, path, request).await.map_err(StreamError::Client)?;
    let mut is_thinking = false;
    let mut on_record = |record: &Record| {
        print_reasoning(record, &mut is_thinking);
        on_record(record)
    };
    let mut bytes = response.bytes_stream();
    let mut buffer: Vec<u8> = Vec::new();
    let mut searched = 0;
    loop {
        while let Some(at) = buffer[searched..].iter().position(|byte| *byte == b'\n').map(|at| at + searched)
        {
            let line: Vec<u8> = buffer.drain(..=at).collect();
            searched = 0;
            if let Some(last) = handle_line(&line, &mut on_record)? {
                return Ok(last);
            }
        }
        searched = buffer.len();
        match bytes.next().await {
            Some(Ok(chunk)) => buffer.extend_from_slice(&chunk),
            Some(Err(error)) => {
                return Err(Failure::with_source(
                    "the server's response was interrupted",
                    &error.without_url(),
                )
                .into());
            }
            None => break,
        }
        if buffer.len() > MAX_RECORD {
            return Err(Failure::new("the server's response has an overlong line").into());
        }
    }
    if let Some(last) = handle_line(&buffer, &mut on_record)? {
        return Ok(last);
    }
    Err(Failure::new("the server's response ended before its last record").into())
}

/// Prints reasoning to standard error: it is not part of the response.
fn print_reasoning(record: &Record, is_thinking: &mut bool) {
    for thought in [&record.thinking, &record.message.thinking] {
        ui::print_to_terminal(thought);
        *is_thinking |= !thought.is_empty();
    }
    if *is_thinking && !(record.response.is_empty() && record.message.content.is_empty()) {
        ui::print_to_terminal("\n\n");
        *is_thinking = false;
    }
}

/// Processes one line; returns the record if it is the last.
fn handle_line(
    line: &[u8],
    on_record: &mut impl FnMut(&Record) -> Outcome,
) -> Result<Option<Record>, Failure> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let record: Record = serde_json::from_slice(line)
        .map_err(|error| Failure::with_source("cannot parse the server's response", &error))?;
    if let Some(error) = record.error {
        return Err(Failure::new(error));
    }
    on_record(&record)?;
    Ok(record.done.then_some(record))
}

fn finish(record: &Record, verbose: bool) {
    if record.done_reason.as_deref() == Some("length") {
        ui::print_message("(truncated: the token limit or the context limit was reached)");
    }
    if !verbose {
        return;
    }
    let seconds = |nanoseconds: Option<u64>| nanoseconds.unwrap_or_default() as f64 / 1e9;
    let rate = |count: Option<u64>, duration: Option<u64>| {
        let duration = seconds(duration);
        if duration > 0.0 { count.unwrap_or_default() as f64 / duration } else { 0.0 }
    };
    ui::print_message(format!(
        "prompt {} tokens, {:.1}/s; generated {} tokens, {:.1}/s; load {:.2} s; total {:.2} s",
        record.prompt_eval_count.unwrap_or_default(),
        rate(record.prompt_eval_count, record.prompt_eval_duration),
        record.eval_count.unwrap_or_default(),
        rate(record.eval_count, record.eval_duration),
        seconds(record.load_duration),
        seconds(record.total_duration),
    ));
}
