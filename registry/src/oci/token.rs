//! `/token`: exchanges credentials for an access token, as Docker's clients do after a challenge. The layers
//! around the routes have checked the credentials of the header; a POST has them in its body.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, header};
use lode_client::{Secret, read_body};
use lode_model::reference::Repository;
use serde_json::json;

use crate::auth::{Caller, RepositoryScope, Requested};
use crate::http::authenticate::{UnknownKey, shown_key};
use crate::http::challenge::connect_url;
use crate::http::links::own_base_url;
use crate::http::model_name::client_spellings;
use crate::http::{Failure, Json, Query};
use crate::time::{now_ms, rfc3339};
use crate::{Error, Registry};

/// The largest form.
const MAX_FORM_BYTES: usize = 64 << 10;

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    query: Query,
    request: Parts,
) -> Result<Response, Failure> {
    let mut requested = Requested::parse(query.all("scope"));
    if shown_key(&request.headers).is_some() {
        requested.repositories = with_other_spellings(requested.repositories);
    }
    // ollama shows the text of an error, and would repeat the request after a 401.
    if let Some(UnknownKey(key)) = request.extensions.get()
        && registry.scopes_grant(&caller, &requested.repositories).await?.is_empty()
        && !requested.repositories.is_empty()
    {
        let base = own_base_url(&request, registry.config()).unwrap_or_default();
        return Err(Failure::KeyUnknown { url: connect_url(&base, *key) });
    }
    respond(&registry, &caller, &requested).await
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    body: Body,
) -> Result<Response, Failure> {
    let mut charge = registry.body_budget().charge();
    let bytes = read_body(body, MAX_FORM_BYTES, &mut charge).await?;
    let form: Vec<(String, String)> = url::form_urlencoded::parse(&bytes).into_owned().collect();
    let field = |name: &str| form.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let caller = match field("grant_type") {
        Some("password") if !registry.is_open().await? => {
            let (name, password) =
                (field("username").unwrap_or_default(), field("password").unwrap_or_default());
            let identity = registry.sign_in_basic(&caller, name, &Secret::new(password), None).await?;
            caller.with_identity(identity)
        }
        Some("password") => caller,
        // Refresh tokens are not issued. Clients that tried one continue with a GET.
        _ => return Err(Error::CredentialsInvalid { is_token: true }.into()),
    };
    let scopes = form.iter().filter(|(name, _)| name == "scope").map(|(_, value)| value.as_str());
    respond(&registry, &caller, &Requested::parse(scopes)).await
}

/// To ollama, `x` and `library/x` are one name, and the content may be under the other spelling.
fn with_other_spellings(scopes: Vec<RepositoryScope>) -> Vec<RepositoryScope> {
    let all_of = |scope: RepositoryScope| {
        let names = client_spellings(scope.repository.as_str());
        let names: Vec<Repository> = match names {
            Ok(names) => names.iter().cloned().collect(),
            Err(_) => vec![scope.repository.clone()],
        };
        names.into_iter().map(move |repository| RepositoryScope { repository, ..scope.clone() })
    };
    scopes.into_iter().flat_map(all_of).collect()
}

async fn respond(registry: &Registry, caller: &Caller, requested: &Requested) -> Result<Response, Failure> {
    let (token, valid) = registry.access_token_issue(caller, requested).await?;
    let body = json!({
        "token": token.expose(),
        "access_token": token.expose(),
        "expires_in": valid.as_secs(),
        "issued_at": rfc3339(now_ms()),
    });
    let mut response = Json(body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
