//! The values of facts among the repositories that fit a search. A statement selects a bounded number of rows, and they are
//! counted here: a database takes several times as long for as many counts.

use std::collections::{BTreeMap, HashSet};

use futures::{StreamExt, TryStreamExt, stream};

use super::lineage::without_tag;
use super::search::Amount;
use super::search_filter::{SearchFilter, Text};
use super::{ListFilter, Store, size};
use crate::Error;

/// The most rows whose values are counted, of repositories that were found, and of many in their order.
const FOUND_ROWS: usize = 2000;
const MANY_ROWS: usize = 500;
/// How many of many repositories are counted that were found.
const MANY_IDS: usize = 500;
/// How many statements select rows at a time.
const MAX_CONCURRENT_COUNTS: usize = 2;
/// The most values of a facet.
const MAX_VALUES: usize = 30;

/// A fact whose values are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FacetColumn {
    Format,
    Quantization,
    Architecture,
    License,
    Task,
    /// The names of the models that it was made from, without tags.
    Base,
    /// The values are positions in the ranges of the query.
    Parameters,
    Memory,
    Context,
}

impl FacetColumn {
    pub(crate) const ALL: [FacetColumn; 9] = [
        FacetColumn::Format,
        FacetColumn::Quantization,
        FacetColumn::Architecture,
        FacetColumn::License,
        FacetColumn::Task,
        FacetColumn::Base,
        FacetColumn::Parameters,
        FacetColumn::Memory,
        FacetColumn::Context,
    ];

    fn is_range(self) -> bool {
        matches!(self, FacetColumn::Parameters | FacetColumn::Memory | FacetColumn::Context)
    }
}

/// The least and the most value of each range of a facet.
pub(crate) type FacetRanges = Vec<(u64, u64)>;

/// The values of a fact, with the number of repositories that have each, most first; those of ranges in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FacetCounts {
    pub(crate) values: Vec<(String, u64)>,
    /// There are more repositories than were counted.
    pub(crate) is_partial: bool,
}

/// The facts of a row.
#[derive(sqlx_macros::FromRow)]
struct FactColumns {
    id: i64,
    format: Option<String>,
    quantization: Option<String>,
    architecture: Option<String>,
    license: Option<String>,
    task: Option<String>,
    bases: Option<String>,
    parameters: i64,
    size_bytes: i64,
    context_length: i64,
}

impl FactColumns {
    fn values(&self, column: FacetColumn) -> impl Iterator<Item = &str> {
        let text = match column {
            FacetColumn::Format => &self.format,
            FacetColumn::Quantization => &self.quantization,
            FacetColumn::Architecture => &self.architecture,
            FacetColumn::License => &self.license,
            FacetColumn::Task => &self.task,
            FacetColumn::Base => &self.bases,
            FacetColumn::Parameters | FacetColumn::Memory | FacetColumn::Context => &None,
        };
        let is_list = column == FacetColumn::Base;
        let text = text.as_deref().unwrap_or_default();
        text.split(move |c| is_list && c == '\n')
            .map(move |value| if is_list { without_tag(value) } else { value })
            .filter(|value| !value.is_empty())
    }

    /// Absent if it is unknown.
    fn number(&self, column: FacetColumn) -> Option<u64> {
        let number = match column {
            FacetColumn::Parameters => self.parameters,
            FacetColumn::Memory => self.size_bytes,
            FacetColumn::Context => self.context_length,
            _ => return None,
        };
        size(number).ok()
    }
}

impl Store {
    /// The values of facts among the repositories that fit, whose numbers [`Store::search_ids`] has found, each fact without
    /// the filter's own choice of it. Of many repositories, those that changed last are counted, or with several conditions
    /// or an origin, some of those that were found: in the order of time, many rows would be read for each that fits.
    pub(crate) async fn search_facets(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        ranges: &[(FacetColumn, FacetRanges)],
        ids: &[i64],
    ) -> Result<Vec<(FacetColumn, FacetCounts)>, Error> {
        let (chosen, others): (Vec<FacetColumn>, Vec<FacetColumn>) =
            FacetColumn::ALL.into_iter().partition(|column| filter.has(*column));
        let is_many = Amount::of(ids) == Amount::Many;
        // Origins are in no index with the facts.
        let reads_many_rows = !filter.typed.is_empty() || chosen.len() > 1 || filter.base.is_some();
        let amount = match is_many && reads_many_rows {
            true => Amount::Found(&ids[..ids.len().min(MANY_IDS)]),
            false => Amount::of(ids),
        };
        let mut filter = filter.clone();
        // Where many fit, the list of the words is read only until enough of them are found.
        filter.prefers_words |= is_many;
        let mut groups = vec![(filter.clone(), others, amount)];
        // Without a condition there may be more.
        groups.extend(chosen.into_iter().map(|column| (filter.without(column), vec![column], Amount::Many)));
        let counts = groups.into_iter().map(|(filter, columns, amount)| async move {
            let limit = if amount == Amount::Many { MANY_ROWS } else { FOUND_ROWS };
            let (statement, text) = self.search_facets_text(visible, &filter, amount, limit);
            let rows: Vec<FactColumns> = self.run(statement, text).await?;
            let is_partial = rows.len() >= limit || (is_many && amount != Amount::Many);
            let counts = columns.into_iter().map(|column| {
                let ranges = ranges.iter().find(|(other, _)| *other == column);
                let values = count_values(&rows, column, ranges.map(|(_, ranges)| ranges.as_slice()));
                (column, FacetCounts { values, is_partial })
            });
            Ok::<_, Error>(counts.collect::<Vec<_>>())
        });
        let counts: Vec<_> = counts.collect();
        let facets: Vec<Vec<(FacetColumn, FacetCounts)>> =
            stream::iter(counts).buffered(MAX_CONCURRENT_COUNTS).try_collect().await?;
        let mut facets = facets.concat();
        facets.sort_by_key(|(column, _)| *column);
        Ok(facets)
    }

    pub(super) fn search_facets_text(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        amount: Amount<'_>,
        limit: usize,
    ) -> (String, Text) {
        let mut text = Text::new(self, visible);
        let amount = match amount {
            // Many rows fit most of the time, so they are soon found in the order of time, except those with words or an
            // origin.
            Amount::Many if !filter.typed.is_empty() || filter.base.is_some() => Amount::Few,
            amount => amount,
        };
        let facts = text.facts(filter, amount);
        let (source, words) = text.source(filter, amount);
        let name = text.name(filter, amount, false);
        let columns = "s.id, s.position, s.format, s.quantization, s.architecture, s.license, s.task, s.parameters, \
                       s.size_bytes, s.context_length";
        let rows = self.visible_rows(columns, &source, &format!("{facts} and {words} and {name}"), amount);
        // The origins are in no index: they are read for the rows that fit only.
        let statement = format!(
            "select found.*, (select o.bases from search o where o.id = found.id and o.position = found.position) as bases
             from ({rows} limit {limit}) found"
        );
        (statement, text)
    }
}

/// The number of repositories that have each value of a fact, or a value in each range.
fn count_values(
    rows: &[FactColumns],
    column: FacetColumn,
    ranges: Option<&[(u64, u64)]>,
) -> Vec<(String, u64)> {
    if column.is_range() {
        let count = |(at, (least, most)): (usize, &(u64, u64))| {
            let fit = rows
                .iter()
                .filter(|row| row.number(column).is_some_and(|number| (*least..=*most).contains(&number)));
            (at.to_string(), fit.map(|row| row.id).collect::<HashSet<i64>>().len() as u64)
        };
        return ranges.unwrap_or_default().iter().enumerate().map(count).collect();
    }
    // By the value in lower case: as it is written first in the order of bytes, and the repositories.
    let mut found: BTreeMap<String, (&str, HashSet<i64>)> = BTreeMap::new();
    for row in rows {
        for value in row.values(column) {
            let (first, ids) = found.entry(value.to_ascii_lowercase()).or_insert((value, HashSet::new()));
            *first = value.min(first);
            ids.insert(row.id);
        }
    }
    let found = found.into_values().map(|(value, ids)| (value.to_owned(), ids.len() as u64));
    let mut values: Vec<(String, u64)> = found.collect();
    values.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    values.truncate(MAX_VALUES);
    values
}
