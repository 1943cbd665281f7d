//! `lode fsck`: the server compares its index with its storage, both ways. The exit code tells what it found.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::{
    args::Fsck,
    connect::Connection,
    error::{COULD_NOT, FAILED, Outcome},
    ui,
};

pub(crate) async fn run(connection: &Connection, args: Fsck) -> Outcome<ExitCode> {
    let registry = connection.default_registry().map_err(|failure| failure.code(COULD_NOT))?;
    let waiting = ui::Meter::wait("checking");
    let report: Value = registry
        .json_post("lode/v1/fsck", &json!({ "verify": args.verify }))
        .await
        .map_err(|error| crate::error::Failure::from(error).code(COULD_NOT))?;
    waiting.end();
    if args.json {
        ui::json(&report)?;
    } else {
        super::gc::report_lines(&report)?;
    }
    if damage(&report) == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.json {
        ui::say(
            "error: the registry is damaged\n\nhint: push what is listed again, or restore it from a backup",
        );
    }
    Ok(ExitCode::from(FAILED))
}

/// How many findings of a report are damage.
fn damage(report: &Value) -> usize {
    match report.get("damage") {
        Some(Value::Array(found)) => found.len(),
        Some(Value::Number(count)) => count.as_u64().unwrap_or(1) as usize,
        Some(Value::Bool(true)) => 1,
        _ => 0,
    }
}
