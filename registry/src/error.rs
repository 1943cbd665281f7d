//! What can go wrong in the registry, in words that its callers can act on; nothing here knows HTTP.
//! The edge maps each variant once (`oci/error.rs`, `api/error.rs`); `Storage` and `Database` are for the operator's log.

use std::sync::Arc;

use lode_model::digest::Digest;
use lode_model::manifest::ManifestError;
use lode_model::reference::{Reference, Repository, Tag};
use uuid::Uuid;

use crate::app::BodyError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("blob {digest} is not in this repository")]
    BlobUnknown { digest: Digest },
    #[error("manifest {reference} is not in this repository")]
    ManifestUnknown { reference: Reference },
    #[error("repository {repository} is not known")]
    NameUnknown { repository: Repository },
    #[error("nothing that was removed as {reference} can come back")]
    RemovalUnknown { reference: Reference },
    /// An undo of a tag that names something again.
    #[error("tag {tag} is in use; remove it first, or undo by digest")]
    TagInUse { tag: Tag },
    #[error("there is no upload {id} in this repository")]
    UploadUnknown { id: Uuid },

    /// The storage no longer has what the upload's row lists. Only the start helps.
    #[error("the storage lost upload {id}; it has to begin again")]
    UploadLost { id: Uuid },

    /// The chunk does not start where the upload stands, or another writer took the upload over.
    #[error("the upload stands at byte {offset}; the next chunk has to start there")]
    UploadConflict { id: Uuid, offset: u64 },
    /// `Content-Range` and the body (or its declared length) disagree.
    #[error("the range names {declared} bytes and the body has {got}")]
    RangeMismatch { id: Uuid, offset: u64, declared: u64, got: u64 },
    /// A read that starts at or past the end of the blob.
    #[error("the range lies outside the blob's {size_bytes} bytes")]
    RangeUnsatisfiable { size_bytes: u64 },
    #[error("the content is {got}, not {expected}")]
    DigestMismatch { expected: Digest, got: Digest },
    #[error("expected {expected} bytes and got {got}")]
    SizeMismatch { expected: u64, got: u64 },
    /// The client's body ended with an error; what was saved of it is told by the upload's status.
    #[error("the request body broke off")]
    BodyCut(#[source] BodyError),

    #[error("the manifest is not acceptable: {0}")]
    ManifestInvalid(#[source] ManifestError),
    /// A descriptor whose size is not that of the content it names.
    #[error("the manifest gives {digest} a size of {described} bytes; the stored content has {stored}")]
    DescriptorSize { digest: Digest, described: u64, stored: u64 },
    #[error("the manifest names content that this repository does not hold")]
    ManifestBlobsUnknown(Vec<Digest>),
    #[error("a manifest may have at most {limit_bytes} bytes")]
    ManifestTooLarge { limit_bytes: u64 },
    /// More than a copy, a pull or a push follows.
    #[error(
        "the index leads too far: at most {manifests} manifests of {limit_bytes} bytes together are followed, {depth} deep"
    )]
    IndexTooLarge { depth: usize, manifests: usize, limit_bytes: usize },
    #[error("blob {digest} is part of a manifest of this repository; delete the manifest first")]
    BlobReferenced { digest: Digest },

    /// Content below a mirrored prefix comes from its upstream and from nobody else.
    #[error(
        "repository {repository} mirrors another registry: push there, or to a repository of another name"
    )]
    Mirrored { repository: Repository },
    /// The server was started to read only.
    #[error("this server only reads: it is being moved, and what it holds must not change")]
    ReadOnly,
    /// What the upstream of a mirrored repository has, if anything, cannot be told now.
    #[error("the registry that this repository mirrors does not answer; try again later")]
    UpstreamAway(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The upstream refused us, or sent something else than it was asked for.
    #[error("the registry that this repository mirrors gave no usable answer")]
    UpstreamUnusable(#[source] Arc<dyn std::error::Error + Send + Sync>),

    #[error("not allowed")]
    Denied,
    #[error("authentication is required")]
    Unauthorized,

    /// The disk or the database is full: nothing was acknowledged, and reads go on.
    #[error("the storage is full")]
    StorageFull,
    /// The storage or the database cannot be reached, or does not do its work: nothing was acknowledged, and it may pass.
    #[error("{what}")]
    Unavailable {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Too many jobs have not finished.
    #[error("{limit} jobs are waiting or running; wait for some of them, or cancel them")]
    TooManyJobs { limit: i64 },
    /// A caller asked for the work to end.
    #[error("cancelled")]
    Cancelled,
    /// Another server has this data folder.
    #[error("{path} is in use by another server")]
    FolderInUse { path: std::path::PathBuf },
    #[error("{setting} is not usable: {reason}")]
    Config { setting: &'static str, reason: String },
    /// Bytes of a blob that the index lists cannot be read, or fail a check.
    #[error("storage: {what}")]
    Storage {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("database")]
    Database(#[source] sqlx::Error),
    #[error("migrating the database")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    #[error("the index was written by a newer version of lode; this one does not know its schema {version}")]
    SchemaNewer { version: i64 },
    /// A row holds what this version cannot read.
    #[error("the index holds an unreadable {what}: {value}")]
    Corrupt { what: &'static str, value: String },
    /// A background task ended without an answer: it panicked, or the server is going down.
    #[error("the task did not finish")]
    Interrupted,
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
        // SQLITE_FULL is 13; Postgres says disk_full with 53100.
        if code == "13" || code == "53100" {
            return Error::StorageFull;
        }
        let silent = match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => true,
            // Connection exceptions, too many connections, starting or stopping, a standby that took over as read-only; and
            // SQLite's file locked by another program for longer than we wait.
            _ => {
                code.starts_with("08")
                    || ["53300", "57P01", "57P02", "57P03", "25006", "5", "261", "517"].contains(&&code[..])
            }
        };
        match silent {
            true => Error::Unavailable { what: "the database".to_owned(), source: Box::new(error) },
            false => Error::Database(error),
        }
    }
}

impl Error {
    /// The database ended a transaction because several waited for each other. (SQLite has one writer and knows no such thing.)
    pub(crate) fn is_deadlock(&self) -> bool {
        let code = match self {
            Error::Database(error) => error.as_database_error().and_then(|error| error.code()),
            _ => None,
        };
        code.is_some_and(|code| code == "40P01" || code == "40001")
    }

    /// The same for another who waited for the same work. What only the log may tell has been told there.
    pub(crate) fn retold(&self) -> Error {
        match self {
            Error::BlobUnknown { digest } => Error::BlobUnknown { digest: digest.clone() },
            Error::ManifestUnknown { reference } => Error::ManifestUnknown { reference: reference.clone() },
            Error::NameUnknown { repository } => Error::NameUnknown { repository: repository.clone() },
            Error::UpstreamAway(source) => Error::UpstreamAway(source.clone()),
            Error::UpstreamUnusable(source) => Error::UpstreamUnusable(source.clone()),
            Error::StorageFull => Error::StorageFull,
            Error::Unavailable { what, .. } => {
                Error::Unavailable { what: what.clone(), source: chain(self).into() }
            }
            Error::ReadOnly => Error::ReadOnly,
            _ => Error::Interrupted,
        }
    }

    /// What a job's report says of a failure: nothing of the server's insides.
    pub(crate) fn shown(&self) -> String {
        match self {
            Error::StorageFull | Error::ReadOnly => self.to_string(),
            Error::Unavailable { .. } => "the storage or the database did not respond".to_owned(),
            _ => "the server's log has the reason".to_owned(),
        }
    }

    /// The storage has nothing there.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Error::Storage { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }

    /// An I/O error on `what`, with a full disk told apart from the rest.
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded => Error::StorageFull,
            _ => Error::Storage { what: what.into(), source },
        }
    }
}

/// The error and its causes on one line, for the operator's log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
