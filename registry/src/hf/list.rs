//! `/hf/api/models`: repositories with a model, by name, tags, size and age.

use axum::extract::State;
use axum::response::Response;
use http::request::Parts;
use serde_json::Value;

use super::models::{expanded, object};
use crate::Registry;
use crate::app::{ModelQuery, ModelSort, SearchCursor};
use crate::auth::Caller;
use crate::http::search_address::parse_count;
use crate::http::{Failure, Json, Links, Query, page};

/// How many conditions of one kind a query may have.
const MAX_CONDITIONS: usize = 16;
/// Conditions on properties that no model here has.
const UNMATCHED: [&str; 3] = ["apps", "inference", "inference_provider"];
/// The parameters that the next page repeats.
const REPEATED: [&str; 11] = [
    "search",
    "author",
    "filter",
    "pipeline_tag",
    "trained_dataset",
    "num_parameters",
    "sort",
    "limit",
    "full",
    "expand",
    "gated",
];

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    query: Query,
) -> Result<Response, Failure> {
    let asked = read(&query)?;
    // Checks the caller, too, if nothing can match.
    let (found, end) = registry.models_of_repositories(&caller, &asked).await?;
    let is_matched = UNMATCHED.iter().all(|name| query.get(name).is_none()) && !query.is_true("gated");
    let items = if is_matched { found } else { Vec::new() };
    let next = end.filter(|_| is_matched).map(|SearchCursor { key, repository }| {
        let cursor = format!("{key}:{repository}");
        let mut parameters: Vec<(&str, &str)> = Vec::new();
        for name in REPEATED {
            parameters.extend(query.all(name).map(|value| (name, value)));
        }
        parameters.push(("cursor", &cursor));
        Links::absolute(&parts, registry.config()).next("/hf/api/models", &parameters)
    });
    let objects: Vec<Value> =
        items.iter().map(|facts| Value::Object(expanded(object(facts), &query))).collect();
    Ok(page(Json(objects), next))
}

fn read(query: &Query) -> Result<ModelQuery, Failure> {
    let lower = |name: &'static str| -> Result<Vec<String>, Failure> {
        let values = query.all(name).map(|value| plain(value).to_lowercase());
        let values: Vec<String> = values.filter(|value| !value.is_empty()).collect();
        match values.len() <= MAX_CONDITIONS {
            true => Ok(values),
            false => Err(invalid(query, name, "at most 16 values")),
        }
    };
    let sort = match query.get("sort") {
        None | Some("likes" | "trendingScore" | "trending_score") => ModelSort::Name,
        Some("lastModified" | "last_modified") => ModelSort::Modified,
        Some("createdAt" | "created_at") => ModelSort::Created,
        Some("downloads") => ModelSort::Pulls,
        Some(_) => {
            return Err(invalid(query, "sort", "lastModified, createdAt, downloads, likes or trendingScore"));
        }
    };
    let (mut min_parameters, mut max_parameters) = (None, None);
    for bound in query.get("num_parameters").unwrap_or_default().split(',').filter(|part| !part.is_empty()) {
        let unknown = || invalid(query, "num_parameters", "min:6B,max:128B");
        let (kind, number) = bound.split_once(':').ok_or_else(unknown)?;
        let number = parse_count(number).ok_or_else(unknown)?;
        match kind {
            "min" => min_parameters = Some(number),
            "max" => max_parameters = Some(number),
            _ => return Err(unknown()),
        }
    }
    let after = match query.get("cursor") {
        Some(cursor) => {
            let parsed = cursor.split_once(':').and_then(|(key, name)| {
                Some(SearchCursor { key: key.parse().ok()?, repository: plain(name) })
            });
            Some(parsed.ok_or_else(|| invalid(query, "cursor", "the value of a Link header"))?)
        }
        None => None,
    };
    let mut tags = lower("filter")?;
    tags.extend(lower("trained_dataset")?.into_iter().map(|name| match name.starts_with("dataset:") {
        true => name,
        false => format!("dataset:{name}"),
    }));
    Ok(ModelQuery {
        search: lower("search")?,
        author: query.get("author").map(|author| plain(author).to_lowercase()),
        tags,
        task: query.get("pipeline_tag").map(plain).filter(|task| !task.is_empty()),
        min_parameters,
        max_parameters,
        sort,
        after,
        limit: query.limit("limit")?,
    })
}

/// A text that both databases accept.
fn plain(text: &str) -> String {
    text.replace('\0', "")
}

fn invalid(query: &Query, name: &'static str, expected: &'static str) -> Failure {
    Failure::Query { name, value: query.get(name).unwrap_or_default().to_owned(), expected }
}
