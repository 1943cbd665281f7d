//! `/lode/v1/audit`: the audit log, newest first.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

use super::MAX_PAGE;
use crate::Registry;
use crate::app::{AuditFilter, AuditRecord};
use crate::auth::Caller;
use crate::http::{Failure, Json, Links, Query, page};

#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    records: Vec<AuditRecord>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let text = |name: &str| query.get(name).map(str::to_owned);
    let since = query.get("since").map(|text| {
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| Failure::Query {
            name: "since",
            value: text.to_owned(),
            expected: "a time such as 2026-11-23T18:00:00Z",
        })?;
        Ok::<i64, Failure>((at.unix_timestamp_nanos() / 1_000_000) as i64)
    });
    let filter = AuditFilter {
        actor: text("actor"),
        action: text("action"),
        target: text("target"),
        outcome: text("outcome"),
        since: since.transpose()?,
        before: text("last"),
    };
    let found = registry.audit_list(&caller, &filter, n).await?;
    let next = found.items.last().filter(|_| found.more).map(|last| {
        let n = n.to_string();
        let mut parameters = vec![("n", &n[..]), ("last", &last.id[..])];
        for name in ["actor", "action", "target", "outcome", "since"] {
            parameters.extend(query.get(name).map(|value| (name, value)));
        }
        links.next("/lode/v1/audit", &parameters)
    });
    Ok(page(Json(AuditPage { records: found.items }), next))
}
