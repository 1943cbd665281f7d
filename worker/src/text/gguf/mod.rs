//! Tokenizers of GGUF files: tokens, their kinds, and scores or merges, in the keys under `tokenizer.ggml.`.
//! The keys are interpreted as in llama.cpp (src/llama-vocab.cpp), with the same ids as the result.

mod characters;
mod charsmap;
#[cfg(test)]
mod checkpoint_tests;
mod cut;
pub(super) mod encoder;
mod merges;
#[cfg(test)]
mod tests;
mod texts;
mod tokens;
mod unigram;
mod words;

use std::sync::Arc;

use lode_model::gguf::{Metadata, pre_tokeniser};

use self::characters::CharacterBpeModel;
use self::cut::SpecialTokenSplitter;
use self::encoder::{GgufTokenizer, Model};
use self::merges::BpeModel;
use self::tokens::{BLANK, Kind, Tokens, byte_of_token};
use self::unigram::UnigramModel;
use self::words::WordPieceModel;
use super::special::SpecialTokens;
use super::template::{ChatTemplate, TemplateError};
use super::tokenizer::Tokenizer;
use super::tokenizer_error::TokenizerError;
use super::vocabulary::Vocabulary;

/// Reads a tokenizer and its special tokens from the metadata of a GGUF.
pub fn read(metadata: &Metadata) -> Result<(Tokenizer, SpecialTokens), TokenizerError> {
    let kind = metadata.str("tokenizer.ggml.model").ok_or(TokenizerError::NoVocabulary)?;
    let flag = |key: &str, default: bool| metadata.bool(&format!("tokenizer.ggml.{key}")).unwrap_or(default);
    let tokens = Tokens::read(metadata)?;
    let id = |key: &str, default: Option<u32>| tokens.id_of_key(metadata, key).or(default);
    let default = |id: u32| Some(id).filter(|id| (*id as usize) < tokens.len());
    let (model, ends, roles) = match kind {
        "gpt2" => {
            let name = metadata.str("tokenizer.ggml.pre").unwrap_or_default();
            let pre = pre_tokeniser::find(name)
                .ok_or_else(|| TokenizerError::UnknownPre { pre: name.to_owned() })?;
            let ends =
                AddedTokens { begin: flag("add_bos_token", pre.add_bos), end: flag("add_eos_token", false) };
            let roles = Roles { bos: id("bos", None), eos: id("eos", None), end: id("eos", None) };
            (Model::Merges(BpeModel::read(metadata, &tokens, &pre)?), ends, roles)
        }
        "llama" => {
            let unknown = id("unknown", default(0));
            let characters =
                CharacterBpeModel::read(metadata, &tokens, unknown, flag("add_space_prefix", true))?;
            let ends = AddedTokens { begin: flag("add_bos_token", true), end: flag("add_eos_token", false) };
            let eos = id("eos", default(2));
            (Model::Characters(characters), ends, Roles { bos: id("bos", default(1)), eos, end: eos })
        }
        "gemma4" => {
            let characters = CharacterBpeModel::read_with_merges(metadata, &tokens)?;
            // Some files say that no token begins a text, but the model expects it.
            let ends = AddedTokens { begin: true, end: flag("add_eos_token", false) };
            let eos = id("eos", None);
            (Model::Characters(characters), ends, Roles { bos: id("bos", None), eos, end: eos })
        }
        "bert" => {
            let unknown = id("unknown", default(100));
            let begin = id("bos", None).or(id("cls", default(101)));
            let lowercase = flag("normalizer.lowercase", true);
            let unknown =
                unknown.ok_or(TokenizerError::MissingKey { key: "tokenizer.ggml.unknown_token_id" })?;
            let words =
                WordPieceModel::new(&tokens, unknown, lowercase, flag("normalizer.strip_accents", lowercase));
            let roles = Roles { bos: begin, eos: id("eos", None), end: id("seperator", default(102)) };
            (Model::Words(words), AddedTokens { begin: true, end: true }, roles)
        }
        "t5" => {
            let unknown = id("unknown", default(2));
            let unknown =
                unknown.ok_or(TokenizerError::MissingKey { key: "tokenizer.ggml.unknown_token_id" })?;
            let ends = AddedTokens { begin: flag("add_bos_token", false), end: flag("add_eos_token", true) };
            let eos = id("eos", default(1));
            let roles = Roles { bos: id("bos", None), eos, end: eos };
            (Model::Unigrams(UnigramModel::read(metadata, &tokens, unknown)?), ends, roles)
        }
        other => return Err(TokenizerError::UnknownKind { kind: other.to_owned() }),
    };
    let special = tokens.special(metadata, roles.bos, roles.eos);
    let cutter = SpecialTokenSplitter::new(&tokens, metadata);
    let leading_blank = match &model {
        Model::Merges(_) => false,
        Model::Characters(characters) => characters.adds_blank(),
        Model::Unigrams(unigrams) => unigrams.adds_blank(),
        Model::Words(_) => true,
    };
    let vocabulary = vocabulary(&tokens, matches!(model, Model::Merges(_)), leading_blank);
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
    metadata.chat_template().map(|source| ChatTemplate::new(source, special)).transpose()
}

/// Which special tokens are added around a text.
struct AddedTokens {
    begin: bool,
    end: bool,
}

struct Roles {
    bos: Option<u32>,
    eos: Option<u32>,
    /// The token added after a text.
    end: Option<u32>,
}

/// Builds the bytes of every id.
fn vocabulary(tokens: &Tokens, byte_level: bool, leading_blank: bool) -> Vocabulary {
    let mut vocabulary = Vocabulary::new(leading_blank);
    for (id, text) in tokens.all() {
        let (kind, raw) = (tokens.kind(id), text.as_bytes());
        let special = matches!(kind, Kind::Unknown | Kind::Control);
        match kind {
            Kind::Byte => match byte_of_token(text) {
                Some(byte) => vocabulary.push(&[byte], special),
                None => vocabulary.push(raw, special),
            },
            Kind::Normal | Kind::Unused if byte_level => vocabulary.push_byte_level(text),
            Kind::Normal | Kind::Unused if text.contains(BLANK) => {
                vocabulary.push(text.replace(BLANK, " ").as_bytes(), special);
            }
            _ => vocabulary.push(raw, special),
        }
    }
    vocabulary
}
