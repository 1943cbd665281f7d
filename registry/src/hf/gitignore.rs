//! The rules of a `.gitignore` file at the root of an uploaded folder: clients ask the server which files it
//! excludes.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::http::Failure;

/// How many rules a file may have.
const MAX_RULES: usize = 1000;
/// The longest rule, in bytes.
const MAX_RULE_LEN: usize = 1024;

/// Rules by the index of their globs.
#[derive(Default)]
pub(super) struct GitIgnore {
    globs: GlobSet,
    rules: Vec<Rule>,
}

struct Rule {
    /// It includes again what an earlier rule has excluded.
    is_negated: bool,
    is_folder: bool,
}

impl GitIgnore {
    pub(super) fn parse(text: &str) -> Result<GitIgnore, Failure> {
        let invalid = |reason: String| Failure::field("gitIgnore", reason);
        let (mut builder, mut rules) = (GlobSetBuilder::new(), Vec::new());
        for line in text.lines() {
            let line = line.strip_suffix('\r').unwrap_or(line).trim_end_matches(' ');
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if rules.len() == MAX_RULES || line.len() > MAX_RULE_LEN {
                return Err(invalid(format!(
                    "has more than {MAX_RULES} rules, or one of more than {MAX_RULE_LEN} bytes"
                )));
            }
            let (is_negated, pattern) = match line.strip_prefix('!') {
                Some(rest) => (true, rest),
                None => (false, line),
            };
            let (is_folder, pattern) = match pattern.strip_suffix('/') {
                Some(rest) => (true, rest),
                None => (false, pattern),
            };
            // A rule with a slash counts from the root, any other one in every folder.
            let pattern = match pattern.strip_prefix('/') {
                Some(anchored) => anchored.to_owned(),
                None if pattern.contains('/') => pattern.to_owned(),
                None => format!("**/{pattern}"),
            };
            let glob = GlobBuilder::new(&pattern).literal_separator(true).backslash_escape(true).build();
            builder.add(glob.map_err(|error| invalid(format!("has the rule `{line}`: {error}")))?);
            rules.push(Rule { is_negated, is_folder });
        }
        let globs = builder.build().map_err(|error| invalid(error.to_string()))?;
        Ok(GitIgnore { globs, rules })
    }

    /// Whether the rules exclude a file, or a folder above it.
    pub(super) fn matches(&self, path: &str) -> bool {
        if self.rules.is_empty() {
            return false;
        }
        let folders = path.match_indices('/').map(|(at, _)| (&path[..at], true));
        let mut is_ignored = false;
        for (path, is_folder) in folders.chain([(path, false)]) {
            // The last rule that matches decides. Nothing in an excluded folder can be included again.
            let matching = self.globs.matches(path);
            let last = matching.iter().rfind(|at| is_folder || !self.rules[**at].is_folder);
            if let Some(at) = last {
                is_ignored = !self.rules[*at].is_negated;
            }
            if is_ignored && is_folder {
                return true;
            }
        }
        is_ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_as_in_git() {
        let rules = "# notes\n*.log\n!keep.log\n/build\ncache/\ndocs/*.txt\n\n**/tmp/x\r\n";
        let ignored = GitIgnore::parse(rules).unwrap();
        let cases = [
            ("a.log", true),
            ("a/b.log", true),
            ("keep.log", false),
            ("a/keep.log", false),
            ("build", true),
            ("build/x/y", true),
            ("a/build", false),
            ("cache", false),
            ("cache/x", true),
            ("a/cache/x", true),
            ("docs/a.txt", true),
            ("docs/a/b.txt", false),
            ("other/docs/a.txt", false),
            ("a/tmp/x", true),
            ("# notes", false),
            ("model.safetensors", false),
        ];
        for (path, expect) in cases {
            assert_eq!(ignored.matches(path), expect, "{path}");
        }
        assert!(!GitIgnore::parse("").unwrap().matches("a"));
        assert!(GitIgnore::parse("a[").is_err());
        assert!(GitIgnore::parse(&"a\n".repeat(1001)).is_err());
    }
}
