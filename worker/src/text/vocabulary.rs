//! The bytes of every id, and their serialised form for another process.

use serde_json::Value;

/// The bytes of every id, computed once from the vocabulary and the decoder's steps.
#[derive(Debug)]
pub struct Vocabulary {
    /// The concatenated bytes of all ids. There are hundreds of thousands, and building them delays the first
    /// response.
    bytes: Vec<u8>,
    ids: Vec<IdEnd>,
    /// Whether the decoder drops a leading space.
    pub(super) strip_first: bool,
    /// Whether the decoder works on whole texts (as for WordPiece), so that `bytes` is only an approximation
    /// for an id.
    pub(super) whole_text: bool,
}

/// The end of an id's bytes; they begin at the end of the previous id's.
#[derive(Debug, Clone, Copy)]
struct IdEnd {
    end: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An id without a token.
    Absent,
    Text,
    Special,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) special: bool,
}

/// Higher ids are refused: no vocabulary is that large, and a forged id must not determine the size of an
/// allocation.
const MAX_ID: u32 = 4 << 20;

impl Vocabulary {
    pub(crate) fn entry(&self, id: u32) -> Option<Entry<'_>> {
        let at = id as usize;
        let place = self.ids.get(at).filter(|place| place.kind != Kind::Absent)?;
        let start = at.checked_sub(1).map_or(0, |before| self.ids[before].end);
        Some(Entry { bytes: &self.bytes[start..place.end], special: place.kind == Kind::Special })
    }

    /// The bytes of an id within text: the name of a special token, and no bytes for an unknown id.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.entry(id).map(|entry| entry.bytes).unwrap_or_default()
    }

    /// True for tokens such as `<|im_end|>` that are never part of a response's text.
    pub fn is_special(&self, id: u32) -> bool {
        self.entry(id).is_some_and(|entry| entry.special)
    }

    /// One more than the highest id.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// True for a vocabulary without ids.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Serialises the vocabulary for another process; [`Vocabulary::from_wire`] reads it.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut wire = Vec::with_capacity(5 + self.ids.len() * 4 + self.bytes.len());
        wire.push(u8::from(self.strip_first) | u8::from(self.whole_text) << 1);
        wire.extend(u32::try_from(self.ids.len()).unwrap_or(u32::MAX).to_le_bytes());
        let mut start = 0;
        for place in &self.ids {
            let kind = match place.kind {
                Kind::Absent => 0,
                Kind::Text => 1,
                Kind::Special => 2,
            };
            let len = u32::try_from(place.end - start).unwrap_or(u32::MAX);
            wire.extend((len << 2 | kind).to_le_bytes());
            start = place.end;
        }
        wire.extend_from_slice(&self.bytes);
        wire
    }

    /// Reads the output of [`Vocabulary::to_wire`]; `None` if it is invalid.
    pub fn from_wire(wire: &[u8]) -> Option<Vocabulary> {
        let (&[flags], rest) = wire.split_first_chunk::<1>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let lengths_len = usize::try_from(u32::from_le_bytes(*len)).ok()?.checked_mul(4)?;
        let (lengths, bytes) = rest.split_at_checked(lengths_len)?;
        let mut end = 0;
        let place = |length: &[u8; 4]| {
            let length = u32::from_le_bytes(*length);
            end += (length >> 2) as usize;
            let kind = match length & 3 {
                0 => Kind::Absent,
                1 => Kind::Text,
                2 => Kind::Special,
                _ => return None,
            };
            Some(IdEnd { end, kind })
        };
        let ids: Vec<IdEnd> = lengths.as_chunks::<4>().0.iter().map(place).collect::<Option<_>>()?;
        let (strip_first, whole_text) = (flags & 1 != 0, flags & 2 != 0);
        let is_whole = ids.last().map_or(0, |last| last.end) == bytes.len();
        is_whole.then(|| Vocabulary { bytes: bytes.to_vec(), ids, strip_first, whole_text })
    }

    /// An empty vocabulary in which each id has its own bytes.
    pub(super) fn new(strip_first: bool) -> Vocabulary {
        Vocabulary { bytes: Vec::new(), ids: Vec::new(), strip_first, whole_text: false }
    }

    /// Adds the next id.
    pub(super) fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend_from_slice(bytes);
        self.close(if special { Kind::Special } else { Kind::Text });
    }

    /// Adds the next id, in the byte-level alphabet. A character outside of it makes the whole token literal.
    pub(super) fn push_byte_level(&mut self, text: &str) {
        let start = self.bytes.len();
        for c in text.chars() {
            let Some(byte) = byte_of_char(c) else {
                self.bytes.truncate(start);
                self.bytes.extend_from_slice(text.as_bytes());
                break;
            };
            self.bytes.push(byte);
        }
        self.close(Kind::Text);
    }

    fn close(&mut self, kind: Kind) {
        self.ids.push(IdEnd { end: self.bytes.len(), kind });
    }

    /// Reads the vocabulary of a tokenizer.json, whose `decoder` the library does not show.
    pub(super) fn read(tokenizer: &tokenizers::Tokenizer, decoder: &Value) -> Vocabulary {
        let decoder = DecoderSteps::read(decoder);
        let mut entries = Vec::new();
        let mut put = |id: u32, entry: (Vec<u8>, bool)| {
            if id >= MAX_ID {
                return;
            }
            if entries.len() <= id as usize {
                entries.resize_with(id as usize + 1, || None);
            }
            entries[id as usize] = Some(entry);
        };
        for (token, id) in tokenizer.get_vocab(false) {
            put(id, (decoder.bytes(&token), false));
        }
        // Added tokens are stored literally, outside of the model's alphabet.
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            put(id, (token.content.as_bytes().to_vec(), token.special));
        }
        let mut vocabulary = Vocabulary::new(decoder.strip_first);
        vocabulary.whole_text = decoder.whole_text;
        for entry in entries {
            match entry {
                Some((bytes, special)) => vocabulary.push(&bytes, special),
                None => vocabulary.close(Kind::Absent),
            }
        }
        vocabulary
    }

    #[cfg(test)]
    pub(crate) fn of(tokens: &[(&[u8], bool)]) -> Vocabulary {
        let mut vocabulary = Vocabulary::new(false);
        tokens.iter().for_each(|(bytes, special)| vocabulary.push(bytes, *special));
        vocabulary
    }
}

/// The effect of a tokenizer.json's `decoder` on a single token, as far as it is defined per token.
#[derive(Debug, Default)]
struct DecoderSteps {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
    word_prefix: Option<String>,
    word_suffix: Option<String>,
    strip_first: bool,
    whole_text: bool,
}

impl DecoderSteps {
    fn read(decoder: &Value) -> DecoderSteps {
        let mut steps = DecoderSteps::default();
        match decoder.is_object() {
            true => steps.add(decoder, 0),
            // Without a decoder the library joins tokens with spaces.
            false => steps.whole_text = true,
        }
        steps
    }

    fn add(&mut self, decoder: &Value, depth: usize) {
        let text = |key: &str| decoder.get(key).and_then(Value::as_str);
        match text("type") {
            Some("Sequence") if depth < 4 => {
                for step in decoder.get("decoders").and_then(Value::as_array).into_iter().flatten() {
                    self.add(step, depth + 1);
                }
            }
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Fuse") => {}
            Some("Replace") => {
                let pattern = decoder.pointer("/pattern/String").and_then(Value::as_str);
                match (pattern, text("content")) {
                    (Some(pattern), Some(content)) if !pattern.is_empty() => {
                        self.replace.push((pattern.into(), content.into()));
                    }
                    _ => self.whole_text = true,
                }
            }
            Some("Metaspace") => {
                self.replace.push((text("replacement").unwrap_or("\u{2581}").into(), " ".into()));
                let never = text("prepend_scheme") == Some("never")
                    || decoder.get("add_prefix_space").and_then(Value::as_bool) == Some(false);
                self.strip_first |= !never;
            }
            Some("Strip") => self.strip_first |= text("content") == Some(" "),
            Some("WordPiece") => {
                self.word_prefix = Some(text("prefix").unwrap_or("##").into());
                self.whole_text = true;
            }
            Some("BPEDecoder") => {
                self.word_suffix = Some(text("suffix").unwrap_or("</w>").into());
                self.whole_text = true;
            }
            _ => self.whole_text = true,
        }
    }

    fn bytes(&self, token: &str) -> Vec<u8> {
        if self.byte_level {
            // A character outside of the byte-level alphabet makes the whole token literal, as in the
            // library.
            let bytes: Option<Vec<u8>> = token.chars().map(byte_of_char).collect();
            return bytes.unwrap_or_else(|| token.as_bytes().to_vec());
        }
        if self.byte_fallback
            && let Some(byte) = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'))
            && byte.len() == 2
            && let Ok(byte) = u8::from_str_radix(byte, 16)
        {
            return vec![byte];
        }
        let mut text = token.to_owned();
        for (pattern, content) in &self.replace {
            text = text.replace(pattern.as_str(), content);
        }
        if let Some(prefix) = &self.word_prefix {
            text = match text.strip_prefix(prefix.as_str()) {
                Some(rest) => rest.to_owned(),
                None => format!(" {text}"),
            };
        }
        if let Some(suffix) = &self.word_suffix {
            text = text.replace(suffix.as_str(), " ");
        }
        text.into_bytes()
    }
}

/// The byte of a character of the byte-level alphabet: printable Latin-1 is itself; U+0100 and up are the
/// other 68 bytes in order (as in the GPT-2 tokenizer).
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet_is_a_bijection() {
        let mut seen = [false; 256];
        for code in 0..0x200u32 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of_char) {
                assert!(!std::mem::replace(&mut seen[byte as usize], true), "two characters for {byte}");
            }
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!(byte_of_char('\u{120}'), Some(b' '));
        assert_eq!(byte_of_char('\u{10A}'), Some(b'\n'));
    }

    #[test]
    fn sentencepiece_steps() {
        let json = serde_json::json!({"decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}});
        let steps = DecoderSteps::read(&json["decoder"]);
        assert!(steps.strip_first && !steps.whole_text);
        assert_eq!(steps.bytes("\u{2581}the"), b" the");
        assert_eq!(steps.bytes("<0xE2>"), [0xE2]);
        assert_eq!(steps.bytes("<0xZZ>"), b"<0xZZ>");
    }
}
