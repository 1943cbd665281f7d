//! `/{name}/-/settings`: who may do what with a repository, for its owners.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::reference::Repository;

use super::{Head, Tab, VISIBILITIES, chosen, page_url};
use crate::Registry;
use crate::app::{AccountError, Grant, visibility_of};
use crate::auth::{AccessTarget, Action, Caller, Role, Target, Visibility};
use crate::http::pages::{Form, SignedIn, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query, pair};
use crate::hub::confirm::{Confirmation, is_confirmed};
use crate::hub::format::query as escape;
use crate::hub::page::{Shell, browse, is_about_form, render};

/// How many roles a page has.
const PAGE: u32 = 100;

/// The value of the choice to have the visibility of the namespace.
const INHERIT: &str = "inherit";

/// The choices of a role, with what each means.
pub(in crate::hub) const ROLES: [(Role, &str); 4] = [
    (Role::Read, "Read: pull, and run models"),
    (Role::Write, "Write: push, too"),
    (Role::Maintain, "Maintain: delete and protect tags, too"),
    (Role::Own, "Own: change settings, too"),
];

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    shell: Shell,
    head: Head,
    namespace: AccessTarget,
    /// `None`: that of the namespace counts.
    visibility: Option<Visibility>,
    namespace_visibility: Visibility,
    grants: Vec<Grant>,
    /// The address of the next page of roles.
    next: Option<String>,
    is_first: bool,
    /// Roles on the namespace, which count here as well.
    inherited: Vec<Grant>,
    has_more_inherited: bool,
    /// Whether the caller owns the namespace, too.
    owns_namespace: bool,
    problem: Option<String>,
    /// What was saved.
    saved: Option<String>,
    confirmation: Option<Confirmation>,
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

    async fn save(
        &self,
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<(), AccountError> {
        let target = AccessTarget::Repository(repository.clone());
        match self {
            Change::Visibility(visibility) => registry.visibility_put(caller, &target, *visibility).await,
            Change::Grant { subject, role } => registry.grant_put(caller, &target, subject, *role).await,
            Change::Remove { subject } => registry.grant_delete(caller, &target, subject).await,
        }
    }
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let repository = name.parse()?;
        let page = SettingsPage::new(&registry, &caller, &repository, Some(&query)).await?;
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// Changes one setting. The loss of a role, and a change that makes the repository public, have to be confirmed.
pub(crate) async fn post(
    State(server): State<ServerState>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    query: Query,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        let repository: Repository = name.parse()?;
        let mut page = SettingsPage::new(registry, &caller, &repository, Some(&query)).await?;
        let form = Form::from_request(request, &server).await?;
        let saved = async {
            let change = Change::of(&form)?;
            page.confirmation = page.question(&change, &form);
            if page.confirmation.is_none() {
                change.save(registry, &caller, &repository).await?;
            }
            Ok(change)
        };
        match saved.await {
            Ok(_) if page.confirmation.is_some() => Ok(render(StatusCode::OK, &page)),
            Ok(change) => {
                let saved = change.visibility().map_or("role", |_| "visibility");
                let query = [("saved", Some(saved)), ("tag", chosen(&query))];
                Ok(redirect(&page_url(&repository, "settings", &query)))
            }
            Err(failure) if !is_about_form(&failure) => Err(failure),
            Err(failure) => {
                page.problem = Some(failure.message());
                Ok(render(failure.status(), &page))
            }
        }
    };
    browse(registry, &caller, page).await
}

/// Roles in the order of their accounts and groups.
pub(in crate::hub) fn by_name(mut grants: Vec<Grant>) -> Vec<Grant> {
    grants.sort_by(|one, other| one.subject.cmp(&other.subject));
    grants
}

impl SettingsPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        query: Option<&Query>,
    ) -> Result<SettingsPage, Failure> {
        let target = AccessTarget::Repository(repository.clone());
        let namespace = AccessTarget::namespace_of(repository);
        registry.authorize(caller, Action::Own, Target::Settings(&target)).await?;
        let visibilities = registry.visibilities_of(caller, &target).await?;
        let visibility_of = |target: &AccessTarget| {
            let found = visibilities.iter().find(|row| row.target == *target);
            found.map(|row| row.visibility)
        };
        let last = query.map(Query::last_pair).transpose()?.unwrap_or_default();
        let own = registry.rights_page(caller, Some(&target), last, PAGE).await?;
        let next = own.next.map(|(last, subject)| {
            format!("/{repository}/-/settings?last={}#members-title", escape(&pair(&last, &subject)))
        });
        // Who owns the repository alone does not see the roles of its namespace.
        let (inherited, has_more_inherited) =
            match registry.rights_page(caller, Some(&namespace), Default::default(), PAGE).await {
                Err(error) if error.is_refusal() => (Vec::new(), false),
                listed => listed.map(|page| (page.grants, page.next.is_some()))?,
            };
        let head = Head::of_repository(registry, caller, repository, (query.and_then(chosen), Tab::Settings))
            .await?;
        let saved = match query.and_then(|query| query.get("saved")) {
            Some("visibility") => Some(format!("Saved. {}.", head.visibility_text())),
            Some("role") => Some("Saved the roles.".to_owned()),
            _ => None,
        };
        Ok(SettingsPage {
            shell: Shell::of(registry, caller).await?,
            head,
            visibility: visibility_of(&target),
            namespace_visibility: visibility_of(&namespace).unwrap_or_default(),
            grants: by_name(own.grants),
            next,
            is_first: last == Default::default(),
            inherited: by_name(inherited),
            has_more_inherited,
            owns_namespace: registry.may_configure(caller, &namespace).await?,
            namespace,
            problem: None,
            saved,
            confirmation: None,
        })
    }

    /// What to ask before a change, unless the form confirms it.
    fn question(&self, change: &Change, form: &Form) -> Option<Confirmation> {
        let (repository, page) = (&self.head.repository, self.head.page("/-/settings"));
        let (title, text, button) = match change {
            _ if is_confirmed(form) => return None,
            change if self.becomes_public(change) => (
                format!("Make {repository} public?"),
                "Every client that reaches this server may then pull it and run its models, also without an account.",
                "Make it public",
            ),
            Change::Remove { subject } => (
                format!("Remove {subject} from {repository}?"),
                "It loses its role on this repository. Roles on the namespace and of its groups stay.",
                "Remove the role",
            ),
            _ => return None,
        };
        Some(Confirmation::new(form, (&page, &page), title, text, button))
    }

    /// Whether a change lets everyone read who could not before.
    fn becomes_public(&self, change: &Change) -> bool {
        let effective = |visibility: Option<Visibility>| visibility.unwrap_or(self.namespace_visibility);
        let is_public = |visibility| effective(visibility) == Visibility::Public;
        change.visibility().is_some_and(is_public) && !is_public(self.visibility)
    }

    /// The choices of a visibility, with what each means.
    fn visibilities(&self) -> [(Visibility, &'static str); 3] {
        VISIBILITIES
    }

    /// The name of the namespace.
    fn namespace_name(&self) -> &str {
        self.head.parts.first().map(|(name, _)| name.as_str()).unwrap_or_default()
    }

    fn is_chosen(&self, visibility: &Visibility) -> bool {
        self.visibility == Some(*visibility)
    }

    fn roles(&self) -> [(Role, &'static str); 4] {
        ROLES
    }
}
