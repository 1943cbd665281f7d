//! The operations that only read, and check what they read.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::Rng;
use rand::seq::IndexedRandom;

use super::{Body, Failure, SHARED, SHARED_TAGS, Worker, location, locked};
use crate::artifact::{Image, sha256};
use crate::register::tick;

impl Worker {
    pub(super) async fn pull(&mut self) -> Result<(), Failure> {
        let i = self.random.random_range(0..self.pushed_images.len());
        if self.random.random_bool(0.2) {
            return self.pull_whole(i).await;
        }
        let (repository, image, reference) = self.random_reference(i);
        self.check_manifest(&repository, &reference, &image).await?;
        let blobs: Vec<&[u8]> = image.blobs().filter(|blob| blob.len() < 1 << 20).collect();
        let Some(blob) = blobs.choose(&mut self.random) else { return Ok(()) };
        self.check_blob(&repository, blob).await
    }

    pub(super) async fn pull_whole(&mut self, i: usize) -> Result<(), Failure> {
        let (repository, image, reference) = self.random_reference(i);
        self.check_manifest(&repository, &reference, &image).await?;
        for blob in image.blobs() {
            self.check_blob(&repository, blob).await?;
        }
        Ok(())
    }

    /// An image with one of its tags or its digest.
    pub(super) fn random_reference(&mut self, i: usize) -> (String, Arc<Image>, String) {
        let held = &self.pushed_images[i];
        let names: Vec<&String> = held.tags.iter().chain([&held.digest]).collect();
        let reference = names.choose(&mut self.random).map_or(held.digest.clone(), |name| (*name).clone());
        (held.repository.clone(), held.image.clone(), reference)
    }

    pub(super) async fn check_manifest(
        &mut self,
        repository: &str,
        reference: &str,
        image: &Image,
    ) -> Result<(), Failure> {
        let path = format!("/v2/{repository}/manifests/{reference}");
        let response = self.send_checked("GET", &path, Body::None, &[200]).await?;
        match response.body == image.manifest {
            true => Ok(()),
            false => Err(format!("GET {path} returns {}, not {}", response.text(), image.digest())),
        }
    }

    pub(super) async fn check_blob(&mut self, repository: &str, bytes: &[u8]) -> Result<(), Failure> {
        let digest = sha256(bytes);
        let (status, body) = self.fetch_blob(repository, &digest).await?;
        match status == 200 && body == bytes {
            true => Ok(()),
            false => Err(format!(
                "{digest} of {repository}, which a live manifest references, returns {status} with {} of {} bytes",
                body.len(),
                bytes.len()
            )),
        }
    }

    /// A blob's status and bytes, from the server or from the storage that it redirects to.
    pub(super) async fn fetch_blob(
        &mut self,
        repository: &str,
        digest: &str,
    ) -> Result<(u16, Vec<u8>), Failure> {
        let path = format!("/v2/{repository}/blobs/{digest}");
        let response = self.send_checked("GET", &path, Body::None, &[200, 307, 404]).await?;
        if response.status != 307 {
            return Ok((response.status, response.body.to_vec()));
        }
        let target = location(&response)?;
        let response = self.send_checked("GET", &target, Body::None, &[200, 404]).await?;
        Ok((response.status, response.body.to_vec()))
    }

    pub(super) async fn list_tags(&mut self) -> Result<(), Failure> {
        let own = self.own_repository();
        let expected: BTreeSet<String> = self
            .pushed_images
            .iter()
            .filter(|held| held.repository == own)
            .flat_map(|held| held.tags.iter().cloned())
            .collect();
        let response =
            self.send_checked("GET", &format!("/v2/{own}/tags/list"), Body::None, &[200, 404]).await?;
        let listed: BTreeSet<String> = match response.status {
            200 => response.json()["tags"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|tag| Some(tag.as_str()?.to_owned()))
                .collect(),
            _ => BTreeSet::new(),
        };
        match listed == expected {
            true => Ok(()),
            false => Err(format!("the tags of {own} are {listed:?}, not {expected:?}")),
        }
    }

    pub(super) async fn pull_shared_tag(&mut self) -> Result<(), Failure> {
        let tag = SHARED_TAGS[self.random.random_range(0..SHARED_TAGS.len())];
        let path = format!("/v2/{SHARED}/manifests/{tag}");
        let begun = tick();
        let response = self.send_checked("GET", &path, Body::None, &[200, 404]).await?;
        let ended = tick();
        let found = (response.status == 200).then(|| sha256(&response.body));
        let explained =
            locked(&self.soak.shared_tags).entry(tag).or_default().may_hold(found.as_deref(), begun, ended);
        if !explained {
            return Err(format!("GET {path} returns {found:?}, which no sequence of the writes explains"));
        }
        let image = found.as_ref().and_then(|digest| locked(&self.soak.shared_images).get(digest).cloned());
        let (Some(digest), Some(image)) = (found, image) else { return Ok(()) };
        let layer = &image.layers[image.layers.len() - 1];
        let (status, body) = self.fetch_blob(SHARED, &sha256(layer)).await?;
        let gone = status == 404 && locked(&self.soak.deleted_digests).contains(&digest);
        match gone || (status == 200 && body == *layer) {
            true => Ok(()),
            false => {
                Err(format!("a layer of {SHARED}:{tag} ({digest}) returns {status}, {} bytes", body.len()))
            }
        }
    }
}
