//! `lode search`: the repositories of a registry by words and by the facts of their models.

use clap::ValueEnum;
use lode_model::reference::DEFAULT_TAG;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::{args::Search, connect::Connection, error::Outcome, table::Table, times::show_field, ui};

/// The most repositories of one page.
const MAX_PAGE: usize = 100;

pub(crate) async fn run(connection: &Connection, args: Search) -> Outcome {
    let registry = connection.default_registry()?;
    let mut pages = registry.json_pages(first_page(&args));
    let mut repositories = Vec::new();
    let mut count = Value::Null;
    while repositories.len() < args.limit {
        let Some(mut page) = pages.next::<Value>().await? else { break };
        count = page["count"].take();
        if let Value::Array(found) = page["repositories"].take() {
            repositories.extend(found);
        }
    }
    let has_more = pages.has_more() || repositories.len() > args.limit;
    repositories.truncate(args.limit);
    if args.json {
        return ui::json(&json!({ "repositories": repositories, "count": count }));
    }
    if repositories.is_empty() {
        let hint = if args.all { "" } else { "; `--all` finds repositories without models, too" };
        ui::print_message(format!("no models match on {}{hint}", registry.host()));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = repositories.iter().map(row).collect();
    let head = [
        "NAME",
        "TASK",
        "FORMAT",
        "PARAMETERS",
        "QUANTIZATION",
        "SIZE",
        "LICENSE",
        "PULLS",
        "MODIFIED",
        "DIGEST",
    ];
    let optional = ["DIGEST", "LICENSE", "FORMAT", "PULLS", "QUANTIZATION", "TASK", "MODIFIED", "PARAMETERS"];
    Table::new(&head, &rows).optional(&optional).wide(args.wide).print()?;
    if has_more {
        let all = count.as_u64().map_or("more than 1,000".to_owned(), |count| count.to_string());
        ui::print_message(format!("the first {} of {all}; `--limit COUNT` shows more", repositories.len()));
    }
    Ok(())
}

/// The address of the first page.
fn first_page(args: &Search) -> String {
    let words = args.words.join(" ");
    let sort = args.sort.to_possible_value().map(|value| value.get_name().to_owned());
    let filters = [
        ("q", Some(&words).filter(|words| !words.is_empty())),
        ("task", args.task.as_ref()),
        ("format", args.format.as_ref()),
        ("quant", args.quantization.as_ref()),
        ("arch", args.architecture.as_ref()),
        ("license", args.license.as_ref()),
        ("min", args.min.as_ref()),
        ("max", args.max.as_ref()),
        ("fits", args.fits.as_ref()),
        ("context", args.context.as_ref()),
        ("base", args.base.as_ref()),
        ("sort", sort.as_ref()),
    ];
    let mut path = format!("lode/v1/search?n={}", args.limit.clamp(1, MAX_PAGE));
    for (name, value) in filters {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
        }
    }
    if args.all {
        path.push_str("&all=1");
    }
    path
}

fn row(hit: &Value) -> Vec<String> {
    let text = |key: &str| hit[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str, show: fn(u64) -> String| hit[key].as_u64().map(show).unwrap_or_default();
    let (repository, tag) = (text("repository"), text("tag"));
    let name = if tag == DEFAULT_TAG { repository } else { format!("{repository}:{tag}") };
    let is_pending = hit["pending"].as_bool().unwrap_or_default();
    vec![
        name,
        text("task"),
        if is_pending { "pending".to_owned() } else { text("format") },
        number("parameters", ui::format_count),
        text("quantization"),
        number("size_bytes", ui::format_size),
        text("license"),
        number("pulls_last_30_days", |pulls| pulls.to_string()),
        show_field(hit, "modified_at", ""),
        ui::short_digest(&text("digest")),
    ]
}
