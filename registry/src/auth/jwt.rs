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

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac;
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
        RSA_PKCS1_SHA384, RSA_PSS_SHA256, RsaKeyPair,
    };
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://issuer.example";

    fn encode(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Signs with any key in any way, also in wrong ones.
    type Sign<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

    /// A name, the header, how it is signed, the keys of the issuer, and what follows.
    type Case<'a> = (&'a str, Value, Sign<'a>, Vec<Value>, Result<(), JwtError>);

    fn token(header: &Value, claims: &Value, sign: Sign<'_>) -> String {
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let signature = sign(signed.as_bytes());
        format!("{signed}.{}", encode(signature))
    }

    /// A key pair of each family.
    struct Pairs {
        ec: EcdsaKeyPair,
        rsa: RsaKeyPair,
        ed: Ed25519KeyPair,
    }

    impl Pairs {
        fn generate() -> Pairs {
            let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
            Pairs {
                ec,
                rsa: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(),
                ed: Ed25519KeyPair::generate().unwrap(),
            }
        }

        fn es256(&self, message: &[u8]) -> Vec<u8> {
            self.ec.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
        }

        fn with_rsa(
            &self,
            encoding: &'static dyn aws_lc_rs::signature::RsaEncoding,
            message: &[u8],
        ) -> Vec<u8> {
            let mut signature = vec![0; self.rsa.public_modulus_len()];
            self.rsa.sign(encoding, &SystemRandom::new(), message, &mut signature).unwrap();
            signature
        }

        fn rs256(&self, message: &[u8]) -> Vec<u8> {
            self.with_rsa(&RSA_PKCS1_SHA256, message)
        }

        fn rs384(&self, message: &[u8]) -> Vec<u8> {
            self.with_rsa(&RSA_PKCS1_SHA384, message)
        }

        fn ps256(&self, message: &[u8]) -> Vec<u8> {
            self.with_rsa(&RSA_PSS_SHA256, message)
        }

        fn eddsa(&self, message: &[u8]) -> Vec<u8> {
            self.ed.sign(message).as_ref().to_vec()
        }

        /// The public keys as JSON Web Keys, without an algorithm or an id.
        fn ec_jwk(&self) -> Value {
            let (x, y) = self.ec.public_key().as_ref()[1..].split_at(32);
            json!({"kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y)})
        }

        fn rsa_jwk(&self) -> Value {
            // DER: a sequence of two integers, the first of 257 bytes and the second of three.
            let public = self.rsa.public_key().as_ref();
            json!({"kty": "RSA", "n": encode(&public[9..265]), "e": encode(&public[267..])})
        }

        fn ed_jwk(&self) -> Value {
            json!({"kty": "OKP", "crv": "Ed25519", "x": encode(self.ed.public_key())})
        }
    }

    /// The object with more fields.
    fn with(mut object: Value, more: Value) -> Value {
        let fields = object.as_object_mut().unwrap();
        for (name, value) in more.as_object().unwrap() {
            fields.insert(name.clone(), value.clone());
        }
        object
    }

    fn right_claims() -> Value {
        let now = now_ms() / 1000;
        json!({"iss": ISSUER, "aud": "lode", "iat": now, "exp": now + 300})
    }

    fn verified(token: &str, keys: &[Value]) -> Result<(), JwtError> {
        let keys = Keys::parse(&json!({ "keys": keys }));
        verify(token, &keys, ISSUER, &["lode".to_owned(), "other".to_owned()]).map(drop)
    }

    #[test]
    fn only_a_key_of_the_issuer_verifies_and_only_as_it_is_meant() {
        use JwtError::{Algorithm, KeyUnknown, Malformed, Signature};
        let (own, foreign) = (Pairs::generate(), Pairs::generate());
        let shared = |secret: Vec<u8>| {
            move |message: &[u8]| {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), message).as_ref().to_vec()
            }
        };
        let with_public = shared(own.ec.public_key().as_ref().to_vec());
        let with_modulus = shared(own.rsa.public_key().as_ref().to_vec());
        let with_secret = shared(b"secret".to_vec());
        let es256 = |message: &[u8]| own.es256(message);
        let rs256 = |message: &[u8]| own.rs256(message);
        let rs384 = |message: &[u8]| own.rs384(message);
        let ps256 = |message: &[u8]| own.ps256(message);
        let eddsa = |message: &[u8]| own.eddsa(message);
        let forged = |message: &[u8]| foreign.es256(message);
        let nothing = |_: &[u8]| Vec::new();
        let cut = |message: &[u8]| own.es256(message)[..63].to_vec();
        let ec = with(own.ec_jwk(), json!({"kid": "k"}));
        let rsa = with(own.rsa_jwk(), json!({"kid": "k"}));
        let ed = with(own.ed_jwk(), json!({"kid": "k"}));
        let other = with(foreign.ec_jwk(), json!({"kid": "other"}));
        let oct = json!({"kty": "oct", "k": encode("secret"), "kid": "k"});
        let header = |alg: &str| json!({"alg": alg, "kid": "k"});
        let cases: Vec<Case<'_>> = vec![
            // 1. Each family with its own key.
            ("ES256", header("ES256"), &es256, vec![ec.clone()], Ok(())),
            ("RS256", header("RS256"), &rs256, vec![rsa.clone()], Ok(())),
            ("RS384", header("RS384"), &rs384, vec![rsa.clone()], Ok(())),
            ("PS256", header("PS256"), &ps256, vec![rsa.clone()], Ok(())),
            ("EdDSA", header("EdDSA"), &eddsa, vec![ed.clone()], Ok(())),
            ("the second key", header("ES256"), &es256, vec![other.clone(), ec.clone()], Ok(())),
            ("no id", json!({"alg": "ES256"}), &es256, vec![other.clone(), ec.clone()], Ok(())),
            (
                "a key of each family with one id",
                header("RS256"),
                &rs256,
                vec![ec.clone(), ed.clone(), rsa.clone()],
                Ok(()),
            ),
            // 2. Algorithms with a shared key, or without any.
            ("none", header("none"), &nothing, vec![ec.clone()], Err(Malformed)),
            ("None", header("None"), &nothing, vec![ec.clone()], Err(Malformed)),
            ("no algorithm", json!({"kid": "k"}), &es256, vec![ec.clone()], Err(Malformed)),
            ("HS256 with the public key", header("HS256"), &with_public, vec![ec.clone()], Err(Algorithm)),
            ("HS256 with the modulus", header("HS256"), &with_modulus, vec![rsa.clone()], Err(Algorithm)),
            (
                "HS256 with a shared key of the set",
                header("HS256"),
                &with_secret,
                vec![oct.clone()],
                Err(Algorithm),
            ),
            ("ES256 with a shared key", header("ES256"), &with_secret, vec![oct], Err(KeyUnknown)),
            // 3. A key is used for its own family and algorithm only.
            ("RS256 with the id of an EC key", header("RS256"), &rs256, vec![ec.clone()], Err(KeyUnknown)),
            ("ES256 with the id of an RSA key", header("ES256"), &es256, vec![rsa.clone()], Err(KeyUnknown)),
            ("EdDSA with the id of an EC key", header("EdDSA"), &eddsa, vec![ec.clone()], Err(KeyUnknown)),
            (
                "PS256 with a key for RS256",
                header("PS256"),
                &ps256,
                vec![with(rsa.clone(), json!({"alg": "RS256"}))],
                Err(KeyUnknown),
            ),
            (
                "RS256 with a key for RS256",
                header("RS256"),
                &rs256,
                vec![with(rsa.clone(), json!({"alg": "RS256"}))],
                Ok(()),
            ),
            (
                "a key for encryption",
                header("ES256"),
                &es256,
                vec![with(ec.clone(), json!({"use": "enc"}))],
                Err(KeyUnknown),
            ),
            (
                "a key for signatures",
                header("ES256"),
                &es256,
                vec![with(ec.clone(), json!({"use": "sig"}))],
                Ok(()),
            ),
            ("PS256 that is signed as RS256", header("PS256"), &rs256, vec![rsa.clone()], Err(Signature)),
            ("RS256 that is signed as RS384", header("RS256"), &rs384, vec![rsa.clone()], Err(Signature)),
            // 4. Other keys.
            ("another id", json!({"alg": "ES256", "kid": "x"}), &es256, vec![ec.clone()], Err(KeyUnknown)),
            ("another key with the id", header("ES256"), &forged, vec![ec.clone()], Err(Signature)),
            (
                "another key without an id",
                json!({"alg": "ES256"}),
                &forged,
                vec![ec.clone()],
                Err(KeyUnknown),
            ),
            ("no key", header("ES256"), &es256, vec![], Err(KeyUnknown)),
            (
                "a key in the token",
                with(header("ES256"), json!({"jwk": foreign.ec_jwk()})),
                &forged,
                vec![ec.clone()],
                Err(Signature),
            ),
            (
                "an address in the token",
                with(header("ES256"), json!({"jku": "https://evil.example/keys"})),
                &forged,
                vec![ec.clone()],
                Err(Signature),
            ),
            // 5. Damaged tokens, and extensions.
            ("no signature", header("ES256"), &nothing, vec![ec.clone()], Err(Signature)),
            ("a short signature", header("ES256"), &cut, vec![ec.clone()], Err(Signature)),
            (
                "crit",
                with(header("ES256"), json!({"crit": ["exp"], "exp": 1})),
                &es256,
                vec![ec.clone()],
                Err(Malformed),
            ),
            (
                "b64",
                with(header("ES256"), json!({"crit": ["b64"], "b64": false})),
                &es256,
                vec![ec.clone()],
                Err(Malformed),
            ),
        ];
        for (name, header, sign, keys, expected) in cases {
            assert_eq!(verified(&token(&header, &right_claims(), sign), &keys), expected, "{name}");
        }
        // 6. Not tokens, and what is changed after the signature.
        let right = token(&header("ES256"), &right_claims(), &es256);
        let parts: Vec<&str> = right.split('.').collect();
        let changed = encode(with(right_claims(), json!({"sub": "admin"})).to_string());
        let list = token(&header("ES256"), &json!([]), &es256);
        for (text, expected) in [
            (String::new(), Malformed),
            ("a.b.c".to_owned(), Malformed),
            (format!("{right}."), Malformed),
            (format!("{}.{}", parts[0], parts[1]), Malformed),
            (format!("{}.{changed}.{}", parts[0], parts[2]), Signature),
            (
                format!("{}.{}.{}", encode(r#"{"alg":"ES256","kid":"k","typ":"x"}"#), parts[1], parts[2]),
                Signature,
            ),
            (format!("{}.{}.{}", parts[0], parts[1], "x".repeat(MAX_TOKEN_BYTES)), Malformed),
            (list, Signature),
        ] {
            assert_eq!(verified(&text, std::slice::from_ref(&ec)), Err(expected), "{text:.60}");
        }
        // 7. An issuer with very many keys.
        let mut many = vec![other; MAX_KEYS];
        many.push(ec);
        assert_eq!(verified(&right, &many), Err(KeyUnknown));
        assert_eq!(verified(&right, &many[1..]), Ok(()));
    }

    #[test]
    fn issuers_times_and_audiences_count() {
        use JwtError::{Missing, Time};
        let own = Pairs::generate();
        let keys = [with(own.ec_jwk(), json!({"kid": "k"}))];
        let now = now_ms() / 1000;
        let claim = |name: &'static str, expected: &str, got: &str| {
            Err(JwtError::Claim { name, expected: expected.to_owned(), got: got.to_owned() })
        };
        let missing = |name: &'static str| Err(Missing { name });
        let audience = |got: &str| claim("aud", "lode` or `other", got);
        for (changes, expected) in [
            (json!({}), Ok(())),
            // 1. The issuer, exactly.
            (json!({"iss": "https://issuer.example/"}), claim("iss", ISSUER, "https://issuer.example/")),
            (json!({"iss": "https://ISSUER.example"}), claim("iss", ISSUER, "https://ISSUER.example")),
            (json!({"iss": ""}), missing("iss")),
            (json!({"iss": [ISSUER]}), missing("iss")),
            (json!({"iss": null}), missing("iss")),
            // 2. The times, with the leeway for the clock of the issuer.
            (json!({"exp": now - LEEWAY_SECONDS + 5}), Ok(())),
            (json!({"exp": now - LEEWAY_SECONDS - 1}), Err(Time)),
            (json!({"exp": 0}), Err(Time)),
            (json!({"exp": -1}), Err(Time)),
            (json!({"exp": i64::MIN}), Err(Time)),
            (json!({"exp": i64::MAX}), Ok(())),
            (json!({"exp": 1e300}), Ok(())),
            (json!({"exp": -1e300}), Err(Time)),
            (json!({"exp": now as f64 + 300.5}), Ok(())),
            (json!({"exp": (now + 300).to_string()}), missing("exp")),
            (json!({"exp": null}), missing("exp")),
            (json!({"iat": now + LEEWAY_SECONDS - 5}), Ok(())),
            (json!({"iat": now + LEEWAY_SECONDS + 5}), Err(Time)),
            (json!({"iat": i64::MAX}), Err(Time)),
            (json!({"iat": null}), missing("iat")),
            (json!({"iat": now.to_string()}), missing("iat")),
            (json!({"nbf": now + LEEWAY_SECONDS - 5}), Ok(())),
            (json!({"nbf": now + LEEWAY_SECONDS + 5}), Err(Time)),
            (json!({"nbf": now - 1000, "iat": now + 1000}), Err(Time)),
            // 3. The audience: one of the list is enough. Callers that need it to be alone check that.
            (json!({"aud": "other"}), Ok(())),
            (json!({"aud": ["x", "lode"]}), Ok(())),
            (json!({"aud": "lode "}), audience("lode ")),
            (json!({"aud": "Lode"}), audience("Lode")),
            (json!({"aud": []}), audience("")),
            (json!({"aud": [["lode"]]}), audience("")),
            (json!({"aud": {"lode": 1}}), audience("")),
            (json!({"aud": null}), audience("")),
            (json!({"aud": 1}), audience("")),
        ] {
            let mut claims = right_claims();
            for (name, value) in changes.as_object().unwrap() {
                match value {
                    Value::Null => claims.as_object_mut().unwrap().remove(name),
                    value => claims.as_object_mut().unwrap().insert(name.clone(), value.clone()),
                };
            }
            let token = token(&json!({"alg": "ES256", "kid": "k"}), &claims, &|message| own.es256(message));
            assert_eq!(verified(&token, &keys), expected, "{changes}");
        }
    }
}
