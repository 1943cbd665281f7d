//! What all pages share: the frame with the account's name, and the page of an error.

use askama::Template;
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use crate::app::AccountError;
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::pages::PAGE_HEADERS;
use crate::{Error, Registry};

/// The values of the frame around each page.
#[derive(Default)]
pub(super) struct Shell {
    /// The name of the signed-in account.
    pub(super) account: Option<String>,
    /// The token of the session's forms.
    pub(super) csrf: String,
    pub(super) has_accounts: bool,
}

impl Shell {
    pub(super) async fn of(registry: &Registry, caller: &Caller) -> Result<Shell, Error> {
        let token = registry.csrf_token(caller).await?;
        let account = caller.account().filter(|_| token.is_some());
        Ok(Shell {
            account: account.map(|account| account.name.clone()),
            csrf: token.map(|token| token.expose().to_owned()).unwrap_or_default(),
            has_accounts: !registry.is_open().await?,
        })
    }
}

#[derive(Template)]
#[template(path = "message.html")]
struct MessagePage {
    shell: Shell,
    title: &'static str,
    text: String,
    /// The address and the text of a link.
    link: Option<(String, String)>,
}

/// A page of a template.
pub(super) fn render(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, PAGE_HEADERS, html).into_response(),
        Err(error) => {
            tracing::error!(%error, "failed to render a page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// A page with one message.
pub(super) fn message(shell: Shell, title: &'static str, text: impl Into<String>) -> Response {
    render(StatusCode::OK, &MessagePage { shell, title, text: text.into(), link: None })
}

/// A page with one message, and a link: its address and its text.
pub(super) fn message_with_link(
    shell: Shell,
    title: &'static str,
    text: String,
    link: (String, String),
) -> Response {
    render(StatusCode::OK, &MessagePage { shell, title, text, link: Some(link) })
}

/// The page of a failed request.
pub(crate) fn failure_page(failure: &Failure) -> Response {
    let status = failure.status();
    let title = status.canonical_reason().unwrap_or("Error");
    let link = way_out(failure).map(|(url, text)| (url.to_owned(), text.to_owned()));
    render(status, &MessagePage { shell: Shell::default(), title, text: failure.message(), link })
}

/// The address and the text of the link on a failure's page.
fn way_out(failure: &Failure) -> Option<(&'static str, &'static str)> {
    match failure {
        Failure::Account(AccountError::SignInAgain) => Some(("/login?again=1", "Sign in again")),
        Failure::Account(AccountError::DeviceUnknown) => Some(("/device", "Enter another code")),
        // Before the setup there is no other page.
        Failure::Account(AccountError::SetupLink) | Failure::Registry(Error::SetupPending) => None,
        _ => Some(("/", "Go to the start page")),
    }
}
