//! The limits of a credential: which targets it covers and what it may do there. They narrow the rights of its
//! account and never add any.

use std::fmt;
use std::str::FromStr;

use lode_model::reference::Repository;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::role::{AccessTarget, UnknownName};

/// The scope of listings of all repositories.
pub(crate) const CATALOG_SCOPE: &str = "registry:catalog:*";
/// The scope of mounts from any repository. Only servers of Lode know it, and ask for it in their challenges.
pub(crate) const MOUNT_SCOPE: &str = "registry:mount:*";

/// What a credential may do at most. Each value includes those before it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Run inference and list models, without pulling their content.
    Infer,
    Read,
    Write,
    Maintain,
    Own,
    /// Everything that the account may do, including the administration of the server.
    #[default]
    Full,
}

/// The limits of a credential.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Scope {
    #[serde(default)]
    pub access: Access,
    /// Where it may be used; empty means everywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<AccessTarget>,
    /// The scopes of an access token of the distribution API; absent for other credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Requested>,
}

/// What an access token of the distribution API was requested for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Requested {
    pub repositories: Vec<RepositoryScope>,
    /// Listings of all repositories that its account may read. Without it they have only those named above.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub catalog: bool,
    /// Mounts from all repositories that its account may read. Without it they are only from those named above.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mount: bool,
}

impl Requested {
    /// Parses scopes. One text may have several, separated by spaces; those that grant nothing are left out.
    pub(crate) fn parse<'a>(texts: impl Iterator<Item = &'a str>) -> Requested {
        let mut requested = Requested::default();
        for text in texts.flat_map(|text| text.split(' ')) {
            requested.catalog |= text == CATALOG_SCOPE;
            requested.mount |= text == MOUNT_SCOPE;
            requested.repositories.extend(RepositoryScope::parse(text));
        }
        requested
    }
}

impl Scope {
    /// Whether it covers a repository.
    pub(crate) fn covers(&self, repository: &Repository) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|target| target.contains(repository))
    }
}

impl Access {
    pub(crate) const ALL: [Access; 6] =
        [Access::Infer, Access::Read, Access::Write, Access::Maintain, Access::Own, Access::Full];

    pub fn as_str(self) -> &'static str {
        match self {
            Access::Infer => "infer",
            Access::Read => "read",
            Access::Write => "write",
            Access::Maintain => "maintain",
            Access::Own => "own",
            Access::Full => "full",
        }
    }
}

impl FromStr for Access {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Access, UnknownName> {
        let known = Access::ALL.into_iter().find(|access| access.as_str() == text);
        known.ok_or_else(|| UnknownName {
            text: text.to_owned(),
            expected: "an access level: infer, read, write, maintain, own or full",
        })
    }
}

/// A scope of the distribution API's token protocol: `repository:NAME:ACTION,ACTION`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct RepositoryScope {
    pub repository: Repository,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pull: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delete: bool,
}

impl RepositoryScope {
    /// Parses a scope. `None` if it grants nothing: another type, an invalid name, or no known action. The type
    /// ends at the first colon, and the actions begin after the last. A class such as `repository(plugin)` is
    /// ignored.
    pub(crate) fn parse(text: &str) -> Option<RepositoryScope> {
        let (kind, rest) = text.split_once(':')?;
        let (name, actions) = rest.rsplit_once(':')?;
        if kind.split('(').next() != Some("repository") {
            return None;
        }
        let has = |wanted: &str| actions.split(',').any(|action| action == wanted || action == "*");
        let scope = RepositoryScope {
            repository: name.parse().ok()?,
            pull: has("pull"),
            push: has("push"),
            delete: has("delete"),
        };
        (scope.pull || scope.push || scope.delete).then_some(scope)
    }
}

impl fmt::Display for RepositoryScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: Vec<&str> = [(self.pull, "pull"), (self.push, "push"), (self.delete, "delete")]
            .into_iter()
            .filter_map(|(is_set, name)| is_set.then_some(name))
            .collect();
        write!(f, "repository:{}:{}", self.repository, actions.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_scopes_grant_nothing_and_are_no_error() {
        for (text, expect) in [
            ("repository:team/app:pull", "repository:team/app:pull"),
            ("repository:team/app:push,pull", "repository:team/app:pull,push"),
            ("repository:team/app:*", "repository:team/app:pull,push,delete"),
            ("repository(plugin):team/app:pull", "repository:team/app:pull"),
            ("repository:team/app:delete,unknown", "repository:team/app:delete"),
        ] {
            assert_eq!(RepositoryScope::parse(text).map(|scope| scope.to_string()).as_deref(), Some(expect));
        }
        for text in [
            "",
            ":",
            "::",
            "repository",
            "repository:",
            "repository:team/app",
            "repository:team/app:",
            "repository:team/app:PULL",
            "repository:Team/app:pull",
            "repository:host:5000/app:pull",
            "repository::pull",
            "registry:catalog:*",
            "repositories:team/app:pull",
        ] {
            assert_eq!(RepositoryScope::parse(text), None, "{text}");
        }
    }

    #[test]
    fn access_levels_are_ordered() {
        assert!(Access::ALL.is_sorted());
        for access in Access::ALL {
            assert_eq!(access.as_str().parse(), Ok(access));
        }
    }
}
