//! `GET /v2/` and the list of extensions: what this registry speaks.
//! Clients ask the first to learn whether they have to log in.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;

use crate::Registry;
use crate::auth::{Action, Caller, Target, allow};
use crate::http::Failure;

pub(crate) async fn get(State(_): State<Registry>, caller: Caller) -> Result<Response, Failure> {
    allow(&caller, Action::Pull, Target::Server)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], "{}").into_response())
}

pub(crate) async fn extensions(caller: Caller) -> Result<Response, Failure> {
    allow(&caller, Action::Pull, Target::Server)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], r#"{"extensions":[]}"#).into_response())
}

/// Every other address under `/v2`.
pub(crate) async fn unknown() -> Failure {
    Failure::RouteUnknown
}

pub(crate) async fn method_not_allowed() -> Failure {
    Failure::MethodNotAllowed
}
