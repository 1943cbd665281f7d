//! `/hf/oauth/device` and `/hf/oauth/token`: signing in on a device without a browser (RFC 8628), for
//! `hf auth login` and `lode login`, and as a job of a CI service (RFC 8693), for huggingface_hub and scripts.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use lode_client::read_body;
use serde_json::{Value, json};

use crate::app::devices::{DEVICE_TIME, POLL_INTERVAL};
use crate::app::{AccountError, DevicePoll, DeviceStart, PublisherError};
use crate::auth::{Access, Caller};
use crate::http::authenticate::refuse_other_sites;
use crate::http::links::own_base_url;
use crate::http::{Failure, Json};
use crate::time::now_ms;
use crate::{Error, Registry};

/// The largest form.
const MAX_FORM_BYTES: usize = 64 << 10;

const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
const EXCHANGE_GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
/// The kinds of token that are exchanged, and the kind that is given for them.
const SUBJECT_TOKENS: [&str; 2] =
    ["urn:ietf:params:oauth:token-type:id_token", "urn:ietf:params:oauth:token-type:jwt"];
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
/// The client id of Lode's command line. All others are clients of Hugging Face.
const LODE_CLIENT: &str = "lode";

/// The fields of a form, or of a JSON object of texts, which huggingface_hub sends for a job.
struct Fields(Vec<(String, String)>);

impl Fields {
    async fn read(registry: &Registry, headers: &HeaderMap, body: Body) -> Result<Fields, Failure> {
        let mut charge = registry.body_budget().charge();
        let bytes = read_body(body, MAX_FORM_BYTES, &mut charge).await?;
        let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_json = kind.is_some_and(|kind| kind.trim_start().starts_with("application/json"));
        if !is_json {
            return Ok(Fields(url::form_urlencoded::parse(&bytes).into_owned().collect()));
        }
        // Anything else has no fields, and is refused for that.
        let object: serde_json::Map<String, Value> = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = |(name, value)| match value {
            Value::String(text) => Some((name, text)),
            _ => None,
        };
        Ok(Fields(object.into_iter().filter_map(text).collect()))
    }

    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }
}

/// Starts a sign-in. `scope` is the access level of the token, by default `write`.
pub(crate) async fn device(
    State(registry): State<Registry>,
    caller: Caller,
    request: Parts,
    body: Body,
) -> Result<Response, Failure> {
    if registry.is_open().await? {
        return Ok(refused("access_denied", "this server has no accounts: no sign-in is needed"));
    }
    // A page of another site must not use up the codes of its visitors' network.
    refuse_other_sites(&registry, &request)?;
    let form = Fields::read(&registry, &request.headers, body).await?;
    let access = match form.get("scope") {
        "" => Access::Write,
        text => match text.parse() {
            Ok(access) => access,
            Err(error) => return Ok(refused("invalid_scope", &format!("{error}"))),
        },
    };
    let client = match form.get("client_name") {
        "" if form.get("client_id") == LODE_CLIENT => "lode",
        "" => "hf",
        name => name,
    };
    let DeviceStart { device_code, user_code } = registry.device_begin(&caller, client, access).await?;
    let base = own_base_url(&request, registry.config()).unwrap_or_default();
    Ok(fresh(json!({
        "device_code": device_code.expose(),
        "user_code": user_code,
        "verification_uri": format!("{base}/device"),
        "verification_uri_complete": format!("{base}/device?user_code={user_code}"),
        "expires_in": DEVICE_TIME.as_secs(),
        "interval": POLL_INTERVAL.as_secs(),
    })))
}

/// The token of a sign-in, once a person has allowed it, or of a CI job.
pub(crate) async fn token(
    State(registry): State<Registry>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let form = Fields::read(&registry, &headers, body).await?;
    match form.get("grant_type") {
        DEVICE_GRANT => {}
        EXCHANGE_GRANT => return exchange(&registry, &caller, &form).await,
        // None are issued: the token itself is valid for long.
        "refresh_token" => return Ok(refused("invalid_grant", "sign in again")),
        _ => return Ok(refused("unsupported_grant_type", &format!("expected {DEVICE_GRANT}"))),
    }
    Ok(match registry.device_poll(&caller, form.get("device_code")).await {
        Ok(DevicePoll::Pending) => refused("authorization_pending", "the sign-in was not allowed yet"),
        Ok(DevicePoll::TooFast) => refused("slow_down", "wait longer between requests"),
        Ok(DevicePoll::Denied) => refused("access_denied", "the sign-in was denied"),
        Ok(DevicePoll::Expired) => refused("expired_token", "the code has expired; start again"),
        Ok(DevicePoll::Allowed(token, secret)) => {
            let valid = token.expires_at.map(|at| (at - now_ms()) / 1000);
            fresh(json!({
                "access_token": secret.expose(),
                "token_type": "bearer",
                "expires_in": valid,
                "scope": token.scope.access,
            }))
        }
        Err(Error::Throttled { .. }) => refused("slow_down", "wait longer between requests"),
        Err(error) => return Err(error.into()),
    })
}

/// Exchanges the token of a CI job.
async fn exchange(registry: &Registry, client: &Caller, form: &Fields) -> Result<Response, Failure> {
    if registry.is_open().await? {
        return Ok(refused("invalid_request", "this server has no accounts: no sign-in is needed"));
    }
    if !SUBJECT_TOKENS.contains(&form.get("subject_token_type")) {
        return Ok(refused(
            "invalid_request",
            &format!("subject_token_type: expected {}", SUBJECT_TOKENS[0]),
        ));
    }
    let resource = Some(form.get("resource")).filter(|resource| !resource.is_empty());
    match registry.publisher_sign_in(client, form.get("subject_token"), resource).await {
        Ok((token, secret)) => Ok(fresh(json!({
            "access_token": secret.expose(),
            "issued_token_type": ACCESS_TOKEN,
            "token_type": "bearer",
            "expires_in": token.expires_at.map(|at| (at - now_ms()) / 1000),
            "scope": token.scope.access,
        }))),
        Err(AccountError::Publisher(error @ PublisherError::Unavailable { .. })) => {
            let mut response = refused("temporarily_unavailable", &error.to_string());
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok(response)
        }
        Err(AccountError::Publisher(error)) => {
            let code = match error {
                PublisherError::NoPublicUrl
                | PublisherError::Resource { .. }
                | PublisherError::ResourceMismatch { .. }
                | PublisherError::ResourceMissing
                | PublisherError::RobotMissing { .. } => "invalid_request",
                _ => "invalid_grant",
            };
            Ok(refused(code, &error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// An error in the format of OAuth (RFC 6749, 5.2).
fn refused(error: &str, description: &str) -> Response {
    let body = json!({ "error": error, "error_description": description });
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

/// A response with a secret.
fn fresh(body: Value) -> Response {
    let mut response = Json(body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
