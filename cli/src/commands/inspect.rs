//! `lode manifest inspect NAME`: shows any manifest, whatever tool pushed it.

use lode_model::{
    manifest::{Descriptor, Manifest},
    media_type,
};
use serde_json::{Value, json};

use crate::{
    args::ManifestInspect,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    table::Table,
    times::show_field,
    ui,
};

pub(crate) async fn run(connection: &Connection, args: ManifestInspect) -> Outcome {
    let target = connection.target(&args.name)?;
    let raw = target
        .registry
        .manifest_get(&target.repository, &target.reference)
        .await
        .map_err(|error| target.not_found(error))?;
    if args.raw {
        return ui::print_bytes(&raw.bytes);
    }
    let invalid =
        |error: &dyn std::error::Error| Failure::with_source(format!("the manifest of {target}"), error);
    let manifest = Manifest::parse(Some(&raw.media_type), &raw.bytes).map_err(|error| invalid(&error))?;
    let referrers = target.registry.referrers(&target.repository, &raw.digest).await?.unwrap_or_default();
    let details = details(&target).await;
    let kind = kind(&manifest, details["format"].as_str());
    let size_bytes = content_size(&manifest);
    if args.json {
        let content: Value = serde_json::from_slice(&raw.bytes).map_err(|error| invalid(&error))?;
        return ui::json(&json!({
            "name": target.model(), "digest": raw.digest, "kind": kind, "media_type": manifest.media_type,
            "artifact_type": manifest.referrer_type(), "size_bytes": size_bytes,
            "modified_at": details["modified_at"], "manifest": content, "referrers": referrers,
        }));
    }
    ui::print_line(target.to_string())?;
    let subject = manifest.subject.as_ref().map(|subject| subject.digest.to_string());
    for (label, value) in [
        ("digest", Some(raw.digest.to_string())),
        ("kind", Some(kind.to_owned())),
        ("media type", Some(manifest.media_type.clone())),
        ("artifact type", manifest.artifact_type.clone()),
        ("size", size_bytes.map(ui::format_size)),
        ("modified", Some(show_field(&details, "modified_at", "")).filter(|text| !text.is_empty())),
        ("set by", details["actor"].as_str().map(str::to_owned)),
        ("subject", subject),
    ] {
        if let Some(value) = value {
            ui::print_line(format!("  {label:<14}{}", ui::escape_control(&value)))?;
        }
    }
    if !manifest.annotations.is_empty() {
        ui::print_line("  annotations")?;
    }
    for (key, value) in &manifest.annotations {
        ui::print_line(format!("    {}: {}", ui::escape_control(key), ui::escape_control(value)))?;
    }
    let layers: Vec<Vec<String>> = manifest
        .config
        .iter()
        .map(|config| row(config, "(config)".to_owned()))
        .chain(manifest.layers.iter().map(|layer| row(layer, layer_name(layer))))
        .collect();
    list(&["DIGEST", "SIZE", "MEDIA TYPE", "NAME"], &layers, args.wide)?;
    let children: Vec<Vec<String>> =
        manifest.manifests.iter().map(|child| row(child, platform(child))).collect();
    list(&["DIGEST", "SIZE", "MEDIA TYPE", "PLATFORM"], &children, args.wide)?;
    let about: Vec<Vec<String>> = referrers
        .iter()
        .map(|referrer| row(referrer, referrer.artifact_type.clone().unwrap_or_default()))
        .collect();
    list(&["REFERRER", "SIZE", "MEDIA TYPE", "ARTIFACT TYPE"], &about, args.wide)
}

fn list(head: &[&str], rows: &[Vec<String>], wide: bool) -> Outcome {
    if rows.is_empty() {
        return Ok(());
    }
    ui::print_line("")?;
    Table::new(head, rows).optional(&["MEDIA TYPE"]).wide(wide).print()
}

fn row(descriptor: &Descriptor, name: String) -> Vec<String> {
    vec![
        ui::short_digest(&descriptor.digest.to_string()),
        ui::format_size(descriptor.size),
        descriptor.media_type.clone(),
        name,
    ]
}

/// The file or the tensor that a layer is.
fn layer_name(layer: &Descriptor) -> String {
    layer.file_path().or(layer.name.as_deref()).unwrap_or_default().to_owned()
}

/// `linux/arm64/v8`, as docker writes it.
fn platform(child: &Descriptor) -> String {
    let Some(platform) = &child.platform else { return String::new() };
    let parts = ["os", "architecture", "variant"].map(|key| platform[key].as_str());
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

/// The total size of config and layers. An index does not know that of its manifests.
fn content_size(manifest: &Manifest) -> Option<u64> {
    let sizes = manifest.config.iter().chain(&manifest.layers).map(|descriptor| descriptor.size);
    (!manifest.is_index()).then(|| sizes.fold(0, u64::saturating_add))
}

/// What Lode knows about the manifest: whether it is a model, and when it changed. Null if the registry is not
/// Lode.
async fn details(target: &Target) -> Value {
    target.registry.json_get(&target.api_path("models")).await.unwrap_or_default()
}

fn kind(manifest: &Manifest, format: Option<&str>) -> &'static str {
    match manifest.referrer_type() {
        _ if format.is_some_and(|format| !format.is_empty()) => "model",
        _ if manifest.is_index() => "index",
        Some(media_type::LODE_MODEL) => "model",
        Some(media_type::OCI_CONFIG | media_type::DOCKER_CONFIG) => "image",
        _ => "artifact",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_written_as_docker_writes_them() {
        let mut child =
            Descriptor::new(media_type::OCI_MANIFEST, lode_model::digest::Digest::sha256(b"x"), 1);
        assert_eq!(platform(&child), "");
        child.platform = Some(json!({"architecture": "arm64", "os": "linux", "variant": "v8"}));
        assert_eq!(platform(&child), "linux/arm64/v8");
        child.platform = Some(json!({"architecture": "amd64", "os": "linux"}));
        assert_eq!(platform(&child), "linux/amd64");
    }
}
