//! BPE of characters: neighbours are merged in the order of the model, of equal ones the leftmost first, until none is
//! left. A character without a token becomes bytes. In SentencePiece's vocabularies (`llama`) the order is that of the
//! scores of the merged tokens, which a list of merges cannot express. Gemma 4 has such a list, as byte-level BPE does.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use lode_model::gguf::Metadata;

use super::merges::read_merges;
use super::texts::TextTable;
use super::tokens::{BLANK, Kind, Tokens, byte_of_token, read_scores};
use crate::text::tokenizer_error::TokenizerError;

pub(super) struct CharacterBpeModel {
    order: MergeOrder,
    longest: usize,
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    adds_blank: bool,
}

/// Which neighbours are merged first.
enum MergeOrder {
    /// Those whose union has the highest score. The score of each token.
    Scores(Vec<f32>),
    /// Those that are first in the list: `left right`. Lines without text are not merged with others, and not
    /// merged at all if they are a token.
    List(TextTable),
}

/// A range of the text that is one token until it is merged with a neighbour; empty once merged into the one
/// before it.
struct Symbol {
    start: usize,
    end: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Two neighbours that can be merged.
struct Pair {
    /// Exact for a score, and for a place in a list.
    priority: f64,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        let key = |pair: &Pair| Reverse(pair.left);
        self.priority.total_cmp(&other.priority).then_with(|| key(self).cmp(&key(other)))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

impl CharacterBpeModel {
    pub(super) fn read(
        metadata: &Metadata,
        tokens: &Tokens,
        unknown: Option<u32>,
        adds_blank: bool,
    ) -> Result<CharacterBpeModel, TokenizerError> {
        let order = MergeOrder::Scores(read_scores(metadata, tokens)?);
        Ok(CharacterBpeModel::new(tokens, order, unknown, adds_blank))
    }

    /// The model of Gemma 4.
    pub(super) fn read_with_merges(
        metadata: &Metadata,
        tokens: &Tokens,
    ) -> Result<CharacterBpeModel, TokenizerError> {
        Ok(CharacterBpeModel::new(tokens, MergeOrder::List(read_merges(metadata)?), None, false))
    }

    fn new(tokens: &Tokens, order: MergeOrder, unknown: Option<u32>, adds_blank: bool) -> CharacterBpeModel {
        let mut bytes = vec![None; 256];
        for (id, text) in tokens.all() {
            if let Some(byte) = byte_of_token(text).filter(|_| tokens.kind(id) == Kind::Byte) {
                bytes[usize::from(byte)] = Some(id);
            }
        }
        for (byte, id) in (0u8..=255).zip(&mut bytes) {
            let hex = format!("<0x{byte:02X}>");
            let ascii = byte.is_ascii().then(|| char::from(byte).to_string());
            *id = id.or_else(|| tokens.id(&hex)).or_else(|| tokens.id(&ascii?));
        }
        let longest = tokens.all().map(|(_, text)| text.len()).max().unwrap_or_default();
        CharacterBpeModel { order, longest, bytes, unknown, adds_blank }
    }

    pub(super) fn adds_blank(&self) -> bool {
        self.adds_blank
    }

    pub(super) fn encode(&self, tokens: &Tokens, text: &str, begins: bool, ids: &mut Vec<u32>) {
        let mut escaped = String::with_capacity(text.len() + text.len() / 4 + BLANK.len_utf8());
        if self.adds_blank && begins {
            escaped.push(BLANK);
        }
        escaped.extend(text.chars().map(|c| if c == ' ' { BLANK } else { c }));
        match &self.order {
            MergeOrder::Scores(_) => self.merge(tokens, &escaped, ids),
            MergeOrder::List(_) => {
                let mut rest = &escaped[..];
                while let Some(first) = rest.chars().next() {
                    let is_end = |c: char| (c == '\n') != (first == '\n');
                    let (run, after) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
                    match tokens.id(run).filter(|_| first == '\n') {
                        Some(id) => ids.push(id),
                        None => self.merge(tokens, run, ids),
                    }
                    rest = after;
                }
            }
        }
    }

    /// Merges the characters of a text.
    fn merge(&self, tokens: &Tokens, text: &str, ids: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = Vec::new();
        for (start, c) in text.char_indices() {
            let at = symbols.len();
            let symbol =
                Symbol { start, end: start + c.len_utf8(), before: at.checked_sub(1), after: Some(at + 1) };
            symbols.push(symbol);
        }
        if let Some(last) = symbols.last_mut() {
            last.after = None;
        }
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            queue.extend(self.pair(tokens, text, &symbols, [Some(right - 1), Some(right)]));
        }
        while let Some(Pair { left, right, len, .. }) = queue.pop() {
            let (l, r) = (&symbols[left], &symbols[right]);
            let gone = l.start == l.end || r.start == r.end;
            if gone || l.end - l.start + (r.end - r.start) != len {
                continue;
            }
            let (end, after) = (r.end, r.after);
            symbols[right].end = symbols[right].start;
            symbols[left].end = end;
            symbols[left].after = after;
            if let Some(after) = after {
                symbols[after].before = Some(left);
            }
            let before = symbols[left].before;
            queue.extend(self.pair(tokens, text, &symbols, [before, Some(left)]));
            queue.extend(self.pair(tokens, text, &symbols, [Some(left), after]));
        }
        for symbol in symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            let piece = &text[symbol.start..symbol.end];
            match tokens.id(piece) {
                Some(id) => ids.push(id),
                None => {
                    let byte = |byte: u8| self.bytes[usize::from(byte)].or(self.unknown);
                    ids.extend(piece.bytes().filter_map(byte));
                }
            }
        }
    }

    fn pair(
        &self,
        tokens: &Tokens,
        text: &str,
        symbols: &[Symbol],
        [left, right]: [Option<usize>; 2],
    ) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let (start, end) = (symbols[left].start, symbols[right].end);
        let len = end - start;
        if len > self.longest {
            return None;
        }
        let id = tokens.id(&text[start..end])?;
        let priority = match &self.order {
            MergeOrder::Scores(scores) => f64::from(scores[id as usize]),
            MergeOrder::List(merges) => {
                let (left, right) = text[start..end].split_at(symbols[left].end - start);
                -f64::from(merges.find(format!("{left} {right}").as_bytes())?)
            }
        };
        Some(Pair { priority, left, right, len })
    }
}
