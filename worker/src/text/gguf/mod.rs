//! Tokenizers as GGUF files carry them: tokens, their kinds, and scores or merges, under `tokenizer.ggml.`.
//! What the keys mean is what llama.cpp makes of them (src/llama-vocab.cpp), and the ids are its ids.

mod cut;
mod pieces;
mod pre;
#[cfg(test)]
mod tests;
mod tokens;
mod words;

use std::sync::Arc;

use lode_model::gguf::Metadata;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{SplitDelimiterBehavior, Tokenizer as Library};

use self::cut::{Cutter, Fragment};
use self::pieces::Pieces;
use self::tokens::{Kind, Tokens};
use self::words::Words;
use super::special::SpecialTokens;
use super::template::{ChatTemplate, TemplateError};
use super::tokenizer::{Entry, Special, Tokenizer, TokenizerError, Vocabulary, byte_of_char};

/// How SentencePiece writes a blank.
const BLANK: char = '\u{2581}';

/// A tokenizer and its special tokens, from the metadata of a GGUF.
pub fn read(metadata: &Metadata) -> Result<(Tokenizer, SpecialTokens), TokenizerError> {
    let kind = metadata.str("tokenizer.ggml.model").ok_or(TokenizerError::NoVocabulary)?;
    let flag = |key: &str, default: bool| metadata.bool(&format!("tokenizer.ggml.{key}")).unwrap_or(default);
    let tokens = Tokens::read(metadata)?;
    let id = |key: &str, default: Option<u32>| tokens.id_of_key(metadata, key).or(default);
    let default = |id: u32| Some(id).filter(|id| (*id as usize) < tokens.len());
    let (model, ends, roles) = match kind {
        "gpt2" => {
            let name = metadata.str("tokenizer.ggml.pre").unwrap_or_default();
            let pre = pre::find(name).ok_or_else(|| TokenizerError::UnknownPre { pre: name.to_owned() })?;
            let ends = Ends { begin: flag("add_bos_token", pre.add_bos), end: flag("add_eos_token", false) };
            let roles = Roles { bos: id("bos", None), eos: id("eos", None), end: id("eos", None) };
            (Model::Bytes(Box::new(byte_level(metadata, &tokens, &pre)?)), ends, roles)
        }
        "llama" => {
            let unknown = id("unknown", default(0));
            let pieces = Pieces::read(metadata, &tokens, unknown, flag("add_space_prefix", true))?;
            let ends = Ends { begin: flag("add_bos_token", true), end: flag("add_eos_token", false) };
            let eos = id("eos", default(2));
            (Model::Pieces(pieces), ends, Roles { bos: id("bos", default(1)), eos, end: eos })
        }
        "bert" => {
            let unknown = id("unknown", default(100));
            let begin = id("bos", None).or(id("cls", default(101)));
            let lowercase = flag("normalizer.lowercase", true);
            let unknown =
                unknown.ok_or(TokenizerError::MissingKey { key: "tokenizer.ggml.unknown_token_id" })?;
            let words = Words::new(&tokens, unknown, lowercase, flag("normalizer.strip_accents", lowercase));
            let roles = Roles { bos: begin, eos: id("eos", None), end: id("seperator", default(102)) };
            (Model::Words(words), Ends { begin: true, end: true }, roles)
        }
        other => return Err(TokenizerError::UnknownKind { kind: other.to_owned() }),
    };
    let special = tokens.special(metadata, roles.bos, roles.eos);
    let cutter = Cutter::new(&tokens, metadata);
    let leading_blank = match &model {
        Model::Bytes(_) => false,
        Model::Pieces(pieces) => pieces.adds_blank(),
        Model::Words(_) => true,
    };
    let vocabulary = vocabulary(&tokens, matches!(model, Model::Bytes(_)), leading_blank);
    let tokenizer = GgufTokenizer {
        model,
        cutter,
        begin: roles.bos.filter(|_| ends.begin),
        end: roles.end.filter(|_| ends.end),
        tokens,
    };
    Ok((Tokenizer::of_gguf(tokenizer, Arc::new(vocabulary)), special))
}

/// The chat template of a GGUF, if it has one.
pub fn chat_template(
    metadata: &Metadata,
    special: &SpecialTokens,
) -> Result<Option<ChatTemplate>, TemplateError> {
    let tool_use = metadata.str("tokenizer.chat_template.tool_use");
    let source = metadata.str("tokenizer.chat_template");
    source.map(|source| ChatTemplate::new(source, tool_use, special)).transpose()
}

/// What is put around a text where special tokens are wanted.
struct Ends {
    begin: bool,
    end: bool,
}

struct Roles {
    bos: Option<u32>,
    eos: Option<u32>,
    /// What is put behind a text.
    end: Option<u32>,
}

/// Special tokens are cut out first; what is left between them goes to the model.
pub(super) struct GgufTokenizer {
    model: Model,
    cutter: Cutter,
    tokens: Tokens,
    begin: Option<u32>,
    end: Option<u32>,
}

enum Model {
    /// Byte-level BPE, which the library computes exactly as it is defined.
    Bytes(Box<Library>),
    Pieces(Pieces),
    Words(Words),
}

impl GgufTokenizer {
    pub(super) fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        ids.extend(self.begin.filter(|_| special.add));
        // A text that begins, or goes on after a special token, is what gets a blank in front.
        let mut begins = true;
        for fragment in self.cutter.cut(text, special.parse) {
            match fragment {
                Fragment::Id(id) => ids.push(id),
                Fragment::Text(text) => match &self.model {
                    Model::Pieces(pieces) => pieces.encode(text, begins, &mut ids),
                    Model::Words(words) => words.encode(text, &mut ids)?,
                    Model::Bytes(library) => {
                        let encoding = library.encode_fast(text, false).map_err(TokenizerError::Encode)?;
                        ids.extend_from_slice(encoding.get_ids());
                    }
                },
            }
            begins = matches!(fragment, Fragment::Id(_));
        }
        ids.extend(self.end.filter(|_| special.add));
        Ok(ids)
    }

    pub(super) fn token_id(&self, token: &str) -> Option<u32> {
        self.tokens.id(token)
    }

    pub(super) fn begin(&self) -> Option<u32> {
        self.begin
    }
}

fn byte_level(metadata: &Metadata, tokens: &Tokens, pre: &pre::Pre) -> Result<Library, TokenizerError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let merges = metadata.get(MERGES).ok_or(TokenizerError::MissingKey { key: MERGES })?;
    let merges = merges.as_array().and_then(|array| array.as_strings());
    let merges = merges.ok_or(TokenizerError::BadKey { key: MERGES, expected: "a list of strings" })?;
    let mut pairs = Vec::with_capacity(merges.len());
    let mut whole = String::new();
    for merge in merges.iter() {
        let Ok(merge) = std::str::from_utf8(merge) else { continue };
        // The first character may itself be a blank.
        let Some(first) = merge.chars().next().map(char::len_utf8) else { continue };
        let Some(at) = merge[first..].find(' ').map(|at| at + first) else { continue };
        let (left, right) = (&merge[..at], &merge[at + 1..]);
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        // A merge with no token to show for it could never be seen in the ids.
        if [left, right, &whole].iter().all(|part| tokens.id(part).is_some()) {
            pairs.push((left.to_owned(), right.to_owned()));
        }
    }
    let vocab: Vocab = tokens.iter().map(|(id, text)| (text.to_owned(), id)).collect();
    let bpe = BPE::builder()
        .vocab_and_merges(vocab, pairs)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(TokenizerError::Format)?;
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in pre.patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
        steps.push(split.map_err(TokenizerError::Format)?.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());
    let mut library = Library::new(bpe);
    library.with_pre_tokenizer(Some(Sequence::new(steps)));
    Ok(library)
}

/// The bytes of every id.
fn vocabulary(tokens: &Tokens, byte_level: bool, leading_blank: bool) -> Vocabulary {
    let entry = |(id, text): (u32, &str)| {
        let kind = tokens.kind(id);
        let raw = || text.as_bytes().to_vec();
        let bytes = match kind {
            Kind::Unknown | Kind::Control | Kind::UserDefined => raw(),
            Kind::Byte => byte_of_token(text).map_or_else(raw, |byte| vec![byte]),
            Kind::Normal | Kind::Unused if byte_level => {
                text.chars().map(byte_of_char).collect::<Option<Vec<u8>>>().unwrap_or_else(raw)
            }
            Kind::Normal | Kind::Unused => text.replace(BLANK, " ").into_bytes(),
        };
        Some(Entry { bytes: bytes.into(), special: matches!(kind, Kind::Unknown | Kind::Control) })
    };
    Vocabulary::new(tokens.all().map(entry).collect(), leading_blank)
}

/// `<0xE2>` stands for that byte.
fn byte_of_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}
