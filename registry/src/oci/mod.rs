//! `/v2`: the OCI distribution API, one noun per file, and its error envelope.
//! Handlers translate the request, call the registry once, and translate the result.

pub(crate) mod blobs;
pub(crate) mod catalog;
pub(crate) mod error;
pub(crate) mod manifests;
pub(crate) mod referrers;
pub(crate) mod support;
pub(crate) mod tags;
pub(crate) mod token;
pub(crate) mod uploads;

use http::HeaderName;

pub(crate) const DOCKER_UPLOAD_UUID: HeaderName = HeaderName::from_static("docker-upload-uuid");
pub(crate) const OCI_FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");
pub(crate) const OCI_SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
pub(crate) const OCI_TAG: HeaderName = HeaderName::from_static("oci-tag");

/// The maximum number of entries per page of a listing, whatever `n` is; a `Link` header points to the next
/// page.
pub(crate) const MAX_PAGE: u32 = 10_000;
