//! Verifies JSON Web Tokens that others have signed: ID tokens of providers, and tokens of CI jobs. Only
//! asymmetric algorithms count, and only the issuer's own keys: keys and addresses inside a token are ignored.

use jsonwebtoken::jwk::{Jwk, KeyAlgorithm};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Header, Validation, decode, decode_header};
use serde_json::{Map, Value};

use crate::time::now_ms;

/// The longest token that is parsed.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// How many keys of an issuer are used.
const MAX_KEYS: usize = 64;
/// How far the clock of an issuer may be off.
pub(crate) const LEEWAY_SECONDS: i64 = 60;

/// Accepted algorithms. HMAC and `none` are not among them: who can verify must not be able to sign.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JwtError {
    #[error("it is not a signed JSON Web Token")]
    Malformed,
    #[error("its algorithm is not accepted; expected RS256, PS256, ES256, ES384, EdDSA or a longer variant")]
    Algorithm,
    /// The issuer has no such key. It may have a new one.
    #[error("the issuer has no key for it")]
    KeyUnknown,
    #[error("its signature is wrong")]
    Signature,
    #[error("it has expired, or is not valid yet")]
    Time,
    #[error("its claim `{name}` is `{got}`, expected `{expected}`")]
    Claim { name: &'static str, expected: String, got: String },
    #[error("its claim `{name}` is missing or invalid")]
    Missing { name: &'static str },
}

/// The public keys of an issuer.
pub(crate) struct Keys(Vec<(Jwk, DecodingKey)>);

impl Keys {
    /// The keys of a JSON Web Key Set that can verify signatures. Others are ignored.
    pub(crate) fn parse(set: &Value) -> Keys {
        let listed = set["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        let usable = listed.iter().take(MAX_KEYS).filter_map(|value| {
            if !matches!(value["use"].as_str(), None | Some("sig")) {
                return None;
            }
            let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
            let key = DecodingKey::from_jwk(&jwk).ok()?;
            (key.family() != AlgorithmFamily::Hmac).then_some((jwk, key))
        });
        Keys(usable.collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys that may have signed a token with this header.
    fn candidates<'a>(&'a self, header: &'a Header) -> impl Iterator<Item = &'a DecodingKey> {
        self.0.iter().filter_map(|(jwk, key)| {
            let has_id = header.kid.is_none() || jwk.common.key_id == header.kid;
            // A key that is meant for one algorithm is used for no other.
            let is_for = jwk.common.key_algorithm.is_none_or(|own| own == KeyAlgorithm::from(header.alg));
            (has_id && is_for && key.family() == header.alg.family()).then_some(key)
        })
    }
}

/// The claims of a token that was verified.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(pub(crate) Map<String, Value>);

impl Claims {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// A claim that a token has to have.
    pub(crate) fn required(&self, name: &'static str) -> Result<&str, JwtError> {
        self.text(name).filter(|text| !text.is_empty()).ok_or(JwtError::Missing { name })
    }

    /// Seconds since 1970.
    pub(crate) fn seconds(&self, name: &str) -> Option<i64> {
        let value = self.0.get(name)?;
        value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds as i64))
    }

    /// For whom the token is: its claim `aud`, a text or a list.
    pub(crate) fn audiences(&self) -> Vec<&str> {
        match self.0.get("aud") {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

/// The issuer that a token names, before anything about it is verified.
pub(crate) fn unverified_issuer(token: &str) -> Result<String, JwtError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(JwtError::Malformed);
    }
    let claims: Map<String, Value> =
        jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(|_| JwtError::Malformed)?;
    Claims(claims).required("iss").map(str::to_owned)
}

/// Verifies a token's signature, issuer and times, and that it is for one of `audiences`. Returns its claims
/// and its algorithm.
pub(crate) fn verify(
    token: &str,
    keys: &Keys,
    issuer: &str,
    audiences: &[String],
) -> Result<(Claims, Algorithm), JwtError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(JwtError::Malformed);
    }
    // 1. The header.
    let header = decode_header(token).map_err(|_| JwtError::Malformed)?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(JwtError::Algorithm);
    }
    // Extensions that a receiver has to understand.
    if header.crit.is_some() {
        return Err(JwtError::Malformed);
    }
    // 2. The signature. The claims are checked below, so that errors can name them.
    let mut validation = Validation::new(header.alg);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_aud) = (false, false);
    let mut result = Err(JwtError::KeyUnknown);
    for key in keys.candidates(&header) {
        match decode::<Map<String, Value>>(token, key, &validation) {
            Ok(data) => {
                result = Ok(Claims(data.claims));
                break;
            }
            // It does not say which key it is for: the issuer may have a new one.
            Err(_) if header.kid.is_none() => {}
            Err(_) => result = Err(JwtError::Signature),
        }
    }
    let claims = result?;
    // 3. The claims of every token.
    let got = claims.required("iss")?;
    if got != issuer {
        return Err(JwtError::Claim { name: "iss", expected: issuer.to_owned(), got: got.to_owned() });
    }
    let now = now_ms() / 1000;
    let expires = claims.seconds("exp").ok_or(JwtError::Missing { name: "exp" })?;
    let issued = claims.seconds("iat").ok_or(JwtError::Missing { name: "iat" })?;
    let begins = claims.seconds("nbf").unwrap_or(issued);
    if now >= expires.saturating_add(LEEWAY_SECONDS)
        || issued.max(begins) > now.saturating_add(LEEWAY_SECONDS)
    {
        return Err(JwtError::Time);
    }
    let got = claims.audiences();
    if !got.iter().any(|audience| audiences.iter().any(|own| own == audience)) {
        let expected = audiences.join("` or `");
        return Err(JwtError::Claim { name: "aud", expected, got: got.join(", ") });
    }
    Ok((claims, header.alg))
}
