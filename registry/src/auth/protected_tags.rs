//! Protected tags: those that match a pattern of their repository or namespace are created once, and then
//! neither moved nor deleted by anyone.

use globset::{Glob, GlobMatcher};
use lode_model::reference::Tag;

use crate::Error;

/// The patterns that apply to one repository.
#[derive(Debug, Default)]
pub(crate) struct ProtectedTags(Vec<GlobMatcher>);

impl ProtectedTags {
    pub(crate) fn new(patterns: &[String]) -> ProtectedTags {
        // A pattern was checked when it was stored.
        ProtectedTags(patterns.iter().filter_map(|text| tag_pattern(text).ok()).collect())
    }

    pub(crate) fn has(&self, tag: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(tag))
    }

    /// Returns an error if this tag may not be moved or deleted.
    pub(crate) fn check(&self, tag: &Tag) -> Result<(), Error> {
        match self.0.iter().find(|pattern| pattern.is_match(tag.as_str())) {
            Some(pattern) => {
                Err(Error::TagProtected { tag: tag.clone(), pattern: pattern.glob().glob().to_owned() })
            }
            None => Ok(()),
        }
    }
}

/// Parses a pattern of tags.
pub(crate) fn tag_pattern(text: &str) -> Result<GlobMatcher, globset::Error> {
    Ok(Glob::new(text)?.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_tags() {
        let rules = ProtectedTags::new(&["v*".to_owned(), "release-[0-9]".to_owned(), "[".to_owned()]);
        for (tag, expect) in [
            ("v1", true),
            ("v", true),
            ("1.v", false),
            ("release-7", true),
            ("release-77", false),
            ("latest", false),
        ] {
            assert_eq!(
                (rules.has(tag), rules.check(&tag.parse().unwrap()).is_err()),
                (expect, expect),
                "{tag}"
            );
        }
    }
}
