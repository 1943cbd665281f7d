//! The listing of models for Hugging Face's clients: one entry for each repository, found by the rows of the search. The tag
//! `main` stands for a repository, then the kind of model that represents it in the search.

use super::model_facts::ModelFacts;
use super::revisions::MAIN;
use super::{ListedModel, Page, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{Amount, SearchContent, SearchCursor, SearchFilter, SearchOrder, query_words};

/// The longest page of models, and the default.
const PAGE: u32 = 1000;

/// The order of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ModelSort {
    #[default]
    Name,
    /// The last change first.
    Modified,
    Created,
    /// The most recent pulls first.
    Pulls,
}

/// Which repositories a listing has. The conditions apply together.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelQuery {
    /// Each is a part of the name, in lower case, that begins where one of its words does.
    pub(crate) search: Vec<String>,
    /// The first part of the name.
    pub(crate) author: Option<String>,
    /// Each is a tag, in lower case: see `ModelFacts::hf_tags`.
    pub(crate) tags: Vec<String>,
    pub(crate) task: Option<String>,
    pub(crate) min_parameters: Option<u64>,
    pub(crate) max_parameters: Option<u64>,
    pub(crate) sort: ModelSort,
    /// The last entry of the previous page.
    pub(crate) after: Option<SearchCursor>,
    pub(crate) limit: Option<u32>,
}

impl Registry {
    /// Repositories with a model that the caller may read, and the end of the page if more follow.
    pub(crate) async fn models_of_repositories(
        &self,
        caller: &Caller,
        query: &ModelQuery,
    ) -> Result<(Vec<ListedModel>, Option<SearchCursor>), Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let limit = query.limit.map_or(PAGE, |limit| limit.clamp(1, PAGE));
        let visible = self.list_filter(caller).await?;
        let filter = self.store.search_plan(filter_of(query)).await?;
        let order = match query.sort {
            ModelSort::Name => SearchOrder::Name,
            ModelSort::Modified => SearchOrder::Newest,
            ModelSort::Created => SearchOrder::Created,
            ModelSort::Pulls => SearchOrder::Pulls,
        };
        let ids = self.store.search_ids(&visible, &filter).await?;
        let amount = Amount::of(&ids);
        let rows = self
            .store
            .search(&visible, &filter, order, amount, query.after.as_ref(), limit as usize + 1)
            .await?;
        let page = Page::cut(rows, limit);
        let next = page
            .items
            .last()
            .filter(|_| page.more)
            .map(|row| SearchCursor { key: row.sort_key, repository: row.repository.to_string() });
        let names: Vec<&str> = page.items.iter().map(|row| row.repository.as_str()).collect();
        let mut main = self.store.tagged_models(&names, MAIN).await?;
        let mut items = Vec::with_capacity(page.items.len());
        for row in page.items {
            let is_private = self.is_private(&row.repository).await?;
            let (digest, model, facts) = main.remove(&row.repository).unwrap_or((
                row.digest,
                row.model.unwrap_or_default(),
                row.facts,
            ));
            items.push(ListedModel {
                repository: row.repository,
                digest,
                created_at: row.created_at,
                modified_at: row.newest_at,
                pulls: row.pulls,
                model,
                facts: facts.as_deref().map(ModelFacts::from_json).unwrap_or_default(),
                is_private,
            });
        }
        Ok((items, next))
    }
}

fn filter_of(query: &ModelQuery) -> SearchFilter {
    SearchFilter {
        words: query_words(&query.search.join(" ")),
        typed: query.search.clone(),
        in_name: query.search.clone(),
        author: query.author.clone(),
        tags: query.tags.clone(),
        task: query.task.clone(),
        min_parameters: query.min_parameters,
        max_parameters: query.max_parameters,
        content: SearchContent::ReadModels,
        represents: true,
        ..SearchFilter::default()
    }
}
