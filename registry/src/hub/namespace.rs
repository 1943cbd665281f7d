//! `/-/namespaces/{namespace}`: how much space a namespace uses, its visibility, its members and its robots. Its owners
//! manage them, and auditors see them.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_client::ByteSize;
use lode_model::reference::Repository;

use super::access::{AccessSection, Changed};
use super::confirm::Confirmation;
use super::format::bytes;
use super::page::{Shell, browse, is_about_form, render};
use super::tokens::robot_url;
use crate::Registry;
use crate::app::{AccountInfo, NewAccount, Quota};
use crate::auth::{AccessTarget, AccountKind, Action, Caller, Target};
use crate::http::pages::{Form, SignedIn, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query, check_namespace};

/// How many robots a page has.
const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "namespace.html")]
struct NamespacePage {
    shell: Shell,
    namespace: Repository,
    quota: Quota,
    access: AccessSection,
    robots: Vec<AccountInfo>,
    /// The last robot of the page, if another page follows.
    next: Option<String>,
    is_first: bool,
    /// What was entered in the form of a robot, and why it was refused.
    name: String,
    problem: Option<String>,
    /// What was saved, or why it was not.
    saved: Option<&'static str>,
    access_problem: Option<String>,
    confirmation: Option<Confirmation>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let page = NamespacePage::new(&registry, &caller, name.parse()?, Some(&query)).await?;
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// Creates a robot, or changes the visibility or a role.
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
        if form.get("change").is_empty() {
            return create_robot(registry, &caller, namespace, form.get("name").trim()).await;
        }
        let mut page = NamespacePage::new(registry, &caller, namespace, None).await?;
        match page.access.change(registry, &caller, &form).await {
            Ok(Changed::Saved(saved)) => Ok(redirect(&format!("{}?saved={saved}", page.access.url))),
            Ok(Changed::Asked(question)) => {
                page.confirmation = Some(question);
                Ok(render(StatusCode::OK, &page))
            }
            Err(failure) if !is_about_form(&failure) => Err(failure),
            Err(failure) => {
                page.access_problem = Some(failure.message());
                Ok(render(failure.status(), &page))
            }
        }
    };
    browse(registry, &caller, page).await
}

async fn create_robot(
    registry: &Registry,
    caller: &Caller,
    namespace: Repository,
    name: &str,
) -> Result<Response, Failure> {
    let robot = NewAccount {
        kind: AccountKind::Robot,
        name: format!("{namespace}+{name}"),
        password: None,
        server_role: None,
    };
    let failure = match registry.account_create(caller, robot).await {
        Ok(robot) => return Ok(redirect(&robot_url(&robot.name))),
        Err(error) => Failure::from(error),
    };
    if !is_about_form(&failure) {
        return Err(failure);
    }
    let page = NamespacePage::new(registry, caller, namespace, None).await?;
    let page = NamespacePage { name: name.to_owned(), problem: Some(failure.message()), ..page };
    Ok(render(failure.status(), &page))
}

impl NamespacePage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        namespace: Repository,
        query: Option<&Query>,
    ) -> Result<NamespacePage, Failure> {
        check_namespace(&namespace)?;
        let quota = registry.quota_find(caller, &namespace).await?;
        let target = AccessTarget::Namespace(namespace.clone());
        let url = format!("/-/namespaces/{namespace}");
        let after = query.and_then(|query| query.get("after"));
        let found = registry.account_list(caller, Some(namespace.as_str()), after, PAGE).await?;
        Ok(NamespacePage {
            shell: Shell::of(registry, caller).await?,
            quota,
            access: AccessSection::new(registry, caller, target, url, query).await?,
            next: found.items.last().filter(|_| found.more).map(|robot| robot.name.clone()),
            is_first: after.is_none(),
            robots: found.items,
            namespace,
            name: String::new(),
            problem: None,
            saved: match query.and_then(|query| query.get("saved")) {
                Some("visibility") => Some("Saved the visibility."),
                Some("role") => Some("Saved the roles."),
                _ => None,
            },
            access_problem: None,
            confirmation: None,
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
