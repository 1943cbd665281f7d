//! The ed25519 keys with which ollama signs its requests, in the format of SSH.

use std::fmt;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};

const KIND: &[u8] = b"ssh-ed25519";
const KEY_LEN: usize = 32;

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OllamaKey([u8; KEY_LEN]);

/// Why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an ed25519 public key: `ssh-ed25519 AAAA...`, the content of ~/.ollama/id_ed25519.pub")]
pub struct OllamaKeyError;

impl OllamaKey {
    /// Parses a line `ssh-ed25519 BASE64 [COMMENT]`; returns the comment, too.
    pub fn parse_line(text: &str) -> Result<(OllamaKey, Option<&str>), OllamaKeyError> {
        let mut parts = text.trim().splitn(3, ' ');
        match (parts.next(), parts.next()) {
            (Some("ssh-ed25519"), Some(encoded)) => {
                let comment = parts.next().map(str::trim).filter(|comment| !comment.is_empty());
                Ok((OllamaKey::parse(encoded)?, comment))
            }
            _ => Err(OllamaKeyError),
        }
    }

    /// Parses the middle part of a line, as requests have it.
    pub fn parse(encoded: &str) -> Result<OllamaKey, OllamaKeyError> {
        let bytes = STANDARD.decode(encoded).map_err(|_| OllamaKeyError)?;
        let (kind, rest) = ssh_string(&bytes).ok_or(OllamaKeyError)?;
        let (key, rest) = ssh_string(rest).ok_or(OllamaKeyError)?;
        if kind != KIND || !rest.is_empty() {
            return Err(OllamaKeyError);
        }
        key.try_into().map(OllamaKey).map_err(|_| OllamaKeyError)
    }

    /// The key in hexadecimal.
    pub(crate) fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    pub(crate) fn from_hex(text: &str) -> Option<OllamaKey> {
        hex::decode(text).ok()?.try_into().ok().map(OllamaKey)
    }

    /// The key as a line, without a comment.
    pub fn line(self) -> String {
        format!("ssh-ed25519 {}", STANDARD.encode(self.wire()))
    }

    /// The line in a URL.
    pub(crate) fn to_url(self) -> String {
        URL_SAFE_NO_PAD.encode(self.line())
    }

    pub(crate) fn from_url(text: &str) -> Result<OllamaKey, OllamaKeyError> {
        let line = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| OllamaKeyError)?;
        let line = String::from_utf8(line).map_err(|_| OllamaKeyError)?;
        OllamaKey::parse_line(&line).map(|(key, _)| key)
    }

    /// The fingerprint as `ssh-keygen -l` prints it.
    pub fn fingerprint(self) -> String {
        format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(self.wire())))
    }

    /// Whether this key has signed the message.
    pub(crate) fn verifies(self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }

    fn wire(self) -> Vec<u8> {
        let part = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
        [part(KIND), part(&self.0)].concat()
    }
}

/// A length of four bytes and that many bytes; and the rest.
fn ssh_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

impl fmt::Debug for OllamaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Created with `ssh-keygen -t ed25519`, whose `-l` printed the fingerprint.
    const LINE: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAID+J+sdSDaSdFp8SzO/s//NDYG1US57bEJgqMS0SLHRO ollama@host";
    const FINGERPRINT: &str = "SHA256:dx63Q/qfhRQUtEIsj8/PHIv1/t5y0uQwgnaZvn8aWYg";

    #[test]
    fn lines_are_parsed_and_printed() {
        let (key, comment) = OllamaKey::parse_line(LINE).unwrap();
        assert_eq!(comment, Some("ollama@host"));
        assert_eq!(key.fingerprint(), FINGERPRINT);
        assert_eq!(format!("{} ollama@host", key.line()), LINE);
        assert_eq!(OllamaKey::from_url(&key.to_url()), Ok(key));
        assert_eq!(OllamaKey::from_hex(&key.to_hex()), Some(key));
        assert_eq!(OllamaKey::parse_line(&key.line()), Ok((key, None)));
    }

    #[test]
    fn other_texts_are_refused() {
        let encoded = LINE.split(' ').nth(1).unwrap();
        for text in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 ",
            encoded,
            &format!("ssh-rsa {encoded}"),
            &format!("ssh-ed25519 {}", &encoded[..encoded.len() - 4]),
            &format!("ssh-ed25519 {encoded}AAAA"),
            &format!("ssh-ed25519 {}", STANDARD.encode([0, 0, 0, 1, b'x'])),
            &format!("ssh-ed25519 {}", STANDARD.encode([255; 60])),
        ] {
            assert!(OllamaKey::parse_line(text).is_err(), "{text}");
        }
        assert!(OllamaKey::from_url("%").is_err() && OllamaKey::from_hex("00").is_none());
    }

    #[test]
    fn signatures_are_verified() {
        use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let key = OllamaKey(pair.public_key().as_ref().try_into().unwrap());
        let signature = pair.sign(b"GET,http://host/token");
        assert!(key.verifies(b"GET,http://host/token", signature.as_ref()));
        assert!(!key.verifies(b"GET,http://other/token", signature.as_ref()));
        assert!(!key.verifies(b"GET,http://host/token", &signature.as_ref()[1..]));
        assert!(!OllamaKey([1; 32]).verifies(b"GET,http://host/token", signature.as_ref()));
    }
}
