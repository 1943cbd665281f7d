//! Moves tags, and reports which manifest a moved tag pointed to before, with the command that moves it back.

use bytes::Bytes;
use lode_model::{digest::Digest, reference::Reference};
use serde_json::Value;

use crate::{
    connect::Target,
    error::{Failure, Outcome},
    ui,
};

/// The state of a tag before a command moves it.
pub(crate) struct TagBefore<'a> {
    target: &'a Target,
    /// `None` if the tag is new, or if the registry does not say.
    digest: Option<Digest>,
}

impl<'a> TagBefore<'a> {
    pub(crate) async fn read(target: &'a Target) -> TagBefore<'a> {
        let digest = match &target.reference {
            Reference::Tag(_) => target.registry.manifest_head(&target.repository, &target.reference).await,
            Reference::Digest(_) => Ok(None),
        };
        // If the registry refuses this request, the move itself fails with a better error.
        TagBefore { target, digest: digest.ok().flatten().and_then(|manifest| manifest.digest) }
    }

    /// Prints a message if the tag pointed to another manifest than `digest`, where it points now.
    pub(crate) async fn report(self, digest: &str) {
        let Some(before) = self.digest.map(|before| before.to_string()).filter(|before| before != digest)
        else {
            return;
        };
        let undo = match can_undo(self.target, &before).await {
            true => format!(" (`lode tag undo {}` restores it)", self.target.full_name()),
            false => String::new(),
        };
        ui::print_message(format!("replaced {}{undo}", ui::short_digest(&before)));
    }
}

/// Whether the server can move the tag back to the manifest `before`. Only Lode has a history of tags.
async fn can_undo(target: &Target, before: &str) -> bool {
    let Reference::Tag(tag) = &target.reference else { return false };
    let path = format!("lode/v1/repositories/{}/history?n=1&tag={tag}", target.repository);
    let Ok(history) = target.registry.json_get::<Value>(&path).await else { return false };
    let last = &history["moves"][0];
    last["from"] == before && last["can_move_back"] == true
}

/// Pushes a manifest under the target's reference. Reports the manifest that it replaces.
pub(crate) async fn put_manifest(target: &Target, media_type: &str, bytes: Bytes) -> Outcome<Digest> {
    let before = TagBefore::read(target).await;
    let put = target.registry.manifest_put(&target.repository, &target.reference, media_type, bytes).await;
    let put = put.map_err(|error| Failure::from(error).of_uploads(&target.registry))?;
    before.report(&put.digest.to_string()).await;
    Ok(put.digest)
}
