//! `lode run NAME [PROMPT]`: streams generated text to standard output, or holds a chat on a terminal.

mod chat;
mod commands;
mod editor;
mod model;
mod names;
mod settings;
mod stream;

use std::io::Read;

use crate::{
    args::Run,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    ui,
};
use chat::Chat;
use settings::Settings;
use stream::Output;

/// Limit for a prompt from standard input.
const MAX_PROMPT: u64 = 64 << 20;

pub(crate) async fn run(connection: &Connection, args: Run) -> Outcome {
    let target = connection.target(&args.name)?;
    let settings = Settings::from_args(&args)?;
    match prompt(&args.prompt)? {
        Some(prompt) => generate_once(&target, &settings, prompt, args.raw).await,
        None if args.raw => {
            Err(Failure::new("--raw needs a prompt").hint("a chat uses the model's template"))
        }
        None => Chat::start(connection, target, settings).await?.run().await,
    }
}

/// The prompt: standard input, unless it is a terminal, and the words of the command line. `None` starts a chat.
fn prompt(words: &[String]) -> Outcome<Option<String>> {
    let words = words.join(" ");
    if ui::stdin_is_terminal() {
        return Ok(Some(words).filter(|words| !words.is_empty()));
    }
    let mut text = String::new();
    std::io::stdin().lock().take(MAX_PROMPT).read_to_string(&mut text)?;
    if text.is_empty() && words.is_empty() {
        return Err(Failure::new("no prompt: standard input is empty")
            .hint("write the prompt after the model's name, or to standard input; a chat needs a terminal"));
    }
    // As ollama joins them.
    if !text.is_empty() && !words.is_empty() {
        text.push(' ');
    }
    text.push_str(&words);
    Ok(Some(text))
}

async fn generate_once(target: &Target, settings: &Settings, prompt: String, raw: bool) -> Outcome {
    let mut request = settings.request(target);
    request.insert("prompt".into(), prompt.into());
    if let Some(system) = &settings.system {
        request.insert("system".into(), system.as_str().into());
    }
    if raw {
        request.insert("raw".into(), true.into());
    }
    let mut output = Output::start(&format!("waiting for {target}"), settings.hide_thinking);
    let generation = stream::generate(target, "lode/v1/generate", &request, &mut output);
    let outcome = stream::until_interrupted(generation).await;
    output.end()?;
    outcome?.print_summary(settings.verbose);
    Ok(())
}
