//! Creates a model from a base model in a registry: mounts the blobs of the base in the new repository and
//! uploads only the new blobs.

use std::sync::Arc;

use bytes::Bytes;
use lode_model::{
    digest::Digest,
    import::SmallBlob,
    manifest::{Descriptor, Manifest},
    media_type,
    modelfile::{Base, Edits, derive},
};

use crate::{
    connect::Target,
    copy::copy_blobs,
    error::{Failure, Outcome},
    files::LocalFile,
    replaced::put_manifest,
    send::{Blob, UploadStats, send_blobs, send_files},
};

/// Limit for the config and parameters of a base model.
const MAX_TEXT: u64 = 16 << 20;

/// A created model and the upload statistics.
pub(crate) struct CreatedModel {
    pub(crate) digest: Digest,
    pub(crate) sent: UploadStats,
}

/// Creates `target` from the model `base`.
pub(crate) async fn model(target: &Target, base: &Target, edits: &Edits) -> Outcome<CreatedModel> {
    let raw = base
        .registry
        .manifest_get(&base.repository, &base.reference)
        .await
        .map_err(|error| base.not_found(error).with_context("FROM"))?;
    let manifest = Manifest::parse(Some(&raw.media_type), &raw.bytes)
        .map_err(|error| Failure::with_source(format!("the manifest of {base}"), &error))?;
    // 1. Read the base model's config and parameters.
    let text = async |blob: &Descriptor| {
        base.registry.blob_bytes(&base.repository, &blob.digest, blob.size.min(MAX_TEXT)).await
    };
    let config = match &manifest.config {
        Some(config) => text(config).await?,
        None => Bytes::new(),
    };
    let params = match manifest.layers.iter().find(|layer| layer.media_type == media_type::OLLAMA_PARAMS) {
        Some(layer) => Some(text(layer).await?),
        None => None,
    };
    let name = base.model();
    let name = name.strip_suffix(":latest").unwrap_or(&name);
    let on = Base {
        manifest: &manifest,
        config: &config,
        params: params.as_deref(),
        origin_name: Some((name, &raw.digest)),
    };
    let derived = derive(&on, edits).map_err(|error| Failure::with_source(format!("FROM {base}"), &error))?;
    // 2. Mount the base's blobs. They are transferred only if the base is in another registry.
    let shared = copy_blobs(base, target, &manifest).await?;
    // 3. Upload the new blobs and the manifest.
    let small = derived.blobs.iter().map(blob).collect();
    let mut sent = send_blobs(target, small).await?;
    sent.add(shared);
    let digest = put_manifest(target, &derived.media_type, derived.manifest.into()).await?;
    Ok(CreatedModel { digest, sent })
}

/// A blob in memory, ready to upload.
pub(crate) fn blob(SmallBlob { descriptor, bytes }: &SmallBlob) -> Blob {
    Blob {
        digest: descriptor.digest.clone(),
        size: descriptor.size,
        content: Arc::new(Bytes::from(bytes.clone())),
    }
}

/// Uploads the files of adapters and returns their layers.
pub(crate) async fn extra_files(
    target: &Target,
    kind: &'static str,
    folder: &'static str,
    found: Vec<LocalFile>,
) -> Outcome<(Vec<Descriptor>, UploadStats)> {
    let (digests, sent) = send_files(target, &found).await?;
    let layer = |(file, digest): (&LocalFile, Digest)| {
        let kind = if file.name.ends_with(".json") { media_type::OLLAMA_JSON } else { kind };
        let mut layer = Descriptor::new(kind, digest, file.size);
        layer.name = Some(format!("{folder}/{}", file.name));
        layer
    };
    Ok((found.iter().zip(digests).map(layer).collect(), sent))
}
