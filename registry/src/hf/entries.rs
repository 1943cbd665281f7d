//! The files and folders of a revision as entries of a tree. A file whose sha256 is known is listed like one in git's
//! large file storage, so that clients can verify it; its `oid` is that of the pointer that git would store.

use std::collections::BTreeSet;

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
        let (title, date) = (commit_title(repository, commit), hf_time(commit.at));
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

/// Some entries of a list.
pub(crate) struct EntryPage {
    pub(crate) entries: Vec<TreeEntry>,
    pub(crate) has_more: bool,
}

/// The entries below a folder, folders first, from the entry `from` on, at most `limit`; `""` is the root. A file is its
/// own only entry. `None` if there is neither.
pub(crate) fn below(
    revision: &Revision,
    folder: &str,
    is_recursive: bool,
    last_commit: Option<&LastCommit>,
    (from, limit): (usize, usize),
) -> Option<EntryPage> {
    let known = &revision.files.files;
    if let Some(file) = known.get(folder) {
        let own = std::iter::once(TreeEntry::file(folder, file, last_commit));
        return Some(EntryPage { entries: own.skip(from).take(limit).collect(), has_more: false });
    }
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let files = known.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
    if !folder.is_empty() && files.clone().next().is_none() {
        return None;
    }
    // An entry is made only if it is on the page: a model can have more than a million folders.
    let mut last = "";
    let folders = files.clone().flat_map(|(path, _)| {
        let known_len = common_len(std::mem::replace(&mut last, path), path).max(prefix.len());
        let new = path.match_indices('/').map(|(at, _)| &path[..at]);
        new.filter(move |folder| folder.len() >= known_len)
    });
    let is_shown = |path: &str| is_recursive || !path[prefix.len()..].contains('/');
    let folders = folders.filter(|path| is_shown(path)).map(|path| (path, None));
    let files = files.filter(|(path, _)| is_shown(path)).map(|(path, file)| (path.as_str(), Some(file)));
    let mut listed = folders.chain(files).skip(from);
    let entry = |(path, file): (&str, Option<&ManifestFile>)| match file {
        Some(file) => TreeEntry::file(path, file, last_commit),
        None => TreeEntry::folder(revision, path, last_commit),
    };
    let entries = listed.by_ref().take(limit).map(entry).collect();
    Some(EntryPage { entries, has_more: listed.next().is_some() })
}

/// How long the beginning is that two paths share, up to the last `/` in it.
fn common_len(a: &str, b: &str) -> usize {
    let equal = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    a.as_bytes()[..equal].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1)
}

/// The entries of these paths that exist, each once, in their order.
pub(crate) fn named(
    revision: &Revision,
    paths: &[String],
    last_commit: Option<&LastCommit>,
) -> Vec<TreeEntry> {
    let entry = |path: &str| {
        let files = &revision.files.files;
        if let Some(file) = files.get(path) {
            return Some(TreeEntry::file(path, file, last_commit));
        }
        let prefix = format!("{path}/");
        let next = files.range(prefix.clone()..).next();
        let is_folder = next.is_some_and(|(file, _)| file.starts_with(&prefix));
        is_folder.then(|| TreeEntry::folder(revision, path, last_commit))
    };
    let mut seen = BTreeSet::new();
    let paths = paths.iter().map(|path| path.trim_end_matches('/')).filter(|path| seen.insert(*path));
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
pub(crate) fn hf_time(millis: i64) -> String {
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
        assert_eq!(hf_time(1_700_000_000_000), "2023-11-14T22:13:20.000Z");
        assert_eq!(hf_time(1_700_000_000_120), "2023-11-14T22:13:20.120Z");
    }
}
