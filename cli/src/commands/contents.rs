//! `lode repo list`, `lode tag list` and `lode manifest list`: everything that a registry stores, models or not.
//! A registry that is not Lode lists the names of repositories and tags.

use std::cmp::Reverse;

use lode_client::Registry;
use lode_model::reference::Repository;
use serde_json::{Value, json};

use crate::{
    args::{ManifestList, RepoList, RepoMove, TagList},
    connect::Connection,
    error::{Failure, Outcome},
    pages::{fetch_all, is_unsupported},
    table::Table,
    times::show_field,
    ui,
};

pub(crate) async fn repositories(connection: &Connection, args: RepoList) -> Outcome {
    let (registry, prefix) = match &args.prefix {
        Some(name) => connection.repository(name).map(|(registry, prefix)| (registry, Some(prefix)))?,
        None => (connection.default_registry()?, None),
    };
    let query = prefix.as_ref().map(|prefix| format!("?prefix={prefix}")).unwrap_or_default();
    let found = fetch_all(&registry, &format!("lode/v1/repositories{query}"), "repositories").await;
    let repositories = match found {
        Err(error) if is_unsupported(&error) => catalog(&registry, prefix.as_ref()).await?,
        found => found?,
    };
    if args.json {
        return ui::json(&json!({ "repositories": repositories }));
    }
    if repositories.is_empty() {
        ui::print_message(match prefix {
            Some(prefix) => format!("no repository {prefix}, and none below it"),
            None => format!("no repositories on {}", registry.host()),
        });
        return Ok(());
    }
    let rows: Vec<Vec<String>> = repositories
        .iter()
        .map(|found| {
            vec![
                text(found, "repository"),
                number(found, "tags"),
                number(found, "manifests"),
                size(found),
                number(found, "pulls_last_30_days"),
                show_field(found, "modified_at", ""),
            ]
        })
        .collect();
    Table::new(&["REPOSITORY", "TAGS", "MANIFESTS", "SIZE", "PULLS", "MODIFIED"], &rows)
        .optional(&["MANIFESTS", "TAGS", "PULLS"])
        .wide(args.wide)
        .print()
}

pub(crate) async fn move_repository(connection: &Connection, args: RepoMove) -> Outcome {
    let (registry, from) = connection.repository(&args.from)?;
    let to: Repository = args.to.parse().map_err(|error| {
        Failure::with_source(format!("`{}` is not a name for a repository", args.to), &error)
            .hint("the new name is on the same server, such as team/mini; `lode cp` copies to another one")
    })?;
    if !args.from.ends_with(from.as_str()) {
        let hint =
            format!("the whole repository moves: lode repo move {from} {to}; `lode cp` copies one tag");
        return Err(Failure::new(format!("`{}` names a tag or a digest", args.from)).hint(hint));
    }
    let path = format!("lode/v1/repositories/{from}/move");
    let moved: Value =
        registry.json_post(&path, &json!({ "to": to })).await.map_err(|error| not_found(&registry, error))?;
    if args.json {
        return ui::json(&moved);
    }
    ui::print_message(format!("{from} is now {to}"));
    Ok(())
}

pub(crate) async fn tags(connection: &Connection, args: TagList) -> Outcome {
    let (registry, repository) = connection.repository(&args.repository)?;
    let found = fetch_all(&registry, &format!("lode/v1/repositories/{repository}/tags"), "tags").await;
    let tags = match found {
        // A repository that does not exist fails here, too.
        Err(error) if is_unsupported(&error) => {
            let names = registry.tags(&repository).await.map_err(|error| not_found(&registry, error))?;
            names.into_iter().map(|tag| json!({ "tag": tag })).collect()
        }
        found => found?,
    };
    if args.json {
        return ui::json(&json!({ "repository": repository, "tags": tags }));
    }
    if tags.is_empty() {
        ui::print_message(format!(
            "{repository} has no tags; `lode manifest list {repository}` lists its manifests"
        ));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = tags
        .iter()
        .map(|found| {
            vec![
                text(found, "tag"),
                kind(found),
                size(found),
                show_field(found, "modified_at", ""),
                ui::short_digest(&text(found, "digest")),
                text(found, "actor"),
            ]
        })
        .collect();
    Table::new(&["TAG", "KIND", "SIZE", "MODIFIED", "DIGEST", "SET BY"], &rows)
        .optional(&["SET BY", "DIGEST", "KIND"])
        .wide(args.wide)
        .print()
}

pub(crate) async fn manifests(connection: &Connection, args: ManifestList) -> Outcome {
    let (registry, repository) = connection.repository(&args.repository)?;
    let path = format!("lode/v1/repositories/{repository}/manifests");
    let mut manifests = match fetch_all(&registry, &path, "manifests").await {
        Err(error) if is_unsupported(&error) => {
            // Reports a repository that does not exist.
            registry.tags(&repository).await.map_err(|error| not_found(&registry, error))?;
            return Err(Failure::new(format!("{} does not list manifests", registry.host()))
                .hint(format!("`lode tag list {}/{repository}` lists the tags", registry.host())));
        }
        found => found?,
    };
    manifests.sort_by_key(|found| Reverse(text(found, "created_at")));
    if args.json {
        return ui::json(&json!({ "repository": repository, "manifests": manifests }));
    }
    if manifests.is_empty() {
        ui::print_message(format!("{repository} has no manifests"));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = manifests
        .iter()
        .map(|found| {
            let tags = found["tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
            vec![
                ui::short_digest(&text(found, "digest")),
                kind(found),
                size(found),
                show_field(found, "created_at", ""),
                tags.collect::<Vec<_>>().join(" "),
                ui::short_digest(&text(found, "subject")),
            ]
        })
        .collect();
    Table::new(&["DIGEST", "KIND", "SIZE", "CREATED", "TAGS", "SUBJECT"], &rows)
        .optional(&["SUBJECT", "KIND", "CREATED"])
        .wide(args.wide)
        .print()
}

pub(super) fn not_found(registry: &Registry, error: lode_client::Error) -> Failure {
    let is_unknown = error.is_not_found();
    let failure = Failure::from(error);
    match is_unknown {
        true => Failure::new(failure.message().to_owned())
            .hint(format!("`lode repo list` shows the repositories on {}", registry.host())),
        false => failure,
    }
}

/// The repositories of a registry that is not Lode.
async fn catalog(registry: &Registry, prefix: Option<&Repository>) -> Outcome<Vec<Value>> {
    let names = fetch_all(registry, "v2/_catalog", "repositories").await?;
    let is_below = |name: &str| {
        prefix.is_none_or(|prefix| {
            name.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let names = names.iter().filter_map(Value::as_str).filter(|name| is_below(name));
    Ok(names.map(|name| json!({ "repository": name })).collect())
}

/// `model`, `image`, `index`, or the type of another artifact.
pub(super) fn kind(found: &Value) -> String {
    match found["kind"].as_str() {
        Some("artifact") => found["artifact_type"].as_str().unwrap_or("artifact").to_owned(),
        kind => kind.unwrap_or_default().to_owned(),
    }
}

fn text(found: &Value, key: &str) -> String {
    found[key].as_str().unwrap_or_default().to_owned()
}

fn number(found: &Value, key: &str) -> String {
    found[key].as_u64().map(|number| number.to_string()).unwrap_or_default()
}

fn size(found: &Value) -> String {
    found["size_bytes"].as_u64().map(ui::format_size).unwrap_or_default()
}
