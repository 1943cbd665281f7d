//! `/-/robots/{robot}`: the tokens, roles and publishers of a robot, for the owners of its namespace.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_client::Secret;
use lode_model::reference::Repository;

use super::access::ROLES;
use super::confirm::{Confirmation, is_confirmed};
use super::page::{Shell, browse, is_about_form, render};
use super::publishers::{PublisherSection, new_publisher};
use super::tokens::{self, TokenSection, form_id, robot_url};
use crate::Registry;
use crate::app::{AccountError, AccountInfo, Grant};
use crate::auth::{AccessTarget, Caller, Role};
use crate::http::pages::{Form, SignedIn, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};

/// How many roles are listed.
const MAX_ROLES: u32 = 100;

#[derive(Template)]
#[template(path = "robot.html")]
struct RobotPage {
    shell: Shell,
    robot: AccountInfo,
    namespace: String,
    /// The address of the page.
    url: String,
    tokens: TokenSection,
    roles: RoleSection,
    publishers: PublisherSection,
    /// Why the robot was not deleted.
    problem: Option<String>,
    confirmation: Option<Confirmation>,
}

struct RoleSection {
    grants: Vec<Grant>,
    has_more: bool,
    /// What was entered in the form.
    target: String,
    role: String,
    problem: Option<String>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let page = RobotPage::new(&registry, &caller, &name, Some(&query)).await?;
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// Changes what the field `change` names.
pub(crate) async fn post(
    State(server): State<ServerState>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        // Checks the caller before the form is read.
        let mut page = RobotPage::new(registry, &caller, &name, None).await?;
        let form = Form::from_request(request, &server).await?;
        page.confirmation = page.question(&form);
        if page.confirmation.is_some() {
            return Ok(render(StatusCode::OK, &page));
        }
        let changed = match change(registry, &caller, &page.robot.name, &form).await {
            Ok(None) if form.get("change") == "delete-robot" => {
                return Ok(redirect(&format!("/-/namespaces/{}", page.namespace)));
            }
            Ok(None) => return Ok(redirect(&page.url)),
            Err(failure) if !is_about_form(&failure) => return Err(failure),
            changed => changed,
        };
        let mut page = RobotPage::new(registry, &caller, &name, None).await?;
        let status = page.show(&form, changed);
        Ok(render(status, &page))
    };
    browse(registry, &caller, page).await
}

/// The robot of a page, and its namespace, for those who manage the robot.
async fn find(
    registry: &Registry,
    caller: &Caller,
    name: &str,
) -> Result<(AccountInfo, Repository), Failure> {
    // Users have no such page.
    let (namespace, _) = name.split_once('+').ok_or(Failure::PageUnknown)?;
    let namespace = namespace.parse()?;
    Ok((registry.robot_show(caller, name).await?, namespace))
}

/// Returns the secret of a new token.
async fn change(
    registry: &Registry,
    caller: &Caller,
    robot: &str,
    form: &Form,
) -> Result<Option<Secret>, Failure> {
    match form.get("change") {
        "create-token" | "rotate-token" | "revoke-token" => {
            return tokens::change(registry, caller, Some(robot), form).await;
        }
        "grant-role" => {
            let target = target(form)?;
            let role = form.get("role").parse().map_err(Failure::UnknownName)?;
            let granted = registry.grant_put(caller, &target, robot, role).await;
            granted.map_err(|error| refused_target(&target, error))?;
        }
        "remove-role" => {
            let target = target(form)?;
            let removed = registry.grant_delete(caller, &target, robot).await;
            removed.map_err(|error| refused_target(&target, error))?;
        }
        "add-publisher" => {
            registry.publisher_create(caller, new_publisher(robot, form)?).await?;
        }
        "remove-publisher" => registry.publisher_delete(caller, Some(robot), form_id(form)?).await?,
        "delete-robot" => {
            if form.get("confirm").trim() != robot {
                return Err(Failure::field("confirm", format!("has to be the robot's name, `{robot}`")));
            }
            registry.account_delete(caller, robot).await?;
        }
        _ => return Err(Failure::Unsupported("the field `change` has an unknown value")),
    }
    Ok(None)
}

fn target(form: &Form) -> Result<AccessTarget, Failure> {
    form.get("target").trim().parse().map_err(Failure::UnknownName)
}

/// Names the target that the caller does not own: the page itself is no secret.
fn refused_target(target: &AccessTarget, error: AccountError) -> Failure {
    match error {
        AccountError::Registry(error) if error.is_refusal() => {
            Failure::field(target.to_string(), "has other owners, who alone change roles there")
        }
        error => error.into(),
    }
}

impl RobotPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        name: &str,
        query: Option<&Query>,
    ) -> Result<RobotPage, Failure> {
        let (robot, namespace) = find(registry, caller, name).await?;
        let granted = registry.robot_grants(caller, name, MAX_ROLES).await?;
        Ok(RobotPage {
            shell: Shell::of(registry, caller).await?,
            tokens: TokenSection::new(registry, caller, Some(name), query).await?,
            publishers: PublisherSection::new(registry, caller, name).await?,
            roles: RoleSection {
                grants: granted.items,
                has_more: granted.more,
                target: AccessTarget::Namespace(namespace.clone()).to_string(),
                role: Role::Write.as_str().to_owned(),
                problem: None,
            },
            namespace: namespace.to_string(),
            url: robot_url(name),
            robot,
            problem: None,
            confirmation: None,
        })
    }

    /// What to ask before a change, unless the form confirms it.
    fn question(&self, form: &Form) -> Option<Confirmation> {
        match form.get("change") {
            "remove-role" if !is_confirmed(form) => Some(Confirmation::new(
                form,
                (&format!("{}#roles", self.url), &format!("{}#roles", self.url)),
                format!("Remove the role on {}?", form.get("target")),
                "Programs that sign in as the robot lose it at once.",
                "Remove the role",
            )),
            _ => self.tokens.question(form).or_else(|| self.publishers.question(form, &self.url)),
        }
    }

    /// Shows what came of a change, in the section of its form. Returns the status of the page.
    fn show(&mut self, form: &Form, changed: Result<Option<Secret>, Failure>) -> StatusCode {
        let change = form.get("change");
        if change.ends_with("-token") {
            return self.tokens.show(form, changed);
        }
        let Err(failure) = changed else { return StatusCode::OK };
        match change {
            "add-publisher" | "remove-publisher" => self.publishers.refuse(form, &failure),
            "grant-role" | "remove-role" => {
                self.roles.target = form.get("target").to_owned();
                if change == "grant-role" {
                    self.roles.role = form.get("role").to_owned();
                }
                self.roles.problem = Some(failure.message());
            }
            _ => self.problem = Some(failure.message()),
        }
        failure.status()
    }
}

impl RoleSection {
    /// The choices of a role, with what each means.
    fn choices(&self) -> [(Role, &'static str); 4] {
        ROLES
    }

    fn is_chosen(&self, role: &Role) -> bool {
        self.role == role.as_str()
    }
}
