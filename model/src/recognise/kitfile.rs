//! A ModelKit's layers as files. Its config is the Kitfile as JSON. The n-th layer of a kind belongs to the
//! n-th entry of that kind, unless entries name their layer's digest. Members of tars have their own names;
//! other layers get the path of their entry.

use std::collections::HashMap;

use serde::Deserialize;

use super::file::{ModelFile, Role, annotated_path, packing};
use crate::manifest::{Descriptor, Manifest};
use crate::media_type as mt;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Kitfile {
    model: Option<Model>,
    code: Vec<Entry>,
    datasets: Vec<Entry>,
    docs: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Model {
    #[serde(flatten)]
    entry: Entry,
    parts: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    path: String,
    digest: String,
}

/// Returns the ModelKit on which a kit's model is based. The same key can hold a path instead.
pub(crate) fn parent(config: &[u8]) -> Option<String> {
    let kitfile: Kitfile = serde_json::from_slice(config).ok()?;
    let path = kitfile.model?.entry.path;
    // A reference has a registry or repository and a tag; a path has neither.
    let is_reference = path.contains('/') && path.rsplit_once('/')?.1.contains(':') && !path.starts_with('.');
    is_reference.then_some(path)
}

pub(super) fn files(manifest: &Manifest, config: Option<&[u8]>) -> Vec<ModelFile> {
    let kitfile: Kitfile = config.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
    let Kitfile { model, code, datasets, docs } = kitfile;
    let (model, parts) = model.map_or((Vec::new(), Vec::new()), |model| (vec![model.entry], model.parts));
    let lists =
        [("model", model), ("modelpart", parts), ("code", code), ("dataset", datasets), ("docs", docs)];
    let mut by_digest = HashMap::new();
    for (at, (_, entries)) in lists.iter().enumerate() {
        for entry in entries {
            by_digest.entry((at, entry.digest.as_str())).or_insert(entry);
        }
    }
    let mut seen = [0; 5];
    let file = |layer: &Descriptor| {
        let kind = kind(&layer.media_type);
        let list = lists.iter().position(|(name, _)| *name == kind);
        let entry = list.and_then(|at| {
            let nth = seen[at];
            seen[at] += 1;
            by_digest.get(&(at, layer.digest.as_str())).copied().or_else(|| lists[at].1.get(nth))
        });
        let kitfile_path =
            entry.map(|entry| entry.path.clone()).filter(|path| !matches!(path.as_str(), "" | "." | "./"));
        let path = annotated_path(layer).or(kitfile_path);
        let role = path.as_deref().map_or(Role::File, Role::of_path);
        ModelFile::new(layer, path, role, packing(&layer.media_type))
    };
    manifest.layers.iter().map(file).collect()
}

/// `application/vnd.kitops.modelkit.KIND.v1.PACKING`
fn kind(media_type: &str) -> &str {
    let rest =
        media_type.strip_prefix(mt::KITOPS_PREFIX).or_else(|| media_type.strip_prefix(mt::JOZU_PREFIX));
    rest.and_then(|rest| rest.split_once('.')).map_or("", |(kind, _)| kind)
}
