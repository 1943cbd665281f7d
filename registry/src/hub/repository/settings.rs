//! `/{name}/-/settings`: who may do what with a repository, for its owners.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::reference::{Reference, Repository};

use super::{Head, Manages, Tab};
use crate::Registry;
use crate::app::Grant;
use crate::auth::{AccessTarget, Action, Caller, Role, Target, Visibility};
use crate::http::pages::{Form, SignedIn, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query, pair};
use crate::hub::format::query as escape;
use crate::hub::page::{Shell, browse, is_about_form, render};

/// How many roles a page has.
const PAGE: u32 = 100;

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

/// Changes one setting: the one that the field `change` names.
pub(crate) async fn post(
    State(server): State<ServerState>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        let repository: Repository = name.parse()?;
        let mut page = SettingsPage::new(registry, &caller, &repository, None).await?;
        let form = Form::from_request(request, &server).await?;
        match change(registry, &caller, &repository, &form).await {
            Ok(()) => Ok(redirect(&format!("/{repository}/-/settings"))),
            Err(failure) if !is_about_form(&failure) => Err(failure),
            Err(failure) => {
                page.problem = Some(failure.message());
                Ok(render(failure.status(), &page))
            }
        }
    };
    browse(registry, &caller, page).await
}

async fn change(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    form: &Form,
) -> Result<(), Failure> {
    let target = AccessTarget::Repository(repository.clone());
    match form.get("change") {
        "visibility" => {
            let visibility = form.get("visibility").parse().map_err(Failure::UnknownName)?;
            registry.visibility_put(caller, &target, Some(visibility)).await?;
        }
        "grant" => {
            let role = form.get("role").parse().map_err(Failure::UnknownName)?;
            registry.grant_put(caller, &target, form.get("subject").trim(), role).await?;
        }
        "remove" => registry.grant_delete(caller, &target, form.get("subject")).await?,
        _ => return Err(Failure::Unsupported("change must be `visibility`, `grant` or `remove`")),
    }
    Ok(())
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
        // A repository without tags is one that exists, too.
        let tag = registry.default_tag(caller, repository).await?.map(Reference::Tag);
        let head = Head::new(repository, tag.as_ref(), Tab::Settings, false);
        Ok(SettingsPage {
            shell: Shell::of(registry, caller).await?,
            head: Head { manages: Manages { rules: true, settings: true }, ..head },
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
        })
    }

    /// The choices of a visibility, with what each means.
    fn visibilities(&self) -> [(Visibility, &'static str); 3] {
        [
            (Visibility::Private, "Private: accounts with a role"),
            (Visibility::Internal, "Internal: every account may read"),
            (Visibility::Public, "Public: everyone may read"),
        ]
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
