//! The operations that write: every way to push, mounts, tag moves and deletions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::json;

use super::{Body, Failure, INTERRUPTED, PushedImage, SHARED, SHARED_TAGS, Worker, location, locked};
use crate::artifact::{Image, descriptor, random_bytes, sha256};
use crate::oci::{IMAGE_MANIFEST, with_query};

impl Worker {
    pub(super) async fn push(&mut self) -> Result<(), Failure> {
        let repository = if self.random.random_bool(0.5) { self.own_repository() } else { SHARED.to_owned() };
        let image = self.new_image();
        let tag = self.random.random_bool(0.8).then(|| self.own_tag());
        let digest = image.digest();
        let reference = tag.clone().unwrap_or_else(|| digest.clone());
        self.put_image(&repository, &image, &reference).await?;
        self.untag(&repository, tag.as_deref());
        let tags = tag.into_iter().collect();
        self.pushed_images.push(PushedImage {
            repository,
            digest,
            image: Arc::new(image),
            tags,
            referrers: Vec::new(),
        });
        Ok(())
    }

    /// An image with a unique config and some layers of the pool.
    pub(super) fn new_image(&mut self) -> Image {
        self.n_created += 1;
        let config = format!(r#"{{"worker":{},"image":{}}}"#, self.id, self.n_created).into_bytes();
        let n_layers = self.random.random_range(1..=4);
        let mut layers = BTreeSet::new();
        while layers.len() < n_layers {
            // The big layer is rare: it is there for multipart uploads, not for traffic.
            let i = self.random.random_range(0..self.soak.pool.len());
            if i > 0 || self.random.random_bool(0.2) {
                layers.insert(i);
            }
        }
        Image::of(config, layers.iter().map(|i| self.soak.pool[*i].0.clone()).collect(), &json!({}))
    }

    pub(super) fn own_tag(&mut self) -> String {
        format!("w{}-{}", self.id, self.random.random_range(0..8))
    }

    /// Removes a moved tag from the image that had it before.
    pub(super) fn untag(&mut self, repository: &str, tag: Option<&str>) {
        for held in self.pushed_images.iter_mut().filter(|held| held.repository == repository) {
            held.tags.retain(|name| Some(name.as_str()) != tag);
        }
    }

    /// Pushes the blobs, then the manifest, as every client does. An expired lease is not a failure of the
    /// server.
    pub(super) async fn put_image(
        &mut self,
        repository: &str,
        image: &Image,
        reference: &str,
    ) -> Result<(), Failure> {
        for _ in 0..20 {
            let started = Instant::now();
            for blob in image.blobs() {
                self.ensure_blob(repository, blob).await?;
            }
            let path = format!("/v2/{repository}/manifests/{reference}");
            let body = Body::Manifest(image.manifest.clone().into());
            let response = self.send_checked("PUT", &path, body, &[201, 400, 404]).await?;
            if response.status == 201 {
                return Ok(());
            }
            let lapsed = response.code().as_deref() == Some("MANIFEST_BLOB_UNKNOWN")
                && started.elapsed() >= self.soak.lease;
            if !lapsed {
                let after = started.elapsed();
                return Err(format!(
                    "PUT {path} returns {} `{}` {after:?} after the start of its push",
                    response.status,
                    response.text()
                ));
            }
            self.soak.expired_leases.fetch_add(1, Ordering::Relaxed);
        }
        Err(format!("the lease expired in twenty consecutive pushes of {repository}:{reference}"))
    }

    /// Makes sure that a blob is stored, as clients do: with a HEAD, a mount, or an upload.
    pub(super) async fn ensure_blob(&mut self, repository: &str, bytes: &[u8]) -> Result<(), Failure> {
        loop {
            let ensured = self.try_ensure_blob(repository, bytes).await;
            if !ensured.as_ref().is_err_and(|e| e == INTERRUPTED) {
                return ensured;
            }
        }
    }

    async fn try_ensure_blob(&mut self, repository: &str, bytes: &[u8]) -> Result<(), Failure> {
        let digest = sha256(bytes);
        match self.random.random_range(0..10) {
            0..=4 => {
                let path = format!("/v2/{repository}/blobs/{digest}");
                if self.send_checked("HEAD", &path, Body::None, &[200, 404]).await?.status == 200 {
                    return Ok(());
                }
                self.upload(repository, bytes, &digest, None).await
            }
            5..=7 => {
                let from =
                    if self.random.random_bool(0.7) { SHARED.to_owned() } else { self.own_repository() };
                let path = format!("/v2/{repository}/blobs/uploads/?mount={digest}&from={from}");
                let response = self.send_checked("POST", &path, Body::None, &[201, 202]).await?;
                match response.status {
                    201 => Ok(()),
                    _ => {
                        let session = location(&response)?;
                        self.upload(repository, bytes, &digest, Some(session)).await
                    }
                }
            }
            _ => self.upload(repository, bytes, &digest, None).await,
        }
    }

    pub(super) async fn upload(
        &mut self,
        repository: &str,
        bytes: &[u8],
        digest: &str,
        session: Option<String>,
    ) -> Result<(), Failure> {
        let open = format!("/v2/{repository}/blobs/uploads/");
        if session.is_none() && self.random.random_bool(0.4) {
            let path = with_query(&open, "digest", digest);
            self.send_checked("POST", &path, Body::Bytes(bytes.to_vec().into(), None), &[201]).await?;
            return Ok(());
        }
        let mut session = match session {
            Some(session) => session,
            None => location(&self.send_checked("POST", &open, Body::None, &[202]).await?)?,
        };
        // Each chunk goes to a random replica, the last one with the PUT.
        let pieces = self.random.random_range(0..=2usize);
        let size = (bytes.len() / (pieces + 1)).max(1);
        let mut sent = 0;
        for chunk in bytes.chunks(size).take(pieces) {
            let body = Body::Bytes(chunk.to_vec().into(), Some((sent, sent + chunk.len())));
            session = location(&self.send_checked("PATCH", &session, body, &[202]).await?)?;
            sent += chunk.len();
        }
        let path = with_query(&session, "digest", digest);
        self.send_checked("PUT", &path, Body::Bytes(bytes[sent..].to_vec().into(), None), &[201]).await?;
        Ok(())
    }

    /// Mounts a blob that a live manifest of this worker references. The mount must succeed and keep the blob
    /// for the duration of the lease.
    pub(super) async fn mount(&mut self) -> Result<(), Failure> {
        let Some(held) = self.pushed_images.choose(&mut self.random) else { return Ok(()) };
        let (from, layer) = (held.repository.clone(), held.image.layers[0].clone());
        let (digest, to) = (sha256(&layer), format!("{}/mounted", self.own_repository()));
        let started = Instant::now();
        let path = format!("/v2/{to}/blobs/uploads/?mount={digest}&from={from}");
        self.send_checked("POST", &path, Body::None, &[201]).await?;
        let (status, body) = self.fetch_blob(&to, &digest).await?;
        let lost = status == 404 && started.elapsed() >= self.soak.lease;
        if !lost && (status != 200 || body != layer) {
            return Err(format!("{digest}, just mounted in {to}, returns {status}, {} bytes", body.len()));
        }
        Ok(())
    }

    pub(super) async fn move_tag(&mut self) -> Result<(), Failure> {
        let i = self.random.random_range(0..self.pushed_images.len());
        let tag = self.own_tag();
        let (repository, manifest) =
            (self.pushed_images[i].repository.clone(), self.pushed_images[i].image.manifest.clone());
        self.send_checked(
            "PUT",
            &format!("/v2/{repository}/manifests/{tag}"),
            Body::Manifest(manifest.into()),
            &[201],
        )
        .await?;
        self.untag(&repository, Some(&tag));
        self.pushed_images[i].tags.insert(tag);
        Ok(())
    }

    pub(super) async fn delete_tag(&mut self) -> Result<(), Failure> {
        let tagged: Vec<usize> =
            (0..self.pushed_images.len()).filter(|i| !self.pushed_images[*i].tags.is_empty()).collect();
        let Some(&i) = tagged.choose(&mut self.random) else { return Ok(()) };
        let Some(tag) = self.pushed_images[i].tags.pop_first() else { return Ok(()) };
        let path = format!("/v2/{}/manifests/{tag}", self.pushed_images[i].repository);
        if self.pushed_images[i].tags.is_empty() {
            // A later collection deletes the manifest, which has no tags left.
            let held = self.pushed_images.swap_remove(i);
            locked(&self.soak.deleted_digests).insert(held.digest.clone());
            let begun = self.removal_begins(&held.digest);
            self.send_checked("DELETE", &path, Body::None, &[202]).await?;
            drop(begun); // the time of the removal is unknown
            self.send_checked("GET", &path, Body::None, &[404]).await?;
            self.forget(held);
            return Ok(());
        }
        self.send_checked("DELETE", &path, Body::None, &[202]).await?;
        self.send_checked("GET", &path, Body::None, &[404]).await.map(drop)
    }

    pub(super) async fn delete_manifest(&mut self) -> Result<(), Failure> {
        let i = self.random.random_range(0..self.pushed_images.len());
        self.delete_at(i).await
    }

    pub(super) async fn delete_at(&mut self, i: usize) -> Result<(), Failure> {
        let mut held = self.pushed_images.swap_remove(i);
        locked(&self.soak.deleted_digests).insert(held.digest.clone());
        let begun = self.removal_begins(&held.digest);
        let path = format!("/v2/{}/manifests/{}", held.repository, held.digest);
        self.send_checked("DELETE", &path, Body::None, &[202]).await?;
        for (tag, begun) in begun {
            if let Some(register) = locked(&self.soak.shared_tags).get_mut(tag) {
                register.end_write(begun);
            }
        }
        let tags: Vec<String> = std::mem::take(&mut held.tags).into_iter().collect();
        for reference in std::iter::once(&held.digest).chain(tags.first()) {
            let path = format!("/v2/{}/manifests/{reference}", held.repository);
            self.send_checked("GET", &path, Body::None, &[404]).await?;
        }
        let referrers = std::mem::take(&mut held.referrers);
        self.uncertain.extend(referrers.into_iter().map(|digest| (held.repository.clone(), digest)));
        Ok(())
    }

    pub(super) fn removal_begins(&self, digest: &str) -> Vec<(&'static str, u64)> {
        let mut hot = locked(&self.soak.shared_tags);
        hot.iter_mut().map(|(tag, register)| (*tag, register.removal_begins(digest))).collect()
    }

    pub(super) fn forget(&mut self, held: PushedImage) {
        let digests = held.referrers.into_iter().chain([held.digest]);
        self.uncertain.extend(digests.map(|digest| (held.repository.clone(), digest)));
    }

    pub(super) async fn delete_blob(&mut self) -> Result<(), Failure> {
        let own = self.own_repository();
        // A blob that a manifest references is not deleted; an unreferenced blob is.
        if let Some(held) = self.pushed_images.iter().find(|held| held.repository == own) {
            let path = format!("/v2/{own}/blobs/{}", sha256(&held.image.layers[0]));
            self.send_checked("DELETE", &path, Body::None, &[405]).await?;
        }
        self.n_created += 1;
        let bytes = format!("blob {} of worker {}", self.n_created, self.id).into_bytes();
        let started = Instant::now();
        self.upload(&own, &bytes, &sha256(&bytes), None).await?;
        let path = format!("/v2/{own}/blobs/{}", sha256(&bytes));
        let response = self.send_checked("DELETE", &path, Body::None, &[202, 404]).await?;
        if response.status == 404 && started.elapsed() < self.soak.lease {
            return Err(format!("{path}, just uploaded, was not found for deletion"));
        }
        self.send_checked("HEAD", &path, Body::None, &[404]).await.map(drop)
    }

    pub(super) async fn cancel_upload(&mut self) -> Result<(), Failure> {
        let open = format!("/v2/{}/blobs/uploads/", self.own_repository());
        let session = location(&self.send_checked("POST", &open, Body::None, &[202]).await?)?;
        let bytes = random_bytes(self.random.random(), 5000);
        let session = location(
            &self.send_checked("PATCH", &session, Body::Bytes(bytes.into(), Some((0, 5000))), &[202]).await?,
        )?;
        self.send_checked("DELETE", &session, Body::None, &[204]).await?;
        self.send_checked("GET", &session, Body::None, &[404]).await.map(drop)
    }

    pub(super) async fn attach_referrer(&mut self) -> Result<(), Failure> {
        let Some(i) = (0..self.pushed_images.len()).collect::<Vec<_>>().choose(&mut self.random).copied()
        else {
            return Ok(());
        };
        self.n_created += 1;
        let (repository, subject) =
            (self.pushed_images[i].repository.clone(), self.pushed_images[i].digest.clone());
        let manifest = &self.pushed_images[i].image.manifest;
        let extra = json!({
            "subject": descriptor(IMAGE_MANIFEST, manifest), "artifactType": "application/vnd.example.note",
        });
        let config = format!(r#"{{"worker":{},"note":{}}}"#, self.id, self.n_created).into_bytes();
        let note = Image::of(config, vec![], &extra);
        let digest = note.digest();
        self.put_image(&repository, &note, &digest).await?;
        self.pushed_images[i].referrers.push(digest);
        let response = self
            .send_checked("GET", &format!("/v2/{repository}/referrers/{subject}"), Body::None, &[200])
            .await?;
        let listed = response.json();
        let listed: BTreeSet<&str> = listed["manifests"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|m| m["digest"].as_str())
            .collect();
        let expected: BTreeSet<&str> = self.pushed_images[i].referrers.iter().map(String::as_str).collect();
        match listed == expected {
            true => Ok(()),
            false => Err(format!("the referrers of {repository}@{subject} are {listed:?}, not {expected:?}")),
        }
    }

    pub(super) async fn move_shared_tag(&mut self) -> Result<(), Failure> {
        let Some(held) = self.pushed_images.iter().find(|held| held.repository == SHARED) else {
            return Ok(());
        };
        let (image, digest) = (held.image.clone(), held.digest.clone());
        let tag = SHARED_TAGS[self.random.random_range(0..SHARED_TAGS.len())];
        locked(&self.soak.shared_images).insert(digest.clone(), image.clone());
        let begun = locked(&self.soak.shared_tags).entry(tag).or_default().begin_put(&digest);
        let body = Body::Manifest(image.manifest.clone().into());
        self.send_checked("PUT", &format!("/v2/{SHARED}/manifests/{tag}"), body, &[201]).await?;
        if let Some(register) = locked(&self.soak.shared_tags).get_mut(tag) {
            register.end_write(begun);
        }
        Ok(())
    }
}
