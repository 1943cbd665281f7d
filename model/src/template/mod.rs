//! Prompt templates: Go's template language as ollama uses it, and facts that the text of any template gives.
//! The registry reads them to list capabilities, workers execute them.

pub mod go_template;
pub mod prompt_template;
