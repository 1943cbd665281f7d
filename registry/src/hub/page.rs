//! What all pages share: the frame with the account's name, and the page of an error.

use std::future::Future;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, Uri, header};
use lode_model::reference::Tag;

use super::assets;
use crate::app::AccountError;
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::pages::PAGE_HEADERS;
use crate::http::session_cookie::{is_page, is_repository_page};
use crate::{Error, Registry};

/// The values of the frame around each page.
#[derive(Clone, Default)]
pub(crate) struct Shell {
    /// The name of the signed-in account.
    pub(super) account: Option<String>,
    /// The token of the session's forms.
    pub(super) csrf: String,
    pub(super) has_accounts: bool,
    /// Whether the caller may see the state of the server.
    pub(super) is_operator: bool,
    /// The text in the search box.
    pub(super) query: String,
}

impl Shell {
    pub(super) async fn of(registry: &Registry, caller: &Caller) -> Result<Shell, Error> {
        let token = registry.csrf_token(caller).await?;
        let account = caller.account().filter(|_| token.is_some());
        Ok(Shell {
            account: account.map(|account| account.name.clone()),
            csrf: token.map(|token| token.expose().to_owned()).unwrap_or_default(),
            has_accounts: !registry.is_open().await?,
            is_operator: registry.may_inspect(caller).await?,
            query: String::new(),
        })
    }

    pub(super) fn style_url(&self) -> String {
        assets::style_url()
    }

    pub(super) fn script_url(&self) -> String {
        assets::script_url()
    }
}

/// The frame for the page of a failure, in the extensions of its response.
#[derive(Clone)]
struct ShellExtension(Arc<Shell>);

#[derive(Default, Template)]
#[template(path = "message.html")]
struct MessagePage {
    shell: Shell,
    title: &'static str,
    text: String,
    /// The address and the text of a link.
    link: Option<(String, String)>,
    /// Other pages that the reader may have meant: the address and the text of each.
    others: Vec<(String, String)>,
    /// Whether to offer the sign-in, because an account may see more.
    offers_sign_in: bool,
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

/// A page that everyone sees who may read its content. It is kept, and checked before it is shown again.
pub(super) fn render_browsed(template: &impl Template) -> Response {
    let mut response = render(StatusCode::OK, template);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("cookie, authorization"));
    response
}

/// A page with one message.
pub(super) fn message(shell: Shell, title: &'static str, text: impl Into<String>) -> Response {
    let page = MessagePage { shell, title, text: text.into(), ..MessagePage::default() };
    render(StatusCode::OK, &page)
}

/// A page with one message, and a link: its address and its text.
pub(super) fn message_with_link(
    shell: Shell,
    title: &'static str,
    text: String,
    link: (String, String),
) -> Response {
    let page = MessagePage { shell, title, text, link: Some(link), ..MessagePage::default() };
    render(StatusCode::OK, &page)
}

/// The page of a failed request.
pub(crate) fn failure_page(failure: &Failure, response: &Response) -> Response {
    let status = failure.status();
    let shell = response.extensions().get::<ShellExtension>().map(|shell| Shell::clone(&shell.0));
    let shell = shell.unwrap_or_default();
    let title = match failure {
        Failure::PageUnknown | Failure::RouteUnknown => "Page not found",
        Failure::ReferencePageUnknown { .. } => "Tag not found",
        _ => status.canonical_reason().unwrap_or("Error"),
    };
    let offers_sign_in =
        matches!(failure, Failure::PageUnknown) && shell.has_accounts && shell.account.is_none();
    let (link, others) = match failure {
        Failure::ReferencePageUnknown { repository, tags, .. } => {
            let page = |tag: &Tag| (format!("/{repository}?tag={tag}"), tag.to_string());
            let link = (format!("/{repository}/-/tags"), format!("All tags of {repository}"));
            (Some(link), tags.iter().map(page).collect())
        }
        failure => (way_out(failure).map(|(url, text)| (url.to_owned(), text.to_owned())), Vec::new()),
    };
    let text = match failure {
        Failure::RouteUnknown => "There is no page at this address.".to_owned(),
        failure => failure.message(),
    };
    render(status, &MessagePage { shell, title, text, link, others, offers_sign_in })
}

/// Responds with a page about something that may be hidden from the caller. What is missing and what is hidden get
/// the same response.
pub(super) async fn browse(
    registry: &Registry,
    caller: &Caller,
    page: impl Future<Output = Result<Response, Failure>>,
) -> Response {
    framed(registry, caller, async { page.await.map_err(hide) }).await
}

/// Responds with a page. That of a failure has the frame of the caller's other pages.
pub(super) async fn framed(
    registry: &Registry,
    caller: &Caller,
    page: impl Future<Output = Result<Response, Failure>>,
) -> Response {
    let failure = match page.await {
        Ok(response) => return response,
        Err(failure) => failure,
    };
    let mut response = failure.into_response();
    if let Ok(shell) = Shell::of(registry, caller).await {
        response.extensions_mut().insert(ShellExtension(Arc::new(shell)));
    }
    response
}

/// The response to a path without a route. Where there are pages, it has the frame of the caller's other pages.
pub(crate) async fn unknown_page(State(registry): State<Registry>, caller: Caller, uri: Uri) -> Response {
    let unknown = Failure::RouteUnknown;
    match is_page(uri.path()) || is_repository_page(uri.path()) {
        true => framed(&registry, &caller, async { Err(unknown) }).await,
        false => unknown.into_response(),
    }
}

/// Replaces failures that would tell what is hidden from what is missing.
fn hide(failure: Failure) -> Failure {
    match failure {
        Failure::Registry(
            Error::Unauthorized
            | Error::Denied { .. }
            | Error::InsufficientScope
            | Error::NameUnknown { .. }
            | Error::PushHidden { .. }
            | Error::ManifestUnknown { .. }
            | Error::BlobUnknown { .. },
        )
        // A path that no repository or reference can have.
        | Failure::Name(_) => Failure::PageUnknown,
        failure => failure,
    }
}

/// Whether a failure is about the values of a form, which shows it next to them. Others have a page of their own.
pub(super) fn is_about_form(failure: &Failure) -> bool {
    !matches!(failure, Failure::Account(AccountError::SignInAgain) | Failure::Registry(_))
}

/// The address of a page of the guide.
pub(super) fn guide_url(page: &str) -> String {
    format!("{}/blob/main/docs/guide/{page}", env!("CARGO_PKG_REPOSITORY"))
}

/// The address and the text of the link on a failure's page.
fn way_out(failure: &Failure) -> Option<(&'static str, &'static str)> {
    match failure {
        Failure::Account(AccountError::SignInAgain) => Some(("/login?again=1", "Sign in again")),
        Failure::Registry(Error::Unauthorized) => Some(("/login", "Sign in")),
        Failure::Account(AccountError::DeviceUnknown) => Some(("/device", "Enter another code")),
        // Before the setup there is no other page.
        Failure::Account(AccountError::SetupLink) | Failure::Registry(Error::SetupPending) => None,
        _ => Some(("/", "Go to the start page")),
    }
}
