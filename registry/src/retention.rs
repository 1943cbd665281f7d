//! Retention rules: which referenced tags and manifests of which repositories the collection removes.
//! The first rule with a pattern that matches a repository applies to it.

use std::time::Duration;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use lode_model::reference::{Repository, Tag};

use crate::OpenError;
use crate::config::RetentionRule;

/// The rules, compiled.
#[derive(Debug, Default)]
pub(crate) struct Retention(Vec<Rule>);

#[derive(Debug)]
pub(crate) struct Rule {
    /// Counted from 1, for messages to users.
    pub(crate) number: u32,
    pub(crate) keep_last: Option<u32>,
    pub(crate) remove_untagged_after: Option<Duration>,
    repositories: GlobSet,
    keep: GlobSet,
}

impl Retention {
    pub(crate) fn new(rules: &[RetentionRule]) -> Result<Retention, OpenError> {
        let rules = (1..).zip(rules).map(|(number, rule)| Rule::new(number, rule));
        Ok(Retention(rules.collect::<Result<_, _>>()?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn of(&self, repository: &Repository) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.repositories.is_match(repository.as_str()))
    }
}

impl Rule {
    fn new(number: u32, rule: &RetentionRule) -> Result<Rule, OpenError> {
        let bad = |reason: String| OpenError::Config {
            setting: "retention",
            reason: format!("rule {number}: {reason}"),
        };
        if rule.repositories.is_empty() {
            return Err(bad("`repositories` is empty; use `**` for all".to_owned()));
        }
        if rule.keep_last.is_none() && rule.remove_untagged_after.is_none() {
            return Err(bad(
                "set `keep_last` or `remove_untagged_after`; without them it removes nothing".to_owned()
            ));
        }
        if rule.keep_last.is_none() && !rule.keep.is_empty() {
            return Err(bad("`keep` needs `keep_last`, which is not set".to_owned()));
        }
        Ok(Rule {
            number,
            keep_last: rule.keep_last,
            remove_untagged_after: rule.remove_untagged_after,
            repositories: globs(&rule.repositories).map_err(bad)?,
            keep: globs(&rule.keep).map_err(bad)?,
        })
    }

    /// Whether the tag is kept at any age.
    pub(crate) fn is_kept_tag(&self, tag: &Tag) -> bool {
        self.keep.is_match(tag.as_str())
    }
}

fn globs(patterns: &[String]) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let glob = GlobBuilder::new(pattern).literal_separator(true).build();
        set.add(glob.map_err(|error| format!("`{pattern}`: {}", error.kind()))?);
    }
    set.build().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(repositories: &[&str]) -> RetentionRule {
        RetentionRule {
            repositories: repositories.iter().map(|pattern| (*pattern).to_owned()).collect(),
            keep_last: Some(1),
            ..RetentionRule::default()
        }
    }

    #[test]
    fn the_first_rule_that_names_a_repository_counts() {
        let rules = [rule(&["ci/*"]), rule(&["ci/**", "tmp"]), rule(&["**"])];
        let rules = Retention::new(&rules).unwrap();
        let number = |name: &str| rules.of(&name.parse().unwrap()).map(|rule| rule.number);
        assert_eq!(number("ci/a"), Some(1));
        assert_eq!(number("ci/a/b"), Some(2));
        assert_eq!(number("tmp"), Some(2));
        assert_eq!(number("team/model"), Some(3));
        assert_eq!(
            Retention::new(&[rule(&["x"])]).unwrap().of(&"y".parse().unwrap()).map(|r| r.number),
            None
        );
    }

    #[test]
    fn invalid_rules_are_refused() {
        let keep = vec!["v*".to_owned()];
        let untagged = Some(Duration::from_secs(1));
        for bad in [
            RetentionRule { keep_last: Some(1), ..RetentionRule::default() },
            RetentionRule { keep_last: None, ..rule(&["x"]) },
            RetentionRule { keep_last: None, remove_untagged_after: untagged, keep, ..rule(&["x"]) },
            rule(&["a[b"]),
        ] {
            let error = Retention::new(&[rule(&["fine"]), bad.clone()]).map(drop).unwrap_err();
            assert!(error.to_string().contains("rule 2"), "{bad:?}: {error}");
        }
    }
}
