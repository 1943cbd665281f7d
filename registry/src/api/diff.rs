//! `GET /lode/v1/diff/{name}/{reference}?with=NAME`: compares two models of this registry. The response has
//! one JSON record per line: one for each tensor once it is compared, then the total.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::header;
use lode_model::reference::{Reference, Repository};

use super::models::unknown;
use crate::app::{DiffOutcome, DiffRecord};
use crate::auth::Caller;
use crate::error::chain;
use crate::http::{Failure, Path, Query, model_name};
use crate::{Error, Registry};

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path((repository, reference)): Path<(Repository, Reference)>,
    query: Query,
) -> Result<Response, Failure> {
    let with = query.get("with").unwrap_or_default();
    let other = model_name::parse_exact(with)?;
    let (other, other_reference) = (other.repositories.first().clone(), other.reference);
    let compared =
        registry.model_diff(&caller, (&repository, &reference), (&other, &other_reference)).await?;
    let records = match compared {
        DiffOutcome::HereUnknown => return Err(unknown(&repository, &reference)),
        DiffOutcome::ThereUnknown => return Err(unknown(&other, &other_reference)),
        DiffOutcome::Records(records) => records,
    };
    // The status has been sent, so a response that ends before its total has failed.
    let lines = records.map(|record| record.map(|record| line(&record))).inspect_err(|error: &Error| {
        tracing::error!(error = chain(error), "comparison failed");
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

fn line(record: &DiffRecord) -> Bytes {
    let mut bytes = serde_json::to_vec(record).expect("a struct of strings and numbers is JSON");
    bytes.push(b'\n');
    bytes.into()
}
