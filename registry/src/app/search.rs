//! Search: the repositories that a caller may read, by name and by the facts of their models. Each result is the tag
//! of a repository that fits the query best: `latest` if it fits, else the one that was moved last.

use std::str::FromStr;

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};

use super::model_facts::ModelFacts;
use super::{ModelSummary, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{FacetColumn, SearchCursor, SearchFilter, SearchRow};

/// Longer queries are cut.
const MAX_QUERY_CHARS: usize = 200;
/// The most words of a query that count.
const MAX_WORDS: usize = 8;
/// The most results of a page.
const MAX_PAGE: u32 = 100;
/// A count beyond this is not exact.
pub(crate) const MAX_COUNT: u64 = 10_000;
/// What loading a model takes beyond its files, in percent of their size: caches, buffers and a short context.
const LOAD_PERCENT: u64 = 120;

/// The order of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SearchSort {
    /// The closest name first; without a text, the latest change.
    #[default]
    Relevance,
    Updated,
    Name,
    Parameters,
    Size,
}

impl SearchSort {
    pub(crate) const ALL: [SearchSort; 5] = [
        SearchSort::Relevance,
        SearchSort::Updated,
        SearchSort::Name,
        SearchSort::Parameters,
        SearchSort::Size,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SearchSort::Relevance => "relevance",
            SearchSort::Updated => "updated",
            SearchSort::Name => "name",
            SearchSort::Parameters => "parameters",
            SearchSort::Size => "size",
        }
    }
}

impl FromStr for SearchSort {
    type Err = ();

    fn from_str(text: &str) -> Result<SearchSort, ()> {
        SearchSort::ALL.into_iter().find(|sort| sort.as_str() == text).ok_or(())
    }
}

/// A query, as its address says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchQuery {
    pub(crate) text: String,
    /// Also repositories that have no models.
    pub(crate) everything: bool,
    pub(crate) format: Option<String>,
    pub(crate) quantization: Option<String>,
    pub(crate) architecture: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) min_parameters: Option<u64>,
    pub(crate) max_parameters: Option<u64>,
    /// The memory into which the model has to fit.
    pub(crate) fits_bytes: Option<u64>,
    /// The name of a model that it was made from.
    pub(crate) base: Option<String>,
    pub(crate) sort: SearchSort,
    /// The end of the page before.
    pub(crate) after: Option<SearchCursor>,
    pub(crate) limit: u32,
}

/// A repository that fits a query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SearchHit {
    pub(crate) repository: Repository,
    /// The tag that fits.
    pub(crate) tag: Tag,
    pub(crate) digest: Digest,
    /// When the tag was last moved, in milliseconds since 1970.
    pub(crate) modified_at: i64,
    pub(crate) tags: u64,
    /// Absent if it is not a model, or not read yet.
    pub(crate) summary: Option<ModelSummary>,
    pub(crate) is_pending: bool,
    pub(crate) facts: ModelFacts,
}

/// The values of one fact, with the number of repositories that have them.
pub(crate) type Facet = Vec<(String, u64)>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Facets {
    pub(crate) formats: Facet,
    pub(crate) quantizations: Facet,
    pub(crate) architectures: Facet,
    pub(crate) licenses: Facet,
    pub(crate) tasks: Facet,
}

impl Registry {
    /// A page of the repositories that fit a query, and where the next page begins.
    pub(crate) async fn search(
        &self,
        caller: &Caller,
        query: &SearchQuery,
    ) -> Result<(Vec<SearchHit>, Option<SearchCursor>), Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let visible = self.list_filter(caller).await?;
        let limit = query.limit.clamp(1, MAX_PAGE);
        let filter = filter_of(query);
        let sort = match query.sort {
            SearchSort::Relevance if filter.words.is_empty() => SearchSort::Updated,
            sort => sort,
        };
        let after = query.after.as_ref();
        let mut rows =
            self.store().search(&visible, &filter, sort.as_str(), after, i64::from(limit) + 1).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = rows
            .last()
            .filter(|_| more)
            .map(|row| SearchCursor { key: row.sort_key, repository: row.repository.to_string() });
        Ok((rows.into_iter().map(SearchHit::from).collect(), next))
    }

    /// The number of repositories that fit a query, at most [`MAX_COUNT`] and one.
    pub(crate) async fn search_count(&self, caller: &Caller, query: &SearchQuery) -> Result<u64, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let visible = self.list_filter(caller).await?;
        self.store().search_count(&visible, &filter_of(query), MAX_COUNT + 1).await
    }

    /// The values that the repositories that fit a query have, each without the query's own choice of it.
    pub(crate) async fn search_facets(&self, caller: &Caller, query: &SearchQuery) -> Result<Facets, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let visible = self.list_filter(caller).await?;
        let filter = filter_of(query);
        let facet = async |column: FacetColumn, filter: SearchFilter| {
            self.store().search_facet(&visible, &filter, column, MAX_COUNT).await
        };
        Ok(Facets {
            formats: facet(FacetColumn::Format, SearchFilter { format: None, ..filter.clone() }).await?,
            quantizations: facet(
                FacetColumn::Quantization,
                SearchFilter { quantization: None, ..filter.clone() },
            )
            .await?,
            architectures: facet(
                FacetColumn::Architecture,
                SearchFilter { architecture: None, ..filter.clone() },
            )
            .await?,
            licenses: facet(FacetColumn::License, SearchFilter { license: None, ..filter.clone() }).await?,
            tasks: facet(FacetColumn::Task, SearchFilter { task: None, ..filter.clone() }).await?,
        })
    }
}

fn filter_of(query: &SearchQuery) -> SearchFilter {
    SearchFilter {
        words: words(&query.text),
        everything: query.everything,
        format: query.format.clone(),
        quantization: query.quantization.clone(),
        architecture: query.architecture.clone(),
        license: query.license.clone(),
        task: query.task.clone(),
        min_parameters: query.min_parameters,
        max_parameters: query.max_parameters,
        max_size_bytes: query.fits_bytes.map(|bytes| bytes / LOAD_PERCENT * 100),
        base: query.base.clone(),
    }
}

/// The words of a query, in lower case. All of them have to occur.
fn words(text: &str) -> Vec<String> {
    let cut: String = text.chars().filter(|c| *c != '\0').take(MAX_QUERY_CHARS).collect();
    cut.to_lowercase().split_whitespace().take(MAX_WORDS).map(str::to_owned).collect()
}

impl From<SearchRow> for SearchHit {
    fn from(row: SearchRow) -> SearchHit {
        let is_pending = row.model.is_none();
        SearchHit {
            facts: row.facts.as_deref().map(ModelFacts::from_json).unwrap_or_default(),
            summary: row.model.and_then(super::models::summary_of),
            repository: row.repository,
            tag: row.tag,
            digest: row.digest,
            modified_at: row.modified_at,
            tags: row.tags,
            is_pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_bounded() {
        assert_eq!(words("  Qwen2.5-7B  GGUF\n"), ["qwen2.5-7b", "gguf"]);
        assert_eq!(words(&"a ".repeat(50)).len(), MAX_WORDS);
        assert_eq!(words(&"x".repeat(10_000)), ["x".repeat(MAX_QUERY_CHARS)]);
        assert!(words("\0").is_empty());
    }
}
