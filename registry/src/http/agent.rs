//! Which client is asking, where its dialect differs from the specification's.
//! Only ollama's registry clients need telling apart.

use http::{HeaderMap, header};

/// Whether ollama's classic (`ollama/...`) or transfer (`ollama-transfer/...`) client sent this.
pub(crate) fn is_ollama(headers: &HeaderMap) -> bool {
    headers
        .get(header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .is_some_and(|agent| agent.starts_with("ollama/") || agent.starts_with("ollama-transfer/"))
}
