//! Listings of tags and repositories, in byte order, one page at a time.

use lode_model::reference::{Repository, Tag};

use super::{Page, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};

/// The longest page of a listing, and the default.
const PAGE: u32 = 10_000;

impl Registry {
    /// Tags after `last` (which need not exist), at most `n`.
    pub async fn tag_list(
        &self,
        caller: &Caller,
        repository: &Repository,
        n: Option<u32>,
        last: Option<&str>,
    ) -> Result<Page<Tag>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        if self.is_mirrored(caller, repository)
            && let Some(page) = Box::pin(self.mirror_tags(caller, repository, limit(n), last)).await?
        {
            return Ok(page);
        }
        let limit = limit(n);
        let items = if limit == 0 {
            Vec::new()
        } else {
            self.store.tag_page(repository, last.unwrap_or_default(), i64::from(limit) + 1).await?
        };
        // A repository with a tag exists.
        if items.is_empty() && !self.store.repository_exists(repository).await? {
            return Err(Error::NameUnknown { repository: repository.clone() });
        }
        Ok(Page::cut(items, limit))
    }

    /// The tag that a page about a repository shows: `latest`, else the one that was moved last. `None`: it has no tags.
    pub(crate) async fn default_tag(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<Option<Tag>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let tag = self.store().default_tag(repository).await?;
        self.check_repository_exists(repository, tag.is_none()).await?;
        Ok(tag)
    }

    /// Repositories after `last` (which need not exist), at most `n`, of those that the caller may see.
    pub async fn repository_list(
        &self,
        caller: &Caller,
        n: Option<u32>,
        last: Option<&str>,
    ) -> Result<Page<Repository>, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let limit = limit(n);
        let items = if limit == 0 {
            Vec::new()
        } else {
            let filter = self.list_filter(caller).await?;
            self.store.repository_list(&filter, last.unwrap_or_default(), i64::from(limit) + 1).await?
        };
        Ok(Page::cut(items, limit))
    }
}

fn limit(n: Option<u32>) -> u32 {
    n.map_or(PAGE, |n| n.min(PAGE))
}

impl<T> Page<T> {
    /// Cuts a list, which may have one item more than fits, to a page.
    pub(super) fn cut(mut items: Vec<T>, limit: u32) -> Page<T> {
        let limit = limit as usize;
        let more = items.len() > limit;
        items.truncate(limit);
        Page { items, more }
    }
}
