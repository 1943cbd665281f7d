//! Who may do what with a repository or a namespace: the sections of a page about its visibility and its members, with
//! their forms.

use super::confirm::{Confirmation, is_confirmed};
use super::format::query as escape;
use crate::Registry;
use crate::app::{Grant, visibility_of};
use crate::auth::{AccessTarget, Caller, Role, Visibility};
use crate::http::pages::Form;
use crate::http::{Failure, Query, pair};

/// How many roles a page has.
const PAGE: u32 = 100;

/// The value of the choice to have the visibility of the namespace.
const INHERIT: &str = "inherit";

/// The choices of a role, with what each means.
pub(super) const ROLES: [(Role, &str); 4] = [
    (Role::Read, "Read: pull, and run models"),
    (Role::Write, "Write: push, too"),
    (Role::Maintain, "Maintain: delete and protect tags, too"),
    (Role::Own, "Own: change settings, too"),
];

/// Who may read without a role.
pub(super) const VISIBILITIES: [(Visibility, &str); 3] = [
    (Visibility::Private, "Private: accounts with a role"),
    (Visibility::Internal, "Internal: every account may read"),
    (Visibility::Public, "Public: everyone may read"),
];

/// The values of both sections.
pub(super) struct AccessSection {
    /// The address of the page, to which the forms are sent.
    pub(super) url: String,
    pub(super) target: AccessTarget,
    pub(super) namespace: AccessTarget,
    /// `None`: that of the namespace counts.
    pub(super) visibility: Option<Visibility>,
    pub(super) namespace_visibility: Visibility,
    pub(super) grants: Vec<Grant>,
    /// The address of the next page of roles.
    pub(super) next: Option<String>,
    pub(super) is_first: bool,
    /// Roles on the namespace of a repository, which count there as well.
    pub(super) inherited: Vec<Grant>,
    pub(super) has_more_inherited: bool,
    /// Whether the caller may change the visibility and the roles.
    pub(super) may_change: bool,
}

/// A change of one setting: the one that the field `change` of a form names.
enum Change {
    /// `None`: that of the namespace.
    Visibility(Option<Visibility>),
    Grant {
        subject: String,
        role: Role,
    },
    Remove {
        subject: String,
    },
}

impl Change {
    fn of(form: &Form) -> Result<Change, Failure> {
        let subject = form.get("subject").trim().to_owned();
        match (form.get("change"), form.get("visibility")) {
            ("visibility", INHERIT) => Ok(Change::Visibility(None)),
            ("visibility", name) => Ok(Change::Visibility(Some(name.parse().map_err(Failure::UnknownName)?))),
            ("grant", _) => {
                Ok(Change::Grant { subject, role: form.get("role").parse().map_err(Failure::UnknownName)? })
            }
            ("remove", _) => Ok(Change::Remove { subject }),
            _ => Err(Failure::Unsupported("change must be `visibility`, `grant` or `remove`")),
        }
    }

    /// The visibility that the change sets. `Some(None)`: that of the namespace.
    fn visibility(&self) -> Option<Option<Visibility>> {
        match self {
            Change::Visibility(visibility) => Some(*visibility),
            // A role of everyone is a visibility.
            Change::Grant { subject, role: Role::Read } => visibility_of(subject).map(Some),
            Change::Grant { .. } | Change::Remove { .. } => None,
        }
    }
}

/// What came of a form.
pub(super) enum Changed {
    /// The name of what was saved, for the query of the page.
    Saved(&'static str),
    /// The loss of a role, and a change that lets everyone read, have to be confirmed.
    Asked(Confirmation),
}

impl AccessSection {
    /// The sections about a target, for its owners and auditors. `url`: the address of their page.
    pub(super) async fn new(
        registry: &Registry,
        caller: &Caller,
        target: AccessTarget,
        url: String,
        query: Option<&Query>,
    ) -> Result<AccessSection, Failure> {
        let visibilities = registry.visibilities_of(caller, &target).await?;
        let visibility_of = |target: &AccessTarget| {
            let found = visibilities.iter().find(|row| row.target == *target);
            found.map(|row| row.visibility)
        };
        let last = query.map(Query::last_pair).transpose()?.unwrap_or_default();
        let own = registry.rights_page(caller, Some(&target), last, PAGE).await?;
        let path = url.split('?').next().unwrap_or_default();
        let next = own
            .next
            .map(|(last, subject)| format!("{path}?last={}#members-title", escape(&pair(&last, &subject))));
        let (namespace, (inherited, has_more_inherited)) = match &target {
            AccessTarget::Repository(repository) => {
                let namespace = AccessTarget::namespace_of(repository);
                let inherited = inherited(registry, caller, &namespace).await?;
                (namespace, inherited)
            }
            AccessTarget::Namespace(_) => (target.clone(), Default::default()),
        };
        Ok(AccessSection {
            url,
            visibility: visibility_of(&target),
            namespace_visibility: visibility_of(&namespace).unwrap_or_default(),
            grants: by_name(own.grants),
            next,
            is_first: last == Default::default(),
            inherited,
            has_more_inherited,
            may_change: registry.may_configure(caller, &target).await?,
            namespace,
            target,
        })
    }

    /// Makes the change of a form, unless it has to be confirmed first.
    pub(super) async fn change(
        &self,
        registry: &Registry,
        caller: &Caller,
        form: &Form,
    ) -> Result<Changed, Failure> {
        let change = Change::of(form)?;
        if let Some(question) = self.question(&change, form) {
            return Ok(Changed::Asked(question));
        }
        let target = &self.target;
        match &change {
            Change::Visibility(visibility) => registry.visibility_put(caller, target, *visibility).await?,
            Change::Grant { subject, role } => registry.grant_put(caller, target, subject, *role).await?,
            Change::Remove { subject } => registry.grant_delete(caller, target, subject).await?,
        }
        Ok(Changed::Saved(change.visibility().map_or("role", |_| "visibility")))
    }

    /// What to ask before a change, unless the form confirms it.
    fn question(&self, change: &Change, form: &Form) -> Option<Confirmation> {
        let target = &self.target;
        let (title, text, button) = match (change, target) {
            _ if is_confirmed(form) => return None,
            (change, AccessTarget::Repository(_)) if self.becomes_public(change) => (
                format!("Make {target} public?"),
                "Every client that reaches this server may then pull it and run its models, also without an account.",
                "Make it public",
            ),
            (change, AccessTarget::Namespace(_)) if self.becomes_public(change) => (
                format!("Make {target} public?"),
                "Every client that reaches this server may then pull its repositories and run their models, also \
                 without an account, except those with a visibility of their own.",
                "Make it public",
            ),
            (Change::Remove { subject }, AccessTarget::Repository(_)) => (
                format!("Remove {subject} from {target}?"),
                "It loses its role on this repository. Roles on the namespace and of its groups stay.",
                "Remove the role",
            ),
            (Change::Remove { subject }, AccessTarget::Namespace(_)) => (
                format!("Remove {subject} from {target}?"),
                "It loses its role on all repositories of the namespace. Roles on single repositories and of its groups \
                 stay.",
                "Remove the role",
            ),
            _ => return None,
        };
        Some(Confirmation::new(form, (&self.url, &self.url), title, text, button))
    }

    /// Whether a change lets everyone read who could not before.
    fn becomes_public(&self, change: &Change) -> bool {
        let effective = |visibility: Option<Visibility>| visibility.unwrap_or(self.namespace_visibility);
        let is_public = |visibility| effective(visibility) == Visibility::Public;
        change.visibility().is_some_and(is_public) && !is_public(self.visibility)
    }

    pub(super) fn is_repository(&self) -> bool {
        matches!(self.target, AccessTarget::Repository(_))
    }

    /// What the target is called in a text.
    pub(super) fn noun(&self) -> &'static str {
        if self.is_repository() { "repository" } else { "namespace" }
    }

    /// The address of the first page of roles.
    pub(super) fn first(&self) -> &str {
        self.url.split('?').next().unwrap_or_default()
    }

    /// Whether a choice of the visibility is the current one. That of a namespace is private until it is set.
    pub(super) fn is_chosen(&self, visibility: &Visibility) -> bool {
        let current = self.visibility.or((!self.is_repository()).then_some(self.namespace_visibility));
        current == Some(*visibility)
    }

    /// The choices of a visibility, with what each means.
    pub(super) fn visibilities(&self) -> [(Visibility, &'static str); 3] {
        VISIBILITIES
    }

    pub(super) fn roles(&self) -> [(Role, &'static str); 4] {
        ROLES
    }
}

/// The first roles on the namespace of a repository, and whether there are more. Who owns the repository alone does not
/// see them.
async fn inherited(
    registry: &Registry,
    caller: &Caller,
    namespace: &AccessTarget,
) -> Result<(Vec<Grant>, bool), Failure> {
    match registry.rights_page(caller, Some(namespace), Default::default(), PAGE).await {
        Err(error) if error.is_refusal() => Ok((Vec::new(), false)),
        Err(error) => Err(error.into()),
        Ok(page) => Ok((by_name(page.grants), page.next.is_some())),
    }
}

/// Roles in the order of their accounts and groups.
fn by_name(mut grants: Vec<Grant>) -> Vec<Grant> {
    grants.sort_by(|one, other| one.subject.cmp(&other.subject));
    grants
}
