//! Search: the repositories that a caller may read, by name and by the facts of their models. Each result is the tag
//! of a repository that fits the query best: `latest` if it fits, else the one that was moved last.

use std::str::FromStr;

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};

use super::model_facts::ModelFacts;
use super::{ModelSummary, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{
    Amount, FacetColumn, FacetCounts, FacetRanges, ListFilter, MAX_QUERY_WORDS, SearchContent, SearchCursor,
    SearchFilter, SearchOrder, SearchRow, query_words,
};

/// Of a longer query, the beginning counts.
pub(crate) const MAX_QUERY_CHARS: usize = 200;
/// The most results of a page.
const MAX_PAGE: u32 = 100;
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
    /// The most recent pulls first.
    Pulls,
}

impl SearchSort {
    pub(crate) const ALL: [SearchSort; 6] = [
        SearchSort::Relevance,
        SearchSort::Updated,
        SearchSort::Name,
        SearchSort::Parameters,
        SearchSort::Size,
        SearchSort::Pulls,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SearchSort::Relevance => "relevance",
            SearchSort::Updated => "updated",
            SearchSort::Name => "name",
            SearchSort::Parameters => "parameters",
            SearchSort::Size => "size",
            SearchSort::Pulls => "pulls",
        }
    }

    /// Its name on pages.
    pub(crate) fn label(self) -> &'static str {
        match self {
            SearchSort::Pulls => "most pulled",
            other => other.as_str(),
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
    /// The least length of the context.
    pub(crate) min_context: Option<u64>,
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
    /// Of the last 30 days.
    pub(crate) pulls: u64,
    /// Absent if it is not a model, or not read yet.
    pub(crate) summary: Option<ModelSummary>,
    pub(crate) is_pending: bool,
    pub(crate) facts: ModelFacts,
}

/// A page of the repositories that fit a query.
#[derive(Clone, Debug)]
pub(crate) struct SearchPage {
    pub(crate) hits: Vec<SearchHit>,
    /// Where the next page begins.
    pub(crate) next: Option<SearchCursor>,
    /// The number of repositories that fit. `None`: more than [`super::MAX_COUNT`].
    pub(crate) count: Option<u64>,
    pub(crate) facets: Vec<(FacetColumn, FacetCounts)>,
}

/// The ranges by which a page counts: parameters, bytes of memory, and lengths of the context.
#[derive(Clone, Debug, Default)]
pub(crate) struct SearchRanges {
    pub(crate) parameters: FacetRanges,
    pub(crate) memory: Vec<u64>,
    pub(crate) context: Vec<u64>,
}

impl Registry {
    /// A page of the repositories that fit a query, with the number of all of them, and the values that their facts
    /// have: each fact without the query's own choice of it.
    pub(crate) async fn search_page(
        &self,
        caller: &Caller,
        query: &SearchQuery,
        ranges: SearchRanges,
    ) -> Result<SearchPage, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let visible = self.list_filter(caller).await?;
        let filter = self.store().search_plan(filter_of(query)).await?;
        let ids = self.store().search_ids(&visible, &filter).await?;
        let amount = Amount::of(&ids);
        let ranges = [
            (FacetColumn::Parameters, ranges.parameters),
            (FacetColumn::Memory, ranges.memory.into_iter().map(|bytes| (0, model_bytes(bytes))).collect()),
            (FacetColumn::Context, ranges.context.into_iter().map(|length| (length, u64::MAX)).collect()),
        ];
        let ((hits, next), facets) = tokio::try_join!(
            self.search_hits(&visible, &filter, query, amount),
            self.store().search_facets(&visible, &filter, &ranges, &ids)
        )?;
        let count = (amount != Amount::Many).then_some(ids.len() as u64);
        Ok(SearchPage { hits, next, count, facets })
    }

    /// The first models in an order, among those that the caller may read.
    pub(crate) async fn search_first(
        &self,
        caller: &Caller,
        sort: SearchSort,
        limit: u32,
    ) -> Result<Vec<SearchHit>, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let visible = self.list_filter(caller).await?;
        let query = SearchQuery { sort, limit, ..SearchQuery::default() };
        let (hits, _) = self.search_hits(&visible, &filter_of(&query), &query, Amount::Many).await?;
        Ok(hits)
    }

    async fn search_hits(
        &self,
        visible: &ListFilter,
        filter: &SearchFilter,
        query: &SearchQuery,
        amount: Amount<'_>,
    ) -> Result<(Vec<SearchHit>, Option<SearchCursor>), Error> {
        let limit = query.limit.clamp(1, MAX_PAGE) as usize;
        let order = match query.sort {
            SearchSort::Relevance if filter.typed.is_empty() => SearchOrder::Updated,
            SearchSort::Relevance => SearchOrder::Relevance,
            SearchSort::Updated => SearchOrder::Updated,
            SearchSort::Name => SearchOrder::Name,
            SearchSort::Parameters => SearchOrder::Parameters,
            SearchSort::Size => SearchOrder::Size,
            SearchSort::Pulls => SearchOrder::Pulls,
        };
        let after = query.after.as_ref();
        let mut rows = self.store().search(visible, filter, order, amount, after, limit + 1).await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows
            .last()
            .filter(|_| more)
            .map(|row| SearchCursor { key: row.sort_key, repository: row.repository.to_string() });
        Ok((rows.into_iter().map(SearchHit::from).collect(), next))
    }
}

/// The most bytes of a model that fits into memory.
fn model_bytes(memory: u64) -> u64 {
    memory / LOAD_PERCENT * 100
}

fn filter_of(query: &SearchQuery) -> SearchFilter {
    SearchFilter {
        words: query_words(&cut(&query.text)),
        in_name: typed(&query.text).into_iter().filter(|part| part.contains('/')).collect(),
        typed: typed(&query.text),
        content: if query.everything { SearchContent::Everything } else { SearchContent::Models },
        format: query.format.clone(),
        quantization: query.quantization.clone(),
        architecture: query.architecture.clone(),
        license: query.license.clone(),
        task: query.task.clone(),
        min_parameters: query.min_parameters,
        max_parameters: query.max_parameters,
        max_size_bytes: query.fits_bytes.map(model_bytes),
        min_context: query.min_context,
        base: query.base.clone(),
        ..SearchFilter::default()
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_QUERY_CHARS).collect()
}

/// What was typed between spaces, in lower case.
fn typed(text: &str) -> Vec<String> {
    let plain: String = cut(text).chars().filter(|c| *c != '\0').collect();
    plain.to_lowercase().split_whitespace().take(MAX_QUERY_WORDS).map(str::to_owned).collect()
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
            pulls: row.pulls.recent,
            is_pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_bounded() {
        assert_eq!(typed("  Qwen2.5-7B  GGUF\n"), ["qwen2.5-7b", "gguf"]);
        assert_eq!(typed(&"a ".repeat(50)).len(), MAX_QUERY_WORDS);
        assert_eq!(typed(&"x".repeat(10_000)), ["x".repeat(MAX_QUERY_CHARS)]);
        assert!(typed("\0").is_empty());
    }
}
