//! `lode fsck`: the server compares its database with its blob store in both directions. The exit code is the
//! result.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::{
    args::Fsck,
    connect::Connection,
    error::{CANNOT_RUN, FAILED, Outcome},
    job, ui,
};

/// The lists in a report, and the kind of their findings.
const LISTS: [(&str, &str); 3] = [("damage", "damage"), ("orphans", "orphan"), ("uploads", "upload")];

pub(crate) async fn run(connection: &Connection, args: Fsck) -> Outcome<ExitCode> {
    let (mut report, damage) = check(connection, &args).await.map_err(|failure| failure.code(CANNOT_RUN))?;
    if args.json {
        ui::json(&report)?;
    } else {
        let found = report.as_object_mut().and_then(|report| report.remove("damage"));
        super::gc::report_lines(&report)?;
        ui::print_line(format!("damage: {damage}"))?;
        for finding in found.as_ref().and_then(Value::as_array).into_iter().flatten() {
            ui::print_line(format!("  {}", ui::escape_control(&describe_damage(finding))))?;
            for line in [describe_users(finding), advice(finding)] {
                ui::print_line(format!("    {}", ui::escape_control(&line)))?;
            }
        }
    }
    if damage == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.json {
        ui::print_message("error: the registry is damaged\n\nhint: each finding above says how to repair it");
    }
    Ok(ExitCode::from(FAILED))
}

/// What is damaged.
fn describe_damage(finding: &Value) -> String {
    let text = |key: &str| finding[key].as_str().unwrap_or_default();
    let number = |key: &str| finding[key].as_u64().unwrap_or_default();
    let digest = text("digest");
    match text("kind") {
        "missing" => format!("blob {digest}: its file {} is missing from the storage", text("store_key")),
        "wrong_size" => {
            format!(
                "blob {digest}: it has {} in the storage, expected {}",
                ui::counted(number("got"), "byte"),
                number("expected")
            )
        }
        "wrong_digest" => format!("blob {digest}: its stored bytes have the digest {}", text("got")),
        "unreadable" => format!("blob {digest}: its bytes cannot be read: {}", text("reason")),
        "dangling" => {
            let (repository, from) = (text("repository"), text("from"));
            let from = if from == repository { String::new() } else { format!(", named by {from}") };
            format!("{repository}: the {} {digest} is missing{from}", text("what"))
        }
        // A kind of a newer server.
        _ => finding.to_string(),
    }
}

/// The repositories and tags that use the damaged content.
fn describe_users(finding: &Value) -> String {
    let names: Vec<&str> =
        finding["used_by"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let more = if finding["used_by_more"] == true { " and more" } else { "" };
    match names.is_empty() {
        true => "used by: no repository".to_owned(),
        false => format!("used by: {}{more}", names.join(", ")),
    }
}

/// How the damage can be repaired. A push alone does not replace a blob: clients skip blobs that the server lists.
fn advice(finding: &Value) -> String {
    match (finding["kind"].as_str(), finding["used_by"][0].as_str()) {
        (Some("dangling"), Some(name)) => format!("repair: push {name} again, or delete it"),
        (_, Some(_)) => {
            "repair: restore its file from a backup of the storage; without one, delete these names \
            (`lode rm`), and push them again when `lode gc` has deleted the blob"
                .to_owned()
        }
        (_, None) => "repair: none is needed; a collection (`lode gc`) deletes it".to_owned(),
    }
}

/// Returns the report and the number of damage findings. Findings that the server counted but did not store
/// are reported separately.
async fn check(connection: &Connection, args: &Fsck) -> Outcome<(Value, u64)> {
    let registry = connection.default_registry()?;
    let done = job::run(&registry, "lode/v1/fsck", &json!({ "verify": args.verify }), "check").await?;
    let mut report = done.result.clone();
    let count = |list: &str| done.result.get(list).and_then(Value::as_u64);
    for (list, kind) in LISTS {
        let Some(found) = count(list) else { continue };
        let findings = if found > 0 { done.findings(&registry, kind).await? } else { Vec::new() };
        let left_out = found.saturating_sub(findings.len() as u64);
        if let Some(report) = report.as_object_mut() {
            report.insert(list.to_owned(), findings.into());
            if left_out > 0 {
                report.insert(format!("{list}_not_listed"), left_out.into());
            }
        }
    }
    // A report without a damage count is not clean.
    Ok((report, count("damage").unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_described_in_words() {
        let check = |finding: Value, expect: [&str; 3]| {
            assert_eq!([describe_damage(&finding), describe_users(&finding), advice(&finding)], expect);
        };
        check(
            json!({"kind": "missing", "digest": "sha256:1", "store_key": "blobs/1", "used_by": ["a/b:v1", "c"]}),
            [
                "blob sha256:1: its file blobs/1 is missing from the storage",
                "used by: a/b:v1, c",
                "repair: restore its file from a backup of the storage; without one, delete these names (`lode rm`), and push them again when `lode gc` has deleted the blob",
            ],
        );
        check(
            json!({"kind": "wrong_size", "digest": "sha256:1", "expected": 2, "got": 1, "used_by": []}),
            [
                "blob sha256:1: it has 1 byte in the storage, expected 2",
                "used by: no repository",
                "repair: none is needed; a collection (`lode gc`) deletes it",
            ],
        );
        check(
            json!({"kind": "dangling", "what": "manifest of a tag", "repository": "a", "from": "v1", "digest": "sha256:1",
                "used_by": ["a:v1"], "used_by_more": true}),
            [
                "a: the manifest of a tag sha256:1 is missing, named by v1",
                "used by: a:v1 and more",
                "repair: push a:v1 again, or delete it",
            ],
        );
    }
}
