//! `/lode/v1/quotas` and `/lode/v1/protected-tags`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use lode_model::reference::{Repository, Tag};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::MAX_PAGE;
use crate::Registry;
use crate::app::{Quota, RetentionPreview, RetentionRemovals};
use crate::auth::{AccessTarget, Action, Caller};
use crate::http::{Failure, Json, JsonBody, Links, Path, Query, RequestBody, check_namespace, page, pair};
use crate::time::rfc3339;

/// The most quotas of a page. The blobs of each of the namespaces are added up.
pub(super) const MAX_QUOTAS: u32 = 100;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaRequest {
    namespace: Repository,
    /// Null: no limit.
    limit_bytes: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProtectedTagsRequest {
    target: AccessTarget,
    /// They replace those that the target has.
    patterns: Vec<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct QuotaList {
    quotas: Vec<Quota>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ProtectedTagList {
    protected_tags: Vec<ProtectedTag>,
}

/// A pattern of the protected tags of a target.
#[derive(Serialize, ToSchema)]
struct ProtectedTag {
    target: AccessTarget,
    pattern: String,
}

/// The retention rule of a repository. Its rules are in the settings of the server.
#[derive(Serialize, ToSchema)]
pub(crate) struct Retention {
    repository: Repository,
    /// Null: nothing is removed.
    rule: Option<RuleOfRepository>,
    /// What a collection would remove now; null without a rule, and for a repository with more than 10,000 tags or
    /// manifests.
    removals: Option<Removals>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RetentionRule)]
struct RuleOfRepository {
    /// Of the rule in the settings, counted from 1.
    number: u32,
    /// How many tags to keep, the most recently moved first; null: all.
    keep_last: Option<u32>,
    /// Patterns of tags that are kept at any age.
    keep: Vec<String>,
    /// In seconds; null: never.
    remove_untagged_after: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RetentionRemovals)]
struct Removals {
    /// The first 100, the most recently moved first.
    tags: Vec<RemovedTag>,
    tag_count: u64,
    /// Manifests that have been untagged for too long.
    untagged_count: u64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RetentionTag)]
struct RemovedTag {
    tag: Tag,
    #[schema(format = DateTime)]
    modified_at: String,
}

impl RequestBody for QuotaRequest {
    const ACTION: Action = Action::Administer;
}

impl RequestBody for ProtectedTagsRequest {
    const ACTION: Action = Action::Maintain;
}

pub(crate) async fn quotas(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    if let Some(namespace) = query.get("namespace") {
        let namespace: Repository = namespace.parse()?;
        check_namespace(&namespace)?;
        let quotas = vec![registry.quota_find(&caller, &namespace).await?];
        return Ok(Json(QuotaList { quotas }).into_response());
    }
    let n = query.limit("n")?.unwrap_or(MAX_QUOTAS).clamp(1, MAX_QUOTAS);
    let found = registry.quota_page(&caller, "", query.get("last").unwrap_or_default(), n).await?;
    let last = found.items.last().filter(|_| found.more).map(|quota| quota.namespace.clone());
    let next = last.map(|last| links.next("/lode/v1/quotas", &[("n", &n.to_string()), ("last", &last)]));
    Ok(page(Json(QuotaList { quotas: found.items }), next))
}

pub(crate) async fn put_quota(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<QuotaRequest>,
) -> Result<StatusCode, Failure> {
    check_namespace(&body.namespace)?;
    registry.quota_put(&caller, &body.namespace, body.limit_bytes).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn protected_tags(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let target = query.get("target");
    let of = target.map(str::parse).transpose().map_err(Failure::UnknownName)?;
    let found = registry.tag_rules_page(&caller, of.as_ref(), query.last_pair()?, n).await?;
    let last = found.items.last().filter(|_| found.more);
    let last = last.map(|(last, pattern)| pair(&last.to_string(), pattern));
    let next = last.map(|last| links.after("/lode/v1/protected-tags", n, &last, ("target", target)));
    let rules = found.items.into_iter().map(|(target, pattern)| ProtectedTag { target, pattern });
    Ok(page(Json(ProtectedTagList { protected_tags: rules.collect() }), next))
}

pub(crate) async fn put_protected_tags(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<ProtectedTagsRequest>,
) -> Result<StatusCode, Failure> {
    registry.tag_rules_put(&caller, &body.target, &body.patterns, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn retention(
    State(registry): State<Registry>,
    caller: Caller,
    Path(repository): Path<Repository>,
) -> Result<Json<Retention>, Failure> {
    let preview = registry.retention_preview(&caller, &repository).await?;
    let (rule, removals) = match preview {
        Some(RetentionPreview { number, rule, removals }) => {
            let rule = RuleOfRepository {
                number,
                keep_last: rule.keep_last,
                keep: rule.keep,
                remove_untagged_after: rule.remove_untagged_after.map(|after| after.as_secs()),
            };
            (Some(rule), removals.map(Removals::from))
        }
        None => (None, None),
    };
    Ok(Json(Retention { repository, rule, removals }))
}

impl From<RetentionRemovals> for Removals {
    fn from(removals: RetentionRemovals) -> Removals {
        let RetentionRemovals { tags, tag_count, untagged_count } = removals;
        let tags = tags.into_iter().map(|(tag, at)| RemovedTag { tag, modified_at: rfc3339(at) });
        Removals { tags: tags.collect(), tag_count, untagged_count }
    }
}
