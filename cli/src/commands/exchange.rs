//! `lode token exchange`: a CI job signs in with the token of its CI service.

use std::time::Duration;

use lode_client::{Registry, http_client};
use serde_json::Value;

use super::browser::reason;
use crate::{
    args::TokenExchange,
    error::{Failure, Outcome},
    ui,
};

const EXCHANGE_GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
/// The token of a job, where the service puts it into a variable.
const ID_TOKEN_VARIABLE: &str = "LODE_ID_TOKEN";
/// Where a job of GitHub Actions requests its token, and the credential for that.
const GITHUB_URL_VARIABLE: &str = "ACTIONS_ID_TOKEN_REQUEST_URL";
const GITHUB_TOKEN_VARIABLE: &str = "ACTIONS_ID_TOKEN_REQUEST_TOKEN";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Exchanges the token of this CI job, and prints the server's token.
pub(crate) async fn exchange(registry: &Registry, args: TokenExchange) -> Outcome {
    let audience = registry.url().as_str().trim_end_matches('/');
    let id_token = id_token(audience).await?;
    let resource = args.resource.unwrap_or_default();
    let fields = [
        ("grant_type", EXCHANGE_GRANT),
        ("subject_token_type", ID_TOKEN),
        ("subject_token", &id_token),
        ("resource", &resource),
    ];
    let (status, given) = registry.form_post("hf/oauth/token", &fields).await?;
    let given: Value = given.unwrap_or_default();
    match given["access_token"].as_str() {
        Some(token) => ui::print_line(token),
        None => {
            let reason = reason(status, &given);
            Err(Failure::new(format!("{} gives no token: {reason}", registry.host())))
        }
    }
}

/// The token that the CI service has signed for this job and `audience`.
async fn id_token(audience: &str) -> Outcome<String> {
    if let Ok(token) = std::env::var(ID_TOKEN_VARIABLE)
        && !token.is_empty()
    {
        return Ok(token);
    }
    let (Ok(url), Ok(credential)) =
        (std::env::var(GITHUB_URL_VARIABLE), std::env::var(GITHUB_TOKEN_VARIABLE))
    else {
        return Err(Failure::new("this job has no token of its CI service").hint(format!(
            "GitHub: `permissions: id-token: write`; others: set {ID_TOKEN_VARIABLE} to a token with the audience {audience}"
        )));
    };
    let unavailable = |error: reqwest::Error| {
        Failure::with_source("GitHub gives no token for this job", &error.without_url())
    };
    let mut url: reqwest::Url = url
        .parse()
        .map_err(|error| Failure::with_source(format!("{GITHUB_URL_VARIABLE} is no URL"), &error))?;
    url.query_pairs_mut().append_pair("audience", audience);
    let client = http_client(|| reqwest::Client::builder().timeout(TIMEOUT)).map_err(unavailable)?;
    let response = client.get(url).bearer_auth(credential).send().await.map_err(unavailable)?;
    let given: Value = response.error_for_status().map_err(unavailable)?.json().await.map_err(unavailable)?;
    match given["value"].as_str() {
        Some(token) => Ok(token.to_owned()),
        None => Err(Failure::new("GitHub sent no token for this job")),
    }
}
