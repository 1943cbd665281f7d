//! A model made from one that a registry has: its blobs are named again in the new repository, and only what was said anew is sent.

use std::sync::Arc;

use bytes::Bytes;
use lode_model::{
    digest::Digest,
    import::SmallBlob,
    manifest::{Descriptor, Manifest},
    media_type,
    modelfile::{Base, Derived, Edits, derive},
};

use crate::{
    commands::cp,
    connect::Target,
    error::{Failure, Outcome},
    files::Found,
    send::{Blob, Sent, send_blobs, send_files},
};

/// Configs and options are small.
const MAX_TEXT: u64 = 16 << 20;

/// What was made, and how little moved.
pub(crate) struct Made {
    pub(crate) digest: Digest,
    pub(crate) sent: Sent,
}

/// Makes `target` from the model `base`.
pub(crate) async fn model(target: &Target, base: &Target, edits: &Edits) -> Outcome<Made> {
    let raw = base
        .registry
        .manifest_get(&base.repository, &base.reference)
        .await
        .map_err(|error| base.not_found(error).while_doing("FROM"))?;
    let manifest = Manifest::parse(Some(&raw.media_type), &raw.bytes)
        .map_err(|error| Failure::because(format!("the manifest of {base}"), &error))?;
    // 1. What there is to say it on top of.
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
        named: Some((name, &raw.digest)),
    };
    let derived = derive(&on, edits).map_err(|error| Failure::because(format!("FROM {base}"), &error))?;
    // 2. The base's blobs, by mount. Only from another registry do they travel.
    let shared = cp::blobs(base, target, &manifest).await?;
    // 3. The rest.
    let small = derived.blobs.iter().map(blob).collect();
    let mut sent = send_blobs(&target.registry, &target.repository, small).await?;
    sent.add(shared);
    let digest = publish(target, derived).await?;
    Ok(Made { digest, sent })
}

/// A blob that is held whole, as it is sent.
pub(crate) fn blob(SmallBlob { descriptor, bytes }: &SmallBlob) -> Blob {
    Blob {
        digest: descriptor.digest.clone(),
        size: descriptor.size,
        content: Arc::new(Bytes::from(bytes.clone())),
    }
}

/// Makes a model visible whose blobs are there.
pub(crate) async fn publish(target: &Target, derived: Derived) -> Outcome<Digest> {
    let put = target
        .registry
        .manifest_put(
            &target.repository,
            &target.reference,
            &derived.media_type,
            derived.manifest.into(),
            &[],
        )
        .await?;
    Ok(put.digest)
}

/// Sends the files of adapters, and tells the layers that they are.
pub(crate) async fn extra_files(
    target: &Target,
    kind: &'static str,
    folder: &'static str,
    found: Vec<Found>,
) -> Outcome<(Vec<Descriptor>, Sent)> {
    let (digests, sent) = send_files(&target.registry, &target.repository, &found).await?;
    let layer = |(file, digest): (&Found, Digest)| {
        let kind = if file.name.ends_with(".json") { media_type::OLLAMA_JSON } else { kind };
        let mut layer = Descriptor::new(kind, digest, file.size);
        layer.name = Some(format!("{folder}/{}", file.name));
        layer
    };
    Ok((found.iter().zip(digests).map(layer).collect(), sent))
}
