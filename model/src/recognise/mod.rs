//! Recognises the model in a manifest, whatever tool pushed it: its layout, and the role and location of each
//! file. Pure. The registry's indexing and the worker both use this module, so that they always see the same
//! model. [`index`] lists its tensors and [`lineage`] says which models it was made from.

mod file;
pub mod files;
pub mod index;
mod kitfile;
mod layout;
pub mod lineage;
pub mod runnable;
pub mod tar;

use std::collections::BTreeMap;

pub use file::{FileKind, ModelFile, Packing, Role};
pub(crate) use kitfile::parent as kit_parent;
pub use layout::Layout;

use crate::files_view::MAX_PATH_LEN;
use crate::formats::weight_format::WeightFormat;
use crate::manifest::Manifest;
use tar::Member;

/// The file that marks a folder of components as an image model.
const IMAGE_INDEX: &str = "model_index.json";

/// Whether a path is that of a linear layer after the pooling of an embedding model: a file of sentence-transformers'
/// module `N_Dense`.
pub fn is_dense_module(path: &str) -> bool {
    path.split_once("_Dense/").is_some_and(|(number, file)| {
        number.bytes().all(|byte| byte.is_ascii_digit())
            && matches!(file, "config.json" | "model.safetensors")
    })
}

/// A manifest, classified into files.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    pub layout: Layout,
    /// In the manifest's order.
    pub files: Vec<ModelFile>,
}

impl Artifact {
    /// Classifies the layers of an image manifest. `config` is the config blob if the caller has it; without
    /// it, files that only the config names stay unnamed. Files whose path is too long for a file view have no
    /// path.
    pub fn read(manifest: &Manifest, config: Option<&[u8]>) -> Artifact {
        let layout = Layout::detect(manifest, config);
        let mut files = match layout {
            Layout::Attachment => Vec::new(),
            Layout::Ollama => file::ollama_files(manifest),
            Layout::DockerModel => file::docker_files(manifest),
            Layout::ModelPack => file::modelpack_files(manifest, config),
            Layout::KitOps => kitfile::files(manifest, config),
            Layout::Image => file::image_layers(manifest),
            Layout::Files | Layout::Unknown => file::titled_files(manifest),
        };
        for file in &mut files {
            if let Some(path) = &mut file.path
                && let Some(rest) = path.strip_prefix("./")
            {
                *path = rest.to_owned();
            }
            // Paths are copied into the names of tensors, so an untrusted one must be short.
            if file.path.as_deref().is_some_and(|path| path.len() > MAX_PATH_LEN) {
                file.path = None;
            }
        }
        Artifact { layout, files }
    }

    /// Returns the tars that may hold files of the model, by their position in `files`.
    pub fn archives(&self) -> impl Iterator<Item = (usize, &ModelFile)> {
        // Images that do not declare a model are not searched.
        let searched = self.layout != Layout::Unknown;
        let is_beside = |kind: &str| [".doc.", ".docs.", ".dataset."].iter().any(|part| kind.contains(part));
        self.files.iter().enumerate().filter(move |(_, file)| {
            searched && file.packing == Packing::Tar && !is_beside(&file.layer.media_type)
        })
    }

    /// Replaces tars by their members, which are keyed by the tar's position in `files`.
    #[must_use]
    pub fn replace_tars(self, mut members: BTreeMap<usize, Vec<Member>>) -> Artifact {
        let mut files = Vec::with_capacity(self.files.len());
        for (at, file) in self.files.into_iter().enumerate() {
            match members.remove(&at) {
                Some(members) => files.extend(members.into_iter().map(|member| file.member(member))),
                None => files.push(file),
            }
        }
        Artifact { files, ..self }
    }

    /// Returns the folder of the model's files, with a trailing slash: that of the topmost config.json or
    /// image model index.
    pub fn root(&self) -> &str {
        let folders = self.plain().filter_map(|(path, _)| {
            let folder = path.strip_suffix("config.json").or_else(|| path.strip_suffix(IMAGE_INDEX))?;
            (folder.is_empty() || folder.ends_with('/')).then_some(folder)
        });
        folders.min_by_key(|folder| folder.matches('/').count()).unwrap_or("")
    }

    /// Returns the file of this name in the model's folder.
    pub fn find(&self, name: &str) -> Option<&ModelFile> {
        let root = self.root();
        self.plain().find(|(path, _)| path.strip_prefix(root) == Some(name)).map(|(_, file)| file)
    }

    /// Whether it is an image model: components in folders, with an index that names them.
    pub fn is_image_model(&self) -> bool {
        self.find(IMAGE_INDEX).is_some()
    }

    /// Returns the files that hold the model's weights, by their position in `files`: no adapter, no
    /// projector, no draft, no second copy in another form.
    pub fn weights(&self) -> Vec<usize> {
        let of = |role: Role| -> Vec<usize> {
            let is = |file: &ModelFile| file.is_plain() && file.role == role;
            (0..self.files.len()).filter(|at| is(&self.files[*at])).collect()
        };
        let tensors = of(Role::Tensor);
        if !tensors.is_empty() {
            return tensors;
        }
        let all = of(Role::Safetensors);
        if !all.is_empty() {
            let root = self.root();
            let is_main = |at: &usize| {
                let name =
                    self.files[*at].path.as_deref().map(|path| path.strip_prefix(root).unwrap_or(path));
                name.is_none_or(|name| !name.contains('/') && !name.starts_with("consolidated"))
            };
            let main: Vec<usize> = all.iter().copied().filter(is_main).collect();
            return if main.is_empty() || self.is_image_model() { all } else { main };
        }
        let gguf = of(Role::Gguf);
        if gguf.is_empty() { of(Role::Onnx) } else { gguf }
    }

    /// The format of the weights: `safetensors`, `gguf` or `onnx`.
    pub fn format(&self) -> Option<&'static str> {
        self.files[*self.weights().first()?].role.weight_format().map(WeightFormat::as_str)
    }

    /// Returns the first layer whose packing prevents reading it in place.
    pub fn first_packed(&self) -> Option<&ModelFile> {
        self.files.iter().find(|file| file.packing == Packing::Compressed)
    }

    /// Returns the files that are stored unpacked and have a path.
    fn plain(&self) -> impl Iterator<Item = (&str, &ModelFile)> {
        let plain = self.files.iter().filter(|file| file.is_plain());
        plain.filter_map(|file| file.path.as_deref().map(|path| (path, file)))
    }
}

#[cfg(test)]
mod tests;
