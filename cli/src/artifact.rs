//! Determines the files of a manifest with the rules of the model crate, whichever tool pushed it. Tar layers
//! are listed over the network.

use std::{collections::BTreeMap, io, sync::Mutex};

use lode_client::Registry;
use lode_model::{
    digest::Digest,
    gguf::Header,
    manifest::Manifest,
    read_at::{ReadAt, Window},
    recognise::{Artifact, ModelFile, tar},
    reference::Repository,
};
use tokio::runtime::Handle;

use crate::{
    connect::Target,
    error::{Failure, Outcome},
};

/// Larger configs are not read; they name no files.
const MAX_CONFIG: u64 = 16 << 20;
/// Bytes per range request on a tar. Its headers are small and far apart.
const WINDOW: u64 = 8 << 10;

/// Lists the files of a manifest, including those inside uncompressed tars.
pub(crate) async fn read(target: &Target, manifest: &Manifest) -> Outcome<Artifact> {
    let config = match manifest.config.as_ref().filter(|config| config.size <= MAX_CONFIG) {
        Some(config) => {
            Some(target.registry.blob_bytes(&target.repository, &config.digest, MAX_CONFIG).await?)
        }
        None => None,
    };
    let artifact = Artifact::read(manifest, config.as_deref());
    let (mut members, mut left) = (BTreeMap::new(), tar::MAX_MEMBERS);
    let archives: Vec<(usize, ModelFile)> =
        artifact.archives().map(|(at, file)| (at, file.clone())).collect();
    for (at, file) in archives {
        let reader = Ranges::of(target, &file);
        let listed = tokio::task::spawn_blocking(move || {
            tar::list_members(&Window::new(&reader, 0, reader.size), left)
        });
        let listed = listed.await.map_err(|error| Failure::with_source("listing a layer", &error))?;
        let about = |error| Failure::with_source(format!("layer {} of {target}", file.layer.digest), &error);
        let listed = listed.map_err(about)?;
        left -= listed.len();
        members.insert(at, listed);
    }
    Ok(artifact.replace_tars(members))
}

/// Reads the header of a GGUF without downloading its tensors.
pub(crate) async fn gguf_header(target: &Target, file: &ModelFile) -> Outcome<Header> {
    let reader = Ranges::of(target, file);
    let (offset, size) = (file.offset, file.size);
    let read = tokio::task::spawn_blocking(move || Header::read(&Window::new(&reader, offset, size)));
    let read = read.await.map_err(|error| Failure::with_source("reading a header", &error))?;
    read.map_err(|error| Failure::with_source(format!("{} of {target}", file.label()), &error))
}

/// A blob in the registry, read by range requests. Blocks.
struct Ranges {
    registry: Registry,
    repository: Repository,
    digest: Digest,
    size: u64,
    runtime: Handle,
    /// Offset and bytes of the last range request.
    window: Mutex<(u64, Vec<u8>)>,
}

impl Ranges {
    fn of(target: &Target, file: &ModelFile) -> Ranges {
        Ranges {
            registry: target.registry.clone(),
            repository: target.repository.clone(),
            digest: file.layer.digest.clone(),
            size: file.layer.size,
            runtime: Handle::current(),
            window: Mutex::default(),
        }
    }
}

impl ReadAt for Ranges {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut window = self.window.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if offset < window.0 || end > window.0 + window.1.len() as u64 {
            let until = end.max(offset.saturating_add(WINDOW)).min(self.size);
            let range = self.registry.blob_range(&self.repository, &self.digest, offset..until);
            *window = (offset, self.runtime.block_on(range).map_err(io::Error::other)?.to_vec());
        }
        let at = (offset - window.0) as usize;
        let bytes = window.1.get(at..at + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}
