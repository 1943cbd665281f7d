//! Why people and CI jobs cannot sign in with tokens of other issuers.

use std::fmt;

use uuid::Uuid;

use super::PublisherKind;

pub(super) const MAX_CONDITIONS: usize = 16;
pub(super) const MAX_VALUE_LEN: usize = 500;
/// How many publishers a robot may have.
pub(super) const MAX_PUBLISHERS: i64 = 50;

/// Why a sign-in at a provider fails.
#[derive(Debug, thiserror::Error)]
pub enum SignOnError {
    #[error("no sign-in provider is called `{name}`")]
    ProviderUnknown { name: String },
    #[error("the sign-in has expired, or was started in another browser; start it again")]
    Expired,
    /// The provider's own error.
    #[error("{title} has not signed you in: {reason}")]
    Refused { title: String, reason: String },
    /// The source is for the log.
    #[error("{title} does not respond, or not as expected; try again later, or sign in with a password")]
    Unavailable {
        title: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{title} sent an invalid identity: {reason}")]
    Invalid { title: String, reason: String },
    #[error("your account at {title} is not a member of the group that may sign in here")]
    NotInGroup { title: String },
    #[error("no account belongs to your identity at {title}; ask an administrator for one")]
    NoAccount { title: String },
    #[error(
        "the name `{name}` is taken. If that account is yours, sign in with its password and connect {title} on the account page; otherwise ask an administrator"
    )]
    NameTaken { title: String, name: String },
    #[error("this account is disabled")]
    Disabled,
    #[error("another account is connected with this identity at {title}")]
    IdentityTaken { title: String },
    #[error("the account has no password: it could not be signed in to without this identity")]
    LastIdentity,
}

/// Why a publisher cannot be created, or a job gets no token.
#[derive(Debug, thiserror::Error)]
pub enum PublisherError {
    #[error("`{name}` is not a robot: a publisher signs in as a robot, such as team+ci")]
    NotARobot { name: String },
    #[error("the condition `{name}` is missing")]
    ConditionMissing { name: &'static str },
    /// No token can have this value.
    #[error("the condition `{name}` is `{value}`, expected {expected}")]
    Condition { name: String, value: String, expected: &'static str },
    #[error(
        "invalid publisher: expected 1 to {MAX_CONDITIONS} conditions of 1 to {MAX_VALUE_LEN} characters"
    )]
    Conditions,
    #[error("invalid issuer `{issuer}`: {reason}")]
    Issuer { issuer: String, reason: &'static str },
    #[error("a publisher of this kind needs its issuer's address")]
    IssuerMissing,
    /// The issuer is of a service whose tokens this server knows, and the publisher is not.
    #[error("`{issuer}` is the issuer of {}: use the kind `{}`", .kind.service(), .kind.as_str())]
    IssuerOfKind { issuer: String, kind: PublisherKind },
    #[error("too many publishers: expected at most {MAX_PUBLISHERS} for a robot")]
    TooMany,
    #[error("no publisher has the id {id}")]
    Unknown { id: Uuid },

    #[error(
        "this server needs `public_url` to accept tokens of CI jobs: they have to name it as their audience"
    )]
    NoPublicUrl,
    #[error("the token is refused: {reason}")]
    Token { reason: String },
    #[error("no publisher is registered for the issuer `{issuer}`")]
    NoPublisher { issuer: String },
    /// None of the publishers of this project matches.
    #[error("no publisher matches this job: {}", .0)]
    NoMatch(Mismatches),
    #[error("the resource `{resource}` is not a robot, a namespace or a repository")]
    Resource { resource: String },
    /// All publishers of the job's project have robots of other namespaces.
    #[error(
        "no publisher for this job has a robot that belongs to the resource `{resource}`; expected the robot's name (NAMESPACE+NAME), its namespace, or a repository in its namespace"
    )]
    ResourceMismatch { resource: String },
    /// Robots of several namespaces, whose owners need not know each other. The error does not name them.
    #[error(
        "publishers of several namespaces match this job; send the `resource` for which it needs the token: a repository, its namespace, or the robot (NAMESPACE+NAME), as in `lode token exchange --resource team/app`"
    )]
    ResourceMissing,
    /// Robots of one namespace.
    #[error(
        "publishers of several robots of the namespace `{namespace}` match this job; send the name of one as the `resource`, as in `lode token exchange --resource {namespace}+NAME`"
    )]
    RobotMissing { namespace: String },
    #[error("this token was used before; request a new one for each sign-in")]
    Replayed,
    #[error("the issuer does not respond; try again later")]
    Unavailable {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A claim that is not what a publisher expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) name: String,
    pub(super) expected: String,
    pub(super) got: Option<String>,
}

/// What each publisher of the project expects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatches(pub(super) Vec<Mismatch>);

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none is registered for its project");
        }
        for (at, Mismatch { name, expected, got }) in self.0.iter().enumerate() {
            let separator = if at > 0 { "; " } else { "" };
            match got {
                Some(got) => write!(f, "{separator}`{name}` is `{got}`, expected `{expected}`")?,
                None => write!(f, "{separator}`{name}` is missing, expected `{expected}`")?,
            }
        }
        Ok(())
    }
}
