//! `GET /models`: the search. The whole query is in the address; the page works without scripts, and the script only
//! loads it again while the reader types.

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::format::{bytes, counted, day, grouped, parameters, query as escape};
use super::page::{Shell, browse, render_browsed};
use crate::app::{FacetColumn, FacetCounts, MAX_COUNT, MAX_QUERY_CHARS, SearchHit, SearchPage, SearchSort};
use crate::auth::{AccessTarget, Caller};
use crate::http::Query;
use crate::http::search_address::{
    CONTEXT, MEMORY, PARAMETERS, SearchAddress, cursor_text, parameter_filter, parse_count, parse_cursor,
    ranges,
};
use crate::{Error, Registry};

const PAGE: u32 = 24;

#[derive(Template)]
#[template(path = "models.html")]
struct ModelsPage {
    shell: Shell,
    title: &'static str,
    hits: Vec<HitLine>,
    count: String,
    facets: Vec<FacetList>,
    /// The chosen filters, with the address without each.
    chosen: Vec<(String, String)>,
    sort: SearchSort,
    /// The other parts of the query, for the form of the order.
    kept: Vec<(&'static str, String)>,
    /// The query is longer than what was searched for.
    is_cut: bool,
    next: Option<String>,
    first: Option<String>,
    /// The same search over everything; absent if it is one.
    everything: Option<String>,
    is_filtered: bool,
    /// The namespace that the query names, if the caller owns it.
    namespace: Option<String>,
}

/// A result.
pub(super) struct HitLine {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    pub(super) chips: Vec<String>,
    pub(super) facts: Vec<String>,
}

struct FacetList {
    title: &'static str,
    is_open: bool,
    values: Vec<FacetValue>,
}

struct FacetValue {
    name: String,
    count: String,
    url: String,
    is_chosen: bool,
}

pub(crate) async fn get(State(registry): State<Registry>, caller: Caller, query: Query) -> Response {
    let page = async {
        let address = SearchAddress::of(&query);
        let after = query.get("after").and_then(parse_cursor);
        let search = address.search(after, PAGE)?;
        // Without an account, a closed server lists what is public.
        let found = registry.search_page(&caller, &search, ranges()).await?;
        let SearchPage { hits, next, count, facets } = found;
        let noun = if search.everything { ("repository", "repositories") } else { ("model", "models") };
        // A chosen value that is not among the most frequent ones has as many as the whole query.
        let chosen_count =
            count.map_or_else(|| count_text(MAX_COUNT, true), |count| count_text(count, false));
        let facet = |column: FacetColumn| {
            facets
                .iter()
                .find(|(other, _)| *other == column)
                .map(|(_, counts)| counts.clone())
                .unwrap_or_default()
        };
        let lists = vec![
            list(&address, "Task", "task", facet(FacetColumn::Task), &chosen_count),
            list(&address, "Format", "format", facet(FacetColumn::Format), &chosen_count),
            parameter_list(&address, &facet(FacetColumn::Parameters)),
            memory_list(&address, &facet(FacetColumn::Memory)),
            list(&address, "Quantisation", "quant", facet(FacetColumn::Quantization), &chosen_count),
            context_list(&address, &facet(FacetColumn::Context)),
            list(&address, "Architecture", "arch", facet(FacetColumn::Architecture), &chosen_count),
            list(&address, "Licence", "license", facet(FacetColumn::License), &chosen_count),
            list(&address, "Made from", "base", facet(FacetColumn::Base), &chosen_count),
        ];
        let count = match count {
            Some(count) => counted(count, noun.0, noun.1),
            None => format!("{}+ {}", grouped(MAX_COUNT), noun.1),
        };
        let shell = Shell { query: search.text.clone(), ..Shell::of(&registry, &caller).await? };
        Ok(render_browsed(&ModelsPage {
            shell,
            title: if search.everything { "Repositories" } else { "Models" },
            hits: hits.iter().map(HitLine::from).collect(),
            count,
            facets: lists.into_iter().filter(|list| !list.values.is_empty()).collect(),
            chosen: chosen(&address),
            sort: search.sort,
            kept: address.without(&["sort"]).parts().map(|(name, value)| (name, value.to_owned())).collect(),
            is_cut: query.get("q").is_some_and(|text| text.trim().chars().nth(MAX_QUERY_CHARS).is_some()),
            next: next.map(|cursor| {
                format!("{}after={}", with_separator(&page_url(&address)), escape(&cursor_text(&cursor)))
            }),
            first: search.after.is_some().then(|| page_url(&address)),
            everything: (!search.everything).then(|| page_url(&address.with("all", "1"))),
            namespace: owned_namespace(&registry, &caller, &search.text).await?,
            is_filtered: address.parts().any(|(name, _)| !["sort", "all"].contains(&name)),
        }))
    };
    browse(&registry, &caller, page).await
}

/// The namespace of a query such as `team/`, if the caller owns it.
async fn owned_namespace(registry: &Registry, caller: &Caller, text: &str) -> Result<Option<String>, Error> {
    let name = text.strip_suffix('/').filter(|name| !name.contains('/') && caller.account().is_some());
    let Some(Ok(namespace)) = name.map(str::parse) else { return Ok(None) };
    let target = AccessTarget::Namespace(namespace);
    Ok(registry.may_configure(caller, &target).await?.then(|| name.unwrap_or_default().to_owned()))
}

/// The address of the page.
fn page_url(address: &SearchAddress) -> String {
    let parts: Vec<String> =
        address.parts().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    if parts.is_empty() { "/models".to_owned() } else { format!("/models?{}", parts.join("&")) }
}

fn with_separator(url: &str) -> String {
    format!("{url}{}", if url.contains('?') { '&' } else { '?' })
}

fn count_text(count: u64, is_partial: bool) -> String {
    format!("{}{}", grouped(count), if is_partial { "+" } else { "" })
}

/// `chosen_count`: how many have the chosen value, if the facet does not list it.
fn list(
    address: &SearchAddress,
    title: &'static str,
    name: &'static str,
    facet: FacetCounts,
    chosen_count: &str,
) -> FacetList {
    let current = address.get(name);
    let is_partial = facet.is_partial;
    let mut values: Vec<FacetValue> = facet
        .values
        .into_iter()
        .map(|(value, count)| {
            let is_chosen = current == Some(value.as_str());
            let other = if is_chosen { address.without(&[name]) } else { address.with(name, &value) };
            let (url, count) = (page_url(&other), count_text(count, is_partial));
            FacetValue { name: value, count, url, is_chosen }
        })
        .collect();
    // A chosen value that is not listed, or that nothing has, stays visible, so that it can be taken back.
    if let Some(current) = current.filter(|current| values.iter().all(|value| value.name != *current)) {
        let url = page_url(&address.without(&[name]));
        let count = chosen_count.to_owned();
        values.push(FacetValue { name: current.to_owned(), count, url, is_chosen: true });
    }
    let is_open = current.is_some() || ["task", "format"].contains(&name);
    FacetList { title, is_open, values }
}

/// The counts of ranges, in their order.
fn range_counts(facet: &FacetCounts) -> impl Iterator<Item = String> {
    facet.values.iter().map(|(_, count)| count_text(*count, facet.is_partial))
}

fn parameter_list(address: &SearchAddress, facet: &FacetCounts) -> FacetList {
    let current = (address.get("min").and_then(parse_count), address.get("max").and_then(parse_count));
    let bare = address.without(&["min", "max"]);
    let value = |((name, min, max), count): (&(&str, Option<u64>, Option<u64>), String)| {
        let is_chosen = current == (*min, *max);
        let mut other = bare.clone();
        if !is_chosen {
            for (name, bound) in parameter_filter(*min, *max) {
                other = other.with(name, &bound);
            }
        }
        FacetValue { name: (*name).to_owned(), count, url: page_url(&other), is_chosen }
    };
    let values = PARAMETERS.iter().zip(range_counts(facet)).map(value).collect();
    FacetList { title: "Parameters", is_open: current != (None, None), values }
}

fn memory_list(address: &SearchAddress, facet: &FacetCounts) -> FacetList {
    let current = address.get("fits");
    let value = |(size, count): (&&str, String)| {
        let is_chosen = current == Some(*size);
        let other = if is_chosen { address.without(&["fits"]) } else { address.with("fits", size) };
        FacetValue { name: size.replace("GiB", " GiB"), count, url: page_url(&other), is_chosen }
    };
    let values = MEMORY.iter().zip(range_counts(facet)).map(value).collect();
    FacetList { title: "Fits in", is_open: current.is_some(), values }
}

fn context_list(address: &SearchAddress, facet: &FacetCounts) -> FacetList {
    let current = address.get("context");
    let value = |(length, count): (&u64, String)| {
        let text = length.to_string();
        let is_chosen = current == Some(text.as_str());
        let other = if is_chosen { address.without(&["context"]) } else { address.with("context", &text) };
        let name = format!("{} or more", grouped(*length));
        FacetValue { name, count, url: page_url(&other), is_chosen }
    };
    let values = CONTEXT.iter().zip(range_counts(facet)).map(value).collect();
    FacetList { title: "Context", is_open: current.is_some(), values }
}

/// The chosen filters by name, each with the address without it.
fn chosen(address: &SearchAddress) -> Vec<(String, String)> {
    let filters = address.parts().filter(|(name, _)| !["q", "all", "sort"].contains(name));
    let text = |name: &str, value: &str| match name {
        "min" => format!("at least {value} parameters"),
        "max" => format!("at most {value} parameters"),
        "fits" => format!("fits in {value}"),
        "context" => format!("context of at least {value}"),
        "base" => format!("made from {value}"),
        _ => value.to_owned(),
    };
    filters.map(|(name, value)| (text(name, value), page_url(&address.without(&[name])))).collect()
}

impl From<&SearchHit> for HitLine {
    fn from(hit: &SearchHit) -> HitLine {
        let mut chips = Vec::new();
        let mut facts = Vec::new();
        if let Some(summary) = &hit.summary {
            chips.extend(hit.facts.task.clone());
            chips.push(summary.format.clone());
            chips.extend(summary.quantization.clone());
            facts.extend(summary.parameters.map(|count| format!("{} parameters", parameters(count))));
            facts.extend(summary.architecture.clone());
            facts.push(bytes(summary.size_bytes));
        } else if hit.is_pending {
            chips.push("not read yet".to_owned());
        }
        facts.extend(hit.facts.context_length.map(|length| format!("{} context", grouped(length))));
        facts.extend(hit.facts.license.clone());
        facts.push(counted(hit.tags, "tag", "tags"));
        if hit.pulls > 0 {
            facts.push(format!("{} in 30 days", counted(hit.pulls, "pull", "pulls")));
        }
        facts.push(format!("updated {}", day(hit.modified_at)));
        let name = hit.repository.to_string();
        let is_default = hit.tag.as_str() == lode_model::reference::DEFAULT_TAG || hit.tags == 1;
        let title = hit.facts.title.clone().filter(|title| !name.ends_with(title.as_str()));
        HitLine {
            url: match is_default {
                true => format!("/{name}"),
                false => format!("/{name}?tag={}", hit.tag),
            },
            name: if is_default { name } else { format!("{name}:{}", hit.tag) },
            title,
            description: hit.facts.description.clone(),
            chips,
            facts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_holds_the_query() {
        let address = SearchAddress::default().with("q", "a&b c").with("format", "gguf");
        assert_eq!(page_url(&address), "/models?q=a%26b+c&format=gguf");
        assert_eq!(page_url(&address.with("format", "onnx")), "/models?q=a%26b+c&format=onnx");
        assert_eq!(page_url(&address.without(&["q", "format"])), "/models");
        let values = vec![("gguf".to_owned(), 3), ("onnx".to_owned(), 1)];
        let facet = list(&address, "Format", "format", FacetCounts { values, is_partial: true }, "1");
        assert!(facet.values[0].is_chosen && facet.values[0].url == "/models?q=a%26b+c");
        assert_eq!(facet.values[1].url, "/models?q=a%26b+c&format=onnx");
        let facet = list(&address, "Format", "format", FacetCounts::default(), "0");
        let FacetValue { is_chosen, count, .. } = &facet.values[0];
        assert!(*is_chosen && count == "0", "a value that nothing has can be taken back");
    }
}
