//! Search over the rows of `search`: words and facts of models. Visibility is part of every query,
//! before its limit and its counts. What a query reads is bounded: lists are read in the order of an index, or from a set
//! of results that is known to be small.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::models::{ModelColumns, ModelRow};
use super::pulls::PullTotals;
use super::repositories::AFTER_NAMES;
use super::search_filter::{Parameter, SearchFilter, Text, TypedNames};
use super::{Engine, ListFilter, Store, parse_stored, query, size};
use crate::Error;

/// The most repositories that a count has.
pub(crate) const MAX_COUNT: u64 = 1000;
/// The most repositories of a tag, or with the words, that are counted to decide whether a search begins with them.
const LIST_ROWS: i64 = 20_000;
/// How many repositories with frequent words are looked at first.
const FIRST_ROWS: i64 = 2000;
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
pub(crate) enum Amount<'a> {
    /// Presumably few: they are read from the list of a condition, in any order.
    Few,
    /// These, which [`Store::search_ids`] has found for the same caller: they are read by number, then sorted.
    Found(&'a [i64]),
    /// They are read in the order of an index, until a page is full.
    Many,
}

impl Amount<'_> {
    /// Of what [`Store::search_ids`] has found.
    pub(crate) fn of(ids: &[i64]) -> Amount<'_> {
        if ids.len() as u64 > MAX_COUNT { Amount::Many } else { Amount::Found(ids) }
    }
}

/// The last result of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SearchCursor {
    pub(crate) key: i64,
    pub(crate) repository: String,
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
        amount: Amount<'_>,
        after: Option<&SearchCursor>,
        limit: usize,
    ) -> Result<Vec<SearchRow>, Error> {
        if order != SearchOrder::Relevance || amount != Amount::Many {
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
        amount: Amount<'_>,
        closeness: Option<Closeness>,
        PageRange { after, limit }: PageRange<'_>,
    ) -> (String, Text) {
        let mut text = Text::new(self, visible);
        let listed = match amount {
            Amount::Found(_) => "1 = 1".to_owned(),
            Amount::Few | Amount::Many => self.is_listed("s.repository", 1),
        };
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
            (Amount::Few | Amount::Found(_), _) => None,
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
        filter.prefers_words =
            filter.has_facts() && filter.has_word_lists() && self.has_rare_words(&filter).await?;
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

    /// Whether so few repositories have the words that all of them are read, whatever facts a search has.
    async fn has_rare_words(&self, filter: &SearchFilter) -> Result<bool, Error> {
        let (list, words, limit) = match self.read() {
            Engine::Sqlite(_) => ("search_words match $1", filter.fts_words(), LIST_ROWS),
            // Its statistics decide about longer lists.
            Engine::Postgres(_) => ("words @@ cast($1 as tsquery)", filter.ts_words(), FIRST_ROWS),
        };
        let text = AssertSqlSafe(format!(
            "select count(*) from (select 1 from search_words where {list} limit {limit}) few"
        ));
        let (count,): (i64,) = query!(self.read(), c => sqlx::query_as(text).bind(words).fetch_one(c).await)?;
        Ok(count < limit)
    }

    /// The repositories that fit, by the numbers of their words: all of them, or [`MAX_COUNT`] and one.
    pub(crate) async fn search_ids(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
    ) -> Result<Vec<i64>, Error> {
        if let Some((statement, text)) = self.search_first_ids_text(visible, filter) {
            let rows: Vec<(i64,)> = self.run(statement, text).await?;
            if rows.len() as u64 > MAX_COUNT {
                return Ok(rows.into_iter().map(|(id,)| id).collect());
            }
        }
        let (statement, text) = self.search_ids_text(visible, filter);
        let rows: Vec<(i64,)> = self.run(statement, text).await?;
        Ok(rows.into_iter().map(|(id,)| id).collect())
    }

    fn search_ids_text(&self, visible: &ListFilter, filter: &SearchFilter) -> (String, Text) {
        let mut text = Text::new(self, visible);
        let (source, fitting) = text.fitting(filter, Amount::Few, false);
        let rows = self.visible_rows("s.id", &source, &fitting, Amount::Few);
        let limit = MAX_COUNT + 1;
        (format!("select f.id from ({rows} limit {limit}) as f"), text)
    }

    /// Looks for the repositories that fit among the first ones with the words. `None` if all with the words are read anyway.
    /// SQLite would list all that have the words, however soon enough of them fit, and Postgres all that have the facts.
    fn search_first_ids_text(&self, visible: &ListFilter, filter: &SearchFilter) -> Option<(String, Text)> {
        let is_worthwhile =
            filter.has_word_lists() && filter.tags.is_empty() && filter.has_facts() && !filter.prefers_words;
        if !is_worthwhile {
            return None;
        }
        let mut text = Text::new(self, visible);
        let others = SearchFilter { typed: Vec::new(), words: Vec::new(), ..filter.clone() };
        let (_, fitting) = text.fitting(&others, Amount::Many, false);
        let source = text.rows_with_words(filter, Some(FIRST_ROWS));
        let rows = self.visible_rows("s.id", &source, &fitting, Amount::Few);
        let limit = MAX_COUNT + 1;
        Some((format!("select f.id from ({rows} limit {limit}) as f"), text))
    }

    /// Selects rows `s` that fit and that the client of the text's first parameters may see; many in the order of their last
    /// change.
    pub(super) fn visible_rows(
        &self,
        columns: &str,
        source: &str,
        fitting: &str,
        amount: Amount<'_>,
    ) -> String {
        let listed = self.is_listed("s.repository", 1);
        let order = match amount {
            Amount::Few => "",
            Amount::Found(_) => return format!("select {columns} from {source} where {fitting}"),
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

    pub(super) async fn run<T>(&self, statement: String, text: Text) -> Result<Vec<T>, Error>
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
