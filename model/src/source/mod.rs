//! The files of a checkpoint or a GGUF that is imported, and the arrays of floats in them. Conversion and
//! import read their source only through these types; import offers [`Source`] to other crates.

mod array;
mod files;

pub(crate) use array::{ArrayReader, FloatArray, Scales};
pub use files::{Source, SourceFile};
