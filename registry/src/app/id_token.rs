//! What an ID token says: whether it is for this sign-in (OpenID Connect Core 1.0, 3.1.3.7), and the person's groups
//! and name.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use lode_client::Secret;
use serde_json::Value;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use super::sign_in_errors::SignOnError;
use crate::auth::jwt::{Claims, JwtError, LEEWAY_SECONDS};
use crate::config::OidcProvider;
use crate::issuer::IdToken;
use crate::time::now_ms;

/// How long a person may take at the provider.
pub(crate) const SIGN_ON_TIME: Duration = Duration::from_secs(10 * 60);
/// The namespace that ollama's clients mean by a bare name.
const LIBRARY: &str = "library";
/// Of how many groups a person may be a member.
const MAX_GROUPS: usize = 1000;

/// Checks what is special about an ID token (OpenID Connect Core 1.0, 3.1.3.7).
pub(super) fn check_id_token(
    token: &IdToken,
    provider: &OidcProvider,
    nonce: &str,
    access_token: &Secret,
) -> Result<(), JwtError> {
    let claims = &token.claims;
    let expect = |name: &'static str, expected: &str| match claims.text(name) {
        Some(got) if got == expected => Ok(()),
        got => Err(JwtError::Claim {
            name,
            expected: expected.to_owned(),
            got: got.unwrap_or_default().to_owned(),
        }),
    };
    if claims.required("nonce")? != nonce {
        return Err(JwtError::Missing { name: "nonce" });
    }
    // A token for several clients says to which of them it was given.
    if claims.audiences().len() > 1 || claims.0.contains_key("azp") {
        expect("azp", &provider.client_id)?;
    }
    if claims.0.contains_key("at_hash") {
        expect("at_hash", &half_hash(token.algorithm, access_token.expose()))?;
    }
    let now = now_ms() / 1000;
    let is_old = claims
        .seconds("iat")
        .is_some_and(|at| now.saturating_sub(at) > SIGN_ON_TIME.as_secs().cast_signed() + LEEWAY_SECONDS);
    if is_old { Err(JwtError::Time) } else { Ok(()) }
}

/// Whether the person has signed in at the provider for this. Some providers do not say when.
pub(super) fn is_recent(claims: &Claims) -> bool {
    let oldest = now_ms() / 1000 - SIGN_ON_TIME.as_secs().cast_signed() - LEEWAY_SECONDS;
    claims.seconds("auth_time").is_none_or(|at| at >= oldest)
}

/// The left half of a text's hash, as `at_hash` has it.
fn half_hash(algorithm: Algorithm, text: &str) -> String {
    let half = |hash: &[u8]| URL_SAFE_NO_PAD.encode(&hash[..hash.len() / 2]);
    match algorithm {
        Algorithm::RS384 | Algorithm::PS384 | Algorithm::ES384 => half(&Sha384::digest(text)),
        Algorithm::RS512 | Algorithm::PS512 | Algorithm::EdDSA => half(&Sha512::digest(text)),
        _ => half(&Sha256::digest(text)),
    }
}

/// A claim by its name, or by the names of nested claims with `.` in between.
pub(super) fn find_claim<'a>(claims: &'a Claims, name: &str) -> Option<&'a Value> {
    if let Some(value) = claims.0.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    rest.split('.').try_fold(claims.0.get(first)?, |value, part| value.get(part))
}

/// The groups of a person. Without the claim there are none.
pub(super) fn groups_of(provider: &OidcProvider, claims: &Claims) -> Vec<String> {
    let Some(name) = &provider.groups_claim else { return Vec::new() };
    match find_claim(claims, name) {
        Some(Value::String(group)) => vec![group.clone()],
        Some(Value::Array(groups)) => {
            groups.iter().filter_map(Value::as_str).take(MAX_GROUPS).map(str::to_owned).collect()
        }
        _ => {
            tracing::warn!(
                provider = provider.name,
                claim = name,
                claims = ?claims.0.keys().collect::<Vec<_>>(),
                "the provider says nothing about groups; the person is a member of none"
            );
            Vec::new()
        }
    }
}

/// The name of a new account.
pub(super) fn account_name(provider: &OidcProvider, claims: &Claims) -> Result<String, SignOnError> {
    let invalid = |reason: String| SignOnError::Invalid { title: provider.title().to_owned(), reason };
    let claim = &provider.name_claim;
    let text = find_claim(claims, claim).and_then(Value::as_str);
    let text = text.ok_or_else(|| invalid(format!("its claim `{claim}` is missing")))?;
    if claim == "email" && claims.0.get("email_verified") != Some(&Value::Bool(true)) {
        return Err(invalid("the email address is not verified".to_owned()));
    }
    let name = text.split('@').next().unwrap_or_default().to_lowercase();
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    let name = name.trim_matches(['.', '_', '-']);
    super::accounts::check_name(name, name)
        .map_err(|error| invalid(format!("its claim `{claim}` gives no account name: {error}")))?;
    // Its owner would own what ollama's clients call by a bare name.
    if name == LIBRARY {
        return Err(invalid(format!("its claim `{claim}` gives the reserved name `{name}`")));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn provider() -> OidcProvider {
        serde_json::from_value(json!({"name": "corp", "issuer": "https://id", "client_id": "lode"})).unwrap()
    }

    fn claims(json: Value) -> Claims {
        serde_json::from_value(json).map(Claims).unwrap()
    }

    #[test]
    fn accounts_are_named_by_a_claim() {
        let name =
            |value: Value| account_name(&provider(), &claims(json!({"preferred_username": value}))).ok();
        for (claim, expected) in [
            ("alice", Some("alice")),
            ("Alice.Smith@corp.example", Some("alice.smith")),
            ("CORP\\alice", Some("corp-alice")),
            ("-alice-", Some("alice")),
            ("@corp", None),
            ("admin/../x", None),
            ("v2", None),
            ("Library", None),
            ("", None),
            ("日本", None),
        ] {
            assert_eq!(name(claim.into()).as_deref(), expected, "{claim}");
        }
        assert_eq!((name(json!(7)), name(Value::Null)), (None, None));
        let email = OidcProvider { name_claim: "email".into(), ..provider() };
        let by_email = |verified: Value| {
            let claims = claims(json!({"email": "alice@corp", "email_verified": verified}));
            account_name(&email, &claims).ok()
        };
        assert_eq!(by_email(json!(true)).as_deref(), Some("alice"));
        for wrong in [json!(false), json!("true"), Value::Null] {
            assert_eq!(by_email(wrong), None);
        }
    }

    #[test]
    fn groups_are_found_in_many_shapes() {
        let of = |claim: &str, value: Value| {
            groups_of(&OidcProvider { groups_claim: Some(claim.into()), ..provider() }, &claims(value))
        };
        assert_eq!(of("groups", json!({"groups": ["ml", "ops", 7]})), ["ml", "ops"]);
        assert_eq!(of("groups", json!({"groups": "ml"})), ["ml"]);
        assert_eq!(of("realm.roles", json!({"realm": {"roles": ["ml"]}})), ["ml"]);
        assert_eq!(of("https://id/groups", json!({"https://id/groups": ["ml"]})), ["ml"]);
        for none in [json!({}), json!({"groups": null}), json!({"groups": {"ml": true}})] {
            assert_eq!(of("groups", none), [""; 0]);
        }
        assert_eq!(groups_of(&provider(), &claims(json!({"groups": ["ml"]}))), [""; 0]);
    }

    #[test]
    fn id_tokens_are_for_this_sign_in() {
        let now = now_ms() / 1000;
        let check = |json: Value| {
            let mut all = claims(json!({"nonce": "n", "aud": "lode", "iat": now}));
            all.0.extend(claims(json).0);
            let token = IdToken { claims: all, algorithm: Algorithm::RS256 };
            check_id_token(&token, &provider(), "n", &Secret::new("access"))
        };
        // The left half of SHA-256("access").
        let hash = half_hash(Algorithm::RS256, "access");
        for right in [
            json!({}),
            json!({"azp": "lode"}),
            json!({"aud": ["lode", "other"], "azp": "lode"}),
            json!({"at_hash": hash}),
        ] {
            assert_eq!(check(right.clone()), Ok(()), "{right}");
        }
        for wrong in [
            json!({"nonce": "m"}),
            json!({"nonce": ""}),
            json!({"nonce": null}),
            json!({"azp": "other"}),
            json!({"aud": ["lode", "other"]}),
            json!({"at_hash": "x"}),
            json!({"at_hash": 7}),
            json!({"iat": now - 3600}),
        ] {
            assert!(check(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
