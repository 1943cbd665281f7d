//! Search over the names of repositories and the facts of their models. Visibility is part of every query, before its
//! limit and its counts.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::models::{ModelColumns, ModelRow};
use super::{Engine, ListFilter, Store, bigint, on, parse_stored, size};
use crate::Error;

/// The most values of a facet.
const MAX_VALUES: i64 = 30;

/// The conditions of a search; `None` is no condition.
#[derive(Clone, Debug, Default)]
pub(crate) struct SearchFilter {
    /// In lower case. Each occurs in the name or among the words of the facts.
    pub(crate) words: Vec<String>,
    /// Also what is not a model.
    pub(crate) everything: bool,
    pub(crate) format: Option<String>,
    pub(crate) quantization: Option<String>,
    pub(crate) architecture: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) min_parameters: Option<u64>,
    pub(crate) max_parameters: Option<u64>,
    pub(crate) max_size_bytes: Option<u64>,
    pub(crate) base: Option<String>,
}

/// The last result of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SearchCursor {
    pub(crate) key: i64,
    pub(crate) repository: String,
}

/// A fact whose values are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FacetColumn {
    Format,
    Quantization,
    Architecture,
    License,
    Task,
}

impl FacetColumn {
    fn as_str(self) -> &'static str {
        match self {
            FacetColumn::Format => "m.format",
            FacetColumn::Quantization => "m.quantization",
            FacetColumn::Architecture => "m.architecture",
            FacetColumn::License => "m.license",
            FacetColumn::Task => "m.task",
        }
    }
}

/// A repository that fits, with one of its tags.
#[derive(Clone, Debug)]
pub(crate) struct SearchRow {
    pub(crate) repository: Repository,
    pub(crate) tag: Tag,
    pub(crate) digest: Digest,
    pub(crate) modified_at: i64,
    pub(crate) tags: u64,
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
    tags: i64,
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
            tags: size(row.tags)?,
            sort_key: row.sort_key,
            model: row.model.decode()?,
            facts: row.facts,
        })
    }
}

/// A text with its parameters.
struct Text {
    parameters: Vec<Parameter>,
    is_sqlite: bool,
}

#[derive(Clone)]
enum Parameter {
    Text(String),
    Number(i64),
}

impl Text {
    fn text(&mut self, value: impl Into<String>) -> String {
        self.parameters.push(Parameter::Text(value.into()));
        format!("cast(${} as text)", self.parameters.len())
    }

    fn number(&mut self, value: i64) -> String {
        self.parameters.push(Parameter::Number(value));
        format!("cast(${} as bigint)", self.parameters.len())
    }

    /// Whether the text of a column contains a parameter.
    fn contains(&self, column: &str, parameter: &str) -> String {
        match self.is_sqlite {
            true => format!("instr({column}, {parameter}) > 0"),
            false => format!("strpos({column}, {parameter}) > 0"),
        }
    }

    /// The conditions on a model `m`, which may be absent.
    fn conditions(&mut self, filter: &SearchFilter) -> String {
        let mut all = Vec::new();
        if !filter.everything {
            all.push("(m.format is null or m.format <> '')".to_owned());
        }
        for (column, value) in [
            ("m.format", &filter.format),
            ("m.quantization", &filter.quantization),
            ("m.architecture", &filter.architecture),
            ("m.license", &filter.license),
            ("m.task", &filter.task),
        ] {
            if let Some(value) = value {
                all.push(format!("{column} = {}", self.text(value)));
            }
        }
        for (column, limit) in [
            ("m.parameters >=", filter.min_parameters),
            ("m.parameters <=", filter.max_parameters),
            ("m.size_bytes <=", filter.max_size_bytes),
        ] {
            if let Some(limit) = limit {
                all.push(format!("{column} {}", self.number(bigint(limit))));
            }
        }
        if let Some(base) = &filter.base {
            let (whole, tagged) = (self.text(format!("\n{base}\n")), self.text(format!("\n{base}:")));
            let (whole, tagged) = (self.contains("m.bases", &whole), self.contains("m.bases", &tagged));
            all.push(format!("({whole} or {tagged})"));
        }
        if all.is_empty() { "1 = 1".to_owned() } else { all.join(" and ") }
    }

    /// The conditions on the words of the repository `r` and of the model `m`.
    fn words(&mut self, filter: &SearchFilter) -> String {
        let mut all = vec!["1 = 1".to_owned()];
        for word in &filter.words {
            let word = self.text(word);
            let (name, words) =
                (self.contains("r.name", &word), self.contains("coalesce(m.words, '')", &word));
            all.push(format!("({name} or {words})"));
        }
        all.join(" and ")
    }

    /// How close the name of `r` is to the words: the higher, the closer.
    fn relevance(&mut self, filter: &SearchFilter) -> String {
        let whole = self.text(filter.words.join("/"));
        let first = self.text(filter.words.first().cloned().unwrap_or_default());
        let in_name = self.contains("r.name", &first);
        let begins = format!("substr(r.name, 1, length({first})) = {first}");
        let begins_part = {
            let slashed = self.text(format!("/{}", filter.words.first().cloned().unwrap_or_default()));
            self.contains("r.name", &slashed)
        };
        format!(
            "case when r.name = {whole} or r.name = {first} then 4
                  when {begins} then 3 when {begins_part} then 2 when {in_name} then 1 else 0 end"
        )
    }
}

impl Store {
    /// Repositories that fit, at most `limit`, in the order of `sort` after `after`.
    pub(crate) async fn search(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        sort: &str,
        after: Option<&SearchCursor>,
        limit: i64,
    ) -> Result<Vec<SearchRow>, Error> {
        let mut text = self.text_of(visible);
        let listed = self.is_listed("r.name", 1);
        let key = match sort {
            "updated" => "t.updated_at".to_owned(),
            "parameters" => "coalesce(m.parameters, -1)".to_owned(),
            "size" => "coalesce(m.size_bytes, -1)".to_owned(),
            "relevance" => text.relevance(filter),
            _ => "0".to_owned(),
        };
        let (conditions, words) = (text.conditions(filter), text.words(filter));
        let after = match after {
            None => "1 = 1".to_owned(),
            Some(SearchCursor { key, repository }) => {
                let (key, name) = (text.number(*key), text.text(repository));
                format!("(sort_key < {key} or (sort_key = {key} and repository > {name}))")
            }
        };
        let limit = text.number(limit);
        let statement = format!(
            "select * from (
                 select r.name as repository, t.name as tag, t.digest, t.updated_at,
                        m.format, m.architecture, m.parameters, m.quantization, m.size_bytes, m.tensor_count, m.problem,
                        m.facts, (select count(*) from tags c where c.repository = r.name) as tags,
                        cast({key} as bigint) as sort_key
                 from repositories r
                 join tags t on t.repository = r.name and t.name =
                     (select x.name from tags x left join models m on m.digest = x.digest
                      where x.repository = r.name and {conditions}
                      order by case when x.name = 'latest' then 0 else 1 end, x.updated_at desc, x.name limit 1)
                 left join models m on m.digest = t.digest
                 where {listed} and {words}) as found
             where {after} order by sort_key desc, repository limit {limit}"
        );
        let rows: Vec<SearchColumns> = self.run(statement, text).await?;
        rows.into_iter().map(SearchRow::try_from).collect()
    }

    /// The number of repositories that fit, up to `limit`.
    pub(crate) async fn search_count(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        limit: u64,
    ) -> Result<u64, Error> {
        let mut text = self.text_of(visible);
        let from = self.fitting(filter, &mut text);
        let limit = text.number(bigint(limit));
        let rows: Vec<(i64,)> = self
            .run(format!("select count(*) from (select distinct r.name {from} limit {limit}) as f"), text)
            .await?;
        size(rows.first().map_or(0, |(count,)| *count))
    }

    /// The values of a fact among the repositories that fit, with the number of repositories that have each, most
    /// first. At most `limit` pairs are counted.
    pub(crate) async fn search_facet(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        column: FacetColumn,
        limit: u64,
    ) -> Result<Vec<(String, u64)>, Error> {
        let mut text = self.text_of(visible);
        let from = self.fitting(filter, &mut text);
        let limit = text.number(bigint(limit));
        let column = column.as_str();
        let rows: Vec<(String, i64)> = self
            .run(
                format!(
                    "select value, count(*) as n from
                         (select distinct r.name, {column} as value {from} and {column} <> '' limit {limit}) as f
                     group by value order by n desc, value limit {MAX_VALUES}"
                ),
                text,
            )
            .await?;
        rows.into_iter().map(|(value, count)| Ok((value, size(count)?))).collect()
    }

    /// All pairs of a repository and a tag that fit.
    fn fitting(&self, filter: &SearchFilter, text: &mut Text) -> String {
        let listed = self.is_listed("r.name", 1);
        let (conditions, words) = (text.conditions(filter), text.words(filter));
        format!(
            "from repositories r join tags t on t.repository = r.name left join models m on m.digest = t.digest
             where {listed} and {conditions} and {words}"
        )
    }

    /// A text whose first four parameters are those of the visibility.
    fn text_of(&self, visible: &ListFilter) -> Text {
        let (all, visibility, subjects, targets) = visible.parameters();
        let parameters = vec![
            Parameter::Number(all),
            Parameter::Number(visibility),
            Parameter::Text(subjects),
            Parameter::Text(targets),
        ];
        Text { parameters, is_sqlite: matches!(self.read(), Engine::Sqlite(_)) }
    }

    async fn run<T>(&self, statement: String, text: Text) -> Result<Vec<T>, Error>
    where
        T: Send + Unpin,
        T: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow>
            + for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>,
    {
        // The statement contains placeholders in the place of what callers have sent.
        let statement = AssertSqlSafe(statement);
        Ok(on!(self.read(), c => {
            let mut query = sqlx::query_as(statement);
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
