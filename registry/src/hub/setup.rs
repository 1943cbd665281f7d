//! `/setup`: creates the first administrator of a new server, with the link that the server has printed.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::request::Parts;
use http::{StatusCode, header};
use lode_client::Secret;

use super::page::{Shell, render};
use crate::Registry;
use crate::auth::Caller;
use crate::http::pages::{Form, redirect};
use crate::http::session_cookie::set_session_cookie;
use crate::http::{Failure, Query};

#[derive(Template)]
#[template(path = "setup.html")]
struct SetupPage {
    shell: Shell,
    token: String,
    name: String,
    has_repositories: bool,
    problem: Option<String>,
}

pub(crate) async fn get(State(registry): State<Registry>, query: Query) -> Result<Response, Failure> {
    let token = query.get("token").unwrap_or_default().to_owned();
    registry.setup_check(&token).await?;
    let has_repositories = registry.has_repositories().await?;
    let (shell, name) = (Shell::default(), "admin".to_owned());
    Ok(render(StatusCode::OK, &SetupPage { shell, token, name, has_repositories, problem: None }))
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    request: Parts,
    form: Form,
) -> Result<Response, Failure> {
    let (token, name) = (form.get("token"), form.get("name"));
    registry.setup_check(token).await?;
    match registry.setup(&caller, token, name, Secret::new(form.get("password"))).await {
        Ok(cookie) => {
            let mut response = redirect("/-/account");
            response
                .headers_mut()
                .insert(header::SET_COOKIE, set_session_cookie(&registry, &request, Some(&cookie)));
            Ok(response)
        }
        Err(error) => {
            let failure = Failure::from(error);
            if failure.status() != StatusCode::BAD_REQUEST {
                return Err(failure);
            }
            let page = SetupPage {
                shell: Shell::default(),
                token: token.to_owned(),
                name: name.to_owned(),
                has_repositories: registry.has_repositories().await?,
                problem: Some(failure.message()),
            };
            Ok(render(StatusCode::BAD_REQUEST, &page))
        }
    }
}
