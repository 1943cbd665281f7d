//! Content digests and the hasher that computes them. A hasher's state can be saved between two requests and
//! restored. Everything that names content uses [`Digest`]; uploads use [`Hasher`].

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest as _, Sha256, Sha512};

/// A hash function that can address content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    /// The name in front of the colon of a digest.
    pub fn as_str(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    /// The number of hexadecimal digits in a digest of this algorithm.
    pub fn hex_len(self) -> usize {
        match self {
            Algorithm::Sha256 => 64,
            Algorithm::Sha512 => 128,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Algorithm {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        match text {
            "sha256" => Ok(Algorithm::Sha256),
            "sha512" => Ok(Algorithm::Sha512),
            _ if is_algorithm(text) => Err(DigestError::UnsupportedAlgorithm { algorithm: clip(text) }),
            _ => Err(DigestError::Malformed { text: clip(text) }),
        }
    }
}

/// Why a text is not a supported digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    #[error("`{text}` is not a digest (expected `algorithm:encoded`)")]
    Malformed { text: String },
    #[error("digest algorithm `{algorithm}` is not supported (expected sha256 or sha512)")]
    UnsupportedAlgorithm { algorithm: String },
    #[error("`{text}` is not a {algorithm} digest (expected {} lower-case hexadecimal digits)", .algorithm.hex_len())]
    Encoding { algorithm: Algorithm, text: String },
}

/// The address of a piece of content: `sha256:<64 hex>` or `sha512:<128 hex>`, always lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    algorithm: Algorithm,
    text: Box<str>,
}

string_schema!(Digest, "A digest: `sha256:` and 64 hexadecimal digits, or `sha512:` and 128");

impl Digest {
    /// Hashes `bytes`.
    pub fn of(algorithm: Algorithm, bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    /// Hashes `bytes` with sha256, the algorithm of everything that Lode creates.
    pub fn sha256(bytes: &[u8]) -> Digest {
        Digest::of(Algorithm::Sha256, bytes)
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The encoded part, without `algorithm:`.
    pub fn hex(&self) -> &str {
        &self.text[self.algorithm.as_str().len() + 1..]
    }

    /// The whole text, `algorithm:hex`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn from_raw(algorithm: Algorithm, raw: &[u8]) -> Digest {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::with_capacity(algorithm.as_str().len() + 1 + raw.len() * 2);
        text.push_str(algorithm.as_str());
        text.push(':');
        for byte in raw {
            text.push(HEX[usize::from(byte >> 4)] as char);
            text.push(HEX[usize::from(byte & 15)] as char);
        }
        Digest { algorithm, text: text.into() }
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let malformed = || DigestError::Malformed { text: clip(text) };
        let (algorithm, encoded) = text.split_once(':').ok_or_else(malformed)?;
        if encoded.is_empty() || !encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"=_-".contains(&b)) {
            return Err(malformed());
        }
        let algorithm = Algorithm::from_str(algorithm).map_err(|error| match error {
            DigestError::Malformed { .. } => malformed(),
            other => other,
        })?;
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if encoded.len() != algorithm.hex_len() || !encoded.bytes().all(is_hex) {
            return Err(DigestError::Encoding { algorithm, text: clip(text) });
        }
        Ok(Digest { algorithm, text: text.into() })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.text)
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.text.into()
    }
}

/// `[a-z0-9]+([+._-][a-z0-9]+)*`
fn is_algorithm(text: &str) -> bool {
    text.split(['+', '.', '_', '-'])
        .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase()))
}

/// Shortens an untrusted text for an error message.
fn clip(text: &str) -> String {
    const LONGEST: usize = 160;
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// Hashes a stream of bytes. Its state can be saved between two chunks, stored as bytes, and restored by
/// another process.
#[derive(Clone, Debug)]
pub struct Hasher(State);

#[derive(Clone, Debug)]
enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// Why saved bytes are not a hasher state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    #[error("hash state has version {found}, expected {SAVED_VERSION}")]
    Version { found: u8 },
    #[error("hash state names algorithm number {found}, expected 1 (sha256) or 2 (sha512)")]
    Algorithm { found: u8 },
    #[error("hash state of {found} bytes is damaged")]
    Damaged { found: usize },
}

/// The first byte of a saved state. A state of another version is refused and its upload starts over.
const SAVED_VERSION: u8 = 1;
const SAVED_SHA256: u8 = 1;
const SAVED_SHA512: u8 = 2;

impl Hasher {
    pub fn new(algorithm: Algorithm) -> Hasher {
        Hasher(match algorithm {
            Algorithm::Sha256 => State::Sha256(Sha256::new()),
            Algorithm::Sha512 => State::Sha512(Sha512::new()),
        })
    }

    pub fn algorithm(&self) -> Algorithm {
        match self.0 {
            State::Sha256(_) => Algorithm::Sha256,
            State::Sha512(_) => Algorithm::Sha512,
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    pub fn finish(self) -> Digest {
        match self.0 {
            State::Sha256(state) => Digest::from_raw(Algorithm::Sha256, &state.finalize()),
            State::Sha512(state) => Digest::from_raw(Algorithm::Sha512, &state.finalize()),
        }
    }

    /// The state as bytes: version, algorithm, then the hash function's own state (about 105 or 209 bytes).
    pub fn save(&self) -> Vec<u8> {
        fn framed(algorithm: u8, state: &[u8]) -> Vec<u8> {
            [&[SAVED_VERSION, algorithm], state].concat()
        }
        match &self.0 {
            State::Sha256(state) => framed(SAVED_SHA256, &state.serialize()),
            State::Sha512(state) => framed(SAVED_SHA512, &state.serialize()),
        }
    }

    /// Restores a state that [`Hasher::save`] returned.
    pub fn restore(saved: &[u8]) -> Result<Hasher, RestoreError> {
        fn inner<S: SerializableState>(state: &[u8], found: usize) -> Result<S, RestoreError> {
            let damaged = RestoreError::Damaged { found };
            let state = SerializedState::<S>::try_from(state).map_err(|_| damaged.clone())?;
            S::deserialize(&state).map_err(|_| damaged)
        }
        match *saved {
            [SAVED_VERSION, SAVED_SHA256, ref state @ ..] => {
                Ok(Hasher(State::Sha256(inner(state, saved.len())?)))
            }
            [SAVED_VERSION, SAVED_SHA512, ref state @ ..] => {
                Ok(Hasher(State::Sha512(inner(state, saved.len())?)))
            }
            [SAVED_VERSION, found, ..] => Err(RestoreError::Algorithm { found }),
            [found, _, ..] => Err(RestoreError::Version { found }),
            _ => Err(RestoreError::Damaged { found: saved.len() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMPTY_SHA256: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn known_digests() {
        assert_eq!(Digest::sha256(b"").as_str(), EMPTY_SHA256);
        assert_eq!(
            Digest::of(Algorithm::Sha512, b"abc").hex(),
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
             2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
        );
    }

    #[test]
    fn invalid_digests_have_distinct_errors() {
        let kind = |text: &str| match text.parse::<Digest>() {
            Ok(_) => "ok",
            Err(DigestError::Malformed { .. }) => "malformed",
            Err(DigestError::UnsupportedAlgorithm { .. }) => "unsupported",
            Err(DigestError::Encoding { .. }) => "encoding",
        };
        for (text, expect) in [
            (EMPTY_SHA256, "ok"),
            ("", "malformed"),
            ("sha256", "malformed"),
            ("sha256:", "malformed"),
            (":abc", "malformed"),
            ("SHA256:abc", "malformed"),
            ("sha256:ab/cd", "malformed"),
            ("sha256:é", "malformed"),
            ("sha256:baddigeststring", "encoding"),
            (&EMPTY_SHA256.to_uppercase().replace("SHA", "sha"), "encoding"),
            (&EMPTY_SHA256[..70], "encoding"),
            (&format!("{EMPTY_SHA256}0"), "encoding"),
            (&EMPTY_SHA256.replace("sha256", "sha512"), "encoding"),
            ("sha384:abcd", "unsupported"),
            ("md5+b64u.x_y-z:a=_-", "unsupported"),
            ("md5+:abcd", "malformed"),
        ] {
            assert_eq!(kind(text), expect, "{text}");
        }
    }

    #[test]
    fn saved_at_every_split() {
        let bytes: Vec<u8> = (0..300u32).map(|i| (i * 7 % 251) as u8).collect();
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let whole = Digest::of(algorithm, &bytes);
            for split in 0..=bytes.len() {
                let mut first = Hasher::new(algorithm);
                first.update(&bytes[..split]);
                let mut second = Hasher::restore(&first.save()).expect("a saved state restores");
                second.update(&bytes[split..]);
                assert_eq!(second.algorithm(), algorithm);
                assert_eq!(second.finish(), whole, "{algorithm} split at {split}");
            }
        }
    }

    #[test]
    fn damaged_states_are_refused() {
        let saved = Hasher::new(Algorithm::Sha256).save();
        assert_eq!(Hasher::restore(&[]).unwrap_err(), RestoreError::Damaged { found: 0 });
        assert_eq!(Hasher::restore(&[9, 1, 2]).unwrap_err(), RestoreError::Version { found: 9 });
        assert_eq!(Hasher::restore(&[1, 7, 2]).unwrap_err(), RestoreError::Algorithm { found: 7 });
        for cut in 2..saved.len() {
            assert_eq!(Hasher::restore(&saved[..cut]).unwrap_err(), RestoreError::Damaged { found: cut });
        }
        assert!(Hasher::restore(&[saved.as_slice(), &[0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn print_then_parse(bytes: Vec<u8>, long: bool) {
            let digest = Digest::of(if long { Algorithm::Sha512 } else { Algorithm::Sha256 }, &bytes);
            prop_assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest.clone()));
            let json = serde_json::to_string(&digest).unwrap();
            prop_assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        }

        #[test]
        fn parse_never_panics(text in "\\PC*|sha256:[0-9a-f]{60,68}") {
            if let Ok(digest) = text.parse::<Digest>() {
                prop_assert_eq!(digest.as_str(), text);
            }
        }

        #[test]
        fn restore_never_panics(saved in proptest::collection::vec(any::<u8>(), 0..240), tag in 0u8..3) {
            let _ = Hasher::restore(&[&[SAVED_VERSION, tag], saved.as_slice()].concat()).map(Hasher::finish);
        }
    }
}
