//! Text on both sides of a model: ids and back, chat templates, sampling, stop texts, the parts of an answer.
//! The runner and `lode tokenize` call it; it touches no file, no socket and no device.

pub mod detokenizer;
mod dialect;
pub mod gguf;
pub mod go_chat;
pub mod grammar;
pub mod prompt;
pub mod reply;
pub mod sampler;
pub mod special;
pub mod stop;
pub mod template;
pub mod think;
pub mod tokenizer;

pub use detokenizer::Detokenizer;
pub use go_chat::GoChat;
pub use grammar::{Grammar, Grammars};
pub use prompt::PromptTemplate;
pub use reply::{Call, Reader, ReplyFormat, Said};
pub use sampler::{Sampler, SamplerOptions};
pub use special::SpecialTokens;
pub use stop::StopMatcher;
pub use template::ChatTemplate;
pub use think::Think;
pub use tokenizer::{Special, Tokenizer, TokenizerError};
