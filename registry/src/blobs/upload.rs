//! What the storage needs to continue an upload. The database keeps it in the upload's row.

use uuid::Uuid;

/// The stored bytes of an upload in progress.
#[derive(Clone, Debug)]
pub(crate) struct StoredUpload {
    pub(crate) id: Uuid,
    pub(crate) store_key: String,
    /// Every byte before it is durable.
    pub(crate) offset: u64,
    pub(crate) progress: UploadProgress,
}

/// What object storage needs to continue an upload: the id of a multipart upload, and the state of `blobs` as
/// JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UploadProgress {
    pub(crate) multipart_id: Option<String>,
    pub(crate) parts: Option<String>,
}

/// The result of a checkpoint: the notes for the upload's row, the new object, and the object that is
/// obsolete once the row has the notes.
#[derive(Default)]
pub(crate) struct Checkpoint {
    pub(crate) progress: UploadProgress,
    pub(crate) fresh: Option<String>,
    pub(crate) obsolete: Option<String>,
}
