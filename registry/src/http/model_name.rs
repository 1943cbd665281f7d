//! Model names as ollama's clients write them, and as those clients see them.
//! Their names have the form `[host/][namespace/]model[:tag]`, imply the namespace `library`, and ignore
//! case.

use lode_model::reference::{Name, Reference, Repository, Tag};

use crate::app::Spellings;
use crate::http::{Failure, OwnHosts};

/// Parses the model names of an API.
pub(crate) type ReadName = fn(&str, &OwnHosts) -> Result<ModelName, Failure>;

/// The model that a request names.
#[derive(Clone, Debug)]
pub(crate) struct ModelName {
    pub(crate) repositories: Spellings,
    pub(crate) reference: Reference,
}

/// The host that ollama's clients add to a name without one.
const OLLAMA_HOST: &str = "registry.ollama.ai";
const IMPLIED_NAMESPACE: &str = "library/";

/// The repositories that a name in a path of ollama's registry clients can mean. They send `library/x` for
/// `x`.
pub(crate) fn client_spellings(text: &str) -> Result<Spellings, Failure> {
    let folded = text.to_ascii_lowercase();
    spellings(folded.strip_prefix(IMPLIED_NAMESPACE).filter(|bare| !bare.contains('/')).unwrap_or(&folded))
}

/// The repositories that a name can mean, the given spelling first: in lower case, with at most two parts.
pub(crate) fn spellings(text: &str) -> Result<Spellings, Failure> {
    let folded = text.to_ascii_lowercase();
    if folded.matches('/').count() > 1 {
        let reason = "names here have at most a namespace and a model; longer ones are available under /lode/v1 and /v2";
        return Err(Failure::ModelName { name: text.to_owned(), reason });
    }
    let other = match folded.strip_prefix(IMPLIED_NAMESPACE) {
        Some(bare) => Some(bare.to_owned()),
        None if folded.contains('/') => None,
        None => Some(format!("{IMPLIED_NAMESPACE}{folded}")),
    };
    let given: Repository = folded.parse()?;
    // With the namespace the name would be too long, so it has no other spelling.
    Ok(match other.and_then(|other| other.parse().ok()) {
        Some(other) => Spellings::two(given, other),
        None => given.into(),
    })
}

/// The model that a request under `/api` names. A host in the name must be this server's own.
pub(crate) fn parse(text: &str, own: &OwnHosts) -> Result<ModelName, Failure> {
    if text.is_empty() {
        return Err(Failure::ModelMissing);
    }
    let bare = text.strip_prefix("https://").or(text.strip_prefix("http://")).unwrap_or(text);
    match bare.split_once('/') {
        Some((host, rest)) if host == OLLAMA_HOST => parse_local(rest, client_spellings),
        Some((host, rest)) if own.contains(host) => parse_local(rest, spellings),
        // Ollama treats the first of two parts as a namespace, even if it looks like a host.
        Some((host, rest)) if host.contains(':') || (is_host(host) && rest.contains('/')) => {
            Err(Failure::OtherHost { name: bare.to_owned(), host: host.to_owned(), rest: rest.to_owned() })
        }
        _ => parse_local(bare, spellings),
    }
}

fn is_host(part: &str) -> bool {
    part.contains('.') || part == "localhost"
}

/// Parses the rest of a name, after its host.
fn parse_local(
    text: &str,
    read: impl FnOnce(&str) -> Result<Spellings, Failure>,
) -> Result<ModelName, Failure> {
    let after_slash = text.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match text[after_slash..].find(':') {
        Some(colon) => (&text[..after_slash + colon], text[after_slash + colon + 1..].parse()?),
        None => (text, Tag::default()),
    };
    Ok(ModelName { repositories: read(name)?, reference: Reference::Tag(tag) })
}

/// The model that a request under `/lode/v1` names: any repository on this server, by tag or digest.
pub(crate) fn parse_any(text: &str, _: &OwnHosts) -> Result<ModelName, Failure> {
    parse_exact(text)
}

/// Like `parse_any`, for callers without a request.
pub(crate) fn parse_exact(text: &str) -> Result<ModelName, Failure> {
    if text.is_empty() {
        return Err(Failure::ModelMissing);
    }
    let name: Name = text.parse()?;
    if name.host.is_some() {
        let reason = "it contains a host; send the request to that host";
        return Err(Failure::ModelName { name: text.to_owned(), reason });
    }
    Ok(ModelName { repositories: name.repository.into(), reference: name.reference })
}

/// The name of a repository for ollama's clients: without the implied namespace. None if they cannot name it.
pub(crate) fn ollama_name(repository: &Repository) -> Option<&str> {
    let name = repository.as_str();
    let bare = name.strip_prefix(IMPLIED_NAMESPACE).filter(|bare| !bare.contains('/')).unwrap_or(name);
    (bare.matches('/').count() <= 1).then_some(bare)
}

/// Like `shown`, for a name that ends in a tag or digest.
pub(crate) fn ollama_name_with_tag(name: &str) -> Option<String> {
    let repository = name.split([':', '@']).next()?.parse().ok()?;
    Some(format!("{}{}", ollama_name(&repository)?, &name[repository.as_str().len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, Failure> {
        let own = OwnHosts::new(["models.example", "localhost:5000"].map(str::to_owned).into());
        let ModelName { repositories, reference } = parse(text, &own)?;
        let names: Vec<&str> = repositories.iter().map(Repository::as_str).collect();
        Ok(format!("{} {reference}", names.join(" ")))
    }

    #[test]
    fn names_fold() {
        let cases = [
            ("mini", "mini library/mini latest"),
            ("library/mini", "library/mini mini latest"),
            ("Library/Mini:Q4_K_M", "library/mini mini Q4_K_M"),
            ("Team/Mini", "team/mini latest"),
            ("my.team/mini", "my.team/mini latest"),
            ("registry.ollama.ai/library/mini:8b", "mini library/mini 8b"),
            ("http://registry.ollama.ai/team/mini", "team/mini latest"),
            ("models.example/team/mini:8b", "team/mini 8b"),
            ("https://Models.Example/team/mini", "team/mini latest"),
            ("localhost:5000/team/mini", "team/mini latest"),
            ("localhost:5000/mini", "mini library/mini latest"),
            ("localhost:5000/library/mini", "library/mini mini latest"),
            ("127.0.0.1:5000/team/mini", "team/mini latest"),
        ];
        for (text, expect) in cases {
            assert_eq!(read(text).unwrap(), expect, "{text}");
        }
    }

    #[test]
    fn names_in_paths_imply_the_namespace() {
        for (text, expect) in [("library/mini", "mini library/mini"), ("Team/Mini", "team/mini")] {
            let names: Vec<_> = client_spellings(text).unwrap().iter().map(|name| name.to_string()).collect();
            assert_eq!(names.join(" "), expect);
        }
        assert!(client_spellings("library/team/mini").is_err());
        let long = "a".repeat(250);
        assert_eq!(spellings(&long).unwrap().iter().count(), 1, "library/ in front would be too long");
    }

    #[test]
    fn invalid_ollama_names_are_refused() {
        for text in ["", "a/b/c", "a//b", "a:b:c", "a@sha256:00", "-a", "a/", ":x", "a:", "library/a/b"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("team/sub/mini").unwrap_err().to_string().contains("team/sub/mini"));
        for text in
            ["host:5000/a/b", "host:5000/b", "other.example/a/b", "localhost:5001/a/b", "localhost/a/b"]
        {
            let error = read(text).unwrap_err().to_string();
            assert!(
                error.contains("another host") && error.contains(&format!("ollama push {text}")),
                "{error}"
            );
        }
    }

    #[test]
    fn exact_names_may_have_many_parts() {
        assert!(parse_exact("team/sub/mini").is_ok());
        assert!(parse_exact("localhost:5000/mini").is_err());
        assert!(parse_exact("Mini").is_err());
    }

    #[test]
    fn repository_names_shown_to_ollama() {
        let cases = [
            ("mini", Some("mini")),
            ("library/mini", Some("mini")),
            ("team/mini", Some("team/mini")),
            ("a/b/c", None),
            ("library/a/b", None),
        ];
        for (repository, expect) in cases {
            assert_eq!(ollama_name(&repository.parse().unwrap()), expect, "{repository}");
        }
    }
}
