//! `/{name}/-/rules`: the protected tags of a repository and its retention rule, for those who maintain it.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::reference::Repository;

use super::{Head, Tab, chosen, page_url};
use crate::Registry;
use crate::app::{AccountError, RetentionPreview, RetentionRemovals};
use crate::auth::{AccessTarget, Caller};
use crate::http::pages::{Form, SignedIn, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};
use crate::hub::format::counted;
use crate::hub::page::{Shell, browse, is_about_form, render};

#[derive(Template)]
#[template(path = "rules.html")]
struct RulesPage {
    shell: Shell,
    head: Head,
    namespace: AccessTarget,
    /// The stored patterns, which the form was made from; one on each line, like all patterns here.
    base: String,
    /// Those in the form.
    patterns: String,
    /// Patterns of the namespace.
    inherited: Vec<String>,
    /// Whether the stored patterns are shown, too: they were changed since the form was made.
    is_changed: bool,
    retention: Option<RetentionPreview>,
    problem: Option<String>,
    is_saved: bool,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let page = RulesPage::new(&registry, &caller, &name.parse()?, &query).await?;
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// Replaces the patterns of protected tags, if they still are those that the form was made from.
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
        let target = AccessTarget::Repository(repository.clone());
        // Checks the caller before the form is read.
        registry.tag_rules(&caller, &target).await?;
        let form = Form::from_request(request, &server).await?;
        let (base, patterns) = (lines(form.get("base")), lines(form.get("patterns")));
        let failure = match registry.tag_rules_put(&caller, &target, &patterns, Some(&base)).await {
            Ok(()) => {
                return Ok(redirect(&page_url(
                    &repository,
                    "rules",
                    &[("saved", Some("patterns")), ("tag", chosen(&query))],
                )));
            }
            Err(error) => Failure::from(error),
        };
        if !is_about_form(&failure) {
            return Err(failure);
        }
        let page = RulesPage::new(registry, &caller, &repository, &query).await?;
        let is_changed = matches!(failure, Failure::Account(AccountError::PatternsChanged { .. }));
        let page = RulesPage {
            patterns: form.get("patterns").replace("\r\n", "\n"),
            // From now on, the form replaces what it shows as stored.
            base: if is_changed { page.base } else { base.join("\n") },
            is_changed,
            problem: Some(failure.message()),
            is_saved: false,
            ..page
        };
        Ok(render(failure.status(), &page))
    };
    browse(registry, &caller, page).await
}

/// The patterns of a field. Empty lines do not count.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

impl RulesPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        query: &Query,
    ) -> Result<RulesPage, Failure> {
        let patterns = registry.repository_tag_rules(caller, repository).await?;
        let retention = registry.retention_preview(caller, repository).await?;
        let base = patterns.own.join("\n");
        Ok(RulesPage {
            shell: Shell::of(registry, caller).await?,
            head: Head::of_repository(registry, caller, repository, (chosen(query), Tab::Rules)).await?,
            namespace: AccessTarget::namespace_of(repository),
            patterns: base.clone(),
            base,
            inherited: patterns.inherited,
            is_changed: false,
            retention,
            problem: None,
            is_saved: query.get("saved").is_some(),
        })
    }
}

impl RetentionPreview {
    /// What the rule says: a name and a value.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if let Some(keep_last) = self.rule.keep_last {
            let newest = counted(u64::from(keep_last), "tag", "tags");
            all.push(("Keeps", format!("the last {newest} to be pushed or moved")));
        }
        if !self.rule.keep.is_empty() {
            all.push(("Always keeps", format!("tags like {}", self.rule.keep.join(", "))));
        }
        if let Some(after) = self.rule.remove_untagged_after {
            let text = match after.is_zero() {
                true => "at once".to_owned(),
                false => format!("after {}", humantime::format_duration(after)),
            };
            all.push(("Removes untagged manifests", text));
        }
        all
    }
}

impl RetentionRemovals {
    /// What is removed, as a sentence has it.
    fn summary(&self) -> String {
        let mut parts = Vec::new();
        if self.tag_count > 0 {
            parts.push(counted(self.tag_count, "tag", "tags"));
        }
        if self.untagged_count > 0 {
            parts.push(counted(self.untagged_count, "untagged manifest", "untagged manifests"));
        }
        match parts.is_empty() {
            true => "nothing".to_owned(),
            false => parts.join(" and "),
        }
    }

    fn has_more_tags(&self) -> bool {
        self.tag_count > self.tags.len() as u64
    }
}
