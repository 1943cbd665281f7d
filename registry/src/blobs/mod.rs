//! The bytes of blobs and uploads, at keys that only `key` formats: in a folder, or in object storage.
//! `Blobs` dispatches between the two; `app` and `jobs` call it, and only this module uses object_store.
//!
//! Callers see one difference. A folder has one server, which turns an upload into a blob with a hard link.
//! Object storage has any number of servers and no links: a blob keeps its upload's key. The upload's row
//! leads to the leftovers, so it is deleted last.

mod disks;
mod files;
mod folder;
pub(crate) mod key;
mod lock;
mod object;
mod remote;
mod storage;
mod take;
#[cfg(test)]
pub(crate) mod testing_folder;
mod upload;
mod upload_writer;
mod writer;

pub(crate) use lock::{KeyGuard, KeyLock, Locks};
pub use object::BlobStream;
pub(crate) use object::{BlobLocation, ListedObject, PlacedBlob};
#[cfg(test)]
pub(crate) use remote::testing;
pub(crate) use storage::Blobs;
pub use take::BackupMode;
pub(crate) use take::{blob_root, lock_target, take};
pub(crate) use upload::{Checkpoint, StoredUpload, UploadProgress};
pub(crate) use upload_writer::UploadWriter;
pub(crate) use writer::WriteLimit;
