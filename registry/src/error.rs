//! The registry's errors, for callers to act on; nothing here knows HTTP. Each HTTP surface maps the variants
//! once (`oci/error.rs`, `api/error.rs`). Details of `Storage` and `Database` go only to the operator's log.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use lode_model::digest::Digest;
pub(crate) use lode_model::error_chain as chain;
use lode_model::manifest::ManifestError;
use lode_model::reference::{Reference, Repository, Tag};
use sqlx::postgres::PgDatabaseError;
use uuid::Uuid;

/// Why a request body was interrupted.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("blob {digest} is not in this repository")]
    BlobUnknown { digest: Digest },
    #[error("manifest {reference} is not in this repository")]
    ManifestUnknown { reference: Reference },
    #[error("repository {repository} does not exist")]
    NameUnknown { repository: Repository },
    /// A push where the caller may not learn whether the repository exists. `needs`: what the caller lacks to
    /// create it.
    #[error("repository {repository} does not exist, or you may not write to it: {needs}")]
    PushHidden { repository: Repository, needs: String },
    #[error(
        "nothing to restore for `{reference}`: it was not removed, or the time to restore it has passed (`lode gc history` lists removals)"
    )]
    RemovalUnknown { reference: Reference },
    /// Restoring a tag that has been set again since its removal.
    #[error("tag {tag} is in use; delete it first, or undo by digest")]
    TagInUse { tag: Tag },
    /// The history of a repository has no such move of the tag, or no move of it at all.
    #[error("the history of {repository} has no such move of tag {tag}")]
    TagMoveUnknown { repository: Repository, tag: Tag },
    /// Undoing the move that created a tag.
    #[error("tag {tag} did not exist before this move; delete it instead")]
    TagWasNew { tag: Tag },
    #[error(
        "tag {tag} cannot be moved back: manifest {digest} was deleted; an administrator may restore it with `lode gc undo`"
    )]
    TagTargetDeleted { tag: Tag, digest: Digest },
    #[error("upload {id} does not exist in this repository")]
    UploadUnknown { id: Uuid },

    /// Storage no longer has the parts that the upload's row lists. The client has to start again.
    #[error("the bytes of upload {id} are missing from storage; start the upload again")]
    UploadLost { id: Uuid },

    /// The chunk does not start at the upload's offset, or another writer took over the upload.
    #[error("the upload's offset is {offset}; the next chunk has to start there")]
    UploadConflict { id: Uuid, offset: u64 },
    /// `Content-Range` and the body (or its declared length) disagree.
    #[error("Content-Range declares {declared} bytes, but the body has {got}")]
    RangeMismatch { id: Uuid, offset: u64, declared: u64, got: u64 },
    /// A read that starts at or past the end of the blob.
    #[error("the range is outside the blob's {size_bytes} bytes")]
    RangeUnsatisfiable { size_bytes: u64 },
    #[error("digest mismatch: expected {expected}, got {got}")]
    DigestMismatch { expected: Digest, got: Digest },
    #[error("size mismatch: expected {expected} bytes, got {got}")]
    SizeMismatch { expected: u64, got: u64 },
    /// The client's body ended with an error. The upload's status reports how much was saved.
    #[error("the request body ended early")]
    BodyInterrupted(#[source] BodyError),

    #[error("invalid manifest: {0}")]
    ManifestInvalid(#[source] ManifestError),
    /// A descriptor whose size differs from the size of the stored content.
    #[error("the manifest declares {described} bytes for {digest}, but the stored content has {stored}")]
    DescriptorSize { digest: Digest, described: u64, stored: u64 },
    #[error("the manifest references content that is not in this repository")]
    ManifestBlobsUnknown(Vec<Digest>),
    #[error("the manifest is larger than the limit of {limit_bytes} bytes")]
    ManifestTooLarge { limit_bytes: u64 },
    /// An index beyond the limits of a copy, a pull or a push.
    #[error(
        "the index is too large: at most {manifests} manifests with {limit_bytes} bytes in total and a depth of {depth} are followed"
    )]
    IndexTooLarge { depth: usize, manifests: usize, limit_bytes: usize },
    #[error("blob {digest} is referenced by a manifest of this repository; delete the manifest first")]
    BlobReferenced { digest: Digest },

    /// The first part of the name is a path of this server.
    #[error("repository names cannot begin with `{}`: it is reserved", .repository.as_str().split('/').next().unwrap_or_default())]
    NameReserved { repository: Repository },
    /// The tag matches a pattern that protects it.
    #[error("tag {tag} is protected by the pattern `{pattern}`: it cannot be moved or deleted")]
    TagProtected { tag: Tag, pattern: String },
    /// The tag was set, moved or deleted since the caller read it.
    #[error("tag {tag} was changed meanwhile; read it again")]
    TagMoved { tag: Tag },
    #[error("the quota of namespace {namespace} is exceeded: {used_bytes} of {limit_bytes} bytes are used")]
    QuotaExceeded { namespace: String, used_bytes: u64, limit_bytes: u64 },
    /// Content below a mirrored prefix comes only from its upstream.
    #[error("repository {repository} mirrors another registry: push there, or use another repository name")]
    Mirrored { repository: Repository },
    /// The server was started in read-only mode.
    #[error("this server is read-only while its content is migrated")]
    ReadOnly,
    /// The upstream of a mirrored repository did not respond.
    #[error("the upstream of this mirrored repository does not respond; try again later")]
    UpstreamUnavailable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The upstream refused our request, or sent an invalid response.
    #[error("the upstream of this mirrored repository refused the request or sent an invalid response")]
    UpstreamInvalid(#[source] Arc<dyn std::error::Error + Send + Sync>),

    /// `needs`: what the caller lacks.
    #[error("not allowed: {needs}")]
    Denied { needs: String },
    /// The credential that started work ended while the work continued without it.
    #[error(
        "the account that started this was disabled or deleted, or its token or key was revoked; start it again with valid credentials"
    )]
    CredentialRevoked,
    /// The account that started work lost a role while the work continued.
    #[error(
        "the account that started this may no longer {action} {repository}; ask an owner for a role, and start it again"
    )]
    RoleRevoked { action: &'static str, repository: Repository },
    #[error("authentication is required")]
    Unauthorized,
    /// The server has no account yet, and everything but the setup page is closed.
    #[error(
        "this server is not set up yet; its administrator has to open the setup link in the server's log"
    )]
    SetupPending,
    /// A wrong password, or a token that is invalid, expired or revoked.
    #[error("{}", if *.is_token { "the token is invalid, expired or revoked" } else { "wrong user name or password" })]
    CredentialsInvalid { is_token: bool },
    /// Too many failed sign-ins.
    #[error("too many failed sign-ins; try again in {seconds} s")]
    Throttled { seconds: u64 },
    /// More requests than the settings allow.
    #[error("too many requests; try again in {seconds} s")]
    TooManyRequests { seconds: u64 },
    /// The account may do this, but its access token was not requested for it.
    #[error("the access token does not cover this; request one with this scope")]
    InsufficientScope,

    /// The disk or the database is full. Nothing was acknowledged, and reads still work.
    #[error("the storage is full")]
    StorageFull,
    /// The storage or the database is unreachable or failing. Nothing was acknowledged, and a retry may
    /// succeed.
    #[error("{what}")]
    Unavailable {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Too many jobs of this server have not finished.
    #[error(
        "this server has {limit} or more unfinished jobs; wait until some have finished, or ask an administrator to cancel some"
    )]
    TooManyJobs { limit: i64 },
    /// Too many jobs of one kind of one account have not finished.
    #[error(
        "{limit} jobs of the kind `{kind}` of this account are pending or running; wait until one has finished, or cancel one"
    )]
    TooManyJobsOfAccount { kind: &'static str, limit: i64 },
    #[error("the parameters of the job have {bytes} bytes, expected at most {limit_bytes}")]
    JobTooLarge { bytes: usize, limit_bytes: usize },
    /// The caller cancelled the work.
    #[error("cancelled")]
    Cancelled,
    /// A blob that the database lists cannot be read, or failed a check.
    #[error("storage: {what}")]
    Storage {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("database error")]
    Database(#[source] DatabaseError),
    /// A key in the database is encrypted with a key that this server does not have.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// A row that this version cannot decode.
    #[error("the database has an unreadable {what}: {value}")]
    Corrupt { what: &'static str, value: String },
    /// A background task ended without a result: it panicked, or the server is shutting down.
    #[error("the task did not finish")]
    Interrupted,
}

/// An error of the database or its driver. Its text is the database's message and hint, without the position in the
/// database's own source that the driver adds.
#[derive(Debug)]
pub struct DatabaseError(pub(crate) sqlx::Error);

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_postgres =
            self.0.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        let Some(error) = of_postgres else { return self.0.fmt(f) };
        f.write_str(error.message())?;
        match error.hint() {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DatabaseError {}

/// Why a stored value cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    #[error(
        "keys in the database are encrypted: set secret_key (LODE_SECRET_KEY) to the value that was used"
    )]
    NoKey,
    #[error("keys in the database were encrypted with another secret_key (LODE_SECRET_KEY)")]
    WrongKey,
}

/// Why a registry cannot be opened, served, backed up or moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another server uses this data folder.
    #[error("{path} is in use by another server")]
    FolderInUse { path: PathBuf },
    #[error("invalid `{setting}`: {reason}")]
    Config { setting: &'static str, reason: String },
    #[error("failed to migrate the database")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    #[error("failed to apply migration {version} to the database")]
    Migration {
        version: i64,
        #[source]
        source: DatabaseError,
    },
    #[error("the database has schema {version}, which a newer version of lode wrote; run that version")]
    SchemaNewer { version: i64 },
    #[error(transparent)]
    Registry(#[from] Error),
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Error::from(error).into()
    }
}

/// Postgres refuses a new session until an operator changes something: the role may not log in, a wrong password, no
/// such database, or one that accepts no sessions. A running server recovers after that; a start does not wait for it.
const SESSION_REFUSED: [&str; 4] = ["28000", "28P01", "3D000", "55000"];

/// Whether Postgres refuses new sessions until an operator changes something.
pub(crate) fn is_session_refused(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| SESSION_REFUSED.contains(&&*code))
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if is_disk_full(&error) {
            return Error::StorageFull;
        }
        let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
        let is_unavailable = match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => true,
            // Connection exceptions; too many connections; starting or stopping; a standby that took over as
            // read-only; and SQLite's file locked by another program for longer than our timeout.
            _ => {
                code.starts_with("08")
                    || ["53300", "57P01", "57P02", "57P03", "25006", "5", "261", "517"].contains(&&code[..])
                    || SESSION_REFUSED.contains(&&code[..])
            }
        };
        match is_unavailable {
            true => {
                let source = Box::new(DatabaseError(error));
                Error::Unavailable { what: "the database is unavailable".to_owned(), source }
            }
            false => Error::Database(DatabaseError(error)),
        }
    }
}

/// The disk of the database is full: SQLite's SQLITE_FULL (13) and SQLITE_IOERR_SHMSIZE (4874, no space for the file
/// of its shared memory), or Postgres's disk_full (53100).
pub(crate) fn is_disk_full(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| ["13", "4874", "53100"].contains(&&*code))
}

impl Error {
    /// The policy refused the caller.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Error::Unauthorized
                | Error::InsufficientScope
                | Error::Denied { .. }
                | Error::NameUnknown { .. }
                | Error::PushHidden { .. }
        )
    }

    /// The database aborted a transaction to resolve a deadlock. (SQLite has one writer and no deadlocks.)
    pub(crate) fn is_deadlock(&self) -> bool {
        let code = match self {
            Error::Database(error) => error.0.as_database_error().and_then(|error| error.code()),
            _ => None,
        };
        code.is_some_and(|code| code == "40P01" || code == "40001")
    }

    /// A copy of the error for another caller that waited for the same work. Details meant only for the log
    /// have been logged already.
    pub(crate) fn duplicate(&self) -> Error {
        match self {
            Error::BlobUnknown { digest } => Error::BlobUnknown { digest: digest.clone() },
            Error::ManifestUnknown { reference } => Error::ManifestUnknown { reference: reference.clone() },
            Error::NameUnknown { repository } => Error::NameUnknown { repository: repository.clone() },
            Error::TagProtected { tag, pattern } => {
                Error::TagProtected { tag: tag.clone(), pattern: pattern.clone() }
            }
            Error::QuotaExceeded { namespace, used_bytes, limit_bytes } => Error::QuotaExceeded {
                namespace: namespace.clone(),
                used_bytes: *used_bytes,
                limit_bytes: *limit_bytes,
            },
            Error::UpstreamUnavailable(source) => Error::UpstreamUnavailable(source.clone()),
            Error::UpstreamInvalid(source) => Error::UpstreamInvalid(source.clone()),
            Error::StorageFull => Error::StorageFull,
            Error::Unavailable { what, .. } => {
                Error::Unavailable { what: what.clone(), source: chain(self).into() }
            }
            Error::ReadOnly => Error::ReadOnly,
            _ => Error::Interrupted,
        }
    }

    /// The error's text in a job's report, which must not reveal internals.
    pub(crate) fn public_message(&self) -> String {
        match self {
            Error::Unavailable { .. } => "the storage or the database is unavailable".to_owned(),
            Error::Storage { .. }
            | Error::Database(_)
            | Error::Vault(_)
            | Error::Corrupt { .. }
            | Error::Interrupted => "internal error; see the server's log".to_owned(),
            _ => self.to_string(),
        }
    }

    /// The storage has no object at this key.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Error::Storage { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }

    /// An I/O error on `what`; a full disk gets its own variant.
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded => Error::StorageFull,
            _ => Error::Storage { what: what.into(), source },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use sqlx::error::ErrorKind;

    use super::*;

    /// A database's error with this code.
    #[derive(Debug, thiserror::Error)]
    #[error("code {0}")]
    struct Coded(&'static str);

    impl sqlx::error::DatabaseError for Coded {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[test]
    fn a_full_disk_of_the_database_is_a_full_storage() {
        let error = |code| Error::from(sqlx::Error::Database(Box::new(Coded(code))));
        for code in ["13", "4874", "53100"] {
            assert!(matches!(error(code), Error::StorageFull), "{code}");
        }
        assert!(matches!(error("10"), Error::Database(_)), "another I/O error");
    }

    #[test]
    fn a_database_that_refuses_sessions_is_unavailable() {
        let error = |code| Error::from(sqlx::Error::Database(Box::new(Coded(code))));
        for code in ["28000", "28P01", "3D000", "55000", "57P03", "53300"] {
            assert!(matches!(error(code), Error::Unavailable { .. }), "{code}");
        }
        assert!(matches!(error("42P01"), Error::Database(_)), "no such table");
    }
}
