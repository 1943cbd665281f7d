//! `/login` and `/logout`.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::request::Parts;
use http::{StatusCode, header};
use lode_client::Secret;

use super::page::{Shell, message, render};
use crate::Registry;
use crate::auth::Caller;
use crate::http::pages::{Form, next_page, redirect};
use crate::http::session_cookie::set_session_cookie;
use crate::http::{Failure, Query};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    shell: Shell,
    name: String,
    next: String,
    problem: Option<String>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    query: Query,
) -> Result<Response, Failure> {
    let shell = Shell::of(&registry, &caller).await?;
    if !shell.has_accounts {
        return Ok(message(
            shell,
            "No accounts",
            "This server has no accounts: every client may do everything.",
        ));
    }
    let next = next_page(query.get("next").unwrap_or_default()).to_owned();
    if shell.account.is_some() {
        return Ok(redirect(&next));
    }
    Ok(render(StatusCode::OK, &LoginPage { shell, name: String::new(), next, problem: None }))
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    request: Parts,
    form: Form,
) -> Result<Response, Failure> {
    let (name, next) = (form.get("name"), next_page(form.get("next")));
    match registry.session_open(&caller, name, &Secret::new(form.get("password"))).await {
        Ok(cookie) => {
            let mut response = redirect(next);
            response
                .headers_mut()
                .insert(header::SET_COOKIE, set_session_cookie(&registry, &request, Some(&cookie)));
            Ok(response)
        }
        Err(error) => {
            let failure = Failure::from(error);
            let is_refused =
                matches!(failure.status(), StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS);
            if !is_refused {
                return Err(failure);
            }
            let shell = Shell::of(&registry, &caller).await?;
            let (name, next, problem) = (name.to_owned(), next.to_owned(), Some(failure.message()));
            Ok(render(failure.status(), &LoginPage { shell, name, next, problem }))
        }
    }
}

pub(crate) async fn logout(
    State(registry): State<Registry>,
    caller: Caller,
    request: Parts,
    _form: Form,
) -> Result<Response, Failure> {
    registry.session_end(&caller).await?;
    let mut response = redirect("/login");
    response.headers_mut().insert(header::SET_COOKIE, set_session_cookie(&registry, &request, None));
    Ok(response)
}
