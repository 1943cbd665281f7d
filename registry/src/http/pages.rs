//! What pages for people need: their headers, their forms, and the redirect to the sign-in.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use lode_client::{Charge, read_body};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Failure;
use super::authenticate::check_same_origin;
use super::extract::blocking_if_large;
use super::links::header_value;
use super::session_cookie::{is_page, is_repository_page};
use super::state::ServerState;
use crate::auth::{Caller, Credential};

/// The largest form.
const MAX_FORM_BYTES: usize = 64 << 10;

/// The headers of every page. Nothing runs or loads but the server's own files, and no other site frames it.
pub(crate) const PAGE_HEADERS: [(HeaderName, HeaderValue); 7] = [
    (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; img-src 'self' data:; style-src 'self'; font-src 'self'; connect-src 'self'; script-src 'self'",
        ),
    ),
    // With `no-referrer`, browsers send `Origin: null` with forms, and over plain http nothing else says where they
    // come from.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (header::CACHE_CONTROL, HeaderValue::from_static("private, no-store")),
];

/// The fields of a form that a page of this server has sent, with the token of the caller's session.
pub(crate) struct Form {
    fields: Vec<(String, String)>,
    /// Of the memory of the fields.
    _charge: Charge,
}

impl Form {
    pub(crate) fn get(&self, name: &str) -> &str {
        self.fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// The names and values of all fields.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromRequest<ServerState> for Form {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &ServerState) -> Result<Form, Failure> {
        Form::read(request, state, MAX_FORM_BYTES).await
    }
}

impl Form {
    /// Reads a form of at most `limit_bytes`.
    pub(crate) async fn read(
        request: Request,
        state: &ServerState,
        limit_bytes: usize,
    ) -> Result<Form, Failure> {
        let (parts, body) = request.into_parts();
        let registry = &state.registry;
        check_same_origin(registry, &parts)?;
        let mut charge = registry.body_budget().charge();
        let bytes = read_body(body, limit_bytes, &mut charge).await?;
        let len = bytes.len();
        let parse = move || url::form_urlencoded::parse(&bytes).into_owned().collect();
        let form = Form { fields: blocking_if_large(len, parse).await, _charge: charge };
        let caller: Caller = parts.extensions.get().cloned().unwrap_or_default();
        match registry.csrf_token(&caller).await? {
            Some(expected) if !expected.matches(form.get("csrf")) => Err(Failure::Csrf),
            _ => Ok(form),
        }
    }
}

/// A caller with a session. Others are sent to the sign-in.
pub(crate) struct SignedIn(pub(crate) Caller);

impl FromRequestParts<ServerState> for SignedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &ServerState) -> Result<SignedIn, Response> {
        let caller: Caller = parts.extensions.get().cloned().unwrap_or_default();
        let has_session =
            caller.account().is_some_and(|account| matches!(account.credential, Credential::Session(_)));
        if has_session {
            return Ok(SignedIn(caller));
        }
        Err(redirect_to_sign_in(parts))
    }
}

/// The caller of a page that needs rights, but no session. A browser without credentials is sent to the sign-in.
pub(crate) struct Visitor(pub(crate) Caller);

impl FromRequestParts<ServerState> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &ServerState) -> Result<Visitor, Response> {
        let caller: Caller = parts.extensions.get().cloned().unwrap_or_default();
        let is_stranger = caller.account().is_none() && prefers_html(&parts.headers);
        match is_stranger && state.registry.is_open().await.is_ok_and(|is_open| !is_open) {
            true => Err(redirect_to_sign_in(parts)),
            false => Ok(Visitor(caller)),
        }
    }
}

/// Sends a browser to the sign-in, which leads back to this page.
fn redirect_to_sign_in(parts: &Parts) -> Response {
    // For the router, the slashes of a repository's name were escaped.
    let path = parts.uri.path().replace("%2F", "/");
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let next = format!("{path}{query}");
    let next = utf8_percent_encode(&next, NON_ALPHANUMERIC);
    redirect(&format!("/login?next={next}"))
}

/// Whether a client accepts HTML explicitly, and not with a lower weight than plain text: it is a browser.
pub(crate) fn prefers_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let weight = |wanted: &str| {
        let entry = accept
            .split(',')
            .find(|entry| entry.split(';').next().is_some_and(|kind| kind.trim() == wanted))?;
        let q = entry.split(';').find_map(|parameter| parameter.trim().strip_prefix("q="));
        Some(q.and_then(|q| q.parse().ok()).unwrap_or(1.0_f32))
    };
    weight("text/html").is_some_and(|html| html > 0.0 && html >= weight("text/plain").unwrap_or(0.0))
}

/// A redirect to another page of this server.
pub(crate) fn redirect(path: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, header_value(path))]).into_response()
}

/// The page to show after the sign-in: one of this server, else the account's.
pub(crate) fn next_page(next: &str) -> &str {
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let path = next.split(['?', '#']).next().unwrap_or_default();
    let is_own = is_plain
        && !next.starts_with("//")
        && (is_page(path) || is_repository_page(path))
        && !["/login", "/logout"].iter().any(|begin| path.starts_with(begin));
    if is_own && path != "/" { next } else { "/-/account" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_get_html() {
        let cases = [
            ("", false),
            ("*/*", false),
            ("application/json", false),
            ("text/html", true),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("text/plain, text/html;q=0.5", false),
            ("text/html;q=0", false),
        ];
        for (accept, expect) in cases {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(prefers_html(&headers), expect, "{accept}");
        }
        assert!(!prefers_html(&HeaderMap::new()));
    }

    #[test]
    fn a_sign_in_leads_to_pages_of_this_server_only() {
        for own in [
            "/device?user_code=BCDF-GHJK",
            "/connect?name=a&key=b",
            "/-/account",
            "/team/mini/-/tags",
            "/models?q=a",
        ] {
            assert_eq!(next_page(own), own);
        }
        for other in [
            "",
            "/",
            "//evil.example/-/account",
            "https://evil.example",
            "/\\evil.example",
            "/login",
            "/logout",
            "/login/corp",
            "/v2/",
            "/-/a b",
            "/-/\r\nset-cookie: a=b",
            "-/account",
        ] {
            assert_eq!(next_page(other), "/-/account", "{other}");
        }
    }
}
