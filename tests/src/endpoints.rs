//! Every kind of client request, with its preparation and the checks after a fault: acknowledged changes are
//! stored, and a request that was not acknowledged succeeds when it is repeated.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use crate::artifact::{Image, descriptor, fresh_seed, random_bytes, referrer, sha256};
use crate::oci::{IMAGE_MANIFEST, Registry, Response, offset_in, with_query};

/// The number of bytes that are acknowledged before a fault, and the number sent during it.
const ACKNOWLEDGED_BYTES: usize = 5_500_000;
const SENT_DURING_FAULT_BYTES: usize = 7_000_000;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// GET of a manifest.
    ManifestGet,
    /// HEAD of a manifest.
    ManifestHead,
    /// GET of a blob.
    BlobGet,
    /// HEAD of a blob.
    BlobHead,
    /// The tags of a repository.
    Tags,
    /// The referrers of a manifest.
    Referrers,
    /// All repositories.
    Catalog,
    /// POST that opens an upload.
    UploadOpen,
    /// PATCH that continues an upload.
    UploadAppend,
    /// PUT that closes an upload with its last bytes.
    UploadFinish,
    /// GET of an upload's status.
    UploadStatus,
    /// DELETE of an upload.
    UploadCancel,
    /// POST of a whole blob.
    BlobPost,
    /// POST that mounts a blob from another repository.
    Mount,
    /// PUT of a new manifest.
    ManifestPut,
    /// PUT of a known manifest under a tag that points elsewhere.
    TagMove,
    /// DELETE of a tag.
    TagDelete,
    /// DELETE of a manifest.
    ManifestDelete,
    /// DELETE of a blob that no manifest names.
    BlobDelete,
    /// POST that starts a garbage collection.
    Collection,
}

/// All kinds of requests.
pub const ALL: [Endpoint; 20] = [
    Endpoint::ManifestGet,
    Endpoint::ManifestHead,
    Endpoint::BlobGet,
    Endpoint::BlobHead,
    Endpoint::Tags,
    Endpoint::Referrers,
    Endpoint::Catalog,
    Endpoint::UploadOpen,
    Endpoint::UploadAppend,
    Endpoint::UploadFinish,
    Endpoint::UploadStatus,
    Endpoint::UploadCancel,
    Endpoint::BlobPost,
    Endpoint::Mount,
    Endpoint::ManifestPut,
    Endpoint::TagMove,
    Endpoint::TagDelete,
    Endpoint::ManifestDelete,
    Endpoint::BlobDelete,
    Endpoint::Collection,
];

/// The requests that change something.
pub const WRITES: [Endpoint; 12] = [
    Endpoint::UploadOpen,
    Endpoint::UploadAppend,
    Endpoint::UploadFinish,
    Endpoint::UploadCancel,
    Endpoint::BlobPost,
    Endpoint::Mount,
    Endpoint::ManifestPut,
    Endpoint::TagMove,
    Endpoint::TagDelete,
    Endpoint::ManifestDelete,
    Endpoint::BlobDelete,
    Endpoint::Collection,
];

/// One request and its test content.
pub struct EndpointCase {
    /// The kind of request.
    pub endpoint: Endpoint,
    repository: String,
    /// Tagged `v1` before the fault, with a referrer.
    image: Image,
    /// Tagged `v2` before the fault.
    other: Image,
    /// Stored before the fault and not referenced by a manifest.
    unreferenced_blob: Vec<u8>,
    /// The complete content of the upload; its first [`ACKNOWLEDGED_BYTES`] bytes are acknowledged before the fault.
    blob: Vec<u8>,
    session: String,
}

/// The response, or why there is none: the connection broke, or the request timed out.
pub type Reply = Result<Response, reqwest::Error>;

impl EndpointCase {
    /// Pushes the content that the request needs to a new repository.
    pub async fn prepare(registry: &Registry, endpoint: Endpoint) -> Self {
        let repository = format!("faults/{:016x}", fresh_seed());
        let (image, other) = (Image::random(fresh_seed(), 1, 50_000), Image::random(fresh_seed(), 1, 3_000));
        image.push(registry, &repository, "v1").await;
        other.push(registry, &repository, "v2").await;
        let note =
            referrer(&descriptor(IMAGE_MANIFEST, &image.manifest), Some("application/x-note"), &json!({}));
        note.push(registry, &repository, &note.digest()).await;
        let loose = random_bytes(fresh_seed(), 2_000);
        registry.blob_push(&repository, &loose).await;
        let mut session = String::new();
        let mut blob = Vec::new();
        use Endpoint::{UploadAppend, UploadCancel, UploadFinish, UploadStatus};
        if [UploadAppend, UploadFinish, UploadStatus, UploadCancel].contains(&endpoint) {
            blob = random_bytes(fresh_seed(), ACKNOWLEDGED_BYTES + SENT_DURING_FAULT_BYTES);
            // Only the path, so that the next request may go to another replica.
            let address = registry.upload_open(&repository).await;
            session = address.trim_start_matches(&registry.url).to_owned();
            registry.upload_append(&session, 0, &blob[..ACKNOWLEDGED_BYTES]).await.expect(202);
        } else if endpoint == Endpoint::BlobPost {
            blob = random_bytes(fresh_seed(), SENT_DURING_FAULT_BYTES);
        }
        Self { endpoint, repository, image, other, unreferenced_blob: loose, blob, session }
    }

    /// Prepares every endpoint.
    pub async fn prepare_all(registry: &Registry) -> Vec<Self> {
        join_all(ALL.map(|endpoint| Self::prepare(registry, endpoint))).await
    }

    /// Sends the request.
    pub async fn send(&self, registry: &Registry, timeout: Duration) -> Reply {
        let repository = &self.repository;
        let manifest = |reference: &str| format!("/v2/{repository}/manifests/{reference}");
        let layer = sha256(&self.image.layers[0]);
        let (method, path) = match self.endpoint {
            Endpoint::ManifestGet => ("GET", manifest("v1")),
            Endpoint::ManifestHead => ("HEAD", manifest(&self.image.digest())),
            Endpoint::BlobGet => ("GET", format!("/v2/{repository}/blobs/{layer}")),
            Endpoint::BlobHead => ("HEAD", format!("/v2/{repository}/blobs/{layer}")),
            Endpoint::Tags => ("GET", format!("/v2/{repository}/tags/list")),
            Endpoint::Referrers => ("GET", format!("/v2/{repository}/referrers/{}", self.image.digest())),
            Endpoint::Catalog => ("GET", "/v2/_catalog".to_owned()),
            Endpoint::UploadOpen => ("POST", format!("/v2/{repository}/blobs/uploads/")),
            Endpoint::UploadAppend => ("PATCH", self.session.clone()),
            Endpoint::UploadFinish => ("PUT", with_query(&self.session, "digest", &sha256(&self.blob))),
            Endpoint::UploadStatus => ("GET", self.session.clone()),
            Endpoint::UploadCancel => ("DELETE", self.session.clone()),
            Endpoint::BlobPost => {
                let path = format!("/v2/{repository}/blobs/uploads/");
                ("POST", with_query(&path, "digest", &sha256(&self.blob)))
            }
            Endpoint::Mount => {
                ("POST", format!("/v2/{repository}/else/blobs/uploads/?mount={layer}&from={repository}"))
            }
            Endpoint::ManifestPut => ("PUT", manifest("v3")),
            Endpoint::TagMove => ("PUT", manifest("v1")),
            Endpoint::TagDelete => ("DELETE", manifest("v1")),
            Endpoint::ManifestDelete => ("DELETE", manifest(&self.image.digest())),
            Endpoint::BlobDelete => {
                ("DELETE", format!("/v2/{repository}/blobs/{}", sha256(&self.unreferenced_blob)))
            }
            Endpoint::Collection => ("POST", "/lode/v1/gc".to_owned()),
        };
        let request = registry.request(method, &path).timeout(timeout);
        let request = match self.endpoint {
            Endpoint::UploadAppend => request
                .header("content-range", format!("{ACKNOWLEDGED_BYTES}-{}", self.blob.len() - 1))
                .body(self.blob[ACKNOWLEDGED_BYTES..].to_vec()),
            Endpoint::UploadFinish => request.body(self.blob[ACKNOWLEDGED_BYTES..].to_vec()),
            Endpoint::BlobPost => request.body(self.blob.clone()),
            Endpoint::ManifestPut => request.header("content-type", IMAGE_MANIFEST).body(self.new_manifest()),
            Endpoint::TagMove => {
                request.header("content-type", IMAGE_MANIFEST).body(self.other.manifest.clone())
            }
            Endpoint::Collection => request.json(&json!({})),
            _ => request,
        };
        registry.try_send(request).await
    }

    /// The status of a request that was carried out.
    #[must_use]
    pub fn success_status(&self) -> u16 {
        match self.endpoint {
            Endpoint::UploadOpen | Endpoint::UploadAppend => 202,
            Endpoint::TagDelete | Endpoint::ManifestDelete | Endpoint::BlobDelete => 202,
            Endpoint::Collection => 202,
            Endpoint::UploadFinish | Endpoint::BlobPost | Endpoint::Mount => 201,
            Endpoint::ManifestPut | Endpoint::TagMove => 201,
            Endpoint::UploadStatus | Endpoint::UploadCancel => 204,
            _ => 200,
        }
    }

    /// Checks the response: either success, or a 503 with Retry-After. Only the body of a blob may break off.
    ///
    /// # Panics
    ///
    /// If the response is different.
    pub fn check_reply(&self, fault: &str, reply: &Reply) {
        let endpoint = self.endpoint;
        match reply {
            Ok(response) if response.status == self.success_status() => {}
            Ok(response) => {
                assert_eq!(response.status, 503, "{fault}: {endpoint:?} returns `{}`", response.text());
                assert!(
                    response.header("retry-after").is_some(),
                    "{fault}: {endpoint:?} returns no Retry-After"
                );
            }
            Err(error) => {
                assert_eq!(endpoint, Endpoint::BlobGet, "{fault}: {endpoint:?} gets no response: {error:?}");
            }
        }
    }

    /// Checks, after the fault, that acknowledged changes are stored and that the repeated request succeeds.
    pub async fn check_recovery(&self, registry: &Registry, response: Option<&Response>) {
        let acknowledged = response.is_some_and(|response| response.status == self.success_status());
        let (repository, what) = (&self.repository, self.endpoint);
        match what {
            Endpoint::UploadAppend | Endpoint::UploadFinish => {
                self.check_upload(registry, acknowledged).await;
            }
            Endpoint::UploadCancel => {
                let gone = registry.delete(&self.session).await.status;
                assert!(gone == 404 || (!acknowledged && gone == 204), "{what:?}: {gone}");
            }
            Endpoint::BlobPost => {
                if !acknowledged && registry.blob_head(repository, &sha256(&self.blob)).await.status == 404 {
                    registry.blob_push(repository, &self.blob).await;
                }
                let response = registry.blob_get(repository, &sha256(&self.blob)).await.expect(200);
                assert!(response.body == self.blob, "{what:?}: the registry returns different bytes");
            }
            Endpoint::ManifestPut | Endpoint::TagMove => {
                let (tag, manifest) = match what {
                    Endpoint::ManifestPut => ("v3", self.new_manifest()),
                    _ => ("v1", self.other.manifest.clone()),
                };
                if !acknowledged {
                    registry.manifest_put(repository, tag, IMAGE_MANIFEST, &manifest).await.expect(201);
                }
                let response = registry.manifest_get(repository, tag).await.expect(200);
                assert!(response.body == manifest, "{what:?}: the registry returns a different manifest");
            }
            Endpoint::TagDelete | Endpoint::ManifestDelete | Endpoint::BlobDelete => {
                let again = self.send(registry, Duration::from_secs(60)).await.expect("a response").status;
                assert!(again == 404 || (!acknowledged && again == 202), "{what:?}: {again} when repeated");
            }
            Endpoint::UploadStatus => {
                assert_eq!(registry.upload_offset(&self.session).await, ACKNOWLEDGED_BYTES as u64);
                self.check_upload(registry, false).await;
            }
            _ => {
                let again = self.send(registry, Duration::from_secs(60)).await.expect("a response");
                assert!(
                    [self.success_status(), 307].contains(&again.status),
                    "{what:?}: {} `{}`",
                    again.status,
                    again.text()
                );
            }
        }
        // Content from before the fault that was not deleted is still there.
        if ![Endpoint::TagMove, Endpoint::TagDelete, Endpoint::ManifestDelete].contains(&what) {
            self.image.check(registry, repository, "v1").await;
        }
        self.other.check(registry, repository, "v2").await;
    }

    /// Checks that the acknowledged bytes of an upload are stored and that the upload can be finished.
    async fn check_upload(&self, registry: &Registry, acknowledged: bool) {
        let (repository, what, digest) = (&self.repository, self.endpoint, sha256(&self.blob));
        let finished = registry.blob_head(repository, &digest).await.status == 200;
        assert!(
            finished || !(acknowledged && what == Endpoint::UploadFinish),
            "{what:?}: an acknowledged blob is lost"
        );
        if !finished {
            let status = registry.get(&self.session).await.expect(204);
            let offset = offset_in(status.header("range").expect("a range")) as usize;
            let least = if acknowledged { self.blob.len() } else { ACKNOWLEDGED_BYTES };
            assert!(
                (least..=self.blob.len()).contains(&offset),
                "{what:?}: {offset} of at least {least} bytes are stored"
            );
            registry.upload_finish(&self.session, &digest, &self.blob[offset..]).await.expect(201);
        }
        let response = registry.blob_get(repository, &digest).await.expect(200);
        assert!(response.body == self.blob, "{what:?}: the registry returns different bytes");
    }

    fn new_manifest(&self) -> Vec<u8> {
        let annotations = json!({ "annotations": { "put": "during a fault" } });
        Image::of(self.image.config.clone(), self.image.layers.clone(), &annotations).manifest
    }
}
