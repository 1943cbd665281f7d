//! `lode ps`: lists the models that are loaded on the workers of a registry.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{args::Ps, connect::Connection, error::Outcome, table::Table, times::show_time, ui};

#[derive(Deserialize, Serialize)]
struct PsResponse {
    models: Vec<Value>,
}

pub(crate) async fn run(connection: &Connection, args: Ps) -> Outcome {
    let registry = connection.default_registry()?;
    let mut response = PsResponse { models: Vec::new() };
    let mut pages = registry.json_pages("lode/v1/ps");
    while let Some(page) = pages.next::<PsResponse>().await? {
        response.models.extend(page.models);
    }
    if args.json {
        return ui::json(&response);
    }
    let loaded = response.models;
    if loaded.is_empty() {
        ui::print_message("no model is loaded");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = loaded
        .iter()
        .map(|model| {
            let text = |key: &str| model.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let number = |key: &str| model.get(key).and_then(Value::as_u64);
            vec![
                text("name"),
                ui::short_digest(&text("digest")),
                number("size").map(ui::format_size).unwrap_or_default(),
                number("context_length").map(|length| length.to_string()).unwrap_or_default(),
                text("device"),
                show_time(&text("expires_at")),
            ]
        })
        .collect();
    Table::new(&["NAME", "DIGEST", "SIZE", "CONTEXT", "DEVICE", "UNLOADED"], &rows)
        .optional(&["DIGEST", "CONTEXT", "DEVICE"])
        .wide(args.wide)
        .print()
}
