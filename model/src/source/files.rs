//! The trait through which source files are listed and read.

use std::io;

use crate::formats::weight_format::WeightFormat;
use crate::read_at::ReadAt;

/// A file of the imported folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Relative to the folder, with parts separated by `/`.
    pub path: String,
    pub size: u64,
}

impl SourceFile {
    /// The format of the weights in the file, by its name.
    pub(crate) fn weight_format(&self) -> Option<WeightFormat> {
        WeightFormat::of_path(&self.path)
    }
}

/// The files to import. Reading a file twice must give the same bytes, or the push fails on its digest.
pub trait Source: Send + Sync {
    /// Lists every regular file, in any order.
    fn files(&self) -> Vec<SourceFile>;

    /// Opens a file of the list.
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>>;
}
