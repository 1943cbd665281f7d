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
    let (report, damage) = check(connection, &args).await.map_err(|failure| failure.code(CANNOT_RUN))?;
    if args.json {
        ui::json(&report)?;
    } else {
        super::gc::report_lines(&report)?;
    }
    if damage == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.json {
        ui::print_message(
            "error: the registry is damaged\n\nhint: push the listed content again, or restore it from a backup",
        );
    }
    Ok(ExitCode::from(FAILED))
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
