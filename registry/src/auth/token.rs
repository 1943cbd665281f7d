//! Tokens of accounts: random text that this server creates, shows once, and then knows only by its digest.
//! The format fits clients that expect Hugging Face tokens, and scanners for leaked secrets.

use lode_client::Secret;
use lode_model::digest::Digest;

use crate::Error;

const PREFIX: &str = "hf_lode";
/// Random characters: 178 bits.
const RANDOM_LEN: usize = 30;
/// Digits of the checksum.
const CHECK_LEN: usize = 6;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Random bytes from here on are discarded, so that each digit is equally likely.
const MAX_BYTE: u8 = 62 * 4;

/// Creates a token: `hf_lode`, 30 random characters, and six of the CRC32 of those.
pub(crate) fn new_token() -> Result<Secret, Error> {
    let mut random = String::with_capacity(RANDOM_LEN);
    while random.len() < RANDOM_LEN {
        let mut bytes = [0; 64];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::io("random bytes", std::io::Error::other(error)))?;
        let digits = bytes.iter().filter(|byte| **byte < MAX_BYTE).map(|byte| digit(u32::from(*byte) % 62));
        random.extend(digits.take(RANDOM_LEN - random.len()));
    }
    Ok(Secret::new(format!("{PREFIX}{random}{}", checksum(&random))))
}

/// Whether a text has the format of a token, with the right checksum. Others need no query.
pub(crate) fn is_token(text: &str) -> bool {
    let Some((random, check)) = text.strip_prefix(PREFIX).and_then(|rest| rest.split_at_checked(RANDOM_LEN))
    else {
        return false;
    };
    random.bytes().all(|byte| byte.is_ascii_alphanumeric()) && check == checksum(random)
}

/// What the database has of a token. Tokens are random, so a fast hash is enough.
pub(crate) fn digest_of(token: &str) -> Digest {
    Digest::sha256(token.as_bytes())
}

fn checksum(random: &str) -> String {
    let mut rest = crc32fast::hash(random.as_bytes());
    let mut digits = [0; CHECK_LEN];
    for at in digits.iter_mut().rev() {
        *at = rest % 62;
        rest /= 62;
    }
    digits.into_iter().map(digit).collect()
}

fn digit(value: u32) -> char {
    char::from(DIGITS[value as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_a_checksum() {
        let token = new_token().unwrap();
        let text = token.expose();
        assert_eq!(text.len(), 43);
        assert!(text.starts_with("hf_lode") && is_token(text), "{text}");
        assert_ne!(new_token().unwrap().expose(), text);
        for at in 7..text.len() {
            let mut wrong = text.as_bytes().to_vec();
            wrong[at] = if wrong[at] == b'x' { b'y' } else { b'x' };
            let wrong = String::from_utf8(wrong).unwrap();
            assert!(!is_token(&wrong), "{wrong}");
        }
        for wrong in ["", "hf_", "hf_lode", &text[..42], &format!("{text}0"), &format!("HF{}", &text[2..])] {
            assert!(!is_token(wrong), "{wrong}");
        }
        // Checksums computed with zlib.
        for (random, check) in [("0".repeat(30), "2C8GjS"), ("Lode".repeat(7) + "xy", "0sgSFS")] {
            assert!(is_token(&format!("hf_lode{random}{check}")), "{random}");
        }
        let wide = format!("hf_lode{}é", "a".repeat(29));
        assert!(!is_token(&wide));
    }
}
