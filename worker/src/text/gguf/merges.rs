//! Byte-level BPE: the model's patterns split a text into pieces. In each piece, the adjacent tokens whose
//! merge is first in the file's list are merged, until no merge applies. Merges are looked up by their texts,
//! so a file's list is used unchanged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use lode_model::gguf::pre_tokeniser::PreTokeniser;
use lode_model::gguf::{Array, Metadata};
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

use super::texts::TextTable;
use super::tokens::Tokens;
use crate::text::tokenizer_error::TokenizerError;
use crate::text::vocabulary::byte_of_char;

pub(super) struct BpeModel {
    /// `left right`, in order of priority.
    merges: TextTable,
    patterns: Vec<Split>,
    /// Whether a piece that is a token becomes that token without merges.
    is_whole_token_first: bool,
    /// The character and the token of each byte; bytes without a token are skipped.
    bytes: Vec<(char, Option<u32>)>,
}

/// A token that can still be merged with its neighbours.
struct Symbol {
    id: u32,
    before: Option<usize>,
    after: Option<usize>,
    is_merged: bool,
}

/// Two neighbours that can be merged, ordered by the rank of their merge, then from the left.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    rank: u32,
    left: usize,
    id: u32,
}

/// The list of merges: `left right`, in order of priority. A repeated one has its first place, as in llama.cpp.
pub(super) fn read_merges(metadata: &Metadata) -> Result<TextTable, TokenizerError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let merges = metadata.get(MERGES).ok_or(TokenizerError::MissingKey { key: MERGES })?;
    let merges = merges.as_array().and_then(Array::as_strings);
    let merges = merges.ok_or(TokenizerError::BadKey { key: MERGES, expected: "a list of strings" })?;
    Ok(TextTable::with_first_of_repeated(merges.clone()))
}

impl BpeModel {
    pub(super) fn read(
        metadata: &Metadata,
        tokens: &Tokens,
        pre: &PreTokeniser,
    ) -> Result<BpeModel, TokenizerError> {
        let split = |pattern: &&str| {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(TokenizerError::Format)
        };
        let mut bytes = vec![(char::REPLACEMENT_CHARACTER, None); 256];
        for c in (0..0x200).filter_map(char::from_u32) {
            if let Some(byte) = byte_of_char(c) {
                bytes[usize::from(byte)] = (c, tokens.id(c.encode_utf8(&mut [0; 4])));
            }
        }
        Ok(BpeModel {
            merges: read_merges(metadata)?,
            patterns: pre.patterns.iter().map(split).collect::<Result<_, _>>()?,
            is_whole_token_first: pre.ignore_merges,
            bytes,
        })
    }

    pub(super) fn encode(
        &self,
        tokens: &Tokens,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut pieces = PreTokenizedString::from(text);
        for pattern in &self.patterns {
            pattern.pre_tokenize(&mut pieces).map_err(TokenizerError::Encode)?;
        }
        for (piece, _, _) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            self.piece(tokens, piece, ids);
        }
        Ok(())
    }

    fn piece(&self, tokens: &Tokens, piece: &str, ids: &mut Vec<u32>) {
        let bytes = piece.bytes().map(|byte| self.bytes[usize::from(byte)]);
        if self.is_whole_token_first {
            let written: String = bytes.clone().map(|(c, _)| c).collect();
            if let Some(id) = tokens.id(&written) {
                ids.push(id);
                return;
            }
        }
        let new = |(at, id): (usize, u32)| Symbol {
            id,
            before: at.checked_sub(1),
            after: Some(at + 1),
            is_merged: false,
        };
        let mut symbols: Vec<Symbol> = bytes.filter_map(|(_, id)| id).enumerate().map(new).collect();
        if let Some(last) = symbols.last_mut() {
            last.after = None;
        }
        let mut key = Vec::new();
        let mut pair = |symbols: &[Symbol], left: usize| {
            let (first, second) = (symbols[left].id, symbols[symbols[left].after?].id);
            let (rank, id) = self.merge(tokens, first, second, &mut key)?;
            Some(Pair { rank, left, id })
        };
        let mut queue: BinaryHeap<Reverse<Pair>> =
            (0..symbols.len()).filter_map(|left| pair(&symbols, left)).map(Reverse).collect();
        while let Some(Reverse(Pair { left, id, .. })) = queue.pop() {
            // One of the two may already be part of another merge.
            if symbols[left].is_merged || pair(&symbols, left).is_none_or(|now| now.id != id) {
                continue;
            }
            let Some(right) = symbols[left].after else { continue };
            let after = symbols[right].after;
            symbols[right].is_merged = true;
            (symbols[left].id, symbols[left].after) = (id, after);
            if let Some(after) = after {
                symbols[after].before = Some(left);
            }
            let before = symbols[left].before.and_then(|before| pair(&symbols, before));
            queue.extend(before.into_iter().chain(pair(&symbols, left)).map(Reverse));
        }
        ids.extend(symbols.iter().filter(|symbol| !symbol.is_merged).map(|symbol| symbol.id));
    }

    /// The rank of the merge of two tokens, and the resulting token. A merge whose result is not a token is
    /// ignored.
    fn merge(&self, tokens: &Tokens, left: u32, right: u32, key: &mut Vec<u8>) -> Option<(u32, u32)> {
        let (left, right) = (tokens.text(left)?.as_bytes(), tokens.text(right)?.as_bytes());
        key.clear();
        key.extend_from_slice(left);
        key.push(b' ');
        key.extend_from_slice(right);
        let rank = self.merges.find(key)?;
        key.remove(left.len());
        Some((rank, tokens.id(std::str::from_utf8(key).ok()?)?))
    }
}
