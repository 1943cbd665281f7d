//! Encrypts the keys that are stored in the database and must be readable again, with a key that is not there
//! (`secret_key`): AES-256-GCM, bound to the name of the stored value.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use lode_client::Secret;
use sha2::Sha256;

use crate::Error;
use crate::error::VaultError;

/// Begins encrypted values.
const MARK: &[u8] = b"lode-sealed-1:";
/// Separates this use of the secret key from others.
const PURPOSE: &[u8] = b"lode: keys in the database";

/// Encrypts and decrypts stored values. Without a key it stores them as they are.
#[derive(Default)]
pub(crate) struct Vault(Option<RandomizedNonceKey>);

impl Vault {
    pub(crate) fn new(secret: Option<&Secret>) -> Vault {
        Vault(secret.map(|secret| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes())
                .expect("HMAC takes keys of any length");
            mac.update(PURPOSE);
            let key = mac.finalize().into_bytes();
            RandomizedNonceKey::new(&AES_256_GCM, &key).expect("a SHA-256 has the length of an AES-256 key")
        }))
    }

    /// The value as it is stored.
    pub(crate) fn seal(&self, name: &str, value: &[u8]) -> Result<Vec<u8>, Error> {
        let Some(key) = &self.0 else { return Ok(value.to_vec()) };
        let mut sealed = value.to_vec();
        let nonce = key
            .seal_in_place_append_tag(Aad::from(name.as_bytes()), &mut sealed)
            .map_err(|error| Error::io("encryption of a key", std::io::Error::other(error)))?;
        Ok([MARK, &nonce.as_ref()[..], &sealed].concat())
    }

    /// The value, and whether it should be stored again: it is not encrypted, although there is a key.
    pub(crate) fn open(&self, name: &str, stored: &[u8]) -> Result<(Vec<u8>, bool), VaultError> {
        let Some(sealed) = stored.strip_prefix(MARK) else { return Ok((stored.to_vec(), self.0.is_some())) };
        let key = self.0.as_ref().ok_or(VaultError::NoKey)?;
        let (nonce, bytes) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(VaultError::WrongKey)?;
        let mut bytes = bytes.to_vec();
        let opened = key
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(name.as_bytes()), &mut bytes)
            .map_err(|_| VaultError::WrongKey)?;
        Ok((opened.to_vec(), false))
    }

    /// Like `seal`, for text.
    pub(crate) fn seal_text(&self, name: &str, value: &Secret) -> Result<Secret, Error> {
        if self.0.is_none() {
            return Ok(value.clone());
        }
        let sealed = self.seal(name, value.expose().as_bytes())?;
        Ok(Secret::new(format!("sealed:{}", STANDARD_NO_PAD.encode(sealed))))
    }

    /// Like `open`, for text.
    pub(crate) fn open_text(&self, name: &str, stored: &Secret) -> Result<Secret, VaultError> {
        let Some(sealed) = stored.expose().strip_prefix("sealed:") else { return Ok(stored.clone()) };
        let sealed = STANDARD_NO_PAD.decode(sealed).map_err(|_| VaultError::WrongKey)?;
        let (opened, _) = self.open(name, &sealed)?;
        String::from_utf8(opened).map(Secret::new).map_err(|_| VaultError::WrongKey)
    }

    pub(crate) fn has_key(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_values_open_with_the_same_key_and_name() {
        let vault = |key: &str| Vault::new(Some(&Secret::new(key)));
        let sealed = vault("k").seal("links", b"value").unwrap();
        assert_ne!(sealed, vault("k").seal("links", b"value").unwrap(), "a new nonce");
        assert!(!sealed.windows(5).any(|part| part == b"value"));
        assert_eq!(vault("k").open("links", &sealed), Ok((b"value".to_vec(), false)));
        assert_eq!(vault("other").open("links", &sealed), Err(VaultError::WrongKey));
        assert_eq!(vault("k").open("tokens", &sealed), Err(VaultError::WrongKey));
        assert_eq!(vault("k").open("links", &sealed[..20]), Err(VaultError::WrongKey));
        assert_eq!(Vault::default().open("links", &sealed), Err(VaultError::NoKey));
        let mut damaged = sealed.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(vault("k").open("links", &damaged), Err(VaultError::WrongKey));
    }

    #[test]
    fn values_from_before_the_key_are_read_and_stored_again() {
        let vault = Vault::new(Some(&Secret::new("k")));
        assert_eq!(vault.open("links", b"value"), Ok((b"value".to_vec(), true)));
        assert_eq!(Vault::default().open("links", b"value"), Ok((b"value".to_vec(), false)));
        assert_eq!(Vault::default().seal("links", b"value").unwrap(), b"value");
        let text = Secret::new("secret");
        let sealed = vault.seal_text("worker", &text).unwrap();
        assert!(!sealed.expose().contains("secret"));
        assert_eq!(vault.open_text("worker", &sealed), Ok(text.clone()));
        assert_eq!(vault.open_text("worker", &text), Ok(text.clone()));
        assert_eq!(Vault::default().open_text("worker", &sealed), Err(VaultError::NoKey));
    }
}
