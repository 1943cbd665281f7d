//! `/-/admin/audit`: the audit log, newest first, for operators.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;

use super::AdminTab;
use crate::Registry;
use crate::app::{AuditFilter, AuditRecord};
use crate::http::Query;
use crate::http::pages::Visitor;
use crate::hub::format::query as escape;
use crate::hub::page::{Shell, framed, render};

const URL: &str = "/-/admin/audit";
const PAGE: u32 = 50;
/// The longest detail on the page, in characters.
const MAX_DETAIL_CHARS: usize = 200;

#[derive(Template)]
#[template(path = "admin_audit.html")]
struct AuditLogPage {
    shell: Shell,
    tab: AdminTab,
    records: Vec<AuditRecord>,
    /// What the records have, or empty.
    actor: String,
    action: String,
    target: String,
    outcome: String,
    /// The address of the next page.
    next: Option<String>,
    is_first: bool,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    Visitor(caller): Visitor,
    query: Query,
) -> Response {
    let page = async {
        let text = |name: &str| query.get(name).unwrap_or_default().trim().to_owned();
        let (actor, action, target, outcome) =
            (text("actor"), text("action"), text("target"), text("outcome"));
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let filter = AuditFilter {
            actor: given(&actor),
            action: given(&action),
            target: given(&target),
            outcome: given(&outcome),
            since: None,
            before: query.get("last").map(str::to_owned),
        };
        let found = registry.audit_list(&caller, &filter, PAGE).await?;
        let mut page = AuditLogPage {
            shell: Shell::of(&registry, &caller).await?,
            tab: AdminTab::Audit,
            records: Vec::new(),
            actor,
            action,
            target,
            outcome,
            next: None,
            is_first: filter.before.is_none(),
        };
        let last = found.items.last().filter(|_| found.more);
        page.next = last.map(|last| format!("{}&last={}", page.first(), escape(&last.id)));
        page.records = found.items;
        Ok(render(StatusCode::OK, &page))
    };
    framed(&registry, &caller, page).await
}

impl AuditLogPage {
    /// The address of the first page with the same filters.
    fn first(&self) -> String {
        let AuditLogPage { actor, action, target, outcome, .. } = self;
        let fields = [("actor", actor), ("action", action), ("target", target), ("outcome", outcome)];
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
        format!("{URL}?{}", fields.join("&"))
    }

    fn is_filtered(&self) -> bool {
        [&self.actor, &self.action, &self.target, &self.outcome].iter().any(|text| !text.is_empty())
    }

    /// The beginning of what the record says in addition to its target.
    fn detail(&self, record: &AuditRecord) -> Option<String> {
        let text = record.detail.as_ref().filter(|detail| !detail.is_null())?.to_string();
        Some(text.chars().take(MAX_DETAIL_CHARS).collect())
    }
}
