//! The challenge of a 401: where a client gets credentials, and for what. All clients of the distribution API
//! understand one `Bearer` challenge; some read only the first of several. ollama's own API names a page.

use http::request::Parts;
use http::{HeaderValue, Method, Uri};
use lode_model::reference::Repository;

use super::authenticate::shown_key;
use super::links::own_base_url;
use crate::auth::{CATALOG_SCOPE, MOUNT_SCOPE, OllamaKey};
use crate::{Error, Registry};

/// What a challenge says, prepared before the request is consumed.
pub(crate) struct Challenge {
    /// `scheme://host`, as the client wrote it.
    base: String,
    scope: Option<String>,
    /// The key of ollama that the client sends.
    key: Option<OllamaKey>,
}

impl Challenge {
    /// The challenge of a request, unless the server is open.
    pub(crate) fn of(registry: &Registry, parts: &Parts) -> Option<Challenge> {
        if !registry.may_have_accounts() {
            return None;
        }
        let base = own_base_url(parts, registry.config())?;
        Some(Challenge { base, scope: scope(&parts.method, &parts.uri), key: shown_key(&parts.headers) })
    }

    /// The page on which a person signs in, or adds the key that the client sends.
    pub(crate) fn sign_in_url(&self) -> String {
        match self.key {
            Some(key) => connect_url(&self.base, key),
            None => format!("{}/login", self.base),
        }
    }

    /// The `WWW-Authenticate` header for an error; `None` for one that credentials cannot help.
    pub(crate) fn header(&self, error: &Error) -> Option<HeaderValue> {
        let problem = match error {
            Error::Unauthorized | Error::CredentialsInvalid { is_token: false } => None,
            Error::CredentialsInvalid { is_token: true } => Some("invalid_token"),
            Error::InsufficientScope => Some("insufficient_scope"),
            _ => return None,
        };
        let Challenge { base, scope, .. } = self;
        let service = base.split_once("://").map_or(base.as_str(), |(_, host)| host);
        let mut text = format!("Bearer realm=\"{base}/token\",service=\"{service}\"");
        for (name, value) in [("scope", scope.as_deref()), ("error", problem)] {
            if let Some(value) = value {
                text.push_str(&format!(",{name}=\"{value}\""));
            }
        }
        HeaderValue::from_str(&text).ok()
    }
}

/// The page on which a person adds a key to its account.
pub(crate) fn connect_url(base: &str, key: OllamaKey) -> String {
    format!("{base}/connect?name=ollama&key={}", key.to_url())
}

/// The scope that a route of the distribution API needs.
fn scope(method: &Method, uri: &Uri) -> Option<String> {
    let path = uri.path().strip_prefix("/v2/")?;
    if path == "_catalog" {
        return Some(CATALOG_SCOPE.to_owned());
    }
    let end = ["/blobs/", "/manifests/", "/tags/", "/referrers/"]
        .into_iter()
        .filter_map(|part| path.rfind(part))
        .max()?;
    let repository: Repository = path[..end].parse().ok()?;
    let actions = match *method {
        Method::GET | Method::HEAD => "pull",
        Method::DELETE if path[end..].starts_with("/blobs/uploads/") => "pull,push",
        Method::DELETE => "delete",
        _ => "pull,push",
    };
    let mut text = format!("repository:{repository}:{actions}");
    let query: Vec<_> = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect();
    let value = |key: &str| query.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    match value("from") {
        Some(source) => {
            if let Ok(source) = source.parse::<Repository>() {
                text.push_str(&format!(" repository:{source}:pull"));
            }
        }
        None if value("mount").is_some() => text.push_str(&format!(" {MOUNT_SCOPE}")),
        None => {}
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_name_their_scope() {
        for (method, uri, expect) in [
            (Method::GET, "/v2/", ""),
            (Method::GET, "/v2/_catalog?n=1", "registry:catalog:*"),
            (Method::GET, "/v2/team/app/manifests/latest", "repository:team/app:pull"),
            (Method::HEAD, "/v2/app/blobs/sha256:00", "repository:app:pull"),
            (Method::GET, "/v2/team/blobs/x/tags/list", "repository:team/blobs/x:pull"),
            (Method::PUT, "/v2/team/app/manifests/latest", "repository:team/app:pull,push"),
            (Method::POST, "/v2/team/app/blobs/uploads/", "repository:team/app:pull,push"),
            (Method::PATCH, "/v2/team/app/blobs/uploads/1", "repository:team/app:pull,push"),
            (Method::DELETE, "/v2/team/app/blobs/uploads/1", "repository:team/app:pull,push"),
            (Method::DELETE, "/v2/team/app/manifests/latest", "repository:team/app:delete"),
            (
                Method::POST,
                "/v2/a/b/blobs/uploads/?mount=sha256:00&from=c/d",
                "repository:a/b:pull,push repository:c/d:pull",
            ),
            (
                Method::POST,
                "/v2/a/b/blobs/uploads/?mount=sha256:00",
                "repository:a/b:pull,push registry:mount:*",
            ),
            (Method::GET, "/v2/Team/app/manifests/latest", ""),
            (Method::GET, "/v2/a%22b/manifests/latest", ""),
            (Method::POST, "/v2/a/blobs/uploads/?from=%22%0d%0a", "repository:a:pull,push"),
        ] {
            let scope = scope(&method, &uri.parse().unwrap()).unwrap_or_default();
            assert_eq!(scope, expect, "{method} {uri}");
        }
    }

    #[test]
    fn the_header_is_one_challenge() {
        let challenge = Challenge {
            base: "https://lode.example:5000".to_owned(),
            scope: Some("repository:team/app:pull".to_owned()),
            key: None,
        };
        let header = |error: Error| {
            challenge.header(&error).map(|value| value.to_str().map(str::to_owned).unwrap_or_default())
        };
        let plain = "Bearer realm=\"https://lode.example:5000/token\",service=\"lode.example:5000\",\
                     scope=\"repository:team/app:pull\"";
        assert_eq!(header(Error::Unauthorized).as_deref(), Some(plain));
        let invalid = format!("{plain},error=\"invalid_token\"");
        assert_eq!(header(Error::CredentialsInvalid { is_token: true }), Some(invalid));
        assert_eq!(header(Error::CredentialsInvalid { is_token: false }).as_deref(), Some(plain));
        assert_eq!(header(Error::Denied { needs: String::new() }), None);
    }
}
