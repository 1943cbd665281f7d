//! Why a request of Hugging Face's clients that changes a repository fails.

use lode_model::digest::Digest;
use lode_model::import::FinishError;
use lode_model::reference::{Repository, Tag};

use super::{AccountError, CreateError, FilesError};
use crate::Error;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error("the files of the branch cannot be changed")]
    BaseFiles(#[source] FilesError),
    #[error(transparent)]
    Create(CreateError),
    #[error("cannot store the files")]
    Finish(#[from] FinishError),

    /// The text is the Hub's, with the tags that exist.
    #[error("Invalid rev id: {branch}{}", if tags.is_empty() { String::new() } else { format!(" (there are: {})", tags.join(", ")) })]
    BranchUnknown { branch: String, tags: Vec<String> },
    #[error(
        "`{name}` cannot be the name of a branch or tag here: expected at most 128 letters, digits, `_`, `.` and `-`"
    )]
    BranchName { name: String },
    #[error("the branch `main` cannot be deleted; delete the repository")]
    MainBranch,
    #[error("A commit has happened since: the branch is at {head}, and the commit follows {parent}")]
    ParentMoved { parent: String, head: String },
    /// Files alone would replace the manifest of the branch.
    #[error(
        "tag {tag} has content that is no file, such as layers of a container image or tensors that ollama pushed, and a commit would drop it; use another repository, or delete the tag first"
    )]
    DropsContent { tag: Tag },
    #[error("{what} exists already")]
    Exists { what: String },
    #[error(
        "{repository} would have more than {limit} patterns of protected tags: its own, and those of the moved repository; remove some"
    )]
    TooManyPatterns { repository: Repository, limit: usize },
    #[error("{what}")]
    Unsupported { what: &'static str },

    /// Clients recognise the text.
    #[error("A file with this name doesn't exist: {path}")]
    EntryUnknown { path: String },
    #[error("`{path}` cannot be the path of a file: {reason}")]
    Path { path: String, reason: String },
    #[error("`{path}`: no object {oid} was uploaded to this repository; upload it first")]
    ObjectUnknown { path: String, oid: Digest },
    #[error("`{path}`: object {oid} has {stored} bytes, and the commit declares {declared}")]
    ObjectSize { path: String, oid: Digest, declared: u64, stored: u64 },
    #[error("{what} has more than {limit} bytes; upload larger files as LFS objects")]
    Inline { what: String, limit: u64 },
    #[error("the commit has more than {limit} operations; split it")]
    TooManyOperations { limit: usize },
    #[error(
        "the branch would have {found} files, expected at most {limit}; store some in another repository"
    )]
    TooManyFiles { found: usize, limit: usize },
    #[error("line {line} of the commit {reason}")]
    Line { line: usize, reason: String },
    #[error("the commit has no header line")]
    HeaderMissing,
}

impl From<CreateError> for CommitError {
    fn from(error: CreateError) -> CommitError {
        match error {
            CreateError::Registry(error) => CommitError::Registry(error),
            error => CommitError::Create(error),
        }
    }
}

impl From<AccountError> for CommitError {
    fn from(error: AccountError) -> CommitError {
        match error {
            AccountError::Registry(error) => CommitError::Registry(error),
            error => Error::Denied { needs: error.to_string() }.into(),
        }
    }
}

impl From<FilesError> for CommitError {
    fn from(error: FilesError) -> CommitError {
        match error {
            FilesError::Registry(error) => CommitError::Registry(error),
            error => CommitError::BaseFiles(error),
        }
    }
}
