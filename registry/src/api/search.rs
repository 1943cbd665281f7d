//! `GET /lode/v1/search`: repositories by words and by the facts of their models, as on the page `/models`.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use serde::Serialize;
use utoipa::ToSchema;

use super::stated_facts::StatedFacts;
use crate::Registry;
use crate::app::{FacetColumn, FacetCounts, ModelSummary, SearchHit, SearchPage, SearchSort};
use crate::auth::Caller;
use crate::http::search_address::{
    CONTEXT, MEMORY, PARAMETERS, SearchAddress, cursor_text, parameter_filter, parse_cursor, ranges,
};
use crate::http::{Failure, Json, Links, Query, page};
use crate::time::rfc3339;

/// The most repositories of a page.
pub(super) const MAX_HITS: u32 = 100;

/// Repositories that fit a query.
#[derive(Serialize, ToSchema)]
pub(super) struct SearchResult {
    repositories: Vec<Hit>,
    /// The number of all that fit; null above 1,000.
    count: Option<u64>,
    facets: Vec<Facet>,
}

/// A repository that fits a query, with its tag that fits best.
#[derive(Serialize, ToSchema)]
#[schema(as = SearchHit)]
struct Hit {
    repository: Repository,
    tag: Tag,
    digest: Digest,
    #[schema(format = DateTime)]
    modified_at: String,
    /// The number of tags of the repository.
    tags: u64,
    pulls_last_30_days: u64,
    /// It has not been indexed yet, so its details are not known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pending: bool,
    #[serde(flatten)]
    summary: Option<ModelSummary>,
    #[serde(flatten)]
    facts: StatedFacts,
}

/// A fact, and how many of the repositories that fit have each of its values. It disregards the query's own choice
/// of the fact.
#[derive(Serialize, ToSchema)]
#[schema(as = SearchFacet)]
struct Facet {
    name: &'static str,
    values: Vec<FacetValue>,
    /// There are more repositories than were counted.
    is_partial: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SearchFacetValue)]
struct FacetValue {
    /// The parameters of a query that chooses it.
    filter: BTreeMap<&'static str, String>,
    count: u64,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let address = SearchAddress::of(&query);
    if let Some(sort) = address.get("sort").filter(|sort| sort.parse::<SearchSort>().is_err()) {
        let expected = "relevance, updated, name, parameters, size or pulls";
        return Err(Failure::Query { name: "sort", value: sort.to_owned(), expected });
    }
    let after = match query.get("last") {
        Some(last) => Some(parse_cursor(last).ok_or_else(|| Failure::Query {
            name: "last",
            value: last.to_owned(),
            expected: "that of the address of a next page",
        })?),
        None => None,
    };
    let n = query.limit("n")?.unwrap_or(MAX_HITS).clamp(1, MAX_HITS);
    let found = registry.search_page(&caller, &address.search(after, n)?, ranges()).await?;
    let SearchPage { hits, next, count, facets } = found;
    let next = next.map(|cursor| {
        let (n, last) = (n.to_string(), cursor_text(&cursor));
        let parameters: Vec<(&str, &str)> =
            address.parts().chain([("n", n.as_str()), ("last", last.as_str())]).collect();
        links.next("/lode/v1/search", &parameters)
    });
    let facets = facets.into_iter().map(Facet::from).collect();
    let repositories = hits.into_iter().map(Hit::from).collect();
    Ok(page(Json(SearchResult { repositories, count, facets }), next))
}

impl From<SearchHit> for Hit {
    fn from(hit: SearchHit) -> Hit {
        Hit {
            repository: hit.repository,
            tag: hit.tag,
            digest: hit.digest,
            modified_at: rfc3339(hit.modified_at),
            tags: hit.tags,
            pulls_last_30_days: hit.pulls,
            pending: hit.is_pending,
            summary: hit.summary,
            facts: hit.facts.into(),
        }
    }
}

impl From<(FacetColumn, FacetCounts)> for Facet {
    fn from((column, FacetCounts { values, is_partial }): (FacetColumn, FacetCounts)) -> Facet {
        let one = |name: &'static str, value: String| BTreeMap::from([(name, value)]);
        // Of ranges, the values are in the order of the ranges.
        let ranges = |filters: Vec<BTreeMap<&'static str, String>>| {
            let counts = values.iter().map(|(_, count)| *count);
            filters.into_iter().zip(counts).map(|(filter, count)| FacetValue { filter, count }).collect()
        };
        let named = |parameter: &'static str| {
            let filter = |(value, count): &(String, u64)| FacetValue {
                filter: one(parameter, value.clone()),
                count: *count,
            };
            values.iter().map(filter).collect()
        };
        let (name, values) = match column {
            FacetColumn::Format => ("format", named("format")),
            FacetColumn::Quantization => ("quantization", named("quant")),
            FacetColumn::Architecture => ("architecture", named("arch")),
            FacetColumn::License => ("license", named("license")),
            FacetColumn::Task => ("task", named("task")),
            FacetColumn::Base => ("base", named("base")),
            FacetColumn::Parameters => {
                let filter = |(_, min, max): &(_, _, _)| parameter_filter(*min, *max).collect();
                ("parameters", ranges(PARAMETERS.iter().map(filter).collect()))
            }
            FacetColumn::Memory => {
                ("memory", ranges(MEMORY.iter().map(|size| one("fits", (*size).to_owned())).collect()))
            }
            FacetColumn::Context => {
                ("context", ranges(CONTEXT.iter().map(|length| one("context", length.to_string())).collect()))
            }
        };
        Facet { name, values, is_partial }
    }
}
