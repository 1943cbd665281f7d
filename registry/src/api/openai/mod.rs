//! OpenAI's API: the list of models, and the words of its errors.

pub(crate) mod error;
pub(crate) mod models;
