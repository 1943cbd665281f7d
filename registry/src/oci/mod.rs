//! `/v2`: the OCI distribution API, one noun a file, and the envelope of its errors.
//! Handlers translate in, call the registry once, and translate out.

pub(crate) mod blobs;
pub(crate) mod catalog;
pub(crate) mod error;
pub(crate) mod manifests;
pub(crate) mod referrers;
pub(crate) mod support;
pub(crate) mod tags;
pub(crate) mod uploads;

use http::HeaderName;

pub(crate) const DOCKER_CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
pub(crate) const DOCKER_UPLOAD_UUID: HeaderName = HeaderName::from_static("docker-upload-uuid");
pub(crate) const OCI_FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");
pub(crate) const OCI_SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
pub(crate) const OCI_TAG: HeaderName = HeaderName::from_static("oci-tag");

/// The most entries that one page of a listing carries, whatever was asked for; a `Link` leads on.
pub(crate) const MAX_PAGE: u32 = 10_000;
