//! `GET /{name}/-/diff/{a}..{b}`: what differs between two models, by layer. Which tensors are stored as the same bytes
//! is known without reading them; `lode diff` compares their values.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use lode_model::reference::{Name, Reference, Repository};

use super::{Head, Tab};
use crate::Registry;
use crate::app::{DiffSide, DiffStatus, TensorDiff};
use crate::auth::Caller;
use crate::card::encode_path;
use crate::http::pages::redirect;
use crate::http::{Failure, Path, Query};
use crate::hub::format::{bytes, shape};
use crate::hub::page::{Shell, browse, render_browsed};

/// The most tensors that are listed.
const MAX_LISTED: usize = 500;
/// The most layers in the picture.
const MAX_LAYERS: usize = 400;
/// The width of a bar's picture, in its own units.
const WIDTH: u64 = 100;

#[derive(Template)]
#[template(path = "diff.html")]
struct DiffPage {
    shell: Shell,
    head: Head,
    from: String,
    to: String,
    lines: Vec<(&'static str, u64)>,
    sizes: Vec<(&'static str, String)>,
    layers: Vec<LayerBar>,
    changed: Vec<ChangedLine>,
    hidden: usize,
    is_model: bool,
}

/// How many bytes of a layer are the same, differ, or are in one model only.
struct LayerBar {
    name: String,
    same_width: u64,
    changed_width: u64,
    only_width: u64,
    text: String,
}

struct ChangedLine {
    name: String,
    status: &'static str,
    here: String,
    there: String,
}

/// `GET /{name}/-/diff?from=a&to=b`: what the form of two tags sends.
pub(crate) async fn begin(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let repository: Repository = name.parse()?;
        registry.default_tag(&caller, &repository).await?;
        let side = |name: &'static str| {
            let text =
                query.get(name).ok_or(Failure::QueryMissing { name, expected: "a tag or a digest" })?;
            Ok::<_, Failure>(text.parse::<Reference>()?)
        };
        let (from, to) = (side("from")?.to_string(), side("to")?.to_string());
        Ok(redirect(&format!("/{repository}/-/diff/{}..{}", encode_path(&from), encode_path(&to))))
    };
    browse(&registry, &caller, page).await
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path((name, range)): Path<(String, String)>,
) -> Response {
    let page = async {
        let repository: Repository = name.parse()?;
        let (from, (other, to)) = parse_range(&repository, &range).ok_or(Failure::PageUnknown)?;
        let outline = registry.model_diff_outline(&caller, (&repository, &from), (&other, &to)).await?;
        let (records, total) = outline.ok_or(Failure::PageUnknown)?;
        let differing: Vec<&TensorDiff> =
            records.iter().filter(|record| record.status != DiffStatus::Same).collect();
        let to = if other == repository { to.to_string() } else { name_of(&other, &to) };
        Ok(render_browsed(&DiffPage {
            shell: Shell::of(&registry, &caller).await?,
            head: Head::of_repository(&registry, &caller, &repository, (Some(&from.to_string()), Tab::None))
                .await?,
            from: from.to_string(),
            to,
            is_model: !records.is_empty(),
            lines: vec![
                ("Stored as the same bytes", total.same),
                ("Different", total.changed),
                ("Only in the first", total.only_here),
                ("Only in the second", total.only_there),
            ],
            sizes: vec![
                ("Size of the first", bytes(total.bytes_here)),
                ("Size of the second", bytes(total.bytes_there)),
                ("Shared", bytes(total.bytes_shared)),
            ],
            layers: layers(&records),
            hidden: differing.len().saturating_sub(MAX_LISTED),
            changed: differing.into_iter().take(MAX_LISTED).map(line).collect(),
        }))
    };
    browse(&registry, &caller, page).await
}

fn name_of(repository: &Repository, reference: &Reference) -> String {
    match reference {
        Reference::Tag(tag) => format!("{repository}:{tag}"),
        Reference::Digest(digest) => format!("{repository}@{digest}"),
    }
}

/// `a..b`, where `b` may be of another repository: `a..team/other:b`. Tags may contain `..`, so the first place at which
/// both sides are valid counts.
fn parse_range(repository: &Repository, text: &str) -> Option<(Reference, (Repository, Reference))> {
    text.match_indices("..").find_map(|(at, _)| {
        let from = text[..at].parse().ok()?;
        let to = &text[at + 2..];
        if let Ok(reference) = to.parse::<Reference>() {
            return Some((from, (repository.clone(), reference)));
        }
        let name = to.parse::<Name>().ok().filter(|name| name.host.is_none())?;
        Some((from, (name.repository, name.reference)))
    })
}

/// The bytes of each layer by status, in the order of the layers.
fn layers(records: &[TensorDiff]) -> Vec<LayerBar> {
    let mut sums: BTreeMap<(u64, String), [u64; 3]> = BTreeMap::new();
    for record in records {
        let size = |side: &Option<DiffSide>| side.as_ref().map_or(0, |side| side.size_bytes);
        let place = match record.status {
            DiffStatus::Same | DiffStatus::SameValues => 0,
            DiffStatus::Changed => 1,
            DiffStatus::OnlyHere | DiffStatus::OnlyThere => 2,
        };
        let sum = &mut sums.entry(layer_of(&record.name)).or_default()[place];
        *sum = sum.saturating_add(size(&record.here).max(size(&record.there)));
    }
    let bar = |((_, name), [same, changed, only]): ((u64, String), [u64; 3])| {
        let total = u128::from(same) + u128::from(changed) + u128::from(only);
        let width = |part: u64| {
            let scaled = u128::from(part) * u128::from(WIDTH) / total.max(1);
            // What is there is visible.
            u64::try_from(scaled).unwrap_or(WIDTH).max(u64::from(part > 0))
        };
        let (changed_width, only_width) = (width(changed), width(only));
        let mut text = Vec::new();
        for (part, what) in [(same, "the same"), (changed, "different"), (only, "in one model only")] {
            if part > 0 {
                text.push(format!("{} {what}", bytes(part)));
            }
        }
        LayerBar {
            name,
            same_width: WIDTH.saturating_sub(changed_width + only_width),
            changed_width,
            only_width,
            text: text.join(", "),
        }
    };
    sums.into_iter().take(MAX_LAYERS).map(bar).collect()
}

/// The layer of a tensor, by the first number in its name; tensors outside of layers come first.
fn layer_of(name: &str) -> (u64, String) {
    let mut begin = 0;
    for part in name.split('.') {
        if let Ok(number) = part.parse::<u64>()
            && part.len() <= 6
        {
            return (number + 1, name[..begin + part.len()].to_owned());
        }
        begin += part.len() + 1;
    }
    (0, "outside of layers".to_owned())
}

fn line(record: &TensorDiff) -> ChangedLine {
    let side = |side: &Option<DiffSide>| {
        side.as_ref().map(|side| format!("{} {}", side.dtype, shape(&side.shape))).unwrap_or_default()
    };
    ChangedLine {
        name: record.name.clone(),
        status: match record.status {
            DiffStatus::Same | DiffStatus::SameValues => "the same",
            DiffStatus::Changed => "different",
            DiffStatus::OnlyHere => "only in the first",
            DiffStatus::OnlyThere => "only in the second",
        },
        here: side(&record.here),
        there: side(&record.there),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let repository: Repository = "team/mini".parse().unwrap();
        let check = |text: &str, expect: Option<(&str, &str)>| {
            let parsed = parse_range(&repository, text);
            let parsed = parsed.map(|(from, (other, to))| (from.to_string(), name_of(&other, &to)));
            let expect = expect.map(|(from, to)| (from.to_owned(), to.to_owned()));
            assert_eq!(parsed, expect, "{text}");
        };
        check("v1..v2", Some(("v1", "team/mini:v2")));
        check("v1..team/other:v2", Some(("v1", "team/other:v2")));
        check("v1..other/x", Some(("v1", "other/x:latest")));
        for wrong in ["", "v1", "..", "v1..", "..v2", "v1..UPPER/x", "v1..a.example:5000/x/y", "a b..c"] {
            check(wrong, None);
        }
    }

    #[test]
    fn layers_are_in_their_order() {
        assert_eq!(layer_of("model.layers.12.mlp.weight"), (13, "model.layers.12".to_owned()));
        assert_eq!(layer_of("blk.0.attn_q.weight"), (1, "blk.0".to_owned()));
        assert_eq!(layer_of("lm_head.weight").0, 0);
        assert_eq!(layer_of("").0, 0);
    }
}
