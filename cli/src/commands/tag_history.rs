//! `lode tag history` and `lode tag undo`: how tags were moved, and the way back.

use lode_model::reference::Tag;
use serde_json::{Value, json};

use super::contents::not_found;
use crate::{
    args::{TagHistory, TagUndo},
    connect::Connection,
    error::{Failure, Outcome},
    table::Table,
    times::show_field,
    ui,
};

/// Moves per page.
const PAGE: u32 = 100;
/// The most characters of a commit's title in the table.
const TITLE_CHARS: usize = 50;

pub(crate) async fn history(connection: &Connection, args: TagHistory) -> Outcome {
    let (registry, repository) = connection.repository(&args.repository)?;
    let filter = match &args.tag {
        Some(tag) => {
            let tag: Tag =
                tag.parse().map_err(|error| Failure::with_source(format!("`{tag}` is not a tag"), &error))?;
            format!("&tag={tag}")
        }
        None => String::new(),
    };
    let n = args.limit.min(PAGE);
    let path = format!("lode/v1/repositories/{repository}/history?n={n}{filter}");
    let (mut moves, mut pages) = (Vec::new(), registry.json_pages(path));
    while moves.len() < args.limit as usize {
        let page = pages.next::<Value>().await.map_err(|error| not_found(&registry, error))?;
        let Some(mut page) = page else { break };
        if let Some(Value::Array(found)) = page.get_mut("moves").map(Value::take) {
            moves.extend(found);
        }
    }
    moves.truncate(args.limit as usize);
    if args.json {
        return ui::json(&json!({ "repository": repository, "moves": moves }));
    }
    if moves.is_empty() {
        ui::print_message(format!("no move of a tag of {repository} is recorded"));
        return Ok(());
    }
    let text = |found: &Value, key: &str| found[key].as_str().unwrap_or_default().to_owned();
    let digest = |found: &Value, key: &str, none: &str| match found[key].as_str() {
        Some(digest) => ui::short_digest(digest),
        None => none.to_owned(),
    };
    let rows: Vec<Vec<String>> = moves
        .iter()
        .map(|found| {
            vec![
                found["position"].as_i64().map(|position| position.to_string()).unwrap_or_default(),
                text(found, "tag"),
                show_field(found, "moved_at", ""),
                digest(found, "from", "(new)"),
                digest(found, "to", "(deleted)"),
                if found["can_move_back"] == true { "yes" } else { "no" }.to_owned(),
                text(found, "actor"),
                short_title(&text(found, "message")),
            ]
        })
        .collect();
    Table::new(&["POSITION", "TAG", "MOVED", "FROM", "TO", "UNDO", "BY", "COMMIT"], &rows)
        .optional(&["COMMIT", "BY", "MOVED"])
        .wide(args.wide)
        .print()
}

/// The title of a commit's message, cut if it is long.
fn short_title(message: &str) -> String {
    let title = message.lines().next().unwrap_or_default();
    match title.char_indices().nth(TITLE_CHARS) {
        Some((end, _)) => format!("{}...", &title[..end]),
        None => title.to_owned(),
    }
}

pub(crate) async fn undo(connection: &Connection, args: TagUndo) -> Outcome {
    let (target, tag) = connection.target_tag(&args.name)?;
    let path = format!("lode/v1/repositories/{}/history", target.repository);
    let body = json!({ "tag": tag, "position": args.position });
    let moved: Value = target.registry.json_post(&path, &body).await?;
    if args.json {
        return ui::json(&moved);
    }
    let digest = moved["digest"].as_str().unwrap_or_default();
    ui::print_message(format!("moved {}:{tag} back to {digest}", target.repository));
    Ok(())
}
