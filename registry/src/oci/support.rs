//! `GET /v2/` and the list of extensions: the API versions of this registry.
//! Clients call the first to find out whether they have to log in.

use axum::response::{IntoResponse, Response};
use http::header;

use crate::auth::{Action, Caller, Target, allow};
use crate::http::Failure;

pub(crate) async fn get(caller: Caller) -> Result<Response, Failure> {
    allow(&caller, Action::Pull, Target::Server)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], "{}").into_response())
}

pub(crate) async fn extensions(caller: Caller) -> Result<Response, Failure> {
    allow(&caller, Action::Pull, Target::Server)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], r#"{"extensions":[]}"#).into_response())
}
