//! The tokens of an account on a page: their list, and the forms that create, replace and revoke them. The pages of
//! a user's own account and of a robot have this section.

use std::time::Duration;

use http::StatusCode;
use lode_client::Secret;
use uuid::Uuid;

use super::confirm::{Confirmation, is_confirmed};
use super::device::rights_text;
use super::format::day;
use crate::Registry;
use crate::app::{AccountError, ListedToken, NewToken, TokenInfo};
use crate::auth::{Access, AccessTarget, Caller, Scope};
use crate::http::pages::Form;
use crate::http::{Failure, Query};
use crate::time::now_ms;

const PAGE: u32 = 50;

/// The values of a page's section about tokens.
pub(super) struct TokenSection {
    /// The address of the page, and that to which the forms are sent.
    pub(super) page: String,
    pub(super) action: String,
    pub(super) lines: Vec<TokenLine>,
    /// The last token of the page, if another page follows.
    pub(super) next: Option<Uuid>,
    pub(super) is_first: bool,
    /// Of a token that was just created.
    pub(super) secret: Option<String>,
    /// What was entered in the form.
    pub(super) name: String,
    pub(super) access: String,
    pub(super) days: String,
    pub(super) problem: Option<String>,
}

pub(super) struct TokenLine {
    pub(super) id: Uuid,
    pub(super) name: String,
    pub(super) last_four: String,
    pub(super) rights: String,
    pub(super) expires: String,
    pub(super) used: String,
    pub(super) is_valid: bool,
    pub(super) is_of_job: bool,
}

impl TokenSection {
    /// The section of the caller's account, or of the robot `owner`, with the tokens that the query of the page names.
    pub(super) async fn new(
        registry: &Registry,
        caller: &Caller,
        owner: Option<&str>,
        query: Option<&Query>,
    ) -> Result<TokenSection, Failure> {
        let (page, action) = match owner {
            Some(robot) => (robot_url(robot), robot_url(robot)),
            None => ("/-/account".to_owned(), "/-/account/tokens".to_owned()),
        };
        let before = query_id(query, "before", "the id of a token")?;
        let found = registry.token_page(caller, owner, before, PAGE).await?;
        let now = now_ms();
        Ok(TokenSection {
            page,
            action,
            next: found.items.last().filter(|_| found.more).map(|token| token.info.id),
            is_first: before.is_none(),
            lines: found.items.into_iter().map(|token| TokenLine::new(token, now)).collect(),
            secret: None,
            name: String::new(),
            access: Access::Write.as_str().to_owned(),
            days: "90".to_owned(),
            problem: None,
        })
    }

    /// What to ask before a token is replaced or revoked, unless the form confirms it.
    pub(super) fn question(&self, form: &Form) -> Option<Confirmation> {
        let (verb, after, button) = match form.get("change") {
            "rotate-token" => ("Replace", "the new token has the same name and limits.", "Replace the token"),
            "revoke-token" => ("Revoke", "it cannot be made valid again.", "Revoke the token"),
            _ => return None,
        };
        let id = form_id(form).ok().filter(|_| !is_confirmed(form))?;
        // The token may be on another page of the list.
        let line = self.lines.iter().find(|line| line.id == id);
        let name = line.map_or_else(|| id.to_string(), |line| line.name.clone());
        let [action, cancel] = [&self.action, &self.page].map(|url| format!("{url}#tokens"));
        let title = format!("{verb} the token {name}?");
        let text = format!("Programs that use it are refused at once, and {after}");
        Some(Confirmation::new(form, (&action, &cancel), title, &text, button))
    }

    /// Shows what came of a change: the new secret, or why the form was refused, with what was entered. Returns the
    /// status of the page.
    pub(super) fn show(&mut self, form: &Form, changed: Result<Option<Secret>, Failure>) -> StatusCode {
        let failure = match changed {
            Ok(secret) => {
                self.secret = secret.map(|secret| secret.expose().to_owned());
                return StatusCode::OK;
            }
            Err(failure) => failure,
        };
        if form.get("change") == "create-token" {
            let fields = [(&mut self.name, "name"), (&mut self.access, "access"), (&mut self.days, "days")];
            for (field, name) in fields {
                form.get(name).clone_into(field);
            }
        }
        self.problem = Some(failure.message());
        failure.status()
    }

    /// The choices of what a token may do.
    pub(super) fn choices(&self) -> [(Access, &'static str); 6] {
        use Access::{Full, Infer, Maintain, Own, Read, Write};
        [Infer, Read, Write, Maintain, Own, Full].map(|access| (access, rights_text(access)))
    }

    pub(super) fn is_chosen(&self, access: &Access) -> bool {
        self.access == access.as_str()
    }
}

impl TokenLine {
    fn new(token: ListedToken, now: i64) -> TokenLine {
        let ListedToken { info, is_of_job } = token;
        let TokenInfo { id, name, last_four, scope, expires_at, used_at, revoked_at, .. } = info;
        TokenLine {
            is_valid: revoked_at.is_none() && expires_at.is_none_or(|at| at > now),
            rights: rights(&scope),
            expires: match (revoked_at, expires_at) {
                (Some(_), _) => "revoked".to_owned(),
                (None, Some(at)) if at <= now => "expired".to_owned(),
                (None, Some(at)) => day(at),
                (None, None) => "never".to_owned(),
            },
            used: used_at.map_or_else(|| "never".to_owned(), day),
            id,
            name,
            last_four,
            is_of_job,
        }
    }
}

/// Creates, replaces or revokes a token of the caller's account, or of `owner`. Returns the secret of a new one.
pub(super) async fn change(
    registry: &Registry,
    caller: &Caller,
    owner: Option<&str>,
    form: &Form,
) -> Result<Option<Secret>, Failure> {
    match form.get("change") {
        "create-token" => {
            let access: Access = form.get("access").parse().map_err(Failure::UnknownName)?;
            let days: u64 = form.get("days").trim().parse().map_err(|_| AccountError::TokenTime)?;
            let new = NewToken {
                name: form.get("name").trim().to_owned(),
                scope: Scope { access, ..Scope::default() },
                valid: Some(Duration::from_secs(days.saturating_mul(24 * 3600))),
            };
            let (_, secret) = registry.token_create(caller, owner, new).await?;
            Ok(Some(secret))
        }
        "rotate-token" => {
            let (_, secret) = registry.token_rotate(caller, owner, form_id(form)?).await?;
            Ok(Some(secret))
        }
        "revoke-token" => {
            registry.token_revoke(caller, owner, form_id(form)?).await?;
            Ok(None)
        }
        _ => Err(Failure::Unsupported("change must be `create-token`, `rotate-token` or `revoke-token`")),
    }
}

/// The address of a robot's page.
pub(super) fn robot_url(robot: &str) -> String {
    format!("/-/robots/{robot}")
}

/// An id in the query of a page.
pub(super) fn query_id(
    query: Option<&Query>,
    name: &'static str,
    expected: &'static str,
) -> Result<Option<Uuid>, Failure> {
    let wrong = |text: &str| Failure::Query { name, value: text.to_owned(), expected };
    let given = query.and_then(|query| query.get(name));
    given.map(|text| text.parse().map_err(|_| wrong(text))).transpose()
}

/// The id in a form.
pub(super) fn form_id(form: &Form) -> Result<Uuid, Failure> {
    form.get("id").parse().map_err(|_| Failure::Id { id: form.get("id").to_owned() })
}

fn rights(scope: &Scope) -> String {
    let text = rights_text(scope.access);
    if scope.targets.is_empty() {
        return text.to_owned();
    }
    let targets: Vec<String> = scope.targets.iter().map(AccessTarget::to_string).collect();
    format!("{text}, in {}", targets.join(", "))
}
