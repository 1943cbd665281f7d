//! `/login/PROVIDER` and its callback: signing in at an OpenID Connect provider, and connecting an account with
//! an identity there.

use axum::extract::State;
use axum::response::Response;
use http::header;
use http::request::Parts;

use super::page::{Shell, message_with_link};
use crate::Registry;
use crate::app::{OidcCallback, OidcRedirect, OidcSignIn, SignOnGoal};
use crate::auth::Caller;
use crate::http::links::own_base_url;
use crate::http::pages::{Form, SignedIn, next_page, redirect};
use crate::http::session_cookie::{set_session_cookie, set_sign_in_cookie, sign_in_cookie};
use crate::http::{Failure, Path, Query};

const ACCOUNT_PAGE: &str = "/-/account";

/// Sends the browser to the provider.
pub(crate) async fn begin(
    State(registry): State<Registry>,
    caller: Caller,
    Path(provider): Path<String>,
    request: Parts,
    query: Query,
) -> Result<Response, Failure> {
    let next = next_page(query.get("next").unwrap_or_default());
    let base = own_base(&registry, &request)?;
    let goal = match query.get("again") {
        Some(_) => SignOnGoal::SignInAgain,
        None => SignOnGoal::SignIn,
    };
    let OidcRedirect { url, cookie } = registry.sign_on_begin(&caller, &provider, &base, next, goal).await?;
    let mut response = redirect(url.as_str());
    response.headers_mut().insert(header::SET_COOKIE, set_sign_in_cookie(&registry, &request, Some(&cookie)));
    Ok(response)
}

/// Where the provider sends the browser back to.
pub(crate) async fn callback(
    State(registry): State<Registry>,
    caller: Caller,
    Path(provider): Path<String>,
    request: Parts,
    query: Query,
) -> Result<Response, Failure> {
    let callback = OidcCallback {
        code: query.get("code").unwrap_or_default(),
        state: query.get("state").unwrap_or_default(),
        issuer: query.get("iss"),
        error: query.get("error_description").or(query.get("error")),
    };
    let base = own_base(&registry, &request)?;
    let cookie = sign_in_cookie(&registry, &request).unwrap_or_default();
    let OidcSignIn { session, next } =
        registry.sign_on_finish(&caller, &provider, &base, &cookie, callback).await?;
    let mut response = redirect(&next);
    let headers = response.headers_mut();
    headers.append(header::SET_COOKIE, set_sign_in_cookie(&registry, &request, None));
    if let Some(session) = &session {
        headers.append(header::SET_COOKIE, set_session_cookie(&registry, &request, Some(session)));
    }
    Ok(response)
}

/// Begins to connect the caller's account with an identity. A form must not lead to another site, so the page
/// has a link.
pub(crate) async fn connect(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    request: Parts,
    form: Form,
) -> Result<Response, Failure> {
    let provider = form.get("provider");
    let base = own_base(&registry, &request)?;
    let OidcRedirect { url, cookie } =
        registry.sign_on_begin(&caller, provider, &base, ACCOUNT_PAGE, SignOnGoal::Connect).await?;
    let shell = Shell::of(&registry, &caller).await?;
    let known = registry.providers().into_iter().find(|known| known.name == provider);
    let title = known.map_or_else(|| provider.to_owned(), |known| known.title);
    let text = format!("Sign in at {title} to connect your account with it.");
    let mut response =
        message_with_link(shell, "Connect", text, (url.to_string(), format!("Continue to {title}")));
    response.headers_mut().insert(header::SET_COOKIE, set_sign_in_cookie(&registry, &request, Some(&cookie)));
    Ok(response)
}

/// This server's address for the browser.
pub(super) fn own_base(registry: &Registry, request: &Parts) -> Result<String, Failure> {
    let base = own_base_url(request, registry.config());
    base.ok_or(Failure::HostInvalid { reason: "expected the name of this server" })
}
