//! The query of a search in an address: the page `/models` and `/lode/v1/search` understand the same parameters.

use lode_model::reference::Repository;

use super::{Failure, Query};
use crate::app::{SearchCursor, SearchQuery, SearchRanges};

/// Longer values of a filter match nothing.
const MAX_VALUE_CHARS: usize = 255;

/// Ranges of parameters to choose from: the name, the least and the most.
pub(crate) const PARAMETERS: [(&str, Option<u64>, Option<u64>); 6] = [
    ("Below 1B", None, Some(1_000_000_000)),
    ("1B to 4B", Some(1_000_000_000), Some(4_000_000_000)),
    ("4B to 10B", Some(4_000_000_000), Some(10_000_000_000)),
    ("10B to 40B", Some(10_000_000_000), Some(40_000_000_000)),
    ("40B to 100B", Some(40_000_000_000), Some(100_000_000_000)),
    ("Over 100B", Some(100_000_000_000), None),
];
/// Sizes of memory to choose from.
pub(crate) const MEMORY: [&str; 6] = ["4GiB", "8GiB", "16GiB", "24GiB", "48GiB", "80GiB"];
/// Lengths of the context to choose from.
pub(crate) const CONTEXT: [u64; 4] = [8192, 32_768, 131_072, 1_048_576];

/// What an address may say, in this order.
const NAMES: [&str; 13] = [
    "q", "all", "task", "format", "quant", "arch", "license", "min", "max", "fits", "context", "base", "sort",
];

/// The parameters that an address has, in the order of [`NAMES`].
#[derive(Clone, Default)]
pub(crate) struct SearchAddress(Vec<(&'static str, String)>);

impl SearchAddress {
    /// The parameters of a request. Others are ignored.
    pub(crate) fn of(query: &Query) -> SearchAddress {
        let parts = NAMES.iter().filter_map(|name| {
            let value = query.get(name)?.trim();
            let cut: String = value.chars().filter(|c| *c != '\0').take(MAX_VALUE_CHARS).collect();
            (!cut.is_empty()).then_some((*name, cut))
        });
        SearchAddress(parts.collect())
    }

    pub(crate) fn with(&self, name: &'static str, value: &str) -> SearchAddress {
        let mut parts = self.without(&[name]).0;
        parts.push((name, value.to_owned()));
        SearchAddress(parts)
    }

    pub(crate) fn without(&self, names: &[&str]) -> SearchAddress {
        SearchAddress(self.0.iter().filter(|(name, _)| !names.contains(name)).cloned().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.parts().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// What it searches for. An unknown order is the default one.
    pub(crate) fn search(&self, after: Option<SearchCursor>, limit: u32) -> Result<SearchQuery, Failure> {
        let text = |name: &str| self.get(name).map(str::to_owned);
        let number = |name: &'static str| match self.get(name) {
            None => Ok(None),
            Some(value) => match parse_count(value) {
                Some(count) => Ok(Some(count)),
                None => Err(Failure::Query {
                    name,
                    value: value.to_owned(),
                    expected: "a number such as 7B or 500M",
                }),
            },
        };
        let fits = match self.get("fits") {
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
            everything: self.get("all").is_some(),
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
            sort: self.get("sort").and_then(|sort| sort.parse().ok()).unwrap_or_default(),
            after,
            limit,
        })
    }
}

/// The parameters that choose a range of [`PARAMETERS`].
pub(crate) fn parameter_filter(
    min: Option<u64>,
    max: Option<u64>,
) -> impl Iterator<Item = (&'static str, String)> {
    let bound = |(name, bound): (&'static str, Option<u64>)| {
        bound.map(|bound| (name, format!("{}B", bound / 1_000_000_000)))
    };
    [("min", min), ("max", max)].into_iter().filter_map(bound)
}

/// `7B`, `1.5B`, `500M`, `1000`.
pub(crate) fn parse_count(text: &str) -> Option<u64> {
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
pub(crate) fn parse_memory(text: &str) -> Option<u64> {
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

/// The end of a page, as the address of the next one has it.
pub(crate) fn cursor_text(cursor: &SearchCursor) -> String {
    format!("{}~{}", cursor.key, cursor.repository)
}

pub(crate) fn parse_cursor(text: &str) -> Option<SearchCursor> {
    let (key, repository) = text.split_once('~')?;
    let repository = repository.parse::<Repository>().ok()?;
    Some(SearchCursor { key: key.parse().ok()?, repository: repository.to_string() })
}

/// The ranges whose models are counted.
pub(crate) fn ranges() -> SearchRanges {
    SearchRanges {
        parameters: PARAMETERS
            .iter()
            .map(|(_, min, max)| (min.unwrap_or_default(), max.unwrap_or(u64::MAX)))
            .collect(),
        memory: MEMORY.iter().filter_map(|size| parse_memory(size)).collect(),
        context: CONTEXT.to_vec(),
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
        count("360m", Some(360_000_000));
        count("12", Some(12));
        count("0", Some(0));
        for wrong in
            ["", "B", "-1", "1e9", "NaN", "inf", "infB", "-1B", "7Q", "99999999999999999999T", "1.2.3"]
        {
            count(wrong, None);
        }
        assert_eq!(parse_memory("24GiB"), Some(24 << 30));
        assert_eq!(parse_memory("24GB"), Some(24_000_000_000));
        assert_eq!(parse_memory("1.5g"), Some(3 << 29));
        assert_eq!(parse_memory("much"), None);
    }

    #[test]
    fn a_cursor_is_what_it_was() {
        let cursor = SearchCursor { key: -1, repository: "team/mini".to_owned() };
        assert_eq!(cursor_text(&cursor), "-1~team/mini");
        assert_eq!(parse_cursor("-1~team/mini"), Some(cursor));
        for wrong in ["", "x~a", "1~", "1~UPPER", "1"] {
            assert_eq!(parse_cursor(wrong), None, "{wrong}");
        }
    }
}
