//! The plan of an import: the layers to be pushed, and how their bytes are read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::checked_reader::CheckedReader;
use super::conversion::Conversion;
use super::layer::{Content, LayerReader};
use super::recipe::FileRecipe;
use crate::config::ModelConfig;
use crate::source::Source;

/// The options of an import.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub conversion: Option<Conversion>,
}

/// A layer to be pushed: its name, and how its bytes are produced.
#[derive(Clone, Debug)]
pub struct PlannedLayer {
    pub media_type: &'static str,
    /// The tensor or group of tensors, or the path of the file.
    pub name: Option<String>,
    pub size: u64,
    pub content: Content,
}

impl PlannedLayer {
    /// Reads the layer from the start. The same source always gives the same bytes. Memory is bounded: a few
    /// MiB, and for a quantised tensor its scales and biases.
    pub fn reader(&self, source: &Arc<dyn Source>) -> LayerReader {
        self.content.reader(source, 0, self.size)
    }

    /// As [`PlannedLayer::reader`], but fails if the imported data was already quantised and has a scale that
    /// is not finite.
    pub fn checked_reader(&self, source: &Arc<dyn Source>) -> CheckedReader {
        CheckedReader::new(self.reader(source), self.content.checked_runs())
    }

    /// Whether [`PlannedLayer::checked_reader`] checks anything.
    pub fn has_checks(&self) -> bool {
        self.content.is_watched()
    }

    /// Reads the layer from `offset` on, to resume an interrupted upload.
    pub fn reader_from(&self, source: &Arc<dyn Source>, offset: u64) -> LayerReader {
        self.content.reader(source, offset, self.size)
    }

    /// Reads `length` bytes from `offset` on, so that several threads can produce one layer.
    pub fn range_reader(&self, source: &Arc<dyn Source>, offset: u64, length: u64) -> LayerReader {
        self.content.reader(source, offset, offset.saturating_add(length).min(self.size))
    }

    /// Whether producing the bytes costs much more than reading them, so that it should be done only once,
    /// and [`PlannedLayer::range_reader`] is as fast in the middle as at the start.
    pub fn is_encoded(&self) -> bool {
        self.content.is_encoded()
    }

    /// Whether producing the bytes costs more than reading them, by any method.
    pub fn is_computed(&self) -> bool {
        self.content.is_made()
    }
}

/// The plan of an import. Only headers and JSON files have been read.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tensors first, in the order of the files, then JSON files, then all others.
    pub layers: Vec<PlannedLayer>,
    pub config: ModelConfig,
    /// Notices for the user, in whole sentences without a full stop.
    pub notices: Vec<String>,
    /// The number of tensors.
    pub tensors: u64,
    /// The number of elements of all tensors.
    pub parameters: u64,
    /// The annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    pub(super) files: Vec<FileRecipe>,
}
