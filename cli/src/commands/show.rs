//! `lode show NAME`: prints a model's metadata from the database of the server.

use serde_json::{Value, json};

use crate::{
    args::Show,
    connect::{Connection, Target},
    error::Outcome,
    ui,
};

/// Maximum number of related models to print; `/lode/v1/lineage` has all of them.
const SHOWN_RELATIVES: usize = 5;

pub(crate) async fn run(connection: &Connection, args: Show) -> Outcome {
    let target = connection.target(&args.name)?;
    if let Some(part) = part(&args) {
        return print_part(&target, part).await;
    }
    let response: Value = target
        .registry
        .json_get(&target.api_path("models"))
        .await
        .map_err(|error| target.not_found(error))?;
    if args.json {
        return ui::json(&response);
    }
    ui::print_line(target.to_string())?;
    for key in [
        "digest",
        "media_type",
        "artifact_type",
        "format",
        "architecture",
        "parameters",
        "quantization",
        "size_bytes",
        "tensors",
        "modified_at",
        "actor",
        "problem",
    ] {
        let Some(value) = response.get(key) else { continue };
        let shown = match (key, value) {
            (_, Value::Null) => continue,
            ("size_bytes", Value::Number(number)) => number.as_u64().map(ui::format_size).unwrap_or_default(),
            ("parameters", Value::Number(number)) => {
                format!("{number} ({})", number.as_u64().map(ui::format_count).unwrap_or_default())
            }
            (_, Value::String(text)) => ui::escape_control(text).into_owned(),
            (_, Value::Array(items)) => items.len().to_string(),
            (_, other) => other.to_string(),
        };
        let label = match key {
            "size_bytes" => "size",
            "modified_at" => "modified",
            "actor" => "pushed by",
            "media_type" => "media type",
            "artifact_type" => "artifact type",
            key => key,
        };
        ui::print_line(format!("  {label:<14}{shown}"))?;
    }
    if let Some(Value::Object(config)) = response.get("config") {
        ui::print_line("  config")?;
        for (key, value) in config {
            let shown = match value {
                Value::String(text) => ui::escape_control(text).into_owned(),
                other => other.to_string(),
            };
            let shown: String = if shown.chars().count() > 80 {
                shown.chars().take(79).chain(['…']).collect()
            } else {
                shown
            };
            ui::print_line(format!("    {key:<28}{shown}"))?;
        }
    }
    if let Some(Value::Array(layers)) = response.get("layers") {
        ui::print_line(format!("  {:<14}{}", "layers", layers.len()))?;
    }
    // Older servers do not have this endpoint.
    match target.registry.json_get::<Value>(&target.api_path("lineage")).await {
        Ok(lineage) => show_lineage(&lineage),
        Err(_) => Ok(()),
    }
}

/// Prints a line for each model that this one is derived from, and for each that shares blobs with it.
fn show_lineage(lineage: &Value) -> Outcome {
    let list = |key: &str| lineage.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    for ancestor in list("from") {
        let name =
            [text(&ancestor, "name"), text(&ancestor, "digest")].into_iter().find(|name| !name.is_empty());
        let here = text(&ancestor, "here");
        let here = if here.is_empty() { here } else { format!(" (here: {here})") };
        let (relation, source) = (text(&ancestor, "relation"), text(&ancestor, "source"));
        let label = relation_label(&relation);
        ui::print_line(format!("  {label:<14}{}{here}, according to {source}", name.unwrap_or_default()))?;
    }
    for relative in list("relatives").iter().take(SHOWN_RELATIVES) {
        let name = format!("{}:{}", text(relative, "repository"), text(relative, "tag"));
        let shared = relative.get("bytes_shared").and_then(Value::as_u64).unwrap_or_default();
        ui::print_line(format!("  {:<14}{} with {name}", "shares", ui::format_size(shared)))?;
    }
    Ok(())
}

/// The relation to the other model.
fn relation_label(relation: &str) -> &str {
    match relation {
        "finetune" => "tuned from",
        "adapter" => "adapter of",
        "quantized" => "quantises",
        "merge" => "merged from",
        "subject" => "about",
        "source" => "published at",
        relation => relation,
    }
}

/// The part that a flag selects.
fn part(args: &Show) -> Option<&'static str> {
    [
        ("modelfile", args.modelfile),
        ("template", args.template),
        ("system", args.system),
        ("parameters", args.parameters),
        ("license", args.license),
    ]
    .into_iter()
    .find_map(|(part, is_selected)| is_selected.then_some(part))
}

async fn print_part(target: &Target, part: &str) -> Outcome {
    let response: Value = target
        .registry
        .json_post("lode/v1/show", &json!({ "model": target.model() }))
        .await
        .map_err(|error| target.not_found(error))?;
    let text = response.get(part).and_then(Value::as_str).unwrap_or_default();
    ui::print_bytes(text.as_bytes())?;
    if !text.is_empty() && !text.ends_with('\n') {
        ui::print_bytes(b"\n")?;
    }
    Ok(())
}
