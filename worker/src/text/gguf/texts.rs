//! Maps numbers to texts and texts to numbers. A vocabulary has hundreds of thousands of short texts, and
//! loading it delays the first response. The texts are therefore stored contiguously, and the hash table has
//! only numbers.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};

use lode_model::gguf::Strings;

pub(super) struct TextTable {
    strings: Strings,
    /// Files are untrusted: their authors must not be able to predict collisions.
    hasher: RandomState,
    /// A power of two of slots, at least half of them empty.
    slots: Vec<Slot>,
    /// Numbers whose text is found under another number.
    replaced: BTreeSet<u32>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Part of the text's hash, so that few texts are compared.
    tag: u32,
    /// The number plus one; 0 for an empty slot.
    next: u32,
}

impl TextTable {
    /// A table that finds the last number of a repeated text.
    pub(super) fn new(strings: Strings) -> TextTable {
        TextTable::build(strings, false)
    }

    /// A table that finds the first number of a repeated text.
    pub(super) fn with_first_of_repeated(strings: Strings) -> TextTable {
        TextTable::build(strings, true)
    }

    fn build(strings: Strings, finds_first: bool) -> TextTable {
        let slots = vec![Slot::default(); (strings.len() * 2).next_power_of_two().max(2)];
        let mut texts = TextTable { strings, hasher: RandomState::new(), slots, replaced: BTreeSet::new() };
        for number in 0..u32::try_from(texts.strings.len()).unwrap_or(u32::MAX) {
            let (at, tag) = texts.slot(texts.bytes(number));
            if let Some(before) = texts.slots[at].next.checked_sub(1) {
                if finds_first {
                    texts.replaced.insert(number);
                    continue;
                }
                texts.replaced.insert(before);
            }
            texts.slots[at] = Slot { tag, next: number + 1 };
        }
        texts
    }

    pub(super) fn len(&self) -> usize {
        self.strings.len()
    }

    pub(super) fn bytes(&self, number: u32) -> &[u8] {
        self.strings.get(number as usize).unwrap_or_default()
    }

    /// The number of a text.
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        let (at, _) = self.slot(text);
        self.slots[at].next.checked_sub(1)
    }

    /// Whether [`TextTable::find`] returns another number for this one's text.
    pub(super) fn is_replaced(&self, number: u32) -> bool {
        self.replaced.contains(&number)
    }

    /// The slot of a text, or the free slot for it, and its tag.
    fn slot(&self, text: &[u8]) -> (usize, u32) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(text);
        let hash = hasher.finish();
        let (mask, tag) = (self.slots.len() - 1, (hash >> 32) as u32);
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            let is_it = |next: u32| slot.tag == tag && self.bytes(next - 1) == text;
            if slot.next == 0 || is_it(slot.next) {
                return (at, tag);
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for n in [0u32, 1, 2, 3, 1000] {
            let texts = TextTable::new((0..n).map(|number| format!("text {number}")).collect());
            assert_eq!(texts.len(), n as usize);
            for number in 0..n {
                let text = format!("text {number}");
                assert_eq!(
                    (texts.find(text.as_bytes()), texts.bytes(number)),
                    (Some(number), text.as_bytes())
                );
            }
            assert_eq!(texts.find(b"another"), None);
        }
    }

    #[test]
    fn the_last_of_a_text_counts() {
        let texts = TextTable::new(["a", "b", "a", "", "a"].iter().collect());
        assert_eq!(
            [&b"a"[..], b"b", b"", b"c"].map(|text| texts.find(text)),
            [Some(4), Some(1), Some(3), None]
        );
        assert_eq!(
            [0, 1, 2, 3, 4].map(|number| texts.is_replaced(number)),
            [true, false, true, false, false]
        );
    }

    #[test]
    fn the_first_of_a_text_counts() {
        let texts = TextTable::with_first_of_repeated(["a", "b", "a", "b"].iter().collect());
        assert_eq!([&b"a"[..], b"b", b"c"].map(|text| texts.find(text)), [Some(0), Some(1), None]);
        assert_eq!([0, 1, 2, 3].map(|number| texts.is_replaced(number)), [false, false, true, true]);
    }
}
