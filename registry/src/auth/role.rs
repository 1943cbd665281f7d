//! Roles on namespaces and repositories, roles on the server, and visibility.

use std::fmt;
use std::str::FromStr;

use lode_model::reference::Repository;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A role on a namespace or a repository. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Pull, and run inference.
    Read = 1,
    /// Push, create repositories, and move tags.
    Write = 2,
    /// Delete, and protect tags.
    Maintain = 3,
    /// Grant roles, and set the visibility.
    Own = 4,
}

/// A role on the whole server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServerRole {
    /// Reads everything, and changes nothing.
    Auditor,
    /// Owns everything.
    Admin,
}

/// Who may read a repository without a role.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Only accounts with a role.
    #[default]
    Private = 0,
    /// Every signed-in account.
    Internal = 1,
    /// Every client.
    Public = 2,
}

/// The target of a grant or a visibility: a repository, or a namespace with all its repositories.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessTarget {
    /// The first part of a repository's name. A name of one part belongs to the namespace of that name.
    Namespace(Repository),
    Repository(Repository),
}

impl Serialize for AccessTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PartialSchema for AccessTarget {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new().schema_type(Type::String);
        let text = "A namespace with all its repositories, `team/*`, or a repository, `team/mini`";
        schema.description(Some(text)).into()
    }
}

impl ToSchema for AccessTarget {}

impl<'de> Deserialize<'de> for AccessTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A text that is none of the expected names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct UnknownName {
    pub text: String,
    pub expected: &'static str,
}

impl Role {
    pub(crate) const ALL: [Role; 4] = [Role::Read, Role::Write, Role::Maintain, Role::Own];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Maintain => "maintain",
            Role::Own => "own",
        }
    }

    /// The name of the nearest role of Hugging Face's organisations.
    pub(crate) fn as_hub(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Maintain | Role::Own => "admin",
        }
    }

    /// The role with this number in the database.
    pub(crate) fn from_number(number: i64) -> Option<Role> {
        Role::ALL.into_iter().find(|role| *role as i64 == number)
    }
}

impl ServerRole {
    pub fn as_str(self) -> &'static str {
        match self {
            ServerRole::Auditor => "auditor",
            ServerRole::Admin => "admin",
        }
    }

    /// The role that it gives on every repository.
    pub(crate) fn on_repositories(self) -> Role {
        match self {
            ServerRole::Auditor => Role::Read,
            ServerRole::Admin => Role::Own,
        }
    }
}

impl Visibility {
    pub(crate) const ALL: [Visibility; 3] = [Visibility::Private, Visibility::Internal, Visibility::Public];

    pub fn as_str(self) -> &'static str {
        match self {
            Visibility::Private => "private",
            Visibility::Internal => "internal",
            Visibility::Public => "public",
        }
    }

    /// The visibility with this number in the database.
    pub(crate) fn from_number(number: i64) -> Option<Visibility> {
        Visibility::ALL.into_iter().find(|visibility| *visibility as i64 == number)
    }
}

impl FromStr for Role {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Role, UnknownName> {
        let known = Role::ALL.into_iter().find(|role| role.as_str() == text);
        known.ok_or_else(|| UnknownName {
            text: text.to_owned(),
            expected: "a role: read, write, maintain or own",
        })
    }
}

impl FromStr for ServerRole {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<ServerRole, UnknownName> {
        let known = [ServerRole::Auditor, ServerRole::Admin].into_iter().find(|role| role.as_str() == text);
        known
            .ok_or_else(|| UnknownName { text: text.to_owned(), expected: "a server role: admin or auditor" })
    }
}

impl FromStr for Visibility {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Visibility, UnknownName> {
        let known = Visibility::ALL.into_iter().find(|visibility| visibility.as_str() == text);
        known.ok_or_else(|| UnknownName {
            text: text.to_owned(),
            expected: "a visibility: private, internal or public",
        })
    }
}

/// `NAMESPACE/*`, or the name of a repository.
impl FromStr for AccessTarget {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<AccessTarget, UnknownName> {
        let unknown =
            || UnknownName { text: text.to_owned(), expected: "NAMESPACE/* or the name of a repository" };
        match text.strip_suffix("/*") {
            Some(namespace) if !namespace.contains('/') => {
                namespace.parse().map(AccessTarget::Namespace).map_err(|_| unknown())
            }
            Some(_) => Err(unknown()),
            None => text.parse().map(AccessTarget::Repository).map_err(|_| unknown()),
        }
    }
}

impl fmt::Display for AccessTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessTarget::Namespace(namespace) => write!(f, "{namespace}/*"),
            AccessTarget::Repository(repository) => repository.fmt(f),
        }
    }
}

impl AccessTarget {
    /// The namespace of a repository.
    pub(crate) fn namespace_of(repository: &Repository) -> AccessTarget {
        let name = repository.as_str().split('/').next().unwrap_or_default();
        AccessTarget::Namespace(name.parse().expect("the first part of a valid name is a valid name"))
    }

    /// Whether it is this repository or has it.
    pub(crate) fn contains(&self, repository: &Repository) -> bool {
        match self {
            AccessTarget::Namespace(_) => AccessTarget::namespace_of(repository) == *self,
            AccessTarget::Repository(own) => own == repository,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_printed() {
        for role in Role::ALL {
            assert_eq!((role.as_str().parse(), Role::from_number(role as i64)), (Ok(role), Some(role)));
        }
        for visibility in Visibility::ALL {
            assert_eq!(visibility.as_str().parse(), Ok(visibility));
            assert_eq!(Visibility::from_number(visibility as i64), Some(visibility));
        }
        for role in [ServerRole::Auditor, ServerRole::Admin] {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert_eq!((Role::from_number(0), Visibility::from_number(3)), (None, None));
        for text in ["", "Read", "owner", "read "] {
            assert!(text.parse::<Role>().is_err() && text.parse::<Visibility>().is_err(), "{text}");
        }
    }

    #[test]
    fn targets_are_namespaces_and_repositories() {
        let target = |text: &str| text.parse::<AccessTarget>().unwrap();
        let repository = |text: &str| text.parse::<Repository>().unwrap();
        for text in ["team/*", "team", "team/app", "team/app/part"] {
            assert_eq!(target(text).to_string(), text);
        }
        for text in ["", "*", "/*", "team/app/*", "Team/*", "team/*/x", "team/**"] {
            assert!(text.parse::<AccessTarget>().is_err(), "{text}");
        }
        for (text, inside, outside) in [
            ("team/*", ["team", "team/app", "team/a/b"], ["teams", "tea/team", "x/team"]),
            ("team/app", ["team/app", "team/app", "team/app"], ["team", "team/app/x", "team/apps"]),
            ("team", ["team", "team", "team"], ["team/app", "team/team", "teams"]),
        ] {
            let target = target(text);
            assert!(inside.iter().all(|name| target.contains(&repository(name))), "{text}");
            assert!(!outside.iter().any(|name| target.contains(&repository(name))), "{text}");
        }
    }
}
