//! `GET /models`: the search. The whole query is in the address; the page works without scripts, and the script only
//! loads it again while the reader types.

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::format::{bytes, counted, day, grouped, parameters, query as escape};
use super::page::{Shell, browse, render_browsed};
use crate::Registry;
use crate::app::{
    FacetColumn, FacetCounts, MAX_COUNT, MAX_QUERY_CHARS, SearchCursor, SearchHit, SearchPage, SearchQuery,
    SearchRanges, SearchSort,
};
use crate::auth::Caller;
use crate::http::{Failure, Query};

const PAGE: u32 = 24;
/// Longer values of a filter match nothing.
const MAX_VALUE_CHARS: usize = 255;

/// Ranges of parameters to choose from: the name, the least and the most.
const PARAMETERS: [(&str, Option<u64>, Option<u64>); 6] = [
    ("Below 1B", None, Some(1_000_000_000)),
    ("1B to 4B", Some(1_000_000_000), Some(4_000_000_000)),
    ("4B to 10B", Some(4_000_000_000), Some(10_000_000_000)),
    ("10B to 40B", Some(10_000_000_000), Some(40_000_000_000)),
    ("40B to 100B", Some(40_000_000_000), Some(100_000_000_000)),
    ("Over 100B", Some(100_000_000_000), None),
];
/// Sizes of memory to choose from.
const MEMORY: [&str; 6] = ["4GiB", "8GiB", "16GiB", "24GiB", "48GiB", "80GiB"];
/// Lengths of the context to choose from.
const CONTEXT: [u64; 4] = [8192, 32_768, 131_072, 1_048_576];

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

/// The parts of an address.
#[derive(Clone, Default)]
struct Address(Vec<(&'static str, String)>);

impl Address {
    fn with(&self, name: &'static str, value: &str) -> Address {
        let mut parts = self.without(&[name]).0;
        parts.push((name, value.to_owned()));
        Address(parts)
    }

    fn without(&self, names: &[&str]) -> Address {
        Address(self.0.iter().filter(|(name, _)| !names.contains(name)).cloned().collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    fn url(&self) -> String {
        let parts: Vec<String> =
            self.0.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
        if parts.is_empty() { "/models".to_owned() } else { format!("/models?{}", parts.join("&")) }
    }
}

/// What an address may say, in this order. Everything else is ignored.
const NAMES: [&str; 13] = [
    "q", "all", "task", "format", "quant", "arch", "license", "min", "max", "fits", "context", "base", "sort",
];

pub(crate) async fn get(State(registry): State<Registry>, caller: Caller, query: Query) -> Response {
    let page = async {
        let address = address_of(&query);
        let after = query.get("after").and_then(parse_cursor);
        let search = search_of(&address, after)?;
        // Without an account, a closed server lists what is public.
        let found = registry.search_page(&caller, &search, ranges()).await?;
        let SearchPage { hits, next, count, facets } = found;
        let noun = if search.everything { ("repository", "repositories") } else { ("model", "models") };
        let count = match count {
            Some(count) => counted(count, noun.0, noun.1),
            None => format!("{}+ {}", grouped(MAX_COUNT), noun.1),
        };
        let facet = |column: FacetColumn| {
            facets
                .iter()
                .find(|(other, _)| *other == column)
                .map(|(_, counts)| counts.clone())
                .unwrap_or_default()
        };
        let lists = vec![
            list(&address, "Task", "task", facet(FacetColumn::Task)),
            list(&address, "Format", "format", facet(FacetColumn::Format)),
            parameter_list(&address, &facet(FacetColumn::Parameters)),
            memory_list(&address, &facet(FacetColumn::Memory)),
            list(&address, "Quantisation", "quant", facet(FacetColumn::Quantization)),
            context_list(&address, &facet(FacetColumn::Context)),
            list(&address, "Architecture", "arch", facet(FacetColumn::Architecture)),
            list(&address, "Licence", "license", facet(FacetColumn::License)),
        ];
        let shell = Shell { query: search.text.clone(), ..Shell::of(&registry, &caller).await? };
        Ok(render_browsed(&ModelsPage {
            shell,
            title: if search.everything { "Repositories" } else { "Models" },
            hits: hits.iter().map(HitLine::from).collect(),
            count,
            facets: lists.into_iter().filter(|list| !list.values.is_empty()).collect(),
            chosen: chosen(&address),
            sort: search.sort,
            kept: address.without(&["sort"]).0,
            is_cut: query.get("q").is_some_and(|text| text.trim().chars().nth(MAX_QUERY_CHARS).is_some()),
            next: next
                .map(|cursor| format!("{}after={}", with_separator(&address.url()), cursor_text(&cursor))),
            first: search.after.is_some().then(|| address.url()),
            everything: (!search.everything).then(|| address.with("all", "1").url()),
            is_filtered: address.0.iter().any(|(name, _)| !["sort", "all"].contains(name)),
        }))
    };
    browse(&registry, &caller, page).await
}

fn with_separator(url: &str) -> String {
    format!("{url}{}", if url.contains('?') { '&' } else { '?' })
}

fn address_of(query: &Query) -> Address {
    let parts = NAMES.iter().filter_map(|name| {
        let value = query.get(name)?.trim();
        let cut: String = value.chars().filter(|c| *c != '\0').take(MAX_VALUE_CHARS).collect();
        (!cut.is_empty()).then_some((*name, cut))
    });
    Address(parts.collect())
}

fn search_of(address: &Address, after: Option<SearchCursor>) -> Result<SearchQuery, Failure> {
    let text = |name: &str| address.get(name).map(str::to_owned);
    let number = |name: &'static str| match address.get(name) {
        None => Ok(None),
        Some(value) => match parse_count(value) {
            Some(count) => Ok(Some(count)),
            None => {
                Err(Failure::Query { name, value: value.to_owned(), expected: "a number such as 7B or 500M" })
            }
        },
    };
    let fits = match address.get("fits") {
        None => None,
        Some(value) => match parse_memory(value) {
            Some(size) => Some(size),
            None => {
                let (name, value) = ("fits", value.to_owned());
                return Err(Failure::Query { name, value, expected: "a size such as 24GiB" });
            }
        },
    };
    Ok(SearchQuery {
        text: text("q").unwrap_or_default(),
        everything: address.get("all").is_some(),
        format: text("format"),
        quantization: text("quant"),
        architecture: text("arch"),
        license: text("license"),
        task: text("task"),
        min_parameters: number("min")?,
        max_parameters: number("max")?,
        fits_bytes: fits,
        min_context: number("context")?,
        base: text("base").map(|base| base.to_lowercase()),
        sort: address.get("sort").and_then(|sort| sort.parse().ok()).unwrap_or_default(),
        after,
        limit: PAGE,
    })
}

/// `7B`, `1.5B`, `500M`, `1000`.
fn parse_count(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..].to_ascii_uppercase()[..] {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "B" => 1e9,
        "T" => 1e12,
        _ => return None,
    };
    scaled(digits, unit)
}

/// `24GiB`, `24GB`, `24G`, `512MiB`, or bytes.
fn parse_memory(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..].to_ascii_lowercase()[..] {
        "" | "b" => 1.0,
        "mib" | "m" => (1_u64 << 20) as f64,
        "gib" | "g" => (1_u64 << 30) as f64,
        "tib" | "t" => (1_u64 << 40) as f64,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return None,
    };
    scaled(digits, unit)
}

fn scaled(digits: &str, unit: f64) -> Option<u64> {
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value: f64 = digits.parse().ok().filter(|_| is_plain)?;
    let value = value * unit;
    (value.is_finite() && (0.0..9e18).contains(&value)).then_some(value as u64)
}

fn cursor_text(cursor: &SearchCursor) -> String {
    escape(&format!("{}~{}", cursor.key, cursor.repository))
}

fn parse_cursor(text: &str) -> Option<SearchCursor> {
    let (key, repository) = text.split_once('~')?;
    let repository = repository.parse::<lode_model::reference::Repository>().ok()?;
    Some(SearchCursor { key: key.parse().ok()?, repository: repository.to_string() })
}

/// The ranges that the page counts.
fn ranges() -> SearchRanges {
    SearchRanges {
        parameters: PARAMETERS
            .iter()
            .map(|(_, min, max)| (min.unwrap_or_default(), max.unwrap_or(u64::MAX)))
            .collect(),
        memory: MEMORY.iter().filter_map(|size| parse_memory(size)).collect(),
        context: CONTEXT.to_vec(),
    }
}

fn count_text(count: u64, is_partial: bool) -> String {
    format!("{}{}", grouped(count), if is_partial { "+" } else { "" })
}

fn list(address: &Address, title: &'static str, name: &'static str, facet: FacetCounts) -> FacetList {
    let current = address.get(name);
    let is_partial = facet.is_partial;
    let mut values: Vec<FacetValue> = facet
        .values
        .into_iter()
        .map(|(value, count)| {
            let is_chosen = current == Some(value.as_str());
            let url = if is_chosen { address.without(&[name]) } else { address.with(name, &value) };
            FacetValue { url: url.url(), name: value, count: count_text(count, is_partial), is_chosen }
        })
        .collect();
    // A chosen value that nothing has stays visible, so that it can be taken back.
    if let Some(current) = current.filter(|current| values.iter().all(|value| value.name != *current)) {
        let url = address.without(&[name]).url();
        let count = count_text(0, is_partial);
        values.push(FacetValue { name: current.to_owned(), count, url, is_chosen: true });
    }
    let is_open = current.is_some() || ["task", "format"].contains(&name);
    FacetList { title, is_open, values }
}

/// The counts of ranges, in their order.
fn range_counts(facet: &FacetCounts) -> impl Iterator<Item = String> {
    facet.values.iter().map(|(_, count)| count_text(*count, facet.is_partial))
}

fn parameter_list(address: &Address, facet: &FacetCounts) -> FacetList {
    let current = (address.get("min").and_then(parse_count), address.get("max").and_then(parse_count));
    let bare = address.without(&["min", "max"]);
    let value = |((name, min, max), count): (&(&str, Option<u64>, Option<u64>), String)| {
        let is_chosen = current == (*min, *max);
        let mut url = bare.clone();
        if !is_chosen {
            for (name, bound) in [("min", min), ("max", max)] {
                if let Some(bound) = bound {
                    url = url.with(name, &format!("{}B", bound / 1_000_000_000));
                }
            }
        }
        FacetValue { name: (*name).to_owned(), count, url: url.url(), is_chosen }
    };
    let values = PARAMETERS.iter().zip(range_counts(facet)).map(value).collect();
    FacetList { title: "Parameters", is_open: current != (None, None), values }
}

fn memory_list(address: &Address, facet: &FacetCounts) -> FacetList {
    let current = address.get("fits");
    let value = |(size, count): (&&str, String)| {
        let is_chosen = current == Some(*size);
        let url = if is_chosen { address.without(&["fits"]) } else { address.with("fits", size) };
        FacetValue { name: size.replace("GiB", " GiB"), count, url: url.url(), is_chosen }
    };
    let values = MEMORY.iter().zip(range_counts(facet)).map(value).collect();
    FacetList { title: "Fits in", is_open: current.is_some(), values }
}

fn context_list(address: &Address, facet: &FacetCounts) -> FacetList {
    let current = address.get("context");
    let value = |(length, count): (&u64, String)| {
        let text = length.to_string();
        let is_chosen = current == Some(text.as_str());
        let url = if is_chosen { address.without(&["context"]) } else { address.with("context", &text) };
        FacetValue { name: format!("{} or more", grouped(*length)), count, url: url.url(), is_chosen }
    };
    let values = CONTEXT.iter().zip(range_counts(facet)).map(value).collect();
    FacetList { title: "Context", is_open: current.is_some(), values }
}

/// The chosen filters by name, each with the address without it.
fn chosen(address: &Address) -> Vec<(String, String)> {
    let filters = address.0.iter().filter(|(name, _)| !["q", "all", "sort"].contains(name));
    let text = |name: &str, value: &str| match name {
        "min" => format!("at least {value} parameters"),
        "max" => format!("at most {value} parameters"),
        "fits" => format!("fits in {value}"),
        "context" => format!("context of at least {value}"),
        "base" => format!("made from {value}"),
        _ => value.to_owned(),
    };
    filters.map(|(name, value)| (text(name, value), address.without(&[name]).url())).collect()
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
    fn numbers_are_read_as_people_write_them() {
        let count = |text: &str, expect: Option<u64>| assert_eq!(parse_count(text), expect, "{text}");
        count("7B", Some(7_000_000_000));
        count("1.5b", Some(1_500_000_000));
        count("500M", Some(500_000_000));
        count("12", Some(12));
        for wrong in ["", "B", "-1", "1e9", "NaN", "inf", "7Q", "99999999999999999999T", "1.2.3"] {
            count(wrong, None);
        }
        assert_eq!(parse_memory("24GiB"), Some(24 << 30));
        assert_eq!(parse_memory("24GB"), Some(24_000_000_000));
        assert_eq!(parse_memory("1.5g"), Some(3 << 29));
        assert_eq!(parse_memory("much"), None);
    }

    #[test]
    fn the_address_holds_the_query() {
        let address = Address(vec![("q", "a&b c".to_owned()), ("format", "gguf".to_owned())]);
        assert_eq!(address.url(), "/models?q=a%26b+c&format=gguf");
        assert_eq!(address.with("format", "onnx").url(), "/models?q=a%26b+c&format=onnx");
        assert_eq!(address.without(&["q", "format"]).url(), "/models");
        let values = vec![("gguf".to_owned(), 3), ("onnx".to_owned(), 1)];
        let facet = list(&address, "Format", "format", FacetCounts { values, is_partial: true });
        assert!(facet.values[0].is_chosen && facet.values[0].url == "/models?q=a%26b+c");
        assert_eq!(facet.values[1].url, "/models?q=a%26b+c&format=onnx");
        let facet = list(&address, "Format", "format", FacetCounts::default());
        assert!(facet.values[0].is_chosen, "a value that nothing has can be taken back");
        let cursor = SearchCursor { key: -1, repository: "team/mini".to_owned() };
        assert_eq!(parse_cursor("-1~team/mini"), Some(cursor));
        for wrong in ["", "x~a", "1~", "1~UPPER", "1"] {
            assert_eq!(parse_cursor(wrong), None, "{wrong}");
        }
    }
}
