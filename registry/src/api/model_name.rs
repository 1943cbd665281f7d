//! Model names as ollama's clients write them, and as we show them to those clients.
//! They know `[namespace/]model[:tag]`, imply the namespace `library`, and do not care about case.

use lode_model::reference::{Name, Reference, Repository, Tag};

use crate::http::Failure;

/// How the names of a surface are read.
pub(crate) type ReadName = fn(&str) -> Result<(Repository, Reference), Failure>;

/// The host that ollama's clients put before a name that has none.
const OLLAMA_HOST: &str = "registry.ollama.ai";
const IMPLIED_NAMESPACE: &str = "library/";

/// The repository that such a client means: lower case, without the implied namespace, of two parts at most.
pub(crate) fn repository(text: &str) -> Result<Repository, Failure> {
    let folded = text.to_ascii_lowercase();
    let bare = folded.strip_prefix(IMPLIED_NAMESPACE).unwrap_or(&folded);
    if bare.matches('/').count() > 1 {
        let reason = "ollama's names have at most a namespace and a model; longer ones are served under /lode/v1 and /v2";
        return Err(Failure::ModelName { name: text.to_owned(), reason });
    }
    Ok(bare.parse()?)
}

/// The model that a request under `/api` names.
pub(crate) fn parse(text: &str) -> Result<(Repository, Reference), Failure> {
    if text.is_empty() {
        return Err(Failure::ModelMissing);
    }
    let bare = text.strip_prefix("https://").or(text.strip_prefix("http://")).unwrap_or(text);
    let bare = bare.strip_prefix(OLLAMA_HOST).and_then(|rest| rest.strip_prefix('/')).unwrap_or(bare);
    let after_slash = bare.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match bare[after_slash..].find(':') {
        Some(colon) => (&bare[..after_slash + colon], bare[after_slash + colon + 1..].parse()?),
        None => (bare, Tag::default()),
    };
    Ok((repository(name)?, Reference::Tag(tag)))
}

/// The model that a request under `/lode/v1` names: any repository, by tag or digest, on this server.
pub(crate) fn parse_any(text: &str) -> Result<(Repository, Reference), Failure> {
    if text.is_empty() {
        return Err(Failure::ModelMissing);
    }
    let name: Name = text.parse()?;
    if name.host.is_some() {
        let reason = "it names a host; ask that host";
        return Err(Failure::ModelName { name: text.to_owned(), reason });
    }
    Ok((name.repository, name.reference))
}

/// Whether ollama's clients can name this repository at all.
pub(crate) fn is_sayable(repository: &Repository) -> bool {
    repository.as_str().matches('/').count() <= 1 && !repository.as_str().starts_with(IMPLIED_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fold() {
        let cases = [
            ("mini", "mini:latest"),
            ("library/mini", "mini:latest"),
            ("Library/Mini:Q4_K_M", "mini:Q4_K_M"),
            ("Team/Mini", "team/mini:latest"),
            ("registry.ollama.ai/library/mini:8b", "mini:8b"),
            ("http://registry.ollama.ai/team/mini", "team/mini:latest"),
        ];
        for (text, expect) in cases {
            let (repository, reference) = parse(text).unwrap();
            assert_eq!(format!("{repository}:{reference}"), expect);
        }
    }

    #[test]
    fn what_such_clients_cannot_say_is_refused() {
        for text in ["", "a/b/c", "host:5000/a/b", "a//b", "a:b:c", "a@sha256:00", "-a", "a/", ":x", "a:"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("team/sub/mini").unwrap_err().to_string().contains("team/sub/mini"));
    }

    #[test]
    fn our_own_names_are_any() {
        assert!(parse_any("team/sub/mini").is_ok());
        assert!(parse_any("localhost:5000/mini").is_err());
        assert!(parse_any("Mini").is_err());
    }
}
