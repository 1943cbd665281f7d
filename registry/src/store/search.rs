//! Search over the rows of `search`: words, facts of models, and counts of their values. Visibility is part of every query,
//! before its limit and its counts. What a query reads is bounded: lists are read in the order of an index, or from a set
//! of results that is known to be small.

use futures::{StreamExt, TryStreamExt, stream};
use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::models::{ModelColumns, ModelRow};
use super::pulls::PullTotals;
use super::repositories::AFTER_NAMES;
use super::search_filter::{Parameter, SearchFilter, Text, TypedNames};
use super::{Engine, ListFilter, Store, bigint, parse_stored, query, size};
use crate::Error;

/// The most repositories that a count has.
pub(crate) const MAX_COUNT: u64 = 1000;
/// The most rows whose values are counted where few repositories fit.
const FACET_ROWS: u64 = 2000;
/// The most repositories of a tag, or with the words, that are counted to decide whether a search begins with them.
const LIST_ROWS: i64 = 20_000;
/// How many statements count the values of a search at a time.
const MAX_CONCURRENT_COUNTS: usize = 2;
/// The most values of a facet.
const MAX_VALUES: usize = 30;
/// The most tags of a repository that are counted.
const MAX_TAGS: i64 = 1000;

/// The order of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchOrder {
    Relevance,
    Updated,
    Name,
    Parameters,
    Size,
    /// When a tag of the repository was moved last. Of this order and the next one, only the kinds that
    /// represent repositories have an index.
    Newest,
    Created,
    /// The most recent pulls first.
    Pulls,
}

/// How many repositories fit, which decides how they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// At most [`MAX_COUNT`]: all are found, then sorted.
    Few,
    /// They are read in the order of an index, until a page is full.
    Many,
}

impl Amount {
    /// Of the number of repositories that fit: see [`Store::search_count`].
    pub(crate) fn of(count: u64) -> Amount {
        if count > MAX_COUNT { Amount::Many } else { Amount::Few }
    }

    /// The most rows whose values are counted.
    fn facet_rows(self) -> u64 {
        match self {
            Amount::Few => FACET_ROWS,
            Amount::Many => MAX_COUNT,
        }
    }
}

/// The last result of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SearchCursor {
    pub(crate) key: i64,
    pub(crate) repository: String,
}

/// A fact whose values are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FacetColumn {
    Format,
    Quantization,
    Architecture,
    License,
    Task,
    /// The values are positions in the ranges of the query.
    Parameters,
    Memory,
    Context,
}

impl FacetColumn {
    pub(crate) const ALL: [FacetColumn; 8] = [
        FacetColumn::Format,
        FacetColumn::Quantization,
        FacetColumn::Architecture,
        FacetColumn::License,
        FacetColumn::Task,
        FacetColumn::Parameters,
        FacetColumn::Memory,
        FacetColumn::Context,
    ];

    pub(super) fn is_range(self) -> bool {
        matches!(self, FacetColumn::Parameters | FacetColumn::Memory | FacetColumn::Context)
    }

    fn as_str(self) -> &'static str {
        match self {
            FacetColumn::Format => "format",
            FacetColumn::Quantization => "quantization",
            FacetColumn::Architecture => "architecture",
            FacetColumn::License => "license",
            FacetColumn::Task => "task",
            FacetColumn::Parameters => "parameters",
            FacetColumn::Memory => "size_bytes",
            FacetColumn::Context => "context_length",
        }
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

/// A repository that fits, with one of its tags.
#[derive(Clone, Debug)]
pub(crate) struct SearchRow {
    pub(crate) repository: Repository,
    pub(crate) tag: Tag,
    pub(crate) digest: Digest,
    pub(crate) modified_at: i64,
    /// When a tag of the repository was moved last.
    pub(crate) newest_at: i64,
    /// When the repository was created.
    pub(crate) created_at: i64,
    pub(crate) tags: u64,
    pub(crate) pulls: PullTotals,
    pub(crate) sort_key: i64,
    /// Absent if it is not indexed yet.
    pub(crate) model: Option<ModelRow>,
    /// JSON.
    pub(crate) facts: Option<String>,
}

#[derive(sqlx_macros::FromRow)]
struct SearchColumns {
    repository: String,
    tag: String,
    digest: String,
    updated_at: i64,
    newest_at: i64,
    created_at: i64,
    tags: i64,
    pulls: i64,
    all_pulls: i64,
    sort_key: i64,
    #[sqlx(flatten)]
    model: ModelColumns,
    facts: Option<String>,
}

impl TryFrom<SearchColumns> for SearchRow {
    type Error = Error;

    fn try_from(row: SearchColumns) -> Result<SearchRow, Error> {
        Ok(SearchRow {
            repository: parse_stored("repository", &row.repository)?,
            tag: parse_stored("tag", &row.tag)?,
            digest: parse_stored("digest", &row.digest)?,
            modified_at: row.updated_at,
            newest_at: row.newest_at,
            created_at: row.created_at,
            tags: size(row.tags)?,
            pulls: PullTotals::decode(row.pulls, row.all_pulls)?,
            sort_key: row.sort_key,
            model: row.model.decode()?,
            facts: row.facts,
        })
    }
}

/// At most `limit` rows after `after`.
struct PageRange<'a> {
    after: Option<&'a SearchCursor>,
    limit: usize,
}

impl Store {
    /// Repositories that fit, at most `limit`, in an order, after `after`.
    pub(crate) async fn search(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        order: SearchOrder,
        amount: Amount,
        after: Option<&SearchCursor>,
        limit: usize,
    ) -> Result<Vec<SearchRow>, Error> {
        if order != SearchOrder::Relevance || amount == Amount::Few {
            let (statement, text) =
                self.search_text(visible, filter, order, amount, None, PageRange { after, limit });
            let rows: Vec<SearchColumns> = self.run(statement, text).await?;
            return rows.into_iter().map(SearchRow::try_from).collect();
        }
        // The closest names first. The others follow in the order of names.
        let mut found = Vec::new();
        for closeness in [Closeness::Same, Closeness::Begins, Closeness::Other] {
            let key = closeness as i64;
            // The cursor may come from a page whose results were sorted.
            let after = match after.map(|after| (Closeness::of(after.key) as i64, after)) {
                Some((last, _)) if last < key => continue,
                Some((last, after)) if last == key => Some(after),
                _ => None,
            };
            let left = limit - found.len();
            let (statement, text) = self.search_text(
                visible,
                filter,
                order,
                amount,
                Some(closeness),
                PageRange { after, limit: left },
            );
            let rows: Vec<SearchColumns> = self.run(statement, text).await?;
            found.extend(rows);
            if found.len() >= limit {
                break;
            }
        }
        found.into_iter().map(SearchRow::try_from).collect()
    }

    fn search_text(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        order: SearchOrder,
        amount: Amount,
        closeness: Option<Closeness>,
        PageRange { after, limit }: PageRange<'_>,
    ) -> (String, Text) {
        let mut text = Text::new(self, visible);
        let listed = self.is_listed("s.repository", 1);
        let is_name_order = order == SearchOrder::Name || closeness.is_some();
        let (source, mut fitting) = text.fitting(filter, amount, is_name_order);
        let mut names = || TypedNames {
            whole: text.text(filter.typed.join("/")),
            first: text.text(filter.typed.first().cloned().unwrap_or_default()),
            // Follows every character of a name.
            end: text.text(format!("{}{AFTER_NAMES}", filter.typed.first().map_or("", String::as_str))),
        };
        let key = match (order, closeness) {
            (SearchOrder::Name, _) => None,
            (SearchOrder::Updated, _) => Some("s.updated_at".to_owned()),
            (SearchOrder::Parameters, _) => Some("s.parameters".to_owned()),
            (SearchOrder::Size, _) => Some("s.size_bytes".to_owned()),
            (SearchOrder::Newest, _) => Some("s.newest_at".to_owned()),
            (SearchOrder::Created, _) => Some("s.created_at".to_owned()),
            (SearchOrder::Pulls, _) => Some("s.pulls".to_owned()),
            (SearchOrder::Relevance, None) => {
                let names = names();
                Some(text.relevance(&names))
            }
            (SearchOrder::Relevance, Some(closeness)) => {
                let TypedNames { whole, first, end } = names();
                fitting.push_str(&match closeness {
                    Closeness::Same => format!(" and s.repository in ({whole}, {first})"),
                    Closeness::Begins => format!(
                        " and s.repository >= {first} and s.repository < {end} and s.repository not in ({whole}, {first})"
                    ),
                    Closeness::Other => format!(
                        " and substr(s.repository, 1, length({first})) <> {first} and s.repository <> {whole}"
                    ),
                });
                None
            }
        };
        let sort_key = match (&key, closeness) {
            (Some(key), _) => key.clone(),
            (None, Some(closeness)) => (closeness as i64).to_string(),
            (None, None) => "0".to_owned(),
        };
        let in_order = match (amount, &key) {
            (Amount::Few, _) => None,
            (Amount::Many, Some(key)) => Some(format!("{key} desc, s.repository")),
            (Amount::Many, None) => Some("s.repository".to_owned()),
        };
        let later = match after {
            None => "1 = 1".to_owned(),
            Some(after) => {
                let (number, name) = (text.number(after.key), text.text(&after.repository));
                match (&in_order, &key) {
                    (None, _) => {
                        format!("sort_key <= {number} and (sort_key < {number} or repository > {name})")
                    }
                    (Some(_), None) => format!("s.repository > {name}"),
                    (Some(_), Some(key)) => {
                        format!("{key} <= {number} and ({key} < {number} or s.repository > {name})")
                    }
                }
            }
        };
        let row = format!(
            "select s.repository, s.tag, s.digest, s.updated_at, s.newest_at, s.created_at, s.pulls, cast({sort_key} as bigint) as sort_key
             from {source} where {fitting} and {listed}"
        );
        let found = match in_order {
            None => format!(
                "with found as materialized ({row})
                 select * from found where {later} order by sort_key desc, repository limit {limit}"
            ),
            Some(in_order) => format!("{row} and {later} order by {in_order} limit {limit}"),
        };
        let repository = self.in_default("f.repository");
        let statement = format!(
            "select f.*, m.format, m.architecture, m.parameters, m.quantization, m.size_bytes, m.tensor_count, m.problem, m.facts,
                    (select count(*) from (select 1 from tags c where c.repository = {repository} limit {MAX_TAGS}) few) as tags,
                    coalesce((select r.pulls from repositories r where r.name = f.repository), 0) as all_pulls
             from ({found}) f left join models m on m.digest = f.digest
             order by f.sort_key desc, f.repository"
        );
        (statement, text)
    }

    /// Decides with which of its conditions a search begins that finds few.
    pub(crate) async fn search_plan(&self, mut filter: SearchFilter) -> Result<SearchFilter, Error> {
        filter.tags = self.rarest_first(filter.tags).await?;
        let is_sqlite = matches!(self.read(), Engine::Sqlite(_));
        filter.prefers_words = is_sqlite
            && filter.has_facts()
            && !filter.words.is_empty()
            && self.has_rare_words(&filter).await?;
        Ok(filter)
    }

    /// Orders tags by the number of their repositories, as far as that is counted.
    async fn rarest_first(&self, tags: Vec<String>) -> Result<Vec<String>, Error> {
        if tags.len() < 2 {
            return Ok(tags);
        }
        let text = AssertSqlSafe(format!(
            "select value, (select count(*) from (select 1 from search_tags where tag = value limit {LIST_ROWS}) few) as n
             from json_each($1) order by n"
        ));
        let list = serde_json::Value::from(tags).to_string();
        let rows: Vec<(String, i64)> =
            query!(self.read(), c => sqlx::query_as(text).bind(list).fetch_all(c).await)?;
        Ok(rows.into_iter().map(|(tag, _)| tag).collect())
    }

    /// Whether few repositories have the words.
    async fn has_rare_words(&self, filter: &SearchFilter) -> Result<bool, Error> {
        let text = AssertSqlSafe(format!(
            "select count(*) from (select 1 from search_words where search_words match $1 limit {LIST_ROWS}) few"
        ));
        let (count,): (i64,) = query!(self.read(), c => sqlx::query_as(text)
            .bind(filter.fts_words()).fetch_one(c).await)?;
        Ok(count < LIST_ROWS)
    }

    /// The number of repositories that fit, up to [`MAX_COUNT`] and one.
    pub(crate) async fn search_count(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
    ) -> Result<u64, Error> {
        let (statement, text) = self.search_count_text(visible, filter);
        let rows: Vec<(i64,)> = self.run(statement, text).await?;
        size(rows.first().map_or(0, |(count,)| *count))
    }

    fn search_count_text(&self, visible: &ListFilter, filter: &SearchFilter) -> (String, Text) {
        let mut text = Text::new(self, visible);
        let (source, fitting) = text.fitting(filter, Amount::Few, false);
        let rows = self.visible_rows("s.id", source, &fitting, Amount::Few);
        let limit = MAX_COUNT + 1;
        (format!("select count(*) from ({rows} limit {limit}) as f"), text)
    }

    /// Selects rows `s` that fit and that the client of the text's first parameters may see; many in the order of their last
    /// change.
    fn visible_rows(&self, columns: &str, source: &str, fitting: &str, amount: Amount) -> String {
        let listed = self.is_listed("s.repository", 1);
        let order = match amount {
            Amount::Few => "",
            Amount::Many => "order by s.updated_at desc, s.repository",
        };
        match self.read() {
            Engine::Sqlite(_) => {
                format!("select {columns} from {source} where {fitting} and {listed} {order}")
            }
            // Postgres adds the cost of the visibility to every row that it reads, also to those that do not fit, and then
            // prefers to find and sort all that fit. `offset 0` keeps the visibility out of that plan.
            Engine::Postgres(_) => format!(
                "select * from (select {columns}, s.repository from {source} where {fitting} {order} offset 0) s
                 where {listed}"
            ),
        }
    }

    /// The values of facts among the `count` repositories that fit, each fact without the filter's own choice of it. Of
    /// many repositories, those that changed last are counted.
    pub(crate) async fn search_facets(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        ranges: &[(FacetColumn, FacetRanges)],
        count: u64,
    ) -> Result<Vec<(FacetColumn, FacetCounts)>, Error> {
        let (chosen, others): (Vec<FacetColumn>, Vec<FacetColumn>) =
            FacetColumn::ALL.into_iter().partition(|column| filter.has(*column));
        let amount = Amount::of(count);
        let mut filter = filter.clone();
        // Where many fit, the list of the words is read only until enough of them are found.
        filter.prefers_words |= amount == Amount::Many;
        let mut groups = vec![(filter.clone(), others)];
        groups.extend(chosen.into_iter().map(|column| (filter.without(column), vec![column])));
        let groups = groups.into_iter().enumerate().map(|(at, (filter, columns))| async move {
            match at {
                0 if count == 0 => Ok(columns.into_iter().map(|column| no_counts(column, ranges)).collect()),
                0 => self.search_facets_of(visible, filter, columns, ranges, amount).await,
                // Without a condition there may be more.
                _ => self.search_facets_of(visible, filter, columns, ranges, Amount::Many).await,
            }
        });
        let facets: Vec<Vec<(FacetColumn, FacetCounts)>> =
            stream::iter(groups).buffered(MAX_CONCURRENT_COUNTS).try_collect().await?;
        let mut facets = facets.concat();
        facets.sort_by_key(|(column, _)| *column);
        Ok(facets)
    }

    /// The values of these facts among the repositories that fit.
    async fn search_facets_of(
        &self,
        visible: &ListFilter,
        filter: SearchFilter,
        columns: Vec<FacetColumn>,
        ranges: &[(FacetColumn, FacetRanges)],
        amount: Amount,
    ) -> Result<Vec<(FacetColumn, FacetCounts)>, Error> {
        let (statement, text) = self.search_facets_text(visible, &filter, &columns, ranges, amount);
        let rows: Vec<(String, String, i64)> = self.run(statement, text).await?;
        let counted = rows.iter().find(|(fact, ..)| fact.is_empty()).map_or(0, |(_, _, count)| *count);
        let is_partial = size(counted)? >= amount.facet_rows();
        let mut facets = Vec::with_capacity(columns.len());
        for column in columns {
            let mine = rows.iter().filter(|(fact, ..)| fact == column.as_str());
            let values: Result<Vec<(String, u64)>, Error> =
                mine.map(|(_, value, count)| Ok((value.clone(), size(*count)?))).collect();
            let mut values = values?;
            match column.is_range() {
                true => values.sort_by_key(|(value, _)| value.parse::<usize>().ok()),
                false => values.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0))),
            }
            values.truncate(MAX_VALUES);
            facets.push((column, FacetCounts { values, is_partial }));
        }
        Ok(facets)
    }

    fn search_facets_text(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        facets: &[FacetColumn],
        ranges: &[(FacetColumn, FacetRanges)],
        amount: Amount,
    ) -> (String, Text) {
        let mut text = Text::new(self, visible);
        let limit = amount.facet_rows();
        // Many rows fit most of the time, so they are soon found in the order of time, except those with words.
        let amount = if filter.typed.is_empty() { amount } else { Amount::Few };
        let facts = text.facts(filter, amount);
        let (source, words) = text.source(filter, amount);
        let name = text.name(filter, amount, false);
        let mut counts = vec!["select '' as fact, '' as value, count(*) as n from fit".to_owned()];
        for column in facets {
            let name = column.as_str();
            match ranges.iter().find(|(other, _)| other == column) {
                Some((_, ranges)) => counts.extend(ranges.iter().enumerate().map(|(at, (least, most))| {
                    let (least, most) = (bigint(*least), bigint(*most));
                    format!(
                        "select '{name}', '{at}', count(distinct id) from fit where {name} between {least} and {most}"
                    )
                })),
                None if column.is_range() => {}
                None => counts.push(format!(
                    "select '{name}', min({name}), count(distinct id) from fit where {name} <> '' group by lower({name})"
                )),
            }
        }
        let columns = "s.id, s.format, s.quantization, s.architecture, s.license, s.task, s.parameters, s.size_bytes, \
                       s.context_length";
        let rows = self.visible_rows(columns, source, &format!("{facts} and {words} and {name}"), amount);
        let counts = counts.join(" union all ");
        let statement = format!("with fit as materialized ({rows} limit {limit}) {counts}");
        (statement, text)
    }

    async fn run<T>(&self, statement: String, text: Text) -> Result<Vec<T>, Error>
    where
        T: Send + Unpin,
        T: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow>
            + for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>,
    {
        // The statement contains placeholders in the place of what callers have sent.
        let statement = AssertSqlSafe(statement);
        Ok(query!(self.read(), c => {
            // Planned for its parameters each time: Postgres's plan for any parameters is slower.
            let mut query = sqlx::query_as(statement).persistent(false);
            for parameter in text.parameters {
                query = match parameter {
                    Parameter::Text(value) => query.bind(value),
                    Parameter::Number(value) => query.bind(value),
                };
            }
            query.fetch_all(c).await
        })?)
    }
}

/// The counts of a fact that no repository has.
fn no_counts(column: FacetColumn, ranges: &[(FacetColumn, FacetRanges)]) -> (FacetColumn, FacetCounts) {
    let ranges = ranges.iter().find(|(other, _)| *other == column).map_or(0, |(_, ranges)| ranges.len());
    let values = (0..ranges).map(|at| (at.to_string(), 0)).collect();
    (column, FacetCounts { values, is_partial: false })
}

/// How close a name is to what was typed, as a key of the order of many results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closeness {
    Same = 4,
    Begins = 3,
    Other = 0,
}

impl Closeness {
    fn of(key: i64) -> Closeness {
        match key {
            4.. => Closeness::Same,
            3 => Closeness::Begins,
            _ => Closeness::Other,
        }
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
