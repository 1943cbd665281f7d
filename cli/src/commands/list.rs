//! `lode list [REPOSITORY]`: lists the models in a registry, one line per tag.

use lode_client::Registry;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{args::List, connect::Connection, error::Outcome, table::Table, times::show_time, ui};

/// The status of a model that the server has indexed.
const READY: &str = "ready";

#[derive(Deserialize, Serialize)]
struct ListResponse {
    models: Vec<Map<String, Value>>,
}

/// Whether the server has accounts, and no credentials are saved for it.
async fn needs_login(registry: &Registry) -> bool {
    let me = registry.json_get::<Value>("lode/v1/me").await;
    matches!(me, Err(lode_client::Error::Unauthorized { .. }))
}

pub(crate) async fn run(connection: &Connection, args: List) -> Outcome {
    let (registry, below) = match &args.repository {
        Some(name) => {
            let (registry, repository) = connection.repository(name)?;
            (registry, Some(repository))
        }
        None => (connection.default_registry()?, None),
    };
    let mut response = ListResponse { models: Vec::new() };
    let mut pages = registry.json_pages("lode/v1/models");
    while let Some(page) = pages.next::<ListResponse>().await? {
        response.models.extend(page.models);
    }
    if let Some(below) = &below {
        response.models.retain(|model| {
            let repository = text(model, "repository");
            repository == below.as_str()
                || repository.strip_prefix(below.as_str()).is_some_and(|rest| rest.starts_with('/'))
        });
    }
    if args.json {
        return ui::json(&response);
    }
    if response.models.is_empty() {
        match &below {
            _ if needs_login(&registry).await => {
                let host = registry.host();
                ui::print_message(format!(
                    "no public models; `lode login {host}` shows those that you may see"
                ));
            }
            Some(below) => ui::print_message(format!("no models in {below} or below it")),
            None => ui::print_message("no models yet: `lode create NAME FOLDER` imports one"),
        }
        return Ok(());
    }
    let rows: Vec<Vec<String>> = response.models.iter().map(row).collect();
    let head = [
        "NAME",
        "DIGEST",
        "SIZE",
        "FORMAT",
        "ARCHITECTURE",
        "PARAMETERS",
        "QUANTIZATION",
        "MODIFIED",
        "STATUS",
    ];
    // The status matters only if a model is not ready.
    let is_ready = rows.iter().all(|row| row.last().is_some_and(|status| status == READY));
    let optional = match is_ready {
        true => ["STATUS", "FORMAT", "DIGEST", "ARCHITECTURE", "QUANTIZATION", "PARAMETERS", "MODIFIED"],
        false => ["FORMAT", "DIGEST", "ARCHITECTURE", "QUANTIZATION", "PARAMETERS", "MODIFIED", "STATUS"],
    };
    Table::new(&head, &rows).optional(&optional).wide(args.wide).print()
}

fn row(model: &Map<String, Value>) -> Vec<String> {
    let tag = text(model, "tag");
    let name = if tag.is_empty() {
        text(model, "repository")
    } else {
        format!("{}:{tag}", text(model, "repository"))
    };
    let number = |key: &str, show: fn(u64) -> String| {
        model.get(key).and_then(Value::as_u64).map(show).unwrap_or_default()
    };
    vec![
        name,
        ui::short_digest(&text(model, "digest")),
        number("size_bytes", ui::format_size),
        text(model, "format"),
        text(model, "architecture"),
        number("parameters", ui::format_count),
        text(model, "quantization"),
        show_time(&text(model, "modified_at")),
        status(model).to_owned(),
    ]
}

/// `pending`: the server has not indexed the model yet. `problem`: indexing failed; `lode show` has the
/// reason.
fn status(model: &Map<String, Value>) -> &'static str {
    let is_pending = model.get("pending").and_then(Value::as_bool).unwrap_or_default();
    match (is_pending, model.contains_key("problem")) {
        (true, _) => "pending",
        (false, true) => "problem",
        (false, false) => READY,
    }
}

fn text(model: &Map<String, Value>, key: &str) -> String {
    model.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}
