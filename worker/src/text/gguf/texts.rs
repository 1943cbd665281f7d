//! Texts by their number and numbers by their text. A vocabulary has hundreds of thousands of short ones, and the first answer
//! waits for it: they lie one after the other, and what finds them holds numbers only.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};

use lode_model::gguf::Strings;

pub(super) struct Texts {
    strings: Strings,
    /// Files come from strangers, who must not know which texts collide.
    hasher: RandomState,
    /// A power of two of them, at least half of them empty.
    slots: Vec<Slot>,
    /// Numbers whose text has a later number, too.
    replaced: BTreeSet<u32>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// A part of the text's hash, so that few other texts are looked at.
    tag: u32,
    /// One more than the number; 0 where there is none.
    next: u32,
}

impl Texts {
    pub(super) fn new(strings: Strings) -> Texts {
        let slots = vec![Slot::default(); (strings.len() * 2).next_power_of_two().max(2)];
        let mut texts = Texts { strings, hasher: RandomState::new(), slots, replaced: BTreeSet::new() };
        for number in 0..u32::try_from(texts.strings.len()).unwrap_or(u32::MAX) {
            let (at, tag) = texts.slot(texts.bytes(number));
            if let Some(before) = texts.slots[at].next.checked_sub(1) {
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

    /// The last number of a text.
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        let (at, _) = self.slot(text);
        self.slots[at].next.checked_sub(1)
    }

    /// Whether [`Texts::find`] gives another number for this one's text.
    pub(super) fn is_replaced(&self, number: u32) -> bool {
        self.replaced.contains(&number)
    }

    /// The slot that a text has, or that is free for it, and its tag.
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
            let texts = Texts::new((0..n).map(|number| format!("text {number}")).collect());
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
        let texts = Texts::new(["a", "b", "a", "", "a"].iter().collect());
        assert_eq!(
            [&b"a"[..], b"b", b"", b"c"].map(|text| texts.find(text)),
            [Some(4), Some(1), Some(3), None]
        );
        assert_eq!(
            [0, 1, 2, 3, 4].map(|number| texts.is_replaced(number)),
            [true, false, true, false, false]
        );
    }
}
