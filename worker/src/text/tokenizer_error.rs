//! The errors of tokenizers, of checkpoints and of GGUF files.

/// An error in tokenizer data or in its use.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("tokenizer.json is not valid")]
    Json(#[source] serde_json::Error),
    #[error("tokenizer.json cannot be used")]
    Format(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the text cannot be tokenized")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the GGUF has no tokenizer")]
    NoVocabulary,
    #[error("the GGUF's tokenizer `{kind}` is not supported (supported: gpt2, llama, bert)")]
    UnknownKind { kind: String },
    #[error("the GGUF's pre-tokeniser `{pre}` is not supported, and another one would give wrong ids")]
    UnknownPre { pre: String },
    #[error("the GGUF has no key `{key}`")]
    MissingKey { key: &'static str },
    #[error("the GGUF's key `{key}` is not {expected}")]
    BadKey { key: &'static str, expected: &'static str },
    #[error("token id {id} is outside the vocabulary of {len} ids")]
    UnknownId { id: u32, len: usize },
}
