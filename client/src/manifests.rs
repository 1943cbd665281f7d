//! Manifests: read and verified, written and deleted. Bytes are never re-serialised.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use lode_model::{
    digest::{Algorithm, Digest},
    manifest::{Descriptor, MAX_MANIFEST_BYTES},
    media_type,
    reference::{Reference, Repository},
};
use serde::Deserialize;

use crate::{
    Error, Registry,
    auth::Scope,
    pages::VisitedPages,
    registry::next_page,
    response::{read_limited, response_error},
    transport::{Body, Request},
};

/// A manifest as stored in the registry.
#[derive(Debug, Clone)]
pub struct RawManifest {
    /// The exact bytes that were pushed.
    pub bytes: Bytes,
    /// The `Content-Type` of the response, without parameters.
    pub media_type: String,
    /// The computed digest of `bytes`. Equal to the requested digest if there was one.
    pub digest: Digest,
}

/// The metadata of a manifest from a HEAD request.
#[derive(Debug, Clone)]
pub struct ManifestInfo {
    pub media_type: Option<String>,
    pub digest: Option<Digest>,
    pub size_bytes: Option<u64>,
}

/// The registry's response to a pushed manifest.
#[derive(Debug, Clone)]
pub struct ManifestPut {
    /// The digest of the sent bytes.
    pub digest: Digest,
    /// The subject that the registry linked the manifest to (`OCI-Subject`).
    pub subject: Option<Digest>,
}

/// More referrers than any real manifest has; more indicate an endless listing.
const MAX_REFERRERS: usize = 100_000;

/// The `Accept` header. Without it, registries that convert manifests would choose an old format.
const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json, */*;q=0.1";

impl Registry {
    /// Reads the manifest at a tag or digest. The bytes are verified against the requested digest, or else
    /// against the digest in the response.
    pub async fn manifest_get(
        &self,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<RawManifest, Error> {
        let url = self.manifest_url(repository, reference);
        let request = Request::new(Method::GET, url.clone(), Scope::pull(repository))
            .header(header::ACCEPT, HeaderValue::from_static(ACCEPT));
        let response = self.inner().send(&request).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(self.manifest_unknown(repository, reference)),
            _ => return Err(response_error(response, &url).await),
        }
        let announced = digest_header(response.headers());
        let media_type = media_type_header(response.headers()).unwrap_or_default();
        let bytes = Bytes::from(read_limited(response, MAX_MANIFEST_BYTES, &self.server()).await?);
        let expected = match reference {
            Reference::Digest(digest) => Some(digest.clone()),
            Reference::Tag(_) => announced,
        };
        let digest = match expected {
            Some(expected) => {
                let got = Digest::of(expected.algorithm(), &bytes);
                if got != expected {
                    return Err(Error::DigestMismatch { expected, got });
                }
                got
            }
            None => Digest::of(Algorithm::Sha256, &bytes),
        };
        Ok(RawManifest { bytes, media_type, digest })
    }

    /// Returns the descriptors of the manifests whose subject is `digest`. None if the registry does not list
    /// referrers.
    pub async fn referrers(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<Vec<Descriptor>>, Error> {
        #[derive(Deserialize)]
        struct ReferrerList {
            #[serde(default)]
            manifests: Vec<Descriptor>,
        }
        let mut url = self.v2(repository, &format!("referrers/{digest}"));
        let mut found = Vec::new();
        let mut visited = VisitedPages::default();
        loop {
            visited.visit(url.as_str()).map_err(|why| self.protocol(why))?;
            let request = Request::new(Method::GET, url.clone(), Scope::pull(repository));
            let response = self.inner().send(&request).await?;
            match response.status() {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => return Ok(None),
                _ => return Err(response_error(response, &url).await),
            }
            let next = next_page(response.headers(), &url).map(|path| self.join(&path));
            let body = read_limited(response, MAX_MANIFEST_BYTES, &self.server()).await?;
            let list: ReferrerList = self.decode(&body)?;
            found.extend(list.manifests);
            match next {
                Some(next) if found.len() <= MAX_REFERRERS => url = next,
                Some(_) => {
                    return Err(self.protocol(format!("`{digest}` has more than {MAX_REFERRERS} referrers")));
                }
                None => return Ok(Some(found)),
            }
        }
    }

    /// Returns the metadata of a manifest, or `None` if it does not exist.
    pub async fn manifest_head(
        &self,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<ManifestInfo>, Error> {
        let url = self.manifest_url(repository, reference);
        let request = Request::new(Method::HEAD, url.clone(), Scope::pull(repository))
            .header(header::ACCEPT, HeaderValue::from_static(ACCEPT));
        let response = self.inner().send(&request).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            _ => return Err(response_error(response, &url).await),
        }
        let headers = response.headers();
        Ok(Some(ManifestInfo {
            media_type: media_type_header(headers),
            digest: digest_header(headers),
            size_bytes: length_header(headers),
        }))
    }

    /// Stores `bytes` under a tag or their digest.
    pub async fn manifest_put(
        &self,
        repository: &Repository,
        reference: &Reference,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<ManifestPut, Error> {
        let url = self.manifest_url(repository, reference);
        let content_type = HeaderValue::from_str(media_type)
            .map_err(|_| self.protocol(format!("`{media_type}` is not a valid media type")))?;
        let algorithm = match reference {
            Reference::Digest(digest) => digest.algorithm(),
            Reference::Tag(_) => Algorithm::Sha256,
        };
        let digest = Digest::of(algorithm, &bytes);
        if let Reference::Digest(expected) = reference
            && *expected != digest
        {
            return Err(Error::DigestMismatch { expected: expected.clone(), got: digest });
        }
        let mut request = Request::new(Method::PUT, url, Scope::push(repository))
            .header(header::CONTENT_TYPE, content_type);
        request.body = Body::Bytes(bytes);
        let response = self.inner().send_ok(&request).await?;
        let headers = response.headers();
        if let Some(got) = digest_header(headers)
            && got.algorithm() == digest.algorithm()
            && got != digest
        {
            return Err(Error::DigestMismatch { expected: digest, got });
        }
        let subject = headers.get("oci-subject").and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(ManifestPut { digest, subject })
    }

    /// Deletes a tag, or a manifest with all its tags.
    pub async fn manifest_delete(&self, repository: &Repository, reference: &Reference) -> Result<(), Error> {
        let url = self.manifest_url(repository, reference);
        let request = Request::new(Method::DELETE, url.clone(), Scope::delete(repository));
        let response = self.inner().send(&request).await?;
        match response.status() {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND => Err(self.manifest_unknown(repository, reference)),
            _ => Err(response_error(response, &url).await),
        }
    }

    fn manifest_unknown(&self, repository: &Repository, reference: &Reference) -> Error {
        Error::ManifestUnknown {
            server: self.server(),
            repository: repository.clone(),
            reference: Box::new(reference.clone()),
        }
    }
}

pub(crate) fn digest_header(headers: &HeaderMap) -> Option<Digest> {
    headers.get("docker-content-digest")?.to_str().ok()?.parse().ok()
}

pub(crate) fn length_header(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn media_type_header(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(media_type::essence(value).to_owned())
}
