//! The caller of a request, its credentials, and what it may do. Every method of `app` asks for permission
//! first; nothing here knows HTTP or SQL.

mod access_token;
mod caller;
pub(crate) mod jwt;
mod ollama_key;
pub(crate) mod password;
mod protected_tags;
mod role;
mod scope;
pub(crate) mod throttle;
pub(crate) mod token;
pub(crate) mod vault;

pub(crate) use access_token::AccessToken;
pub use caller::{Account, AccountKind, Action, Caller, Credential, Identity, Origin, Target};
pub(crate) use caller::{Rights, STAGING, decide, decide_at_once, decide_some};
pub use ollama_key::{OllamaKey, OllamaKeyError};
pub(crate) use protected_tags::{ProtectedTags, tag_pattern};
pub use role::{AccessTarget, Role, ServerRole, UnknownName, Visibility};
pub use scope::{Access, RepositoryScope, Requested, Scope};
pub(crate) use scope::{CATALOG_SCOPE, MOUNT_SCOPE};
