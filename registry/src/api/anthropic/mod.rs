//! Anthropic's Messages API, translated to `/api/chat` for a worker, and back. Fields that have an effect in
//! Anthropic's API and cannot have it here are refused by name.

mod content;
pub(crate) mod error;
pub(crate) mod messages;
mod reply;
mod request;
#[cfg(test)]
mod tests;
