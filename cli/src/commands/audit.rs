//! `lode audit`: the audit log of a server.

use std::time::Duration;

use clap::ValueEnum;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::{
    args::Audit,
    connect::Connection,
    error::{Failure, Outcome},
    table::Table,
    times::{parse_duration, show_time},
    ui,
};

/// How many records one request asks for.
const PAGE: usize = 1000;

pub(crate) async fn run(connection: &Connection, args: Audit) -> Outcome {
    let registry = connection.default_registry()?;
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let (mut rows, mut printed) = (Vec::new(), 0);
    let mut pages = registry.json_pages(first_page(&args, limit)?);
    while printed < limit {
        let Some(mut page) = pages.next::<Value>().await? else { break };
        let Value::Array(records) = page["records"].take() else { break };
        for record in records.into_iter().take(limit - printed) {
            printed += 1;
            match args.json {
                true => ui::json(&record)?,
                false => rows.push(row(&record)),
            }
        }
    }
    match args.json {
        true => Ok(()),
        false => Table::new(&["TIME", "ACTOR", "ACTION", "TARGET", "OUTCOME", "ADDRESS"], &rows)
            .optional(&["ADDRESS", "OUTCOME", "ACTOR"])
            .wide(args.wide)
            .print(),
    }
}

fn first_page(args: &Audit, limit: usize) -> Outcome<String> {
    let mut path = format!("lode/v1/audit?n={}", limit.min(PAGE));
    let mut add = |name: &str, value: &str| {
        path.push_str(&format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
    };
    for (name, value) in [("actor", &args.actor), ("action", &args.action), ("target", &args.target)] {
        if let Some(value) = value {
            add(name, value);
        }
    }
    if let Some(outcome) = args.outcome.and_then(|outcome| outcome.to_possible_value()) {
        add("outcome", outcome.get_name());
    }
    if let Some(text) = &args.since {
        add("since", &time_before(parse_duration(text)?)?);
    }
    Ok(path)
}

fn time_before(ago: Duration) -> Outcome<String> {
    let at = OffsetDateTime::now_utc().checked_sub(ago.try_into().unwrap_or(time::Duration::MAX));
    let text = at.and_then(|at| at.format(&Rfc3339).ok());
    text.ok_or_else(|| Failure::new("the duration of --since is too long"))
}

fn row(record: &Value) -> Vec<String> {
    let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    vec![
        show_time(&text("at")),
        text("actor"),
        text("action"),
        text("target"),
        text("outcome"),
        text("address"),
    ]
}
