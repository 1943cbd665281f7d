//! `lode perplexity NAME FILE`: tokenizes the file without special tokens, splits it into consecutive windows
//! without overlap, and scores every position.

use serde::Deserialize;
use serde_json::json;

use super::tokenize::load_tokenizer;
use crate::{
    args::Perplexity,
    connect::Connection,
    error::{Failure, Outcome},
    ui,
};

/// Tokens per request: enough to keep a worker busy, few enough to show progress.
const IDS_PER_REQUEST: usize = 4096;

#[derive(Deserialize)]
struct ScoreResponse {
    windows: Vec<Score>,
}

#[derive(Deserialize)]
struct Score {
    nll: f64,
    tokens: u64,
}

pub(crate) async fn run(connection: &Connection, args: Perplexity) -> Outcome {
    let target = connection.target(&args.name)?;
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| Failure::with_source(format!("cannot read {}", args.file.display()), &error))?;
    let ids = load_tokenizer(&target)
        .await?
        .encode(&text, false)
        .map_err(|error| Failure::with_source("cannot tokenize the text", &error))?;
    let windows = windows(&ids, args.window as usize);
    if windows.is_empty() {
        return Err(Failure::new(format!(
            "{} has {}; at least two are needed",
            args.file.display(),
            ui::counted(ids.len() as u64, "token")
        )));
    }
    let meter = ui::Meter::count("scoring", ids.len() as u64 - 1);
    let per_request = (IDS_PER_REQUEST / args.window as usize).max(1);
    let (mut nll, mut tokens) = (0.0, 0);
    for batch in windows.chunks(per_request) {
        let request = json!({ "model": target.model(), "windows": batch, "logprobs": false });
        let response: ScoreResponse = target
            .registry
            .json_post("lode/v1/score", &request)
            .await
            .map_err(|error| target.not_found(error))?;
        let expected: u64 = batch.iter().map(|window| window.len() as u64 - 1).sum();
        let got: u64 = response.windows.iter().map(|score| score.tokens).sum();
        if response.windows.len() != batch.len() || got != expected {
            return Err(Failure::new(format!("requested the scores of {expected} tokens, got {got}")));
        }
        nll += response.windows.iter().map(|score| score.nll).sum::<f64>();
        tokens += got;
        lode_client::Progress::transferred(&*meter, got);
    }
    meter.end();
    let perplexity = (nll / tokens as f64).exp();
    if args.json {
        return ui::json(&json!({ "perplexity": perplexity, "tokens": tokens }));
    }
    ui::print_line(format!("perplexity {perplexity:.4} over {}", ui::counted(tokens, "token")))
}

/// Splits ids into windows of `size` inputs plus the id after them. Each input predicts the id that follows
/// it, so the last id of a window is the first input of the next. An incomplete last window would have less
/// context than the others and is left out, unless it is the only one.
fn windows(ids: &[u32], size: usize) -> Vec<&[u32]> {
    let inputs = ids.len().saturating_sub(1);
    let size = size.clamp(1, inputs.max(1));
    (0..inputs / size).map(|number| &ids[number * size..=(number + 1) * size]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_windows_score_each_id_once() {
        let ids: Vec<u32> = (0..10).collect();
        assert_eq!(windows(&ids, 4), [&[0, 1, 2, 3, 4][..], &[4, 5, 6, 7, 8]]);
        assert_eq!(windows(&ids, 9), [&ids[..]]);
        assert_eq!(windows(&ids, 100), [&ids[..]]);
        assert!(windows(&ids[..1], 4).is_empty());
        assert!(windows(&[], 4).is_empty());
        for size in 1..12 {
            let scored: usize = windows(&ids, size).iter().map(|window| window.len() - 1).sum();
            assert_eq!(scored, 9 / size.min(9) * size.min(9));
        }
    }
}
