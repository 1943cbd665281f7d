//! Walks an index and everything that it lists, within limits: an untrusted index may list without end.

use std::collections::BTreeSet;

use lode_model::digest::Digest;
use lode_model::manifest::{Descriptor, Manifest};
use lode_model::reference::{Reference, Repository};

use super::{Registry, StoredManifest};
use crate::Error;
use crate::auth::Caller;

/// The greatest depth of nested indexes.
const MAX_DEPTH: usize = 8;
/// The most manifests of one walk, and their total size: they are all in memory until the walk ends.
const MAX_MANIFESTS: usize = 10_000;
const MAX_BYTES: usize = 128 * 1024 * 1024;

/// A depth-first walk. The caller takes the [`next`](Walk::next) reference and reports the manifest that it
/// [`found`](Walk::found). Each manifest is visited once. In `done` it follows everything that it lists, so
/// that the manifests can be stored in that order; the start is the last.
pub(super) struct Walk<M> {
    ahead: Vec<WalkItem<M>>,
    depth: usize,
    seen: BTreeSet<Digest>,
    bytes: usize,
    pub(super) done: Vec<(M, Manifest)>,
}

enum WalkItem<M> {
    /// A reference to visit, and its depth.
    Wanted(Reference, usize),
    /// A visited manifest; its children are above it on the stack.
    Found(Box<(M, Manifest)>),
}

impl<M> Walk<M> {
    pub(super) fn from(start: Reference) -> Walk<M> {
        let ahead = vec![WalkItem::Wanted(start, 1)];
        Walk { ahead, depth: 0, seen: BTreeSet::new(), bytes: 0, done: Vec::new() }
    }

    /// The next reference to visit.
    pub(super) fn next(&mut self) -> Option<Reference> {
        loop {
            match self.ahead.pop()? {
                WalkItem::Found(found) => self.done.push(*found),
                WalkItem::Wanted(Reference::Digest(digest), _) if !self.seen.insert(digest.clone()) => {}
                WalkItem::Wanted(reference, depth) => {
                    self.depth = depth;
                    return Some(reference);
                }
            }
        }
    }

    /// Whether the current manifest is listed by another. If so, it may be absent.
    pub(super) fn is_below(&self) -> bool {
        self.depth > 1
    }

    /// Adds the manifest of the last reference: `manifest`, of `len` bytes.
    pub(super) fn found(&mut self, manifest: M, parsed: Manifest, len: usize) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(len);
        let children: Vec<WalkItem<M>> = parsed
            .children()
            .map(|child| WalkItem::Wanted(Reference::Digest(child.digest.clone()), self.depth + 1))
            .collect();
        if (self.depth == MAX_DEPTH && !children.is_empty())
            || self.seen.len() > MAX_MANIFESTS
            || self.bytes > MAX_BYTES
        {
            return Err(Error::IndexTooLarge {
                depth: MAX_DEPTH,
                manifests: MAX_MANIFESTS,
                limit_bytes: MAX_BYTES,
            });
        }
        self.ahead.push(WalkItem::Found(Box::new((manifest, parsed))));
        self.ahead.extend(children);
        Ok(())
    }
}

/// The blobs of all these manifests, without duplicates.
pub(super) fn blobs_of<M>(manifests: &[(M, Manifest)]) -> Vec<Descriptor> {
    let mut seen = BTreeSet::new();
    let blobs = manifests.iter().flat_map(|(_, manifest)| manifest.blobs());
    blobs.filter(|blob| seen.insert(&blob.digest)).cloned().collect()
}

impl Registry {
    /// A stored manifest and all stored manifests below it. Each follows what it lists, so the start is the
    /// last.
    pub(super) async fn manifests_below(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Vec<(StoredManifest, Manifest)>, Error> {
        let mut walk = Walk::from(reference.clone());
        while let Some(reference) = walk.next() {
            let stored = match self.manifest_get(caller, repository, &reference).await {
                Err(Error::ManifestUnknown { .. } | Error::NameUnknown { .. }) if walk.is_below() => continue,
                stored => stored?,
            };
            let (manifest, len) = (stored.parse()?, stored.bytes.len());
            walk.found(stored, manifest, len)?;
        }
        Ok(walk.done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(name: &str) -> Digest {
        Digest::sha256(name.as_bytes())
    }

    fn index(children: &[&str]) -> Manifest {
        let child = |name: &&str| json!({"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest(name), "size": 1});
        let children: Vec<_> = children.iter().map(child).collect();
        let json = json!({"schemaVersion": 2, "manifests": children});
        Manifest::parse(None, json.to_string().as_bytes()).unwrap()
    }

    /// Walks indexes by name from the first one; the others are absent.
    fn walk(indexes: &[(&'static str, &[&str])], len: usize) -> Result<Vec<&'static str>, Error> {
        let mut walk = Walk::from(Reference::Digest(digest(indexes[0].0)));
        while let Some(reference) = walk.next() {
            let Reference::Digest(wanted) = reference else { panic!("{reference}") };
            if let Some((name, children)) = indexes.iter().find(|(name, _)| digest(name) == wanted) {
                walk.found(*name, index(children), len)?;
            }
        }
        Ok(walk.done.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn children_come_before_their_index_and_once() {
        assert_eq!(walk(&[("a", &[])], 1).unwrap(), ["a"]);
        // `b` is listed twice by one, and again further down.
        let dag: [(_, &[&str]); 4] =
            [("top", &["a", "b", "b", "gone"]), ("a", &["c"]), ("b", &[]), ("c", &["b"])];
        let order = walk(&dag, 1).unwrap();
        let at = |name| order.iter().position(|other| *other == name).unwrap();
        assert_eq!(order.len(), 4, "{order:?}");
        assert!(at("b") < at("c") && at("c") < at("a") && at("a") < at("top"), "{order:?}");
    }

    #[test]
    fn an_index_beyond_the_limits_is_rejected() {
        let names = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let chain: Vec<(&'static str, &[&str])> = names
            .iter()
            .enumerate()
            .map(|(at, name)| (*name, names.get(at + 1..at + 2).unwrap_or(&[])))
            .collect();
        assert!(walk(&chain[1..], 1).is_ok());
        assert!(matches!(walk(&chain, 1), Err(Error::IndexTooLarge { .. })));
        // Together they exceed the memory limit.
        assert!(matches!(walk(&chain[1..], MAX_BYTES / 4), Err(Error::IndexTooLarge { .. })));
    }
}
