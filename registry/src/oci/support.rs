//! `GET /v2/` and the list of extensions: the API versions of this registry.
//! Clients call the first to find out whether they have to log in.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;

use crate::Registry;
use crate::auth::{Action, Caller, Target};
use crate::http::Failure;

pub(crate) async fn get(State(registry): State<Registry>, caller: Caller) -> Result<Response, Failure> {
    registry.authorize(&caller, Action::SignIn, Target::Server).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], "{}").into_response())
}

pub(crate) async fn extensions(
    State(registry): State<Registry>,
    caller: Caller,
) -> Result<Response, Failure> {
    registry.authorize(&caller, Action::SignIn, Target::Server).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], r#"{"extensions":[]}"#).into_response())
}
