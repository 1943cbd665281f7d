//! `lode gc`: one collection, now, on the server. It waits for one that is running.

use serde_json::{Value, json};

use crate::{args::Gc, connect::Connection, error::Outcome, ui};

pub(crate) async fn run(connection: &Connection, args: Gc) -> Outcome {
    let registry = connection.default_registry()?;
    let waiting = ui::Meter::wait("collecting");
    let report: Value = registry.json_post("lode/v1/gc", &json!({ "dry_run": args.dry_run })).await?;
    waiting.end();
    if args.json {
        return ui::json(&report);
    }
    if args.dry_run {
        ui::line("nothing was removed (dry run)")?;
    }
    report_lines(&report)
}

/// A flat report, one `name: value` a line; bytes are shown as sizes, lists one item a line.
pub(crate) fn report_lines(report: &Value) -> Outcome {
    let Value::Object(fields) = report else { return ui::line(report.to_string()) };
    for (key, value) in fields {
        let label = key.strip_suffix("_bytes").unwrap_or(key).replace('_', " ");
        match value {
            Value::Number(number) if key.ends_with("bytes") => {
                ui::line(format!("{label}: {}", number.as_u64().map(ui::size).unwrap_or_default()))?;
            }
            Value::Array(items) => {
                ui::line(format!("{label}: {}", items.len()))?;
                for item in items {
                    ui::line(format!("  {}", item.as_str().map_or_else(|| item.to_string(), str::to_owned)))?;
                }
            }
            Value::String(text) => ui::line(format!("{label}: {text}"))?,
            other => ui::line(format!("{label}: {other}"))?,
        }
    }
    Ok(())
}
