//! `lode gc`: runs a collection on the server, after one that may be running. Lists removals and undoes them.

use lode_model::reference::Name;
use serde_json::{Map, Value, json};

use crate::{
    args::{Gc, GcCommand, GcHistory, GcUndo},
    connect::Connection,
    error::{Failure, Outcome},
    job,
    table::Table,
    times::{show_duration, show_time},
    ui,
};

/// Removals per page.
const PAGE: u32 = 1000;

pub(crate) async fn run(connection: &Connection, args: Gc) -> Outcome {
    match args.command {
        Some(GcCommand::History(args)) => history(connection, args).await,
        Some(GcCommand::Undo(args)) => undo(connection, args).await,
        None => collect(connection, &args).await,
    }
}

async fn collect(connection: &Connection, args: &Gc) -> Outcome {
    let registry = connection.default_registry()?;
    let body = json!({ "dry_run": args.dry_run });
    let done = job::run(&registry, "lode/v1/gc", &body, "collection").await?;
    // Older servers do not have this route.
    let waiting: Value = registry.json_get("lode/v1/gc").await.unwrap_or_default();
    let removals = if args.dry_run { done.findings(&registry, "removal").await? } else { Vec::new() };
    let mut report = done.result;
    if let (Some(report), false) = (report.as_object_mut(), removals.is_empty()) {
        report.insert("removals".to_owned(), removals.into());
    }
    if let (Some(report), true) = (report.as_object_mut(), args.json && waiting.is_object()) {
        report.insert("waiting".to_owned(), waiting.clone());
    }
    if args.json {
        return ui::json(&report);
    }
    if args.dry_run {
        ui::print_line("dry run: nothing was removed")?;
    }
    let removals = report.as_object_mut().and_then(|report| {
        report.shift_remove("dry_run");
        report.remove("removals")
    });
    report_lines(&report)?;
    if let Some(line) = describe_waiting(&waiting) {
        ui::print_line(line)?;
    }
    match removals {
        Some(Value::Array(removals)) if !removals.is_empty() => {
            ui::print_line("")?;
            let rows: Vec<Vec<String>> =
                objects(&removals).map(|r| vec![describe_removal(r), describe_reason(r)]).collect();
            Table::new(&["WOULD REMOVE", "WHY"], &rows).print()
        }
        _ => Ok(()),
    }
}

/// What a later collection deletes, and when. `None` if the server does not say.
fn describe_waiting(waiting: &Value) -> Option<String> {
    let number = |key: &str| waiting[key].as_u64();
    let (manifests, blobs) = (number("manifests")?, number("blobs")?);
    let Some(first) = waiting["first_at"].as_str() else {
        return Some("waiting: nothing".to_owned());
    };
    let at_least = if waiting["is_partial"] == true { "at least " } else { "" };
    let duration = |key: &str| number(key).map(show_duration).unwrap_or_default();
    let undo = match number("undo_seconds") {
        Some(0) | None => String::new(),
        Some(_) => format!("; `lode gc undo` restores a manifest for {} more", duration("undo_seconds")),
    };
    Some(format!(
        "waiting: {at_least}{}, {} and {} ({}) without references\ndeletion: {} after the last reference was removed and after the upload lease, the first at the earliest {}{undo}",
        ui::counted(manifests, "manifest"),
        // Of repositories to blobs. Older servers do not count them.
        ui::counted(number("links").unwrap_or_default(), "link"),
        ui::counted(blobs, "blob"),
        number("size_bytes").map(ui::format_size).unwrap_or_default(),
        duration("grace_seconds"),
        show_time(first),
    ))
}

async fn history(connection: &Connection, args: GcHistory) -> Outcome {
    let (registry, filter) = match &args.repository {
        Some(name) => {
            let name: Name = name
                .parse()
                .map_err(|error| Failure::with_source(format!("`{name}` is not a repository"), &error))?;
            (connection.registry(name.host.as_deref())?, format!("&repository={}", name.repository))
        }
        None => (connection.default_registry()?, String::new()),
    };
    let n = args.limit.min(PAGE);
    let mut all = Vec::new();
    let mut pages = registry.json_pages(format!("lode/v1/gc/removals?n={n}{filter}"));
    while all.len() < args.limit as usize {
        let Some(mut page) = pages.next::<Value>().await? else { break };
        if let Some(Value::Array(removals)) = page.get_mut("removals").map(Value::take) {
            all.extend(removals);
        }
    }
    all.truncate(args.limit as usize);
    if args.json {
        return ui::json(&json!({ "removals": all }));
    }
    if all.is_empty() {
        ui::print_message("no removals");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = objects(&all)
        .map(|r| vec![time(r, "removed_at"), describe_removal(r), describe_reason(r), describe_undo(r)])
        .collect();
    Table::new(&["REMOVED", "WHAT", "WHY", "UNDO"], &rows)
        .optional(&["REMOVED", "WHY"])
        .wide(args.wide)
        .print()
}

async fn undo(connection: &Connection, args: GcUndo) -> Outcome {
    let target = connection.target(&args.name)?;
    let body = json!({ "repository": target.repository, "reference": target.reference.to_string() });
    let restored: Value = target.registry.json_post("lode/v1/gc/undo", &body).await?;
    if args.json {
        return ui::json(&restored);
    }
    for (kind, label) in [("manifests", "manifest"), ("tags", "tag")] {
        for name in restored.get(kind).and_then(Value::as_array).into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            ui::print_message(format!("restored {label} {name} of {}", target.repository));
        }
    }
    Ok(())
}

fn objects(values: &[Value]) -> impl Iterator<Item = &Map<String, Value>> {
    values.iter().filter_map(Value::as_object)
}

fn text<'a>(removal: &'a Map<String, Value>, key: &str) -> &'a str {
    removal.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn time(removal: &Map<String, Value>, key: &str) -> String {
    show_time(text(removal, key))
}

/// Names a removal: a tag by its name, a manifest by the digest that `undo` accepts, a blob by its short
/// digest.
fn describe_removal(removal: &Map<String, Value>) -> String {
    let (repository, digest) = (text(removal, "repository"), text(removal, "digest"));
    match text(removal, "kind") {
        "tag" => format!("{repository}:{}", text(removal, "tag")),
        "manifest" => format!("{repository}@{digest}"),
        kind => format!("{kind} {} {repository}", ui::short_digest(digest)).trim_end().to_owned(),
    }
}

fn describe_reason(removal: &Map<String, Value>) -> String {
    let rule = removal.get("rule").and_then(Value::as_u64).unwrap_or_default();
    match text(removal, "reason") {
        "deleted" => "deleted".to_owned(),
        "unreferenced" => "unreferenced".to_owned(),
        "keep_last" => format!("retention rule {rule}: not among the last tags"),
        "untagged" => format!("retention rule {rule}: untagged for too long"),
        other => other.to_owned(),
    }
}

fn describe_undo(removal: &Map<String, Value>) -> String {
    match (text(removal, "restored_at"), text(removal, "undo_until")) {
        ("", "") => String::new(),
        ("", _) => format!("until {}", time(removal, "undo_until")),
        _ => "restored".to_owned(),
    }
}

/// Prints a flat report as `name: value` lines, with sizes in readable units and lists as one item per line.
pub(crate) fn report_lines(report: &Value) -> Outcome {
    let Value::Object(fields) = report else { return ui::print_line(report.to_string()) };
    for (key, value) in fields {
        let label = key.strip_suffix("_bytes").unwrap_or(key).replace('_', " ");
        match value {
            Value::Number(number) if key.ends_with("bytes") => {
                ui::print_line(format!(
                    "{label}: {}",
                    number.as_u64().map(ui::format_size).unwrap_or_default()
                ))?;
            }
            Value::Array(items) => {
                ui::print_line(format!("{label}: {}", items.len()))?;
                for item in items {
                    ui::print_line(format!(
                        "  {}",
                        item.as_str().map_or_else(|| item.to_string(), str::to_owned)
                    ))?;
                }
            }
            Value::String(text) => ui::print_line(format!("{label}: {text}"))?,
            other => ui::print_line(format!("{label}: {other}"))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_content_is_described_with_its_time() {
        let waiting = json!({"manifests": 1, "links": 5, "blobs": 3, "size_bytes": 8_700_000, "grace_seconds": 86_400,
            "undo_seconds": 3_600, "first_at": "2023-11-14T22:13:20Z"});
        assert_eq!(
            describe_waiting(&waiting),
            Some(format!(
                "waiting: 1 manifest, 5 links and 3 blobs (8.7 MB) without references\ndeletion: 1 day after the last reference was removed and after the upload lease, the first at the earliest {}; `lode gc undo` restores a manifest for 1 hour more",
                show_time("2023-11-14T22:13:20Z")
            ))
        );
        let mut many = waiting;
        many["is_partial"] = true.into();
        assert!(
            describe_waiting(&many).unwrap().starts_with("waiting: at least 1 manifest, 5 links and 3 blobs")
        );
        let nothing = json!({"manifests": 0, "blobs": 0, "size_bytes": 0, "first_at": null});
        assert_eq!(describe_waiting(&nothing).as_deref(), Some("waiting: nothing"));
        assert_eq!(describe_waiting(&Value::Null), None);
    }

    #[test]
    fn removals_read_as_sentences() {
        let check = |removal: Value, expect: [&str; 3]| {
            let removal = removal.as_object().unwrap();
            assert_eq!([describe_removal(removal), describe_reason(removal), describe_undo(removal)], expect);
        };
        let tag = json!({"kind": "tag", "repository": "ci/x", "tag": "7", "digest": "sha256:0123456789abcdef",
            "reason": "keep_last", "rule": 2, "undo_until": "2023-11-14T22:13:20Z"});
        check(
            tag,
            [
                "ci/x:7",
                "retention rule 2: not among the last tags",
                &format!("until {}", show_time("2023-11-14T22:13:20Z")),
            ],
        );
        let manifest = json!({"kind": "manifest", "repository": "x", "digest": "sha256:01", "reason": "deleted",
            "undo_until": "2023-11-14T22:13:20Z", "restored_at": "2023-11-14T22:13:20Z"});
        check(manifest, ["x@sha256:01", "deleted", "restored"]);
        let blob = json!({"kind": "blob", "digest": "sha256:0123456789abcdef", "reason": "unreferenced"});
        check(blob, ["blob 0123456789ab", "unreferenced", ""]);
    }
}
