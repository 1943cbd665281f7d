//! Listings that a server sends in pages. A listing that does not end is an error.

use std::collections::HashSet;

use serde::de::DeserializeOwned;

use crate::{Error, Registry};

/// More pages than any real listing has.
const MAX_PAGES: usize = 100_000;

/// The pages of a JSON listing outside `/v2`, in order.
pub struct JsonPages<'a> {
    registry: &'a Registry,
    next: Option<String>,
    visited: VisitedPages,
}

impl Registry {
    /// Lists the pages from `path` (relative to the base URL, with query) on.
    pub fn json_pages(&self, path: impl Into<String>) -> JsonPages<'_> {
        JsonPages { registry: self, next: Some(path.into()), visited: VisitedPages::default() }
    }
}

impl JsonPages<'_> {
    /// Requests the next page; `None` after the last one.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let Some(path) = self.next.take() else { return Ok(None) };
        self.visited.visit(path.trim_start_matches('/')).map_err(|why| self.registry.protocol(why))?;
        let (page, next) = self.registry.json_page(&path).await?;
        self.next = next;
        Ok(Some(page))
    }

    /// Whether the server has linked to another page.
    pub fn has_more(&self) -> bool {
        self.next.is_some()
    }
}

/// The addresses of the requested pages.
#[derive(Default)]
pub(crate) struct VisitedPages(HashSet<String>);

impl VisitedPages {
    /// Records a page. Fails if it was requested before, or if there are too many pages.
    pub(crate) fn visit(&mut self, page: &str) -> Result<(), String> {
        if self.0.len() >= MAX_PAGES {
            return Err(format!("the listing has more than {MAX_PAGES} pages"));
        }
        match self.0.insert(page.to_owned()) {
            true => Ok(()),
            false => Err(format!("the pages do not end: `{page}` is linked as the next page again")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_and_endless_pages_are_errors() {
        let mut visited = VisitedPages::default();
        visited.visit("x?page=1").unwrap();
        visited.visit("x?page=2").unwrap();
        assert!(visited.visit("x?page=1").unwrap_err().contains("`x?page=1` is linked"));
        for page in visited.0.len()..MAX_PAGES {
            visited.visit(&format!("empty?{page}")).unwrap();
        }
        assert!(visited.visit("one more").unwrap_err().contains("more than 100000 pages"));
    }
}
