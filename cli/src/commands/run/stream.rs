//! The response to a request: its records as they arrive, and their text on the terminal.

use std::sync::Arc;

use futures::{StreamExt, stream::BoxStream};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    connect::Target,
    error::{Failure, Outcome},
    job::INTERRUPTED,
    ui,
};

/// Limit for one record. The last record has the ids of the whole context.
const MAX_RECORD: usize = 64 << 20;

/// The server's code for an error that says that no worker is attached or responds.
const NO_WORKER: &str = "NO_WORKER";

/// The relevant fields of a record of `/api/generate` or `/api/chat`.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Record {
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

impl Record {
    /// The generated text. Only one of the two APIs' fields is set.
    fn text(&self) -> [&str; 2] {
        [&self.response, &self.message.content]
    }

    fn reasoning(&self) -> [&str; 2] {
        [&self.thinking, &self.message.thinking]
    }

    /// Prints why the text ends early, and the counts if `verbose` is set. The record is the last one.
    pub(super) fn print_summary(&self, verbose: bool) {
        if self.done_reason.as_deref() == Some("length") {
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
            "prompt {}, {:.1}/s; generated {}, {:.1}/s; load {:.2} s; total {:.2} s",
            ui::counted(self.prompt_eval_count.unwrap_or_default(), "token"),
            rate(self.prompt_eval_count, self.prompt_eval_duration),
            ui::counted(self.eval_count.unwrap_or_default(), "token"),
            rate(self.eval_count, self.eval_duration),
            seconds(self.load_duration),
            seconds(self.total_duration),
        ));
    }
}

/// Sends `request` and passes the text of the response to `output`. Returns the last record.
pub(super) async fn generate(
    target: &Target,
    path: &str,
    request: &Map<String, Value>,
    output: &mut Output,
) -> Outcome<Record> {
    let mut records = Records::request(target, path, request).await?;
    loop {
        let record = records.next().await?;
        output.print(&record)?;
        if record.done {
            return Ok(record);
        }
    }
}

/// Runs `work` until it ends or the user presses Ctrl-C, which drops it.
pub(super) async fn until_interrupted<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::select! {
        outcome = work => outcome,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            // The terminal has echoed `^C`.
            ui::print_to_terminal("\n");
            Err(Failure::new("interrupted").code(INTERRUPTED))
        }
    }
}

/// The records of a response: one JSON object per line.
struct Records {
    bytes: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: Vec<u8>,
    /// The start of the buffer that has no newline.
    searched: usize,
}

impl Records {
    async fn request(target: &Target, path: &str, request: &Map<String, Value>) -> Outcome<Records> {
        let response = target.registry.json_stream(Method::POST, path, request).await;
        let response = response.map_err(|error| match error.has_code(NO_WORKER) {
            true => Failure::from(error)
                .hint("a server that starts or stops has no worker: try again soon")
                .hint("`lode serve` starts a worker unless --no-worker is set"),
            false => target.not_found(error),
        })?;
        Ok(Records { bytes: response.bytes_stream().boxed(), buffer: Vec::new(), searched: 0 })
    }

    /// The next record. It is an error if the response ends before its last record, or reports an error.
    async fn next(&mut self) -> Outcome<Record> {
        loop {
            let line = self.next_line().await?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let record: Record = serde_json::from_slice(&line)
                .map_err(|error| Failure::with_source("cannot parse the server's response", &error))?;
            return match record.error {
                Some(error) => Err(Failure::new(error)),
                None => Ok(record),
            };
        }
    }

    async fn next_line(&mut self) -> Outcome<Vec<u8>> {
        const HINT: &str = "the server or its worker may be stopping: try again soon";
        loop {
            if let Some(length) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + length;
                self.searched = 0;
                return Ok(self.buffer.drain(..=end).collect());
            }
            self.searched = self.buffer.len();
            match self.bytes.next().await {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => {
                    let interrupted = "the server's response was interrupted";
                    return Err(Failure::with_source(interrupted, &error.without_url()).hint(HINT));
                }
                None if self.buffer.is_empty() => {
                    return Err(Failure::new("the server's response ended before its last record").hint(HINT));
                }
                None => {
                    self.searched = 0;
                    return Ok(std::mem::take(&mut self.buffer));
                }
            }
            if self.buffer.len() > MAX_RECORD {
                return Err(Failure::new("the server's response has an overlong line"));
            }
        }
    }
}

/// Prints a response as it arrives: reasoning to standard error, the text to standard output.
pub(super) struct Output {
    /// Shown until the first token.
    spinner: Option<Arc<ui::Meter>>,
    hides_reasoning: bool,
    is_reasoning: bool,
    text: String,
}

impl Output {
    /// Shows a spinner with the text `waiting`.
    pub(super) fn start(waiting: &str, hides_reasoning: bool) -> Output {
        let spinner = ui::has_styles().then(|| ui::Meter::wait(waiting));
        Output { spinner, hides_reasoning, is_reasoning: false, text: String::new() }
    }

    fn print(&mut self, record: &Record) -> Outcome {
        for reasoning in record.reasoning().into_iter().filter(|text| !text.is_empty()) {
            if !self.hides_reasoning {
                self.spinner = None;
                self.begin_reasoning();
                ui::print_to_terminal(reasoning);
            }
        }
        for text in record.text().into_iter().filter(|text| !text.is_empty()) {
            self.spinner = None;
            self.end_reasoning();
            ui::print_text(text)?;
            self.text.push_str(text);
        }
        Ok(())
    }

    /// Ends the response, complete or not, and its line. Returns the text.
    pub(super) fn end(mut self) -> Outcome<String> {
        self.spinner = None;
        self.end_reasoning();
        // The shell's prompt starts on a new line. A file gets the text and one newline, nothing else.
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            ui::print_text("\n")?;
        }
        Ok(self.text)
    }

    /// Marks what follows as reasoning: dimmed, or after a heading if the terminal has no styles.
    fn begin_reasoning(&mut self) {
        if std::mem::replace(&mut self.is_reasoning, true) {
            return;
        }
        match ui::has_styles() {
            true => ui::set_dimmed(true),
            false => ui::print_to_terminal("reasoning:\n"),
        }
    }

    fn end_reasoning(&mut self) {
        if !std::mem::replace(&mut self.is_reasoning, false) {
            return;
        }
        match ui::has_styles() {
            true => {
                ui::set_dimmed(false);
                ui::print_to_terminal("\n\n");
            }
            false => ui::print_to_terminal("\n\nresponse:\n"),
        }
    }
}
