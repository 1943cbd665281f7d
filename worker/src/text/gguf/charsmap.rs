//! SentencePiece's table of replacements for characters and sequences of them, `precompiled_charsmap`: the
//! length of a trie, the trie, and the replacements, each ended by a zero byte. The trie is a double array of
//! darts-clone, whose units are 32 bits (its `darts.h`): the child of a unit for a byte is at the unit's index
//! XOR its offset XOR the byte, and has the byte as its label.

#[derive(Default)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

/// Bits of a unit.
const HAS_LEAF: u32 = 1 << 8;
const LONG_OFFSET: u32 = 1 << 9;
const LABEL: u32 = 1 << 31 | 0xff;
const VALUE: u32 = (1 << 31) - 1;

/// Distance from a unit to its children, before the XOR with their labels.
fn offset(unit: u32) -> u32 {
    (unit >> 10) << if unit & LONG_OFFSET == 0 { 0 } else { 8 }
}

impl Charsmap {
    /// `None` if the parts do not have their lengths. An empty table has no replacements.
    pub(super) fn read(bytes: &[u8]) -> Option<Charsmap> {
        if bytes.is_empty() {
            return Some(Charsmap::default());
        }
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (trie, replacements) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let (units, []) = trie.as_chunks::<4>() else { return None };
        let units = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        Some(Charsmap { units, replacements: replacements.to_vec() })
    }

    /// Passes the text to `write` part by part, the longest match at each place replaced.
    pub(super) fn replace(&self, text: &str, mut write: impl FnMut(&str)) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let found = self.longest(rest.as_bytes()).filter(|(len, _)| rest.is_char_boundary(*len));
            match found {
                Some((len, replacement)) => {
                    write(&String::from_utf8_lossy(replacement));
                    rest = &rest[len..];
                }
                None => {
                    let (one, after) = rest.split_at(c.len_utf8());
                    write(one);
                    rest = after;
                }
            }
        }
    }

    /// The length of the longest match at the beginning of a text, and its replacement.
    fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let mut index = offset(*self.units.first()?);
        let mut found = None;
        for (at, byte) in text.iter().enumerate() {
            index ^= u32::from(*byte);
            let Some(&unit) = self.units.get(index as usize) else { break };
            if *byte == 0 || unit & LABEL != u32::from(*byte) {
                break;
            }
            index ^= offset(unit);
            if unit & HAS_LEAF != 0
                && let Some(value) = self.units.get(index as usize)
            {
                found = Some((at + 1, (value & VALUE) as usize));
            }
        }
        let (len, start) = found?;
        let replacement = self.replacements.get(start..)?;
        let end = replacement.iter().position(|byte| *byte == 0)?;
        Some((len, &replacement[..end]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn replaced(charsmap: &Charsmap, text: &str) -> String {
        let mut out = String::new();
        charsmap.replace(text, |part| out.push_str(part));
        out
    }

    #[test]
    fn parts_have_their_lengths() {
        for malformed in [&[1][..], &[4, 0, 0, 0, 1], &[3, 0, 0, 0, 1, 2, 3], &[0xff; 9]] {
            assert!(Charsmap::read(malformed).is_none(), "{malformed:?}");
        }
        for empty in [&[][..], &[0, 0, 0, 0]] {
            assert_eq!(replaced(&Charsmap::read(empty).unwrap(), "text"), "text");
        }
    }

    proptest! {
        #[test]
        fn hostile_tables_only_change_the_text(
            units in prop::collection::vec(any::<u32>(), 0..300),
            replacements in prop::collection::vec(any::<u8>(), 0..40),
            text in "\\PC{0,40}",
        ) {
            let charsmap = Charsmap { units, replacements };
            replaced(&charsmap, &text);
        }

        /// A table whose units all are children of each other, so that matches are likely.
        #[test]
        fn tables_with_matches(text in "[a-c]{0,20}", leaf in 0u32..256, values in any::<[u8; 8]>()) {
            let units = (0u32..256).map(|label| label | (leaf & 1) << 8).collect();
            replaced(&Charsmap { units, replacements: values.to_vec() }, &text);
        }
    }
}
