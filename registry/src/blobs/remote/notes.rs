//! The notes about an upload's parts in the upload's row.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::blobs::upload::{StoredUpload, UploadProgress};

/// The notes in an upload's row.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PartNotes {
    /// The key of the multipart upload's object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// The storage's id of each part, in order.
    pub(super) etags: Vec<String>,
    /// The key of the bytes after the last part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tail: Option<String>,
    /// Whether the list of parts is final.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) sealed: bool,
}

/// The multipart upload of a row: its key and its id.
pub(super) fn multipart_of(upload: &StoredUpload) -> Result<Option<(String, String)>, Error> {
    let key = notes_of(upload)?.key;
    Ok(key.zip(upload.progress.multipart_id.clone()))
}

pub(super) fn notes_of(upload: &StoredUpload) -> Result<PartNotes, Error> {
    let Some(text) = &upload.progress.parts else { return Ok(PartNotes::default()) };
    serde_json::from_str(text).map_err(|_| corrupt(upload))
}

pub(super) fn corrupt(upload: &StoredUpload) -> Error {
    Error::Corrupt { what: "list of parts", value: upload.id.to_string() }
}

pub(super) fn progress(multipart_id: Option<String>, notes: &PartNotes) -> Result<UploadProgress, Error> {
    let parts = serde_json::to_string(notes).expect("a struct of lists serialises to JSON");
    Ok(UploadProgress { multipart_id, parts: Some(parts) })
}
