//! The rules of a `.gitignore` file at the root of an uploaded folder: clients ask the server which files it
//! excludes.

use std::collections::HashMap;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::http::Failure;

/// How many rules a file may have.
const MAX_RULES: usize = 1000;
/// The longest rule, in bytes.
const MAX_RULE_LEN: usize = 1024;
/// How many bytes the rules may have together.
const MAX_RULES_BYTES: usize = 64 << 10;
/// The most work for the files of one request: bytes of rules, for each byte of a path. With the slowest rules it takes
/// three seconds.
const MAX_WORK: usize = 1 << 29;

/// Rules by the index of their globs.
#[derive(Default)]
pub(super) struct GitIgnore {
    globs: GlobSet,
    rules: Vec<Rule>,
    rules_bytes: usize,
}

struct Rule {
    /// It includes again what an earlier rule has excluded.
    is_negated: bool,
    is_folder: bool,
}

impl GitIgnore {
    pub(super) fn parse(text: &str) -> Result<GitIgnore, Failure> {
        let invalid = |reason: String| Failure::field("gitIgnore", reason);
        let (mut builder, mut rules, mut rules_bytes) = (GlobSetBuilder::new(), Vec::new(), 0);
        for line in text.lines() {
            let line = line.strip_suffix('\r').unwrap_or(line).trim_end_matches(' ');
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            rules_bytes += line.len();
            if rules.len() == MAX_RULES || line.len() > MAX_RULE_LEN || rules_bytes > MAX_RULES_BYTES {
                return Err(invalid(format!(
                    "has more than {MAX_RULES} rules or {MAX_RULES_BYTES} bytes, or a rule of more than {MAX_RULE_LEN} bytes"
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
        Ok(GitIgnore { globs, rules, rules_bytes })
    }

    /// Which files the rules exclude, or a folder above them, in the order of their paths. The work is limited.
    pub(super) fn excluded<'a>(&self, paths: impl Iterator<Item = &'a str>) -> Result<Vec<bool>, Failure> {
        if self.rules.is_empty() {
            return Ok(paths.map(|_| false).collect());
        }
        let (mut folders, mut work) = (HashMap::new(), 0);
        paths.map(|path| self.is_excluded(path, &mut folders, &mut work)).collect()
    }

    /// `folders`: what is known of the folders of earlier paths.
    fn is_excluded<'a>(
        &self,
        path: &'a str,
        folders: &mut HashMap<&'a str, bool>,
        work: &mut usize,
    ) -> Result<bool, Failure> {
        // Nothing in an excluded folder can be included again.
        for (at, _) in path.match_indices('/') {
            let folder = &path[..at];
            let is_excluded = match folders.get(folder) {
                Some(known) => *known,
                None => {
                    let is_excluded = self.last_excludes(folder, true, work)?;
                    folders.insert(folder, is_excluded);
                    is_excluded
                }
            };
            if is_excluded {
                return Ok(true);
            }
        }
        self.last_excludes(path, false, work)
    }

    /// Whether the last rule that matches excludes the path.
    fn last_excludes(&self, path: &str, is_folder: bool, work: &mut usize) -> Result<bool, Failure> {
        *work += path.len() * self.rules_bytes;
        if *work > MAX_WORK {
            let reason =
                "has paths that are too long for these rules of `.gitignore`; send fewer files at once";
            return Err(Failure::field("files", reason));
        }
        let matching = self.globs.matches(path);
        let last = matching.iter().rfind(|at| is_folder || !self.rules[**at].is_folder);
        Ok(last.is_some_and(|at| !self.rules[*at].is_negated))
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
        let is_excluded = |rules: &GitIgnore, path: &str| rules.excluded([path].into_iter()).unwrap()[0];
        for (path, expect) in cases {
            assert_eq!(is_excluded(&ignored, path), expect, "{path}");
        }
        let all = ignored.excluded(cases.iter().map(|(path, _)| *path)).unwrap();
        assert!(all.into_iter().eq(cases.map(|(_, expect)| expect)));
        assert!(!is_excluded(&GitIgnore::parse("").unwrap(), "a"));
        assert!(GitIgnore::parse("a[").is_err());
        assert!(GitIgnore::parse(&"a\n".repeat(1001)).is_err());
        assert!(GitIgnore::parse(&format!("{}\n", "a".repeat(1025))).is_err());
        assert!(GitIgnore::parse(&format!("{}\n", "a".repeat(1000)).repeat(66)).is_err());
    }

    #[test]
    fn work_is_limited() {
        let paths = |name: &str| -> Vec<String> {
            (0..256).map(|n| format!("data/train/2024/{name}-{n:05}.safetensors")).collect()
        };
        let excluded = |rules: &str, paths: &[String]| {
            GitIgnore::parse(rules).unwrap().excluded(paths.iter().map(String::as_str))
        };
        // A usual request.
        let rules = "*.py[cod]\n__pycache__/\n/build\n".repeat(100);
        assert_eq!(excluded(&rules, &paths("shard")).unwrap(), [false; 256]);
        // The longest rules and paths.
        let rules = format!("{}\n", "a".repeat(1000)).repeat(60);
        let refused = excluded(&rules, &paths(&"b".repeat(900))).unwrap_err();
        assert!(refused.message().contains("send fewer files"), "{}", refused.message());
        // A folder is matched once, however many files it has.
        let folders = format!("{}a", "a/".repeat(64));
        assert_eq!(excluded("*.log\n", &vec![folders; 1000]).unwrap(), [false; 1000]);
    }
}
