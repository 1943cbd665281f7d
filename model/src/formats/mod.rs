//! The file formats of weights: checked headers of safetensors, GGUF and ONNX files, and the tensors that
//! they list. Everything that reads or writes weights uses them, through a read-at trait and never a file.

pub mod gguf;
pub mod onnx;
pub mod read_at;
pub mod safetensors;
pub mod tensor;
pub(crate) mod weight_format;
