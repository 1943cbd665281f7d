//! Failures of a request, from its syntax to the registry's own error, and their messages for clients.
//! A handler returns a `Failure`. It travels as a response extension, so that each API formats it and the log
//! records its causes once.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use lode_client::BodyError;
use lode_model::digest::{Digest, DigestError};
use lode_model::import::UnknownConversion;
use lode_model::json_outline::OutlineError;
use lode_model::modelfile::{ParameterError, UnknownRole};
use lode_model::reference::{Reference, ReferenceError, Repository, Tag};
use lode_model::with_json_types;
use uuid::Uuid;

use crate::Error;
use crate::app::{
    AccountError, CardError, CommitError, CreateError, FilesError, HfImportError, ImportError,
    PublisherError, SignOnError, TransferError, XetError,
};
use crate::auth::UnknownName;
use crate::error::chain;
use crate::gateway::GatewayError;
use crate::hf_client::HfError;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error(transparent)]
    Gateway(#[from] GatewayError),

    #[error(transparent)]
    Name(ReferenceError),
    #[error("invalid model name `{name}`: {reason}")]
    ModelName { name: String, reason: &'static str },
    #[error(
        "model name `{name}` names another host; leave out `{host}/` for this server. `ollama push {name}` sends `{rest}` there, `ollama pull {name}` fetches it (--insecure where {host} speaks plain http)"
    )]
    OtherHost { name: String, host: String, rest: String },
    #[error("`{id}` is not a valid id")]
    Id { id: String },
    #[error("the path is not UTF-8")]
    Path,
    #[error("query parameter `{name}` is `{value}`, expected {expected}")]
    Query { name: &'static str, value: String, expected: &'static str },
    #[error("query parameter `{name}` is missing, expected {expected}")]
    QueryMissing { name: &'static str, expected: &'static str },
    #[error("too many tags: a push may set at most {limit}")]
    TooManyTags { limit: usize },
    #[error("Content-Range is `{value}`, expected `<first>-<last>`, both included")]
    ContentRange { value: String },
    /// `can_merge`: the client retries with fewer ranges after a 400, and fails after any other error.
    #[error("the request has more than {limit} separate ranges")]
    TooManyRanges { limit: usize, size_bytes: u64, can_merge: bool },
    #[error("the link has expired or is invalid")]
    Link,
    /// A key of ollama that no account has. The text must not contain `unauthorized` or `access denied`: ollama
    /// would replace it by a hint to its own server.
    #[error("this key is not enrolled here; open {url} to add it to your account")]
    KeyUnknown { url: String },
    #[error("the server does not know its own address; its operator sets --public-url for clients with keys")]
    PublicUrlMissing,
    #[error("the form has expired; go back, reload the page and send it again")]
    Csrf,
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("the server has reached its limit of connections or requests; try again later")]
    Overloaded,
    #[error("missing request body")]
    BodyMissing,
    #[error("invalid request body: {}", with_json_types(&.0.to_string()))]
    Json(#[source] serde_path_to_error::Error<serde_json::Error>),
    /// The same for a part of the body that is parsed separately.
    #[error("invalid request body: {}", locate_json_error(part, source))]
    JsonPart { part: String, source: serde_path_to_error::Error<serde_json::Error> },
    #[error(transparent)]
    Outline(OutlineError),

    #[error("invalid digest format: `{digest}`")]
    StagedDigest { digest: String },
    #[error("digest mismatch, expected \"{expected}\", got \"{got}\"")]
    StagedDigestMismatch { expected: Digest, got: Digest },
    #[error(transparent)]
    Conversion(UnknownConversion),
    #[error(transparent)]
    Parameter(ParameterError),
    #[error(transparent)]
    Role(UnknownRole),
    #[error("{}", chain(.0))]
    Create(CreateError),
    #[error(transparent)]
    Transfer(TransferError),
    #[error(transparent)]
    Account(AccountError),
    #[error(transparent)]
    UnknownName(UnknownName),

    /// A request of Hugging Face's clients for a repository, a revision or a file.
    #[error("{}", chain(.0))]
    Files(FilesError),

    /// A request of Hugging Face's clients that changes a repository.
    #[error("{}", chain(.0))]
    Commit(CommitError),

    /// A card that a page edits.
    #[error(transparent)]
    Card(CardError),

    /// An upload of Hugging Face's clients by Xet.
    #[error("{}", chain(.0))]
    Xet(XetError),

    /// The causes may name addresses, and are only for the log.
    #[error(transparent)]
    Import(ImportError),

    #[error("model is required")]
    ModelMissing,
    /// A push by a name without a host.
    #[error(
        "'{name}' is already stored on this server. To send it to another registry, name its host: `ollama cp {name} NAMESPACE/MODEL`, then `ollama push HOST/NAMESPACE/MODEL`"
    )]
    PushNeedsHost { name: String },
    #[error("model '{name}' not found")]
    ModelUnknown { name: String },
    /// A worker's own refusal, with its message.
    #[error("{message}")]
    Worker { status: StatusCode, message: String },
    #[error("response `{id}` not found: this server stores no responses")]
    ResponseNotStored { id: String },
    #[error("{0}")]
    Unsupported(&'static str),
    /// A field of the body with a value that cannot be used, by its path.
    #[error("`{field}` {reason}")]
    Field { field: String, reason: String },
    #[error("no worker has this id and credential; register again")]
    WorkerUnknown,

    #[error("no route matches this path")]
    RouteUnknown,
    /// A page that does not exist, or about something that the caller may not see.
    #[error("there is no such page here, or you may not see it")]
    PageUnknown,
    /// A page about a tag or a manifest that a repository does not have, with some of the tags that it has.
    #[error("repository `{repository}` has no {} `{reference}`", match .reference {
        Reference::Tag(_) => "tag",
        Reference::Digest(_) => "manifest",
    })]
    ReferencePageUnknown { repository: Repository, reference: Reference, tags: Vec<Tag> },
    #[error("this route does not support the request's method")]
    MethodNotAllowed,
    #[error(
        "requests for host `{host}` are refused (an open server on loopback accepts loopback names and --public-url)"
    )]
    Host { host: String },
    #[error("invalid Host header: {reason}")]
    HostInvalid { reason: &'static str },
    #[error("requests from pages of `{origin}` are refused")]
    Origin { origin: String },
    #[error("panicked: {0}")]
    Panic(String),

    /// A failure in an upload, and the URL where it can be resumed.
    #[error("{source}")]
    Upload { source: Error, location: String, id: Uuid },
}

impl Failure {
    /// A field of the body with a value that cannot be used: its path, and the predicate of the message.
    pub(crate) fn field(field: impl Into<String>, reason: impl Into<String>) -> Failure {
        Failure::Field { field: field.into(), reason: reason.into() }
    }

    /// The code for programs, if the status does not say enough.
    pub(crate) fn code(&self) -> Option<&'static str> {
        match self {
            Failure::Gateway(error) => error.code(),
            _ => None,
        }
    }

    /// The status of the response; the same in every API.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Failure::Registry(error) | Failure::Upload { source: error, .. } => status_of(error),
            Failure::Files(error) => match error {
                FilesError::Registry(error) => status_of(error),
                FilesError::Invalid(_) | FilesError::ViewTooLarge { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                _ => StatusCode::NOT_FOUND,
            },
            Failure::Commit(error) => match error {
                CommitError::Registry(error) => status_of(error),
                CommitError::BranchUnknown { .. } | CommitError::EntryUnknown { .. } => StatusCode::NOT_FOUND,
                CommitError::ParentMoved { .. } => StatusCode::PRECONDITION_FAILED,
                CommitError::Exists { .. } | CommitError::DropsContent { .. } => StatusCode::CONFLICT,
                CommitError::BaseFiles(_) => StatusCode::UNPROCESSABLE_ENTITY,
                CommitError::Inline { .. } | CommitError::TooManyOperations { .. } => {
                    StatusCode::PAYLOAD_TOO_LARGE
                }
                _ => StatusCode::BAD_REQUEST,
            },
            Failure::Card(error) => match error {
                CardError::NotEditable { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                CardError::Changed { .. } => StatusCode::CONFLICT,
                CardError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            },
            Failure::Xet(error) => match error {
                XetError::Registry(error) => status_of(error),
                XetError::Body(error) => status_of_body(error),
                XetError::TooLarge { .. } | XetError::FileSize { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            },
            Failure::Import(error) => match error {
                ImportError::Registry(error) => status_of(error),
                ImportError::Hub(HfImportError::Hub(HfError::Egress(_))) => StatusCode::FORBIDDEN,
                ImportError::Hub(HfImportError::Hub(HfError::Endpoint { .. } | HfError::Refused { .. }))
                | ImportError::OtherDigest { .. } => StatusCode::BAD_REQUEST,
                ImportError::Unknown { .. }
                | ImportError::Hub(HfImportError::Hub(HfError::Unknown { .. })) => StatusCode::NOT_FOUND,
                ImportError::Refused { .. }
                | ImportError::Hub(HfImportError::Hub(HfError::Unauthorized { .. })) => {
                    StatusCode::FAILED_DEPENDENCY
                }
                ImportError::Transfer { error, .. } => status_of_transfer(error),
                ImportError::Hub(_) | ImportError::TooSlow { .. } => StatusCode::BAD_GATEWAY,
            },
            Failure::Gateway(error) => error.status(),
            Failure::Worker { status, .. } => *status,
            Failure::Id { .. }
            | Failure::ModelUnknown { .. }
            | Failure::ResponseNotStored { .. }
            | Failure::WorkerUnknown
            | Failure::RouteUnknown
            | Failure::PageUnknown
            | Failure::ReferencePageUnknown { .. } => StatusCode::NOT_FOUND,
            Failure::Name(_)
            | Failure::ModelName { .. }
            | Failure::OtherHost { .. }
            | Failure::PushNeedsHost { .. }
            | Failure::ModelMissing
            | Failure::Path
            | Failure::HostInvalid { .. }
            | Failure::Query { .. }
            | Failure::QueryMissing { .. }
            | Failure::ContentRange { .. }
            | Failure::BodyMissing
            | Failure::Json(_)
            | Failure::JsonPart { .. }
            | Failure::Outline(_)
            | Failure::StagedDigest { .. }
            | Failure::StagedDigestMismatch { .. }
            | Failure::Conversion(_)
            | Failure::Parameter(_)
            | Failure::Role(_)
            | Failure::Create(_)
            | Failure::UnknownName(_)
            | Failure::Unsupported(_)
            | Failure::Field { .. } => StatusCode::BAD_REQUEST,
            Failure::Account(error) => match error {
                AccountError::Registry(error) => status_of(error),
                AccountError::Unknown { .. }
                | AccountError::TokenUnknown { .. }
                | AccountError::KeyUnknown { .. }
                | AccountError::DeviceUnknown
                | AccountError::GrantUnknown { .. } => StatusCode::NOT_FOUND,
                AccountError::SignOn(error) => match error {
                    SignOnError::ProviderUnknown { .. } => StatusCode::NOT_FOUND,
                    SignOnError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
                    SignOnError::Expired | SignOnError::LastIdentity => StatusCode::BAD_REQUEST,
                    SignOnError::NameTaken { .. } | SignOnError::IdentityTaken { .. } => StatusCode::CONFLICT,
                    _ => StatusCode::FORBIDDEN,
                },
                AccountError::Publisher(error) => match error {
                    PublisherError::Unknown { .. } => StatusCode::NOT_FOUND,
                    PublisherError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::BAD_REQUEST,
                },
                AccountError::NotAUser => StatusCode::UNAUTHORIZED,
                AccountError::SetupLink | AccountError::SignInAgain | AccountError::TokenRotate => {
                    StatusCode::FORBIDDEN
                }
                AccountError::NameTaken { .. }
                | AccountError::KeyTaken
                | AccountError::PatternsChanged { .. }
                | AccountError::FirstAccount
                | AccountError::LastAdmin => StatusCode::CONFLICT,
                _ => StatusCode::BAD_REQUEST,
            },
            Failure::Transfer(error) => status_of_transfer(error),
            Failure::TooManyRanges { can_merge: true, .. } => StatusCode::BAD_REQUEST,
            Failure::TooManyRanges { can_merge: false, .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            Failure::TooManyTags { .. } => StatusCode::URI_TOO_LONG,
            Failure::Body(error) => status_of_body(error),
            Failure::Link
            | Failure::KeyUnknown { .. }
            | Failure::PublicUrlMissing
            | Failure::Csrf
            | Failure::Host { .. }
            | Failure::Origin { .. } => StatusCode::FORBIDDEN,
            Failure::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Failure::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Failure::Panic(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The registry's own error, if it is one.
    pub(crate) fn error(&self) -> Option<&Error> {
        match self {
            Failure::Registry(error)
            | Failure::Upload { source: error, .. }
            | Failure::Commit(CommitError::Registry(error))
            | Failure::Xet(XetError::Registry(error))
            | Failure::Files(FilesError::Registry(error)) => Some(error),
            _ => None,
        }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(
            self,
            Failure::Body(BodyError::BudgetExhausted)
                | Failure::Xet(XetError::Body(BodyError::BudgetExhausted))
                | Failure::Overloaded
                | Failure::Gateway(GatewayError::ClientLimitReached { .. })
        ) || matches!(self.error(), Some(Error::Unavailable { .. } | Error::UpstreamUnavailable(_)))
    }

    /// Whether a retry fails in the same way until an operator changes something.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self.error(), Some(Error::SetupPending | Error::UpstreamInvalid(_)))
    }

    /// The message for the caller. For a server error it reveals only what the caller can act on.
    pub(crate) fn message(&self) -> String {
        match self.error() {
            Some(Error::Unavailable { .. }) => "the server is temporarily unavailable; try again".to_owned(),
            Some(
                Error::StorageFull
                | Error::SetupPending
                | Error::UpstreamUnavailable(_)
                | Error::UpstreamInvalid(_),
            ) => self.to_string(),
            None if matches!(
                self,
                Failure::Account(AccountError::SignOn(_) | AccountError::Publisher(_))
                    | Failure::Body(_)
                    | Failure::Overloaded
                    | Failure::Gateway(_)
                    | Failure::Worker { .. }
                    | Failure::Transfer(_)
                    | Failure::Import(_)
            ) =>
            {
                self.to_string()
            }
            _ if self.status().is_server_error() => "internal server error; see the server's log".to_owned(),
            _ => self.to_string(),
        }
    }
}

fn status_of_transfer(error: &TransferError) -> StatusCode {
    match error {
        TransferError::RemoteUnknown { .. } => StatusCode::NOT_FOUND,
        TransferError::Remote(lode_client::Error::InvalidAddress { .. }) => StatusCode::BAD_REQUEST,
        TransferError::Remote(lode_client::Error::Egress { .. }) => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_GATEWAY,
    }
}

fn status_of_body(error: &BodyError) -> StatusCode {
    match error {
        BodyError::TooLarge { .. } | BodyError::TooCostly { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        BodyError::BudgetExhausted => StatusCode::SERVICE_UNAVAILABLE,
        BodyError::Interrupted(_) => StatusCode::BAD_REQUEST,
    }
}

fn status_of(error: &Error) -> StatusCode {
    match error {
        Error::BlobUnknown { .. }
        | Error::ManifestUnknown { .. }
        | Error::NameUnknown { .. }
        | Error::PushHidden { .. }
        | Error::RemovalUnknown { .. }
        | Error::TagMoveUnknown { .. }
        | Error::UploadUnknown { .. }
        | Error::UploadLost { .. } => StatusCode::NOT_FOUND,
        Error::TagInUse { .. } | Error::TagWasNew { .. } | Error::TagTargetDeleted { .. } => {
            StatusCode::CONFLICT
        }
        Error::TagMoved { .. } => StatusCode::PRECONDITION_FAILED,
        Error::UploadConflict { .. } | Error::RangeMismatch { .. } | Error::RangeUnsatisfiable { .. } => {
            StatusCode::RANGE_NOT_SATISFIABLE
        }
        Error::DigestMismatch { .. }
        | Error::SizeMismatch { .. }
        | Error::BodyInterrupted(_)
        | Error::ManifestInvalid(_)
        | Error::DescriptorSize { .. }
        | Error::IndexTooLarge { .. }
        | Error::ManifestBlobsUnknown(_) => StatusCode::BAD_REQUEST,
        Error::ManifestTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Error::BlobReferenced { .. } | Error::Mirrored { .. } | Error::ReadOnly => {
            StatusCode::METHOD_NOT_ALLOWED
        }
        Error::UpstreamUnavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        Error::UpstreamInvalid(_) => StatusCode::BAD_GATEWAY,
        Error::Denied { .. }
        | Error::CredentialRevoked
        | Error::RoleRevoked { .. }
        | Error::TagProtected { .. }
        | Error::QuotaExceeded { .. } => StatusCode::FORBIDDEN,
        Error::NameReserved { .. } => StatusCode::BAD_REQUEST,
        Error::Unauthorized | Error::InsufficientScope | Error::CredentialsInvalid { .. } => {
            StatusCode::UNAUTHORIZED
        }
        Error::Throttled { .. } | Error::TooManyRequests { .. } => StatusCode::TOO_MANY_REQUESTS,
        Error::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
        Error::TooManyJobs { .. } | Error::TooManyJobsOfAccount { .. } => StatusCode::TOO_MANY_REQUESTS,
        Error::JobTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Error::Unavailable { .. } | Error::SetupPending => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An error and its path within a part of the body.
fn locate_json_error(part: &str, error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let inner = with_json_types(&error.inner().to_string());
    match error.path().to_string() {
        path if path == "." => format!("{part}: {inner}"),
        path if path.starts_with('[') => format!("{part}{path}: {inner}"),
        path => format!("{part}.{path}: {inner}"),
    }
}

impl From<AccountError> for Failure {
    fn from(error: AccountError) -> Failure {
        match error {
            AccountError::Registry(error) => Failure::Registry(error),
            error => Failure::Account(error),
        }
    }
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Failure {
        Failure::Files(error)
    }
}

impl From<XetError> for Failure {
    fn from(error: XetError) -> Failure {
        Failure::Xet(error)
    }
}

impl From<CommitError> for Failure {
    fn from(error: CommitError) -> Failure {
        Failure::Commit(error)
    }
}

impl From<CardError> for Failure {
    fn from(error: CardError) -> Failure {
        match error {
            CardError::Commit(error) => Failure::Commit(error),
            error => Failure::Card(error),
        }
    }
}

impl From<DigestError> for Failure {
    fn from(error: DigestError) -> Failure {
        Failure::Name(error.into())
    }
}

impl From<ReferenceError> for Failure {
    fn from(error: ReferenceError) -> Failure {
        Failure::Name(error)
    }
}

/// The failure, stored in its response's extensions.
#[derive(Clone)]
pub(crate) struct FailureExtension(pub(crate) Arc<Failure>);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(FailureExtension(Arc::new(self)));
        response
    }
}
