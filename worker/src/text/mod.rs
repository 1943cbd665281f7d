//! Text processing before and after a model: tokenizers, chat templates, sampling, stop texts, the parts of a
//! response. These modules access no file, socket or device. The modules that evaluate data of a model or a
//! request (`tokenizer`, `pair`, `gguf`, `template`, `go_chat`, `grammar`, `reply::probe`) run only in the text
//! helper. The per-token modules (`constraint`, `detokenizer`, `sampler`, `stop`, the readers in `reply`)
//! only scan bytes and run in the runner. `lode tokenize` runs all of them in its own process.

pub mod constraint;
pub mod detokenizer;
mod dialect;
pub mod gguf;
pub mod go_chat;
pub mod grammar;
pub mod pair;
pub mod prompt;
mod python_json;
pub mod reply;
pub mod sampler;
mod schema;
pub mod special;
pub mod stop;
pub mod template;
pub mod think;
pub mod tokenizer;
mod tokenizer_error;
mod vocabulary;

pub use constraint::Constraint;
pub use detokenizer::Detokenizer;
pub use go_chat::GoChat;
pub use grammar::{GrammarCompiler, GrammarState};
pub use pair::{EncodedPair, PairEncoder, PairError};
pub use prompt::PromptTemplate;
pub use reply::{Call, KnownTools, OutputParts, Reader, ReplyFormat};
pub use sampler::{Sampler, SamplerOptions};
pub use special::{Special, SpecialTokens};
pub use stop::StopMatcher;
pub use template::ChatTemplate;
pub use think::Think;
pub use tokenizer::Tokenizer;
pub use tokenizer_error::TokenizerError;
pub use vocabulary::Vocabulary;
