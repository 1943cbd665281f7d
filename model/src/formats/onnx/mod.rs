//! ONNX files: [`Model`] lists the initializers of one, and [`Graph`] checks all of one before it is run.

mod error;
mod fields;
mod graph;
mod model;
mod tensor;

pub use error::OnnxError;
pub use graph::{DOMAINS, Graph, GraphError};
pub use model::Model;
pub use tensor::{Data, Initializer};
