//! An OpenID Connect provider of the settings: how people of an organisation sign in.

use std::path::PathBuf;

use lode_client::{Secret, is_loopback_host};
use serde::{Deserialize, Serialize};
use url::Url;

use super::text::secret;
use crate::OpenError;

const MAX_NAME_LEN: usize = 32;

/// One `[[oidc]]` table of the settings. The provider has to allow the redirect to
/// `PUBLIC_URL/login/NAME/callback`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcProvider {
    /// Its name in addresses and records: lower-case letters, digits and `-`.
    pub name: String,
    /// Its name for people. Default: `name`.
    #[serde(default)]
    pub title: Option<String>,
    /// The issuer, exactly as the provider writes it in its tokens.
    pub issuer: String,
    /// The id of this server at the provider.
    pub client_id: String,
    /// The secret of this server at the provider. A public client has none.
    #[serde(default)]
    pub client_secret: Option<Secret>,
    /// A file with that secret. A line break at its end does not count.
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
    /// The requested scopes. `openid` is always among them.
    #[serde(default = "default_scopes")]
    pub scopes: Vec<String>,
    /// The claim that names a new account. From an email address, the part before the `@` is used.
    #[serde(default = "default_name_claim")]
    pub name_claim: String,
    /// The claim with the person's groups. A `.` separates the names of nested claims.
    #[serde(default)]
    pub groups_claim: Option<String>,
    /// Only members of this group may sign in.
    #[serde(default)]
    pub required_group: Option<String>,
    /// The group of administrators. With it, each sign-in gives or takes the server role `admin`.
    #[serde(default)]
    pub admin_group: Option<String>,
    /// Whether a person without an account gets one at the first sign-in.
    #[serde(default = "default_true")]
    pub create_accounts: bool,
}

fn default_scopes() -> Vec<String> {
    ["openid", "profile", "email"].map(str::to_owned).to_vec()
}

fn default_name_claim() -> String {
    "preferred_username".to_owned()
}

fn default_true() -> bool {
    true
}

impl OidcProvider {
    /// Its name for people.
    pub(crate) fn title(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
    }
}

/// Checks the settings, and replaces each `client_secret_file` by its content.
pub(crate) fn check_providers(providers: &mut [OidcProvider]) -> Result<(), OpenError> {
    for at in 0..providers.len() {
        let (earlier, rest) = providers.split_at_mut(at);
        let provider = &mut rest[0];
        let unusable = |reason: String| OpenError::Config { setting: "oidc", reason };
        let name = &provider.name;
        if name.is_empty()
            || name.len() > MAX_NAME_LEN
            || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        {
            return Err(unusable(format!("name `{name}` is not 1 to {MAX_NAME_LEN} of a-z, 0-9 and `-`")));
        }
        if earlier.iter().any(|other| other.name == *name) {
            return Err(unusable(format!("`{name}` is configured twice")));
        }
        let issuer = &provider.issuer;
        if earlier.iter().any(|other| other.issuer == *issuer) {
            return Err(unusable(format!("the issuer `{issuer}` is configured twice")));
        }
        check_issuer(issuer).map_err(|reason| unusable(format!("issuer `{issuer}`: {reason}")))?;
        if provider.groups_claim.is_none()
            && (provider.required_group.is_some() || provider.admin_group.is_some())
        {
            return Err(unusable("required_group and admin_group need groups_claim".to_owned()));
        }
        provider.client_secret = secret("oidc", &provider.client_secret, &provider.client_secret_file)?;
        if !provider.scopes.iter().any(|scope| scope == "openid") {
            provider.scopes.insert(0, "openid".to_owned());
        }
    }
    Ok(())
}

/// Checks the address of an issuer: an https URL, or http on this machine.
pub(crate) fn check_issuer(issuer: &str) -> Result<Url, &'static str> {
    let url: Url = issuer.parse().map_err(|_| "expected a URL")?;
    let is_local = url.scheme() == "http" && url.host_str().is_some_and(is_loopback_host);
    if url.scheme() != "https" && !is_local {
        return Err("expected an https URL");
    }
    if url.host_str().is_none() || !url.username().is_empty() || url.password().is_some() {
        return Err("expected a host without a login");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("expected no query and no fragment");
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(name: &str, issuer: &str) -> OidcProvider {
        serde_json::from_value(serde_json::json!({"name": name, "issuer": issuer, "client_id": "lode"}))
            .unwrap()
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let message = |mut providers: Vec<OidcProvider>| {
            check_providers(&mut providers).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let corp = || provider("corp", "https://id.example/realms/corp");
        assert_eq!(message(vec![corp(), provider("two", "http://127.0.0.1:9/")]), "");
        for (providers, expected) in [
            (vec![provider("Corp", "https://id.example")], "a-z"),
            (vec![provider("", "https://id.example")], "a-z"),
            (vec![corp(), provider("corp", "https://other.example")], "configured twice"),
            (vec![corp(), provider("two", &corp().issuer)], "configured twice"),
            (vec![provider("corp", "http://id.example")], "https"),
            (vec![provider("corp", "id.example")], "URL"),
            (vec![provider("corp", "https://a:b@id.example")], "login"),
            (vec![provider("corp", "https://id.example/?a=b")], "query"),
            (vec![OidcProvider { admin_group: Some("ops".into()), ..corp() }], "groups_claim"),
            (vec![OidcProvider { client_secret_file: Some("/missing".into()), ..corp() }], "/missing"),
        ] {
            assert!(message(providers).contains(expected), "{expected}");
        }
        let mut scoped = vec![OidcProvider { scopes: vec!["groups".into()], ..corp() }];
        check_providers(&mut scoped).unwrap();
        assert_eq!(scoped[0].scopes, ["openid", "groups"]);
    }
}
