//! `POST /api/rerank`: documents by their relevance to a query. The request and the response have the form that
//! most servers with a rerank API share.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Api;
use super::generate::merge_options;
use super::options::Options;
use super::request::{ModelRequest, run_with_model};
use super::response::json_response;
use crate::error::Error;
use crate::runner::protocol::{RerankRequest, RerankResponse};
use crate::scheduler::KeepAlive;

#[derive(Deserialize)]
pub(super) struct Body {
    query: Option<String>,
    documents: Option<Vec<Document>>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
    /// Whether a document that is too long is truncated or refused.
    truncate: Option<bool>,
    keep_alive: Option<KeepAlive>,
    options: Option<Map<String, Value>>,
    // Fields of other servers that would change the scores.
    rank_fields: Option<Value>,
    max_chunks_per_doc: Option<Value>,
    max_tokens_per_doc: Option<Value>,
    overlap_tokens: Option<Value>,
    truncate_prompt_tokens: Option<Value>,
    raw_scores: Option<Value>,
    instruction: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or an object with a string `text`")]
enum Document {
    Text(String),
    Object { text: String },
}

#[derive(Serialize)]
struct RerankBody<'a> {
    model: &'a str,
    results: Vec<RankedDocument<'a>>,
    usage: Usage,
}

#[derive(Serialize)]
struct RankedDocument<'a> {
    /// In the documents of the request.
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText<'a>>,
}

#[derive(Serialize)]
struct DocumentText<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Body {
    fn check_unsupported(&self) -> Result<(), Error> {
        let fields = [
            ("rank_fields", &self.rank_fields),
            ("max_chunks_per_doc", &self.max_chunks_per_doc),
            ("max_tokens_per_doc", &self.max_tokens_per_doc),
            ("overlap_tokens", &self.overlap_tokens),
            ("truncate_prompt_tokens", &self.truncate_prompt_tokens),
            ("raw_scores", &self.raw_scores),
            ("instruction", &self.instruction),
        ];
        match fields.into_iter().find(|(_, value)| value.is_some()) {
            Some((name, _)) => Err(Error::Invalid(format!("`{name}` is not supported"))),
            None => Ok(()),
        }
    }
}

pub(super) async fn rerank(
    State(api): State<Api>,
    mut request: ModelRequest<Body>,
) -> Result<Response, Error> {
    request.body.check_unsupported()?;
    let query = request.body.query.take().filter(|query| !query.trim().is_empty());
    let query = query.ok_or_else(|| Error::Invalid("query is missing or empty".into()))?;
    let documents: Vec<String> =
        request.body.documents.take().unwrap_or_default().into_iter().map(text).collect();
    if documents.is_empty() {
        return Err(Error::Invalid("documents is missing or empty".into()));
    }
    let body = &request.body;
    if body.top_n == Some(0) {
        return Err(Error::Invalid("top_n must be at least 1".into()));
    }
    let mut options = Options::default();
    body.options.as_ref().map(|given| options.apply(given)).transpose()?;
    let truncate = body.truncate.unwrap_or(true);
    let rerank_request = &RerankRequest { query, documents, truncate, num_ctx: None };
    let wanted = request.wanted(options.context(), body.keep_alive);
    let response = run_with_model(&api, wanted, move |ticket| {
        Box::pin(async move {
            let num_ctx = merge_options(&ticket.model().model().params, body.options.as_ref())?.num_ctx;
            let rerank_request = RerankRequest { num_ctx, ..rerank_request.clone() };
            let response = ticket.model().client().rerank(&rerank_request).await?;
            ticket.model().metrics().count_tokens(response.prompt_tokens, 0, 0);
            Ok(response)
        })
    })
    .await?;
    let RerankResponse { scores, prompt_tokens } = response;
    let results = ranked(&scores, body.top_n).into_iter().map(|(index, relevance_score)| {
        let text = rerank_request.documents.get(index).filter(|_| body.return_documents == Some(true));
        RankedDocument { index, relevance_score, document: text.map(|text| DocumentText { text }) }
    });
    let results = results.collect();
    let usage = Usage { prompt_tokens, total_tokens: prompt_tokens };
    Ok(json_response(StatusCode::OK, &RerankBody { model: &request.name, results, usage }))
}

fn text(document: Document) -> String {
    match document {
        Document::Text(text) | Document::Object { text } => text,
    }
}

/// The indices of the highest scores, in descending order. Equal ones keep their order.
fn ranked(scores: &[f32], top_n: Option<usize>) -> Vec<(usize, f32)> {
    let mut ranked: Vec<(usize, f32)> = scores.iter().copied().enumerate().collect();
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranked.truncate(top_n.unwrap_or(usize::MAX));
    ranked
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranking_is_stable() {
        let scores = [0.5, -1.0, 2.0, 0.5];
        assert_eq!(ranked(&scores, None), [(2, 2.0), (0, 0.5), (3, 0.5), (1, -1.0)]);
        assert_eq!(ranked(&scores, Some(2)), [(2, 2.0), (0, 0.5)]);
        assert_eq!(ranked(&scores, Some(9)).len(), 4);
    }

    #[test]
    fn documents_are_texts_or_objects() {
        let read = |documents: Value| serde_json::from_value::<Body>(json!({"documents": documents}));
        let body = read(json!(["a", {"text": "b", "title": "c"}])).unwrap();
        let texts: Vec<String> = body.documents.unwrap().into_iter().map(text).collect();
        assert_eq!(texts, ["a", "b"]);
        for wrong in [json!([3]), json!([{"title": "x"}]), json!([null]), json!([{"text": 3}])] {
            let error = read(wrong.clone()).err().unwrap().to_string();
            assert!(
                error.contains("expected a string or an object with a string `text`"),
                "{wrong}: {error}"
            );
        }
        assert!(read(json!("a")).is_err());
    }

    #[test]
    fn fields_that_would_change_the_scores_are_refused() {
        let check = |body: Value| serde_json::from_value::<Body>(body).unwrap().check_unsupported();
        check(json!({"rank_fields": null, "user": "x", "model": "m"})).unwrap();
        let error = check(json!({"max_tokens_per_doc": 5})).unwrap_err().to_string();
        assert!(error.contains("`max_tokens_per_doc` is not supported"), "{error}");
    }
}
