//! `/login` and `/logout`.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::request::Parts;
use http::{StatusCode, header};
use lode_client::Secret;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use url::{Position, Url};

use super::page::{Shell, message, message_with_link, render};
use super::single_sign_on::own_base;
use crate::Registry;
use crate::app::ProviderInfo;
use crate::auth::Caller;
use crate::http::host::host;
use crate::http::pages::{Form, next_page, redirect};
use crate::http::session_cookie::set_session_cookie;
use crate::http::{Failure, Query};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    shell: Shell,
    name: String,
    next: String,
    /// The query of links to providers.
    query: String,
    providers: Vec<ProviderInfo>,
    problem: Option<String>,
}

impl LoginPage {
    fn new(registry: &Registry, shell: Shell, name: &str, next: &str, problem: Option<String>) -> LoginPage {
        LoginPage {
            name: name.to_owned(),
            next: next.to_owned(),
            // A caller with a session is here to sign in again.
            query: format!(
                "next={}{}",
                utf8_percent_encode(next, NON_ALPHANUMERIC),
                if shell.account.is_some() { "&again=1" } else { "" }
            ),
            providers: registry.providers(),
            problem,
            shell,
        }
    }
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    request: Parts,
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
    let from = previous_page(&request);
    let next = next_page(query.get("next").or(from.as_deref()).unwrap_or_default()).to_owned();
    if shell.account.is_some() && query.get("again").is_none() {
        return Ok(redirect(&next));
    }
    Ok(render(StatusCode::OK, &LoginPage::new(&registry, shell, "", &next, None)))
}

/// The addresses of forms begin like this. They have no page to return to.
const FORMS: [&str; 2] = ["/-/account/", "/-/admin/workers"];

/// The page of this server whose link led here.
fn previous_page(request: &Parts) -> Option<String> {
    let from = Url::parse(request.headers.get(header::REFERER)?.to_str().ok()?).ok()?;
    let is_own = host(request) == Some(from.authority());
    let is_form = FORMS.iter().any(|folder| from.path().starts_with(folder));
    (is_own && !is_form).then(|| from[Position::BeforePath..Position::AfterQuery].to_owned())
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
            let page = LoginPage::new(&registry, shell, name, next, Some(failure.message()));
            Ok(render(failure.status(), &page))
        }
    }
}

pub(crate) async fn logout(
    State(registry): State<Registry>,
    caller: Caller,
    request: Parts,
    _form: Form,
) -> Result<Response, Failure> {
    let provider = registry.session_end(&caller).await?;
    let base = own_base(&registry, &request)?;
    let there = match provider {
        Some(provider) => registry.sign_out_page(&provider, &base).await,
        None => None,
    };
    let mut response = match there {
        // A form must not lead to another site.
        Some((title, url)) => {
            let shell = Shell { has_accounts: true, ..Shell::default() };
            let text = format!("You are signed out here, and still signed in at {title}.");
            message_with_link(shell, "Signed out", text, (url.into(), format!("Sign out of {title}, too")))
        }
        None => redirect("/login"),
    };
    response.headers_mut().insert(header::SET_COOKIE, set_session_cookie(&registry, &request, None));
    Ok(response)
}
