//! `lode rerank NAME QUERY [DOCUMENT]...`: prints documents by their relevance to a query.

use serde::Deserialize;
use serde_json::json;

use crate::{
    args::Rerank,
    connect::Connection,
    error::{Failure, Outcome},
    ui,
};

#[derive(Deserialize)]
struct RerankResponse {
    results: Vec<RankedDocument>,
    usage: Usage,
}

#[derive(Deserialize)]
struct RankedDocument {
    index: usize,
    relevance_score: f64,
}

#[derive(Deserialize)]
struct Usage {
    total_tokens: u64,
}

pub(crate) async fn run(connection: &Connection, args: Rerank) -> Outcome {
    let target = connection.target(&args.name)?;
    let documents = match args.documents.is_empty() {
        true => std::io::stdin().lines().collect::<Result<Vec<_>, _>>()?,
        false => args.documents,
    };
    if documents.is_empty() {
        return Err(Failure::new("there are no documents: standard input is empty"));
    }
    let mut request = json!({
        "model": target.model(), "query": args.query, "documents": documents, "truncate": !args.no_truncate,
    });
    if let Some(top) = args.top {
        request["top_n"] = top.into();
    }
    if let Some(keep_alive) = args.keep_alive {
        request["keep_alive"] = keep_alive.into();
    }
    let response: RerankResponse = target
        .registry
        .json_post("lode/v1/rerank", &request)
        .await
        .map_err(|error| target.not_found(error))?;
    let text = |index: usize| {
        let text = documents.get(index).map(String::as_str);
        text.ok_or_else(|| Failure::new(format!("the response has document {index}, which was not sent")))
    };
    if args.json {
        let results = response.results.iter().map(|found| {
            let (index, score) = (found.index, found.relevance_score);
            Ok(json!({ "index": index, "relevance_score": score, "text": text(index)? }))
        });
        let results = results.collect::<Outcome<Vec<_>>>()?;
        return ui::json(&json!({ "results": results, "tokens": response.usage.total_tokens }));
    }
    for found in &response.results {
        ui::print_line(format!("{:.4}\t{}", found.relevance_score, ui::escape_control(text(found.index)?)))?;
    }
    Ok(())
}
