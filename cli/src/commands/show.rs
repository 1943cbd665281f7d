//! `lode show NAME`: what a model is made of, as the index knows it.

use serde_json::Value;

use crate::{args::Show, connect::Connection, error::Outcome, ui};

pub(crate) async fn run(connection: &Connection, args: Show) -> Outcome {
    let target = connection.target(&args.name)?;
    let answer: Value = target
        .registry
        .json_get(&target.api_path("models"))
        .await
        .map_err(|error| target.not_found(error))?;
    if args.json {
        return ui::json(&answer);
    }
    ui::line(target.to_string())?;
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
        "problem",
    ] {
        let Some(value) = answer.get(key) else { continue };
        let shown = match (key, value) {
            (_, Value::Null) => continue,
            ("size_bytes", Value::Number(number)) => number.as_u64().map(ui::size).unwrap_or_default(),
            ("parameters", Value::Number(number)) => {
                format!("{number} ({})", number.as_u64().map(ui::amount).unwrap_or_default())
            }
            (_, Value::String(text)) => text.clone(),
            (_, Value::Array(items)) => items.len().to_string(),
            (_, other) => other.to_string(),
        };
        let label = match key {
            "size_bytes" => "size",
            "modified_at" => "modified",
            "media_type" => "media type",
            "artifact_type" => "artifact type",
            key => key,
        };
        ui::line(format!("  {label:<14}{shown}"))?;
    }
    if let Some(Value::Object(config)) = answer.get("config") {
        ui::line("  config")?;
        for (key, value) in config {
            let shown = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let shown: String = if shown.chars().count() > 80 {
                shown.chars().take(79).chain(['…']).collect()
            } else {
                shown
            };
            ui::line(format!("    {key:<28}{shown}"))?;
        }
    }
    if let Some(Value::Array(layers)) = answer.get("layers") {
        ui::line(format!("  {:<14}{}", "layers", layers.len()))?;
    }
    Ok(())
}
