//! `GET /{name}/-/tensors/{reference}`: the tensors of a model, folded; with a filter, one by one.

use std::collections::HashMap;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};
use lode_model::tensor::TensorInfo;

use super::tensor_groups::{TensorGroup, TensorLine, group_tensors};
use super::{Head, Tab, show_one};
use crate::Registry;
use crate::auth::Caller;
use crate::http::{Failure, Path, Query};
use crate::hub::format::{bytes, grouped, shape, short};
use crate::hub::page::{Shell, browse, render_browsed};

/// The most tensors that are listed one by one.
const MAX_LISTED: usize = 500;
/// Longer filters are cut.
const MAX_FILTER_CHARS: usize = 200;
/// The most lines of a page: a model may have tensors without a common form.
const MAX_LINES: usize = 2000;

#[derive(Template)]
#[template(path = "tensors.html")]
struct TensorsPage {
    shell: Shell,
    head: Head,
    digest: String,
    filter: String,
    total: usize,
    groups: Vec<TensorGroup>,
    hidden: usize,
    listed: Vec<TensorRow>,
    /// Other models have some of the tensors, too.
    is_shared: bool,
    problem: Option<String>,
}

struct TensorRow {
    name: String,
    dtype: String,
    shape: String,
    size: String,
    blob: String,
    /// The repository of another model that has it, too.
    other: Option<Repository>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path((name, reference)): Path<(String, String)>,
    query: Query,
) -> Response {
    let page = async {
        let shown = show_one(&registry, &caller, (&name, &reference)).await?;
        let by_digest = Reference::Digest(shown.model.digest.clone());
        let tensors = registry.tensor_list(&caller, &shown.repository, &by_digest).await?;
        let tensors = tensors.ok_or(Failure::PageUnknown)?;
        let shared = registry.shared_blobs(&caller, &shown.repository, &shown.model.digest).await?;
        let filter: String =
            query.get("q").unwrap_or_default().trim().chars().take(MAX_FILTER_CHARS).collect();
        let total = tensors.len();
        let (mut groups, mut listed, mut hidden) = (Vec::new(), Vec::new(), 0);
        match filter.is_empty() {
            true => {
                groups = group_tensors(&tensors, &shared);
                let mut left = MAX_LINES;
                for group in &mut groups {
                    hidden += group.lines.len().saturating_sub(left);
                    group.lines.truncate(left);
                    left -= group.lines.len();
                }
                groups.retain(|group| !group.lines.is_empty());
            }
            false => {
                let fits = |tensor: &&TensorInfo| tensor.name.contains(&filter);
                let count = tensors.iter().filter(fits).count();
                hidden = count.saturating_sub(MAX_LISTED);
                listed =
                    tensors.iter().filter(fits).take(MAX_LISTED).map(|tensor| row(tensor, &shared)).collect();
            }
        }
        Ok(render_browsed(&TensorsPage {
            shell: Shell::of(&registry, &caller).await?,
            head: shown.head(Tab::Tensors),
            digest: shown.model.digest.to_string(),
            problem: shown.model.summary.and_then(|summary| summary.problem),
            filter,
            total,
            groups,
            hidden,
            listed,
            is_shared: tensors.iter().any(|tensor| shared.contains_key(&tensor.digest)),
        }))
    };
    browse(&registry, &caller, page).await
}

fn row(tensor: &TensorInfo, shared: &HashMap<Digest, Repository>) -> TensorRow {
    TensorRow {
        name: tensor.name.clone(),
        dtype: tensor.dtype.clone(),
        shape: shape(&tensor.shape),
        size: bytes(tensor.size_bytes),
        blob: short(&tensor.digest),
        other: shared.get(&tensor.digest).cloned(),
    }
}

impl TensorsPage {
    /// How many tensors of a line other models have, too.
    fn shared_text(line: &TensorLine) -> String {
        match line.shared {
            // The page names the other model.
            all if all == 0 || line.count == 1 => String::new(),
            all if all == line.count => "all".to_owned(),
            some => format!("{} of {}", grouped(some), grouped(line.count)),
        }
    }
}
