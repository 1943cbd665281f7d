//! `/device`: a person allows the sign-in of a program on another device.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;

use super::page::{Shell, message, render};
use crate::Registry;
use crate::app::{AccountError, DeviceRequest};
use crate::auth::Access;
use crate::http::pages::{Form, SignedIn};
use crate::http::{Failure, Query};

#[derive(Template)]
#[template(path = "device.html")]
struct DevicePage {
    shell: Shell,
    request: Option<DeviceRequest>,
    rights: &'static str,
    problem: Option<String>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    query: Query,
) -> Result<Response, Failure> {
    let shell = Shell::of(&registry, &caller).await?;
    let Some(code) = query.get("user_code").filter(|code| !code.is_empty()) else {
        return Ok(render(StatusCode::OK, &DevicePage { shell, request: None, rights: "", problem: None }));
    };
    Ok(match registry.device_show(&caller, code).await {
        Ok(request) => {
            let rights = rights_text(request.access);
            let page = DevicePage { shell, request: Some(request), rights, problem: None };
            render(StatusCode::OK, &page)
        }
        Err(error @ AccountError::DeviceUnknown) => {
            let problem = Some(error.to_string());
            render(StatusCode::NOT_FOUND, &DevicePage { shell, request: None, rights: "", problem })
        }
        Err(error) => return Err(error.into()),
    })
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    let is_allowed = form.get("decision") == "allow";
    registry.device_decide(&caller, form.get("user_code"), is_allowed).await?;
    let shell = Shell::of(&registry, &caller).await?;
    Ok(match is_allowed {
        true => message(shell, "Allowed", "The program is signed in. You can close this page."),
        false => message(shell, "Denied", "The program is not signed in. You can close this page."),
    })
}

/// What a token of this level may do, for people.
pub(super) fn rights_text(access: Access) -> &'static str {
    match access {
        Access::Infer => "run models",
        Access::Read => "run models and pull",
        Access::Write => "run models, pull and push",
        Access::Maintain => "run models, pull, push and delete",
        Access::Own => "run models, pull, push, delete and grant roles",
        Access::Full => "everything that the account may do",
    }
}
