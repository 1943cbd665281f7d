//! The files and folders of a revision as entries of a tree. A file whose sha256 is known is listed like one in git's
//! large file storage, so that clients can verify it; its `oid` is that of the pointer that git would store.

use std::collections::BTreeMap;

use lode_model::reference::Repository;
use serde::Serialize;
use sha1::{Digest as _, Sha1};

use crate::app::{ContentId, ManifestFile, RecordedCommit, Revision};
use crate::time::rfc3339;

/// The digits of an object's id in git.
const OID_LEN: usize = 40;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TreeEntry {
    #[serde(rename = "type")]
    kind: &'static str,
    pub(crate) path: String,
    oid: String,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lfs: Option<LfsInfo>,
    #[serde(rename = "lastCommit", skip_serializing_if = "Option::is_none")]
    last_commit: Option<LastCommit>,
}

#[derive(Clone, Debug, Serialize)]
struct LfsInfo {
    oid: String,
    size: u64,
    #[serde(rename = "pointerSize")]
    pointer_size: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct LastCommit {
    id: String,
    title: String,
    date: String,
}

impl LastCommit {
    pub(crate) fn of(repository: &Repository, commit: &RecordedCommit) -> LastCommit {
        let (title, date) = (commit_title(repository, commit), hub_time(commit.at));
        LastCommit { id: commit.id().to_owned(), title, date }
    }
}

/// The title of a commit, or else the name of its manifest.
pub(crate) fn commit_title(repository: &Repository, commit: &RecordedCommit) -> String {
    commit.title().map_or_else(|| format!("{repository}@{}", commit.digest), str::to_owned)
}

impl TreeEntry {
    pub(crate) fn file(path: &str, file: &ManifestFile, last_commit: Option<&LastCommit>) -> TreeEntry {
        let lfs = lfs_oid(file).map(|oid| LfsInfo {
            pointer_size: pointer(oid, file.size).len(),
            oid: oid.to_owned(),
            size: file.size,
        });
        TreeEntry {
            kind: "file",
            path: path.to_owned(),
            oid: oid(file),
            size: file.size,
            lfs,
            last_commit: last_commit.cloned(),
        }
    }

    fn folder(revision: &Revision, path: &str, last_commit: Option<&LastCommit>) -> TreeEntry {
        let oid = hex::encode(Sha1::digest(format!("{} {path}", revision.digest)));
        let (path, last_commit) = (path.to_owned(), last_commit.cloned());
        TreeEntry { kind: "directory", path, oid, size: 0, lfs: None, last_commit }
    }
}

/// The entries below a folder, folders first; `""` is the root. A file is its own only entry. `None` if there is neither.
pub(crate) fn below(
    revision: &Revision,
    folder: &str,
    is_recursive: bool,
    last_commit: Option<&LastCommit>,
) -> Option<Vec<TreeEntry>> {
    if let Some(file) = revision.files.files.get(folder) {
        return Some(vec![TreeEntry::file(folder, file, last_commit)]);
    }
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let (mut folders, mut files) = (BTreeMap::new(), Vec::new());
    for (path, file) in &revision.files.files {
        let Some(rest) = path.strip_prefix(&prefix) else { continue };
        for (at, _) in rest.match_indices('/').take(if is_recursive { usize::MAX } else { 1 }) {
            let path = &path[..prefix.len() + at];
            folders.entry(path).or_insert_with(|| TreeEntry::folder(revision, path, last_commit));
        }
        if is_recursive || !rest.contains('/') {
            files.push(TreeEntry::file(path, file, last_commit));
        }
    }
    let is_known = folder.is_empty() || !folders.is_empty() || !files.is_empty();
    is_known.then(|| folders.into_values().chain(files).collect())
}

/// The entries of these paths that exist, in their order.
pub(crate) fn named<'a>(
    revision: &Revision,
    paths: impl Iterator<Item = &'a str>,
    last_commit: Option<&LastCommit>,
) -> Vec<TreeEntry> {
    let entry = |path: &str| {
        let path = path.trim_end_matches('/');
        let files = &revision.files.files;
        if let Some(file) = files.get(path) {
            return Some(TreeEntry::file(path, file, last_commit));
        }
        let prefix = format!("{path}/");
        let next = files.range(prefix.clone()..).next();
        let is_folder = next.is_some_and(|(file, _)| file.starts_with(&prefix));
        is_folder.then(|| TreeEntry::folder(revision, path, last_commit))
    };
    paths.filter_map(entry).collect()
}

/// The sha256 of a file's bytes, if it is known.
pub(crate) fn lfs_oid(file: &ManifestFile) -> Option<&str> {
    match &file.content {
        ContentId::Sha256(digest) => Some(digest.hex()),
        ContentId::Parts(_) => None,
    }
}

/// The id of a file in git. A file of which only the parts are known has an id that follows from the parts.
pub(crate) fn oid(file: &ManifestFile) -> String {
    match &file.content {
        ContentId::Sha256(digest) => git_oid(pointer(digest.hex(), file.size).as_bytes()),
        ContentId::Parts(digest) => digest.hex()[..OID_LEN].to_owned(),
    }
}

/// The text that git stores for a large file.
fn pointer(sha256: &str, size: u64) -> String {
    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n")
}

fn git_oid(content: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", content.len()));
    hasher.update(content);
    hex::encode(hasher.finalize())
}

/// A time with milliseconds, without which the clients cannot read it.
pub(crate) fn hub_time(millis: i64) -> String {
    let text = rfc3339(millis);
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}.{:03}Z", millis.rem_euclid(1000)),
        None => format!("{}.000Z", text.trim_end_matches('Z')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_git() {
        // `git hash-object` of the same texts.
        assert_eq!(git_oid(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(git_oid(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(pointer(&"0".repeat(64), 123_456_789).len(), 134);
    }

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(hub_time(1_700_000_000_000), "2023-11-14T22:13:20.000Z");
        assert_eq!(hub_time(1_700_000_000_120), "2023-11-14T22:13:20.120Z");
    }
}
