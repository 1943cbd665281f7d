//! The signature of a delivery, as in the Standard Webhooks specification, for which most languages have a
//! library.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use lode_client::Secret;
use sha2::Sha256;

const PREFIX: &str = "whsec_";

/// The `webhook-signature` header for a delivery's id, the time of the attempt in seconds, and its body.
pub(super) fn sign(secret: &Secret, id: &str, timestamp: i64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key(secret)).expect("HMAC takes keys of any length");
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// Decodes a `whsec_...` secret; any other text is the key itself.
fn key(secret: &Secret) -> Vec<u8> {
    let text = secret.expose();
    let encoded = text.strip_prefix(PREFIX).map(|encoded| encoded.trim_end_matches('='));
    encoded
        .and_then(|encoded| STANDARD_NO_PAD.decode(encoded).ok())
        .unwrap_or_else(|| text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specification_s_own_example() {
        let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signature =
            sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn any_text_is_a_secret() {
        let (plain, other) = (Secret::new("correct horse"), Secret::new("whsec_not base64!"));
        assert_eq!(key(&plain), b"correct horse");
        assert_eq!(key(&other), b"whsec_not base64!");
        assert_ne!(sign(&plain, "1", 1, "{}"), sign(&plain, "1", 2, "{}"));
    }
}
