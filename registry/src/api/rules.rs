//! `/lode/v1/quotas` and `/lode/v1/protected-tags`.

use axum::extract::State;
use http::StatusCode;
use lode_model::reference::Repository;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Registry;
use crate::app::Quota;
use crate::auth::{AccessTarget, Action, Caller};
use crate::http::{Failure, Json, JsonBody, Query, RequestBody};

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

impl RequestBody for QuotaRequest {
    const ACTION: Action = Action::Administer;
}

impl RequestBody for ProtectedTagsRequest {
    const ACTION: Action = Action::Maintain;
}

pub(crate) async fn quotas(
    State(registry): State<Registry>,
    caller: Caller,
    query: Query,
) -> Result<Json<QuotaList>, Failure> {
    let namespace: Option<Repository> = query.get("namespace").map(str::parse).transpose()?;
    namespace.as_ref().map_or(Ok(()), check_namespace)?;
    Ok(Json(QuotaList { quotas: registry.quota_list(&caller, namespace.as_ref()).await? }))
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

fn check_namespace(name: &Repository) -> Result<(), Failure> {
    match name.as_str().contains('/') {
        true => Err(Failure::Unsupported("a namespace is the first part of its repositories' names")),
        false => Ok(()),
    }
}

pub(crate) async fn protected_tags(
    State(registry): State<Registry>,
    caller: Caller,
    query: Query,
) -> Result<Json<ProtectedTagList>, Failure> {
    let target: Option<AccessTarget> =
        query.get("target").map(str::parse).transpose().map_err(Failure::UnknownName)?;
    let rules: Vec<(AccessTarget, String)> = match target {
        Some(target) => {
            let patterns = registry.tag_rules(&caller, &target).await?;
            patterns.into_iter().map(|pattern| (target.clone(), pattern)).collect()
        }
        None => registry.tag_rules_list(&caller).await?,
    };
    let rules = rules.into_iter().map(|(target, pattern)| ProtectedTag { target, pattern });
    Ok(Json(ProtectedTagList { protected_tags: rules.collect() }))
}

pub(crate) async fn put_protected_tags(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<ProtectedTagsRequest>,
) -> Result<StatusCode, Failure> {
    registry.tag_rules_put(&caller, &body.target, &body.patterns, None).await?;
    Ok(StatusCode::NO_CONTENT)
}
