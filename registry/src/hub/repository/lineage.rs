//! `GET /{name}/-/lineage`: what a model was made from, what was made from it, both for some generations, and what has the
//! same bytes.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use lode_model::reference::Reference;

use super::overview::{page_of, relation_name};
use super::{Head, Tab, show_queried};
use crate::Registry;
use crate::app::{Ancestor, Derivative, Relative};
use crate::auth::Caller;
use crate::http::{Failure, Path, Query};
use crate::hub::page::{Shell, browse, render_browsed};

#[derive(Template)]
#[template(path = "lineage.html")]
struct LineagePage {
    shell: Shell,
    head: Head,
    origins: Vec<OriginRow>,
    derived: Vec<Derivative>,
    relatives: Vec<Relative>,
}

struct OriginRow {
    /// 1: the model itself names it.
    generation: u32,
    relation: &'static str,
    name: String,
    source: &'static str,
    url: Option<String>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let shown = show_queried(&registry, &caller, &name, &query).await?;
        let by_digest = Reference::Digest(shown.model.digest.clone());
        let lineage = registry.model_lineage(&caller, &shown.repository, &by_digest).await?;
        let lineage = lineage.ok_or(Failure::PageUnknown)?;
        let mut origins = Vec::new();
        add_origins(&mut origins, 1, lineage.from);
        Ok(render_browsed(&LineagePage {
            shell: Shell::of(&registry, &caller).await?,
            head: shown.head(Tab::Lineage),
            origins,
            derived: lineage.derived,
            relatives: lineage.relatives,
        }))
    };
    browse(&registry, &caller, page).await
}

/// Adds a row for each origin, followed by those of its own origins.
fn add_origins(rows: &mut Vec<OriginRow>, generation: u32, origins: Vec<Ancestor>) {
    for origin in origins {
        rows.push(OriginRow {
            generation,
            relation: relation_name(origin.relation),
            url: origin.here.as_deref().map(page_of),
            name: origin.name,
            source: origin.source,
        });
        add_origins(rows, generation + 1, origin.from);
    }
}
