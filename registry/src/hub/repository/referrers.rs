//! `GET /{name}/-/referrers`: the manifests that describe another one, such as signatures and attestations.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use lode_model::digest::Digest;

use super::{Head, Tab, show_queried};
use crate::Registry;
use crate::auth::Caller;
use crate::http::{Path, Query};
use crate::hub::format::bytes;
use crate::hub::page::{Shell, browse, render_browsed};

const PAGE: u32 = 100;
/// The most annotations of one referrer that are shown.
const MAX_ANNOTATIONS: usize = 12;
/// The longest shown value of an annotation.
const MAX_VALUE_CHARS: usize = 200;

#[derive(Template)]
#[template(path = "referrers.html")]
struct ReferrersPage {
    shell: Shell,
    head: Head,
    referrers: Vec<ReferrerLine>,
    next: Option<String>,
}

struct ReferrerLine {
    digest: Digest,
    kind: String,
    size: String,
    annotations: Vec<(String, String)>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let shown = show_queried(&registry, &caller, &name, &query).await?;
        let after = query.digest("after")?;
        let (repository, digest) = (&shown.repository, &shown.model.digest);
        let page = registry.referrers(&caller, repository, digest, None, after.as_ref(), PAGE).await?;
        let next = page.items.last().filter(|_| page.more).map(|last| last.digest.to_string());
        let referrers = page.items.into_iter().map(|referrer| ReferrerLine {
            kind: referrer.artifact_type.unwrap_or(referrer.media_type),
            size: bytes(referrer.size_bytes),
            annotations: referrer
                .annotations
                .into_iter()
                .take(MAX_ANNOTATIONS)
                .map(|(key, value)| (key, value.chars().take(MAX_VALUE_CHARS).collect()))
                .collect(),
            digest: referrer.digest,
        });
        Ok(render_browsed(&ReferrersPage {
            shell: Shell::of(&registry, &caller).await?,
            head: shown.head(Tab::Referrers),
            referrers: referrers.collect(),
            next,
        }))
    };
    browse(&registry, &caller, page).await
}
