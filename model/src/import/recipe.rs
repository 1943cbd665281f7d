//! Where each byte of a file is stored, so that the file can be restored.

use crate::source::SourceFile;

/// How one file of the folder is assembled from the layers.
#[derive(Clone, Debug)]
pub(super) struct FileRecipe {
    pub(super) path: String,
    pub(super) origin: FileOrigin,
    pub(super) segments: Vec<RecipeSegment>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FileOrigin {
    /// The file is a layer and has its digest.
    Whole { layer: usize },
    /// The original bytes, in pieces of layers.
    Pieces,
    /// Generated here in place of a file whose tensors were quantised.
    Assembled,
}

#[derive(Clone, Debug)]
pub(super) enum RecipeSegment {
    Inline(Vec<u8>),
    Layer { layer: usize, offset: u64, length: u64 },
}

impl FileRecipe {
    /// A file that is a whole layer. An empty file needs no layer.
    pub(super) fn whole(file: &SourceFile, layer: usize) -> FileRecipe {
        let (origin, segments) = match file.size {
            0 => (FileOrigin::Pieces, Vec::new()),
            length => (FileOrigin::Whole { layer }, vec![RecipeSegment::Layer { layer, offset: 0, length }]),
        };
        FileRecipe { path: file.path.clone(), origin, segments }
    }
}
