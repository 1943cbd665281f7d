//! Completes a failure with what a short request to the server finds out: names that are similar to one that was
//! not found, whether a server at `http://` uses https, and whether a server that requires a login has accounts.

use std::time::Duration;

use lode_client::{Registry, uses_https};

use crate::{args::Global, connect::Connection, error::Failure, pages::fetch_all};

/// The command has failed already, so the search for similar names must be short.
const TIME_LIMIT: Duration = Duration::from_secs(3);
/// The most names that one hint lists.
const SHOWN: usize = 3;
/// How similar a name must be: 1 is equal.
const SIMILARITY: f64 = 0.7;

/// Adds what a request can find out about the failure.
pub(crate) async fn complete(mut failure: Failure, global: &Global) -> Failure {
    if let Some(server) = failure.take_over_http()
        && let Ok(url) = server.parse()
        && uses_https(&url).await
    {
        let https = server.replacen("http://", "https://", 1);
        return failure.only_hint(format!("{server} uses https: write {https}"));
    }
    if let Some(server) = failure.take_unauthorized()
        && let Some(host) = without_accounts(global, &server).await
    {
        return Failure::new(format!("{host} has no accounts, and this command needs one"))
            .hint("`lode user add admin --server-role admin` creates the first account")
            .code(failure.exit_code());
    }
    add_similar_names(failure).await
}

/// The host of the server, if it has no accounts.
async fn without_accounts(global: &Global, server: &str) -> Option<String> {
    let connection = Connection::new(global).ok()?;
    let registry = connection.registry(Some(server)).ok()?;
    let lacks_accounts = tokio::time::timeout(TIME_LIMIT, connection.needs_no_login(&registry)).await;
    lacks_accounts.unwrap_or_default().then(|| registry.host().to_owned())
}

/// Adds a hint with similar names, if the failure is about a name that does not exist.
pub(crate) async fn add_similar_names(mut failure: Failure) -> Failure {
    let Some(missing) = failure.take_missing() else { return failure };
    let names = tokio::time::timeout(TIME_LIMIT, model_names(&missing.registry)).await;
    let names = names.unwrap_or_default();
    let repository = repository_of(&missing.name);
    if names.iter().any(|name| repository_of(name) == repository) {
        failure = failure.first_hint(format!("`lode list {repository}` shows its tags"));
    }
    match similar(&missing.name, &names).as_slice() {
        [] => failure,
        [name] => failure.first_hint(format!("did you mean `{name}`?")),
        names => {
            let list = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            failure.first_hint(format!("did you mean one of {list}?"))
        }
    }
}

/// The repository of a name that has a tag or a digest.
fn repository_of(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(repository, _)| repository);
    name.rsplit_once(':').map_or(name, |(repository, _)| repository)
}

/// The names of the models on the server, with their tags; none if it does not list them.
pub(crate) async fn model_names(registry: &Registry) -> Vec<String> {
    let models = fetch_all(registry, "lode/v1/models", "models").await.unwrap_or_default();
    let name = |model: &serde_json::Value| {
        Some(format!("{}:{}", model["repository"].as_str()?, model["tag"].as_str()?))
    };
    models.iter().filter_map(name).collect()
}

/// The names that are similar to `wanted`, the most similar first. All have a tag.
fn similar(wanted: &str, names: &[String]) -> Vec<String> {
    let tag_suffix =
        |name: &str| name.rsplit_once(':').map(|(repository, tag)| (repository.to_owned(), tag.to_owned()));
    let Some((wanted_repository, wanted_tag)) = tag_suffix(wanted).filter(|_| !wanted.contains('@')) else {
        return Vec::new();
    };
    let mut scored: Vec<(f64, &String)> = names
        .iter()
        .filter_map(|name| {
            let (repository, tag) = tag_suffix(name)?;
            // Another tag of the same repository is what a person most likely means.
            let in_repository = match repository == wanted_repository {
                true => 1.0,
                false => closeness(&repository, &wanted_repository),
            };
            let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
            // A forgotten namespace.
            let without_namespace = match last(&repository) == wanted_repository {
                true => 0.9,
                false => 0.0,
            };
            let score = in_repository.max(without_namespace);
            let bonus = if tag == wanted_tag { 0.01 } else { closeness(&tag, &wanted_tag) / 1000.0 };
            (score >= SIMILARITY).then_some((score + bonus, name))
        })
        .collect();
    scored.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
    scored
        .into_iter()
        .take(SHOWN)
        .map(|(_, name)| name.strip_suffix(":latest").unwrap_or(name).to_owned())
        .collect()
}

/// From 0 to 1, by the number of changed characters.
fn closeness(one: &str, other: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(one, other)
}

/// The candidate that is most similar to `text`, if one is similar at all.
pub(crate) fn closest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (closeness(text, candidate), candidate))
        .filter(|(score, _)| *score >= SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_found() {
        let names =
            ["lode-demo:latest", "team/mini:latest", "team/mini:q4", "team/tuned:v1", "other/mini:latest"];
        let names: Vec<String> = names.map(str::to_owned).to_vec();
        let check = |name: &str, expect: &[&str]| {
            assert_eq!(similar(name, &names), expect, "{name}");
        };
        check("lode-dmeo:latest", &["lode-demo"]);
        check("lodedemo:latest", &["lode-demo"]);
        check("team/mini:q5", &["team/mini:q4", "team/mini"]);
        check("team/mni:latest", &["team/mini", "team/mini:q4"]);
        check("mini:latest", &["other/mini", "team/mini", "team/mini:q4"]);
        check("team/tuned:latest", &["team/tuned:v1"]);
        check("something-else:latest", &[]);
        check(&format!("lode-demo@sha256:{}", "0".repeat(64)), &[]);
    }
}
