//! `lode fsck`: the server compares its database with its storage, both ways. The exit code says what it found.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::{
    args::Fsck,
    connect::Connection,
    error::{COULD_NOT, FAILED, Outcome},
    job, ui,
};

/// The lists of a report, and the kinds of findings that they hold.
const LISTS: [(&str, &str); 3] = [("damage", "damage"), ("orphans", "orphan"), ("uploads", "upload")];

pub(crate) async fn run(connection: &Connection, args: Fsck) -> Outcome<ExitCode> {
    let (report, damage) = check(connection, &args).await.map_err(|failure| failure.code(COULD_NOT))?;
    if args.json {
        ui::json(&report)?;
    } else {
        super::gc::report_lines(&report)?;
    }
    if damage == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.json {
        ui::say(
            "error: the registry is damaged\n\nhint: push what is listed again, or restore it from a backup",
        );
    }
    Ok(ExitCode::from(FAILED))
}

/// The report, and how many findings are damage. Findings that the server counted but did not keep are reported separately.
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
    // A report that does not say is no clean one.
    Ok((report, count("damage").unwrap_or(1)))
}
