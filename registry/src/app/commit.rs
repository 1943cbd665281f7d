//! Commits of Hugging Face's clients: operations on the files of a branch make its next manifest. The contents are
//! stored first, as blobs of the repository; the tag is moved last, and only from the manifest that the commit was
//! computed from. A commit that dies on the way leaves blobs that are collected.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::{StreamExt, stream};
use lode_model::digest::Digest;
use lode_model::files_view::{FileEntry, MAX_FILES, check_path};
use lode_model::reference::{Reference, Repository, Tag};

use super::commit_error::CommitError;
use super::create::StoredBase;
use super::revisions::MAIN;
use super::{BlobInfo, Body, ChunkRange, ContentId, ManifestFile, Registry, commit_id};
use crate::Error;
use crate::auth::Caller;
use crate::store::TagMoveFilter;

/// How many operations a commit may have. A manifest has about as many layers.
pub(crate) const MAX_OPERATIONS: usize = 10_000;
/// How often a commit without a parent is computed again because another one came first.
const TRIES: u32 = 5;
/// The shortest abbreviation of a commit id that clients send.
const MIN_PARENT_LEN: usize = 7;
const BRANCH_PREFIX: &str = "refs/heads/";
/// How many tags an error names.
const NAMED_TAGS: i64 = 10;

/// The changes of a commit, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commit {
    /// The commit that the branch has to be at: the id, or at least 7 digits of it.
    pub(crate) parent: Option<String>,
    pub(crate) operations: Vec<CommitOperation>,
    /// See [`super::commit_message`].
    pub(crate) message: Option<String>,
    /// Fail rather than store the files of a model as plain files.
    pub(crate) keeps_model: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommitOperation {
    /// A file whose content is a blob of the repository, or of one that the caller may read, or a file of the branch.
    Add {
        path: String,
        digest: Digest,
        /// The size that the client declares.
        size: Option<u64>,
    },
    DeleteFile {
        path: String,
    },
    DeleteFolder {
        path: String,
    },
}

impl CommitOperation {
    pub(crate) fn path(&self) -> &str {
        match self {
            CommitOperation::Add { path, .. }
            | CommitOperation::DeleteFile { path }
            | CommitOperation::DeleteFolder { path } => path,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct CommitOutcome {
    pub(crate) digest: Digest,
    /// What the import of a checkpoint noticed.
    pub(crate) notices: Vec<String>,
}

/// The files of a revision, by path.
pub(super) type Files = BTreeMap<String, ManifestFile>;

/// A branch: the tag that commits move, and its manifest.
pub(super) struct Branch {
    pub(super) tag: Tag,
    pub(super) head: Option<Digest>,
}

impl Registry {
    /// Checks that the caller may commit to a branch, before the commit is read.
    pub(crate) async fn commit_check(
        &self,
        caller: &Caller,
        repository: &Repository,
        branch: &str,
    ) -> Result<(), CommitError> {
        self.branch_find(caller, repository, branch).await.map(drop)
    }

    /// Stores the content of a file that arrives within a commit.
    pub(crate) async fn commit_bytes(
        &self,
        caller: &Caller,
        repository: &Repository,
        bytes: Bytes,
    ) -> Result<BlobInfo, Error> {
        let digest = Digest::sha256(&bytes);
        match self.blob_stat(caller, repository, &digest).await {
            Err(Error::BlobUnknown { .. }) => {}
            found => return found,
        }
        let chunk = ChunkRange { range: None, length: Some(bytes.len() as u64) };
        let body: Body = stream::once(async move { Ok(bytes) }).boxed();
        self.blob_put(caller, repository, &digest, chunk, body).await
    }

    /// Applies a commit to a branch. The same commit again changes nothing and has the same outcome.
    pub(crate) async fn commit(
        &self,
        caller: &Caller,
        repository: &Repository,
        branch: &str,
        commit: Commit,
    ) -> Result<CommitOutcome, CommitError> {
        let mut tries = 1;
        loop {
            match self.commit_once(caller, repository, branch, &commit).await {
                // Another commit came first.
                Err(CommitError::Registry(Error::TagMoved { .. })) if tries < TRIES => tries += 1,
                outcome => return outcome,
            }
        }
    }

    async fn commit_once(
        &self,
        caller: &Caller,
        repository: &Repository,
        name: &str,
        commit: &Commit,
    ) -> Result<CommitOutcome, CommitError> {
        // 1. Read the files of the branch.
        let branch = self.branch_find(caller, repository, name).await?;
        let (base, before) = self.commit_base(caller, repository, &branch, name).await?;
        // 2. Change them. If they are then those of the branch, the client has lost the response to this commit, or the
        //    files that it deletes have never been there.
        let (after, absent) = self.commit_apply(caller, repository, &before, &commit.operations).await?;
        if let Some(head) = branch.head.as_ref().filter(|_| is_same(&before, &after)) {
            if let Some(path) = absent
                && !self.is_last_commit(caller, repository, (&branch, name), commit, &before).await?
            {
                return Err(CommitError::EntryUnknown { path });
            }
            return Ok(CommitOutcome { digest: head.clone(), notices: Vec::new() });
        }
        if base.as_ref().is_some_and(|base| !base.is_listed(&before)) {
            return Err(CommitError::DropsContent { tag: branch.tag });
        }
        if let Some(parent) = &commit.parent {
            check_parent(parent, branch.head.as_ref())?;
        }
        if let Some(path) = absent {
            return Err(CommitError::EntryUnknown { path });
        }
        // 3. Make the next manifest.
        let must_be_model = commit.keeps_model && base.as_ref().is_some_and(StoredBase::is_model);
        let (made, notices) =
            self.commit_manifest(caller, repository, base.as_ref(), after, must_be_model).await?;
        for blob in &made.blobs {
            self.small_put(caller, repository, blob).await?;
        }
        // 4. Move the tag.
        let (kind, bytes) = (made.media_type, Bytes::from(made.manifest));
        let at = (&branch.tag, branch.head.as_ref());
        let message = commit.message.as_deref();
        let digest = self.manifest_put_after(caller, repository, at, &kind, bytes, message).await?;
        Ok(CommitOutcome { digest, notices })
    }

    /// Whether a commit has made the branch what it is: applied to the commit before, it gives these files.
    async fn is_last_commit(
        &self,
        caller: &Caller,
        repository: &Repository,
        (branch, name): (&Branch, &str),
        commit: &Commit,
        files: &Files,
    ) -> Result<bool, CommitError> {
        let filter = TagMoveFilter { tag: Some(&branch.tag), ..TagMoveFilter::default() };
        let last = self.store.tag_moves(repository, filter, 1).await?.pop();
        let Some(last) = last.filter(|last| last.to == branch.head && last.can_move_back) else {
            return Ok(false);
        };
        let previous = Branch { tag: branch.tag.clone(), head: last.from };
        let before = match self.commit_base(caller, repository, &previous, name).await {
            Ok((_, before)) => before,
            Err(CommitError::Registry(error)) => return Err(error.into()),
            // Its files cannot be listed, so no commit has changed them.
            Err(_) => return Ok(false),
        };
        let (after, absent) = self.commit_apply(caller, repository, &before, &commit.operations).await?;
        Ok(absent.is_none() && is_same(&after, files))
    }

    /// The branch of a name, which the caller may change. `main` is the tag `main`, or else `latest`.
    pub(super) async fn branch_find(
        &self,
        caller: &Caller,
        repository: &Repository,
        name: &str,
    ) -> Result<Branch, CommitError> {
        self.check_push_manifest(caller, repository).await?;
        let name = name.strip_prefix(BRANCH_PREFIX).unwrap_or(name);
        let tag = branch_tag(name)?;
        if let Some(head) = self.tag_head(repository, &tag).await? {
            return Ok(Branch { tag, head: Some(head) });
        }
        if !self.store.repository_has_manifests(repository).await? {
            return Err(Error::NameUnknown { repository: repository.clone() }.into());
        }
        if name == MAIN {
            let tag = Tag::default();
            let head = self.tag_head(repository, &tag).await?;
            return Ok(Branch { tag, head });
        }
        let tags = self.store.tag_page(repository, "", NAMED_TAGS).await?;
        let (branch, tags) = (name.to_owned(), tags.iter().map(Tag::to_string).collect());
        Err(CommitError::BranchUnknown { branch, tags })
    }

    pub(super) async fn tag_head(&self, repository: &Repository, tag: &Tag) -> Result<Option<Digest>, Error> {
        let row = self.store.manifest_read(repository, &Reference::Tag(tag.clone())).await?;
        Ok(row.map(|row| row.digest))
    }

    /// The manifest of a branch, and its files.
    pub(super) async fn commit_base(
        &self,
        caller: &Caller,
        repository: &Repository,
        branch: &Branch,
        name: &str,
    ) -> Result<(Option<StoredBase>, Files), CommitError> {
        let Some(head) = &branch.head else { return Ok((None, Files::new())) };
        let stored = self.manifest_get(caller, repository, &Reference::Digest(head.clone())).await?;
        let files = self.manifest_files(caller, repository, &stored, name).await?;
        let base = self.base_of(caller, repository, stored, name).await?;
        Ok((Some(base), files.files.clone()))
    }

    /// The files after the operations, and the first path that was to be deleted and does not exist.
    async fn commit_apply(
        &self,
        caller: &Caller,
        repository: &Repository,
        before: &Files,
        operations: &[CommitOperation],
    ) -> Result<(Files, Option<String>), CommitError> {
        if operations.len() > MAX_OPERATIONS {
            return Err(CommitError::TooManyOperations { limit: MAX_OPERATIONS });
        }
        let known: BTreeMap<&Digest, &ManifestFile> = before
            .values()
            .filter_map(|file| match &file.content {
                ContentId::Sha256(digest) => Some((digest, file)),
                ContentId::Parts(_) => None,
            })
            .collect();
        let (mut after, mut absent, mut added) = (before.clone(), None, BTreeSet::new());
        for operation in operations {
            match operation {
                CommitOperation::Add { path, digest, size } => {
                    check_new_path(path)?;
                    let file = match known.get(digest) {
                        Some(file) => (*file).clone(),
                        None => self.commit_object(caller, repository, path, digest).await?,
                    };
                    if let Some(declared) = size.filter(|declared| *declared != file.size) {
                        let (path, oid, stored) = (path.clone(), digest.clone(), file.size);
                        return Err(CommitError::ObjectSize { path, oid, declared, stored });
                    }
                    after.insert(path.clone(), file);
                    added.insert(path.as_str());
                }
                CommitOperation::DeleteFile { path } => {
                    if after.remove(path).is_none() {
                        absent.get_or_insert_with(|| path.clone());
                    }
                }
                CommitOperation::DeleteFolder { path } => {
                    let prefix = format!("{}/", path.trim_end_matches('/'));
                    let count = after.len();
                    after.retain(|path, _| !path.starts_with(&prefix));
                    if after.len() == count {
                        absent.get_or_insert_with(|| path.clone());
                    }
                }
            }
        }
        if after.len() > MAX_FILES {
            return Err(CommitError::TooManyFiles { found: after.len(), limit: MAX_FILES });
        }
        check_paths(&after, &added)?;
        Ok((after, absent))
    }

    /// A file with the content of a blob that was uploaded to the repository, or that another one has which the
    /// caller may read.
    async fn commit_object(
        &self,
        caller: &Caller,
        repository: &Repository,
        path: &str,
        digest: &Digest,
    ) -> Result<ManifestFile, CommitError> {
        let found = self.blob_stat_or_mount(caller, repository, digest).await?;
        let Some(BlobInfo { size_bytes, .. }) = found else {
            return Err(CommitError::ObjectUnknown { path: path.to_owned(), oid: digest.clone() });
        };
        Ok(ManifestFile::new(FileEntry::whole(path.to_owned(), digest.clone(), size_bytes)))
    }
}

/// The tag of a branch's name.
pub(super) fn branch_tag(name: &str) -> Result<Tag, CommitError> {
    if name.starts_with("refs/pr/") {
        let what = "this server has no pull requests; commit to a branch";
        return Err(CommitError::Unsupported { what });
    }
    name.parse().map_err(|_| CommitError::BranchName { name: name.chars().take(200).collect() })
}

fn is_same(before: &Files, after: &Files) -> bool {
    let is_same =
        |((path, file), (other_path, other)): ((&String, &ManifestFile), (&String, &ManifestFile))| {
            path == other_path && file.size == other.size && file.content == other.content
        };
    before.len() == after.len() && before.iter().zip(after).all(is_same)
}

fn check_parent(parent: &str, head: Option<&Digest>) -> Result<(), CommitError> {
    let head = head.map(commit_id).unwrap_or_default();
    match parent.len() >= MIN_PARENT_LEN && head.starts_with(parent) {
        true => Ok(()),
        false => {
            let parent = parent.chars().take(64).collect();
            Err(CommitError::ParentMoved { parent, head: head.to_owned() })
        }
    }
}

/// Checks the path of a new file. Those of stored files may be stranger.
fn check_new_path(path: &str) -> Result<(), CommitError> {
    let refuse = |reason: &str| {
        Err(CommitError::Path { path: path.escape_debug().take(200).collect(), reason: reason.to_owned() })
    };
    if check_path(path).is_err() {
        return refuse(
            "expected at most 1024 bytes and 64 folders, parts between `/` that are not empty, `.` or `..`, and no backslash or control character",
        );
    }
    if path.split('/').any(|part| part.eq_ignore_ascii_case(".git")) {
        return refuse("`.git` is not a name for files");
    }
    if path == lode_model::files_view::LAYER_NAME {
        return refuse("the name is reserved for the list of a model's files");
    }
    Ok(())
}

/// Checks the paths of new files against all others.
fn check_paths(files: &Files, added: &BTreeSet<&str>) -> Result<(), CommitError> {
    let refuse = |path: &str, reason: String| Err(CommitError::Path { path: path.to_owned(), reason });
    let mut folded: BTreeMap<String, &str> = BTreeMap::new();
    for path in files.keys() {
        if let Some(other) = folded.insert(path.to_lowercase(), path)
            && let Some(new) = [path.as_str(), other].into_iter().find(|path| added.contains(path))
        {
            let other = if new == other { path } else { other };
            return refuse(new, format!("it differs from `{other}` only in case"));
        }
    }
    for path in added.iter().filter(|path| files.contains_key(**path)) {
        let mut folders = path.match_indices('/').map(|(at, _)| &path[..at]);
        if let Some(file) = folders.find(|folder| files.contains_key(*folder)) {
            return refuse(path, format!("`{file}` is a file"));
        }
        let prefix = format!("{path}/");
        if files.range(prefix.clone()..).next().is_some_and(|(below, _)| below.starts_with(&prefix)) {
            return refuse(path, "it is a folder".to_owned());
        }
    }
    Ok(())
}
