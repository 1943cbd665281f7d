//! Identifies the client of a request, where its behaviour differs from the specification.

use http::{HeaderMap, header};

/// Whether ollama's classic (`ollama/...`) or transfer (`ollama-transfer/...`) client sent this.
pub(crate) fn is_ollama(headers: &HeaderMap) -> bool {
    is_one_of(headers, &["ollama/", "ollama-transfer/"])
}

/// Whether the client is built on containers/image (podman, buildah, skopeo, CRI-O). Its partial pulls send
/// up to 1,024 ranges. After a 400 it merges neighbours to half as many and retries; after a 416 the pull
/// fails.
pub(crate) fn merges_ranges(headers: &HeaderMap) -> bool {
    is_one_of(headers, &["containers/", "libpod/", "Buildah/", "buildah/", "skopeo/", "cri-o/"])
}

fn is_one_of(headers: &HeaderMap, agents: &[&str]) -> bool {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agents.iter().any(|name| agent.starts_with(name)))
}
