//! `lode embed NAME [TEXT]`: prints the embedding of a text, or of each line of standard input, one per line.

use std::io::BufRead;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    args::Embed,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    ui,
};

/// Texts per request: enough to keep a worker busy, few enough to show progress.
const TEXTS_PER_REQUEST: usize = 64;

#[derive(Deserialize)]
struct EmbedResponse {
    embeddings: Vec<Value>,
    prompt_eval_count: u64,
}

pub(crate) async fn run(connection: &Connection, args: Embed) -> Outcome {
    let target = connection.target(&args.name)?;
    let (mut all, mut tokens) = (Vec::new(), 0);
    let mut show = |response: EmbedResponse| {
        tokens += response.prompt_eval_count;
        for vector in response.embeddings {
            match args.json {
                true => all.push(vector),
                false => ui::print_line(vector.to_string())?,
            }
        }
        Ok::<(), Failure>(())
    };
    match &args.text {
        Some(text) => show(request_embeddings(&target, &args, std::slice::from_ref(text)).await?)?,
        None => {
            let mut lines = std::io::stdin().lock().lines();
            let mut is_first = true;
            loop {
                let texts: Vec<String> = lines.by_ref().take(TEXTS_PER_REQUEST).collect::<Result<_, _>>()?;
                if texts.is_empty() && is_first {
                    return Err(Failure::new("no text to embed: standard input is empty").hint(
                        "write the text after the model's name, or one text per line to standard input",
                    ));
                }
                if texts.is_empty() {
                    break;
                }
                is_first = false;
                show(request_embeddings(&target, &args, &texts).await?)?;
            }
        }
    }
    if args.json {
        return ui::json(&json!({ "embeddings": all, "tokens": tokens }));
    }
    Ok(())
}

async fn request_embeddings(target: &Target, args: &Embed, texts: &[String]) -> Outcome<EmbedResponse> {
    let mut request = json!({ "model": target.model(), "input": texts, "truncate": !args.no_truncate });
    if let Some(dimensions) = args.dimensions {
        request["dimensions"] = dimensions.into();
    }
    if let Some(prompt) = &args.prompt {
        request["prompt_name"] = prompt.as_str().into();
    }
    if let Some(keep_alive) = &args.keep_alive {
        request["keep_alive"] = keep_alive.as_str().into();
    }
    let response: EmbedResponse = target
        .registry
        .json_post("lode/v1/embed", &request)
        .await
        .map_err(|error| target.not_found(error))?;
    if response.embeddings.len() != texts.len() {
        let got = response.embeddings.len();
        return Err(Failure::new(format!("requested {} embeddings, got {got}", texts.len())));
    }
    Ok(response)
}
