//! `lode show NAME`: prints a model's metadata from the database of the server.

use lode_model::manifest::Manifest;
use lode_model::media_type;
use serde_json::{Value, json};

use crate::{
    args::Show,
    connect::{Connection, Target},
    error::Outcome,
    times::show_field,
    ui,
};

/// Maximum number of related models to print; `/lode/v1/lineage` has all of them.
const SHOWN_RELATIVES: usize = 5;
/// Maximum number of files to name; `/lode/v1/files` has all of them.
const SHOWN_FILES: usize = 8;
/// Annotations that are fields of their own.
const SHOWN_ANNOTATIONS: [&str; 3] =
    [media_type::TITLE_ANNOTATION, media_type::DESCRIPTION_ANNOTATION, media_type::LICENSES_ANNOTATION];
/// The width of the names of fields.
const LABEL_WIDTH: usize = 14;

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
    // Older servers do not have these routes, and only models have a description.
    let optional = async |kind: &str| target.registry.json_get::<Value>(&target.api_path(kind)).await;
    let (description, files, lineage, annotations) =
        tokio::join!(describe(&target), optional("files"), optional("lineage"), annotation_fields(&target));
    let mut fields = model_fields(&response, &description.unwrap_or_default());
    fields.extend(file_field(&files.unwrap_or_default()));
    fields.extend(manifest_fields(&response));
    fields.extend(lineage_fields(&lineage.unwrap_or_default()));
    fields.extend(annotations);
    ui::print_line(target.to_string())?;
    for (label, value) in fields {
        ui::print_line(shorten(&format!("  {label:<LABEL_WIDTH$}{}", ui::escape_control(&value))))?;
    }
    Ok(())
}

type Field = (&'static str, String);

/// What the model is and does.
fn model_fields(response: &Value, description: &Value) -> Vec<Field> {
    let text = |key: &str| response[key].as_str().map(str::to_owned);
    let number = |key: &str, show: &dyn Fn(u64) -> String| response[key].as_u64().map(show);
    let capabilities: Vec<&str> =
        description["capabilities"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let fields = [
        ("architecture", text("architecture")),
        ("parameters", number("parameters", &ui::format_count)),
        ("quantization", text("quantization")),
        ("context", number("context_length", &|length| ui::counted(length, "token"))),
        ("task", text("task")),
        ("capabilities", Some(capabilities.join(", ")).filter(|text| !text.is_empty())),
        ("cannot run", text("cannot_run")),
        ("license", text("license")),
        ("title", text("title")),
        ("description", text("description")),
        ("problem", text("problem")),
    ];
    fields.into_iter().filter_map(|(label, value)| Some((label, value?))).collect()
}

/// The number of files, and the first of their paths.
fn file_field(files: &Value) -> Option<Field> {
    let listed = files["files"].as_array().filter(|files| !files.is_empty())?;
    let paths: Vec<&str> = listed.iter().take(SHOWN_FILES).filter_map(|file| file["path"].as_str()).collect();
    let more = if listed.len() > SHOWN_FILES { ", ..." } else { "" };
    Some(("files", format!("{}: {}{more}", listed.len(), paths.join(", "))))
}

/// How it is stored. `lode manifest inspect` shows media types, the config and the layers.
fn manifest_fields(response: &Value) -> Vec<Field> {
    let text = |key: &str| response[key].as_str().map(str::to_owned);
    let tensors = response["tensor_count"].as_u64().map(|count| ui::counted(count, "tensor"));
    let format = text("format")
        .map(|format| [Some(format), tensors].into_iter().flatten().collect::<Vec<_>>().join(", "));
    let type_of = |content: &Value| content["mediaType"].as_str().map(str::to_owned);
    let config_type = || type_of(&response["config"]).filter(|kind| kind != media_type::OCI_EMPTY);
    let layer_type = || type_of(&response["layers"][0]);
    let kind =
        || text("artifact_type").or_else(config_type).or_else(layer_type).or_else(|| text("media_type"));
    let modified = show_field(response, "modified_at", "");
    let modified = match response["actor"].as_str() {
        Some(actor) => format!("{modified} by {actor}"),
        None => modified,
    };
    let fields = [
        match format {
            Some(format) => ("format", Some(format)),
            None => ("type", kind()),
        },
        ("size", response["size_bytes"].as_u64().map(ui::format_size)),
        ("modified", Some(modified)),
        ("digest", text("digest")),
    ];
    fields.into_iter().filter_map(|(label, value)| Some((label, value?))).collect()
}

/// The annotations of the manifest that no other field shows.
async fn annotation_fields(target: &Target) -> Vec<Field> {
    let Ok(raw) = target.registry.manifest_get(&target.repository, &target.reference).await else {
        return Vec::new();
    };
    let Ok(manifest) = Manifest::parse(Some(&raw.media_type), &raw.bytes) else { return Vec::new() };
    let annotations =
        manifest.annotations.into_iter().filter(|(key, _)| !SHOWN_ANNOTATIONS.contains(&&key[..]));
    annotations.map(|(key, value)| ("annotation", format!("{key}={value}"))).collect()
}

/// Each model that this one is derived from, and some that share blobs with it.
fn lineage_fields(lineage: &Value) -> Vec<Field> {
    let list = |key: &str| lineage[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let origins = list("from").iter().map(|origin| {
        let named = [text(origin, "name"), text(origin, "digest")];
        let name = named.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        let here = text(origin, "here");
        let name = match here.is_empty() {
            true => name,
            false if here.starts_with(&name) => here,
            false => format!("{name} (here: {here})"),
        };
        let source = text(origin, "source");
        (relation_label(&text(origin, "relation")), format!("{name}, according to {source}"))
    });
    let relatives = list("relatives").iter().take(SHOWN_RELATIVES).map(|relative| {
        let shared = relative["bytes_shared"].as_u64().map(ui::format_size).unwrap_or_default();
        ("shares", format!("{shared} with {}:{}", text(relative, "repository"), text(relative, "tag")))
    });
    origins.chain(relatives).collect()
}

/// A line on a terminal has its width at most.
fn shorten(line: &str) -> String {
    match ui::terminal_width() {
        Some(width) if line.chars().count() > width => line.chars().take(width - 1).chain(['…']).collect(),
        _ => line.to_owned(),
    }
}

/// The response of `/api/show`, for names of this server.
async fn describe(target: &Target) -> Result<Value, lode_client::Error> {
    target.registry.json_post("lode/v1/show", &json!({ "model": target.model() })).await
}

/// The relation to the other model.
fn relation_label(relation: &str) -> &'static str {
    match relation {
        "finetune" => "tuned from",
        "adapter" => "adapter of",
        "quantized" => "quantises",
        "merge" => "merged from",
        "subject" => "about",
        "source" => "published at",
        "base" => "derived from",
        _ => "related to",
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
    let response = describe(target).await.map_err(|error| target.not_found(error))?;
    let text = response.get(part).and_then(Value::as_str).unwrap_or_default();
    ui::print_text(text)?;
    if !text.is_empty() && !text.ends_with('\n') {
        ui::print_bytes(b"\n")?;
    }
    Ok(())
}
