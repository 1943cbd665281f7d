//! `/-/namespaces/{namespace}`: how much space a namespace uses, its members and its robots. Its owners manage the
//! robots, and auditors see them.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_client::ByteSize;
use lode_model::reference::Repository;

use super::format::bytes;
use super::page::{Shell, browse, is_about_form, render};
use super::repository::by_name;
use super::tokens::robot_url;
use crate::Registry;
use crate::app::{AccountInfo, Grant, NewAccount, Quota};
use crate::auth::{AccessTarget, AccountKind, Action, Caller, Target, Visibility};
use crate::http::pages::{Form, SignedIn, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query, check_namespace};

const PAGE: u32 = 50;
/// How many members are listed.
const MEMBERS: u32 = 100;

#[derive(Template)]
#[template(path = "namespace.html")]
struct NamespacePage {
    shell: Shell,
    namespace: Repository,
    quota: Quota,
    /// Roles on the namespace.
    members: Vec<Grant>,
    has_more_members: bool,
    visibility: Visibility,
    robots: Vec<AccountInfo>,
    /// The last robot of the page, if another page follows.
    next: Option<String>,
    is_first: bool,
    /// Whether the caller manages the robots.
    may_change: bool,
    /// What was entered in the form.
    name: String,
    problem: Option<String>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let page = NamespacePage::new(&registry, &caller, name.parse()?, query.get("after")).await?;
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// Creates a robot.
pub(crate) async fn post(
    State(server): State<ServerState>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        let namespace: Repository = name.parse()?;
        check_namespace(&namespace)?;
        // Checks the caller before the form is read.
        let target = AccessTarget::Namespace(namespace.clone());
        registry.authorize(&caller, Action::Own, Target::Settings(&target)).await?;
        let form = Form::from_request(request, &server).await?;
        let name = form.get("name").trim();
        let robot = NewAccount {
            kind: AccountKind::Robot,
            name: format!("{namespace}+{name}"),
            password: None,
            server_role: None,
        };
        let failure = match registry.account_create(&caller, robot).await {
            Ok(robot) => return Ok(redirect(&robot_url(&robot.name))),
            Err(error) => Failure::from(error),
        };
        if !is_about_form(&failure) {
            return Err(failure);
        }
        let page = NamespacePage::new(registry, &caller, namespace, None).await?;
        let page = NamespacePage { name: name.to_owned(), problem: Some(failure.message()), ..page };
        Ok(render(failure.status(), &page))
    };
    browse(registry, &caller, page).await
}

impl NamespacePage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        namespace: Repository,
        after: Option<&str>,
    ) -> Result<NamespacePage, Failure> {
        check_namespace(&namespace)?;
        let quota = registry.quota_find(caller, &namespace).await?;
        let target = AccessTarget::Namespace(namespace.clone());
        let rights = registry.rights_page(caller, Some(&target), Default::default(), MEMBERS).await?;
        let visibility = rights.visibilities.iter().find(|row| row.target == target);
        let found = registry.account_list(caller, Some(namespace.as_str()), after, PAGE).await?;
        let may_change = registry.may_configure(caller, &target).await?;
        Ok(NamespacePage {
            shell: Shell::of(registry, caller).await?,
            quota,
            visibility: visibility.map(|row| row.visibility).unwrap_or_default(),
            has_more_members: rights.next.is_some(),
            members: by_name(rights.grants),
            next: found.items.last().filter(|_| found.more).map(|robot| robot.name.clone()),
            is_first: after.is_none(),
            robots: found.items,
            may_change,
            namespace,
            name: String::new(),
            problem: None,
        })
    }

    /// How much space the namespace uses: a name and a value.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Quota { limit_bytes, used_bytes, logical_bytes, own_bytes, .. } = &self.quota;
        let limit = match limit_bytes {
            // As it was set.
            Some(limit) => ByteSize(*limit).to_string(),
            None => "none".to_owned(),
        };
        let mut all = vec![("Used", bytes(used_bytes)), ("Limit", limit)];
        all.push(("In all repositories", bytes(logical_bytes)));
        all.extend(own_bytes.map(|own| ("Nowhere else", bytes(own))));
        all
    }

    fn is_full(&self) -> bool {
        self.quota.limit_bytes.is_some_and(|limit| self.quota.used_bytes >= limit)
    }
}
