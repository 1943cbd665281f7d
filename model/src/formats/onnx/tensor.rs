//! Reads the messages of tensors: initializers, and the values of attributes.

use super::error::OnnxError;
use super::fields::{Field, FieldReader, Wire};
use crate::safetensors::{Dtype, byte_size};

/// The most axes of a tensor.
const MAX_DIMS: usize = 64;

/// A named array of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Initializer {
    pub name: String,
    /// The value of `TensorProto.DataType`.
    pub data_type: u64,
    /// Row-major.
    pub shape: Vec<u64>,
    pub data: Data,
}

/// The location of an initializer's bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// In the file, as an array of little-endian numbers.
    Inline { offset: u64, length: u64 },
    /// In the file, but not as an array: numbers of varying length, texts, or several pieces.
    Encoded,
    /// In a separate file.
    External { location: String, offset: u64, length: Option<u64> },
}

impl Initializer {
    /// The type of its elements; `None` for strings and for types with several elements per byte.
    pub fn dtype(&self) -> Option<Dtype> {
        Some(match self.data_type {
            1 => Dtype::F32,
            2 => Dtype::U8,
            3 => Dtype::I8,
            4 => Dtype::U16,
            5 => Dtype::I16,
            6 => Dtype::I32,
            7 => Dtype::I64,
            9 => Dtype::BOOL,
            10 => Dtype::F16,
            11 => Dtype::F64,
            12 => Dtype::U32,
            13 => Dtype::U64,
            16 => Dtype::BF16,
            17 => Dtype::F8_E4M3,
            19 => Dtype::F8_E5M2,
            _ => return None,
        })
    }

    /// The size of its elements as an array, in bytes; `None` if [`Initializer::dtype`] is `None` or the size
    /// overflows.
    pub fn size_bytes(&self) -> Option<u64> {
        byte_size(self.dtype()?, &self.shape)
    }
}

/// The fields of a tensor, as they are stored.
#[derive(Default)]
pub(super) struct TensorFields {
    pub(super) name: String,
    pub(super) data_type: u64,
    pub(super) shape: Vec<u64>,
    /// Data in the file, if there is any.
    pub(super) data: Option<Data>,
    /// The size of all fields with data in the file, in bytes.
    pub(super) data_bytes: u64,
    /// 0 is the file, 1 another file.
    pub(super) data_location: u64,
    pub(super) external: ExternalData,
}

/// The entries of `external_data`.
#[derive(Default)]
pub(super) struct ExternalData {
    pub(super) location: Option<String>,
    pub(super) offset: u64,
    pub(super) length: Option<u64>,
    /// A key that is repeated, or whose meaning is not defined by ONNX.
    pub(super) odd_key: Option<String>,
    keys: Vec<String>,
}

impl FieldReader<'_> {
    /// Reads an initializer and checks the size of its data.
    pub(super) fn initializer(&mut self, start: u64, end: u64) -> Result<Initializer, OnnxError> {
        let TensorFields { name, data_type, shape, data, data_location, external, .. } =
            self.tensor(start, end)?;
        if name.is_empty() {
            return Err(OnnxError::Nameless { at: start });
        }
        let data = match (data_location, external, data) {
            (1, ExternalData { location: Some(location), offset, length, .. }, _) => {
                Data::External { location, offset, length }
            }
            (1, ..) => return Err(OnnxError::Location { name }),
            (_, _, Some(data)) => data,
            // An empty array has no data field at all.
            (_, _, None) => Data::Inline { offset: start, length: 0 },
        };
        Initializer { name, data_type, shape, data }.check()
    }

    pub(super) fn tensor(&mut self, start: u64, end: u64) -> Result<TensorFields, OnnxError> {
        let mut tensor = TensorFields::default();
        let mut at = start;
        while at < end {
            let field_start = at;
            let Field { number, value } = self.field(&mut at, end)?;
            if matches!(number, 4..=7 | 9..=11) {
                tensor.data_bytes = tensor.data_bytes.saturating_add(at - field_start);
            }
            match (number, value) {
                // dims, one by one or packed
                (1, Wire::Varint(dim)) => tensor.shape.push(dim),
                (1, Wire::Bytes { start, end }) => {
                    let mut at = start;
                    while at < end && tensor.shape.len() <= MAX_DIMS {
                        tensor.shape.push(self.varint(&mut at, end)?);
                    }
                }
                (2, Wire::Varint(number)) => tensor.data_type = number,
                (8, Wire::Bytes { start, end }) => tensor.name = self.text(start, end)?,
                // float_data, raw_data and double_data are arrays if they are in one piece.
                (4 | 9 | 10, Wire::Bytes { start, end }) => {
                    tensor.data = Some(match tensor.data {
                        None => Data::Inline { offset: start, length: end - start },
                        Some(_) => Data::Encoded,
                    });
                }
                // int32_data, string_data, int64_data and uint64_data are not arrays, and neither is unpacked
                // data.
                (4..=7 | 10 | 11, _) => tensor.data = Some(Data::Encoded),
                (13, Wire::Bytes { start, end }) => self.external(start, end, &mut tensor.external)?,
                (14, Wire::Varint(location)) => tensor.data_location = location,
                _ => {}
            }
            if tensor.shape.len() > MAX_DIMS {
                return Err(OnnxError::LimitExceeded { what: "dimensions" });
            }
        }
        Ok(tensor)
    }

    /// Reads an entry of `external_data`: a key and a value.
    fn external(&mut self, start: u64, end: u64, outside: &mut ExternalData) -> Result<(), OnnxError> {
        let (mut key, mut value) = (String::new(), String::new());
        let mut at = start;
        while at < end {
            match self.field(&mut at, end)? {
                Field { number: 1, value: Wire::Bytes { start, end } } => key = self.text(start, end)?,
                Field { number: 2, value: Wire::Bytes { start, end } } => value = self.text(start, end)?,
                _ => {}
            }
        }
        let number = || value.parse::<u64>().map_err(|_| OnnxError::Damaged { at: start });
        let mut is_known = true;
        match key.as_str() {
            "offset" => outside.offset = number()?,
            "length" => outside.length = Some(number()?),
            "location" => outside.location = Some(value),
            "checksum" => {}
            _ => is_known = false,
        }
        if !is_known || outside.keys.contains(&key) {
            outside.odd_key = Some(key);
        } else {
            outside.keys.push(key);
        }
        Ok(())
    }
}

impl Initializer {
    fn check(self) -> Result<Initializer, OnnxError> {
        let Some(dtype) = self.dtype() else { return Ok(self) };
        let Some(expected) = byte_size(dtype, &self.shape) else {
            return Err(OnnxError::Shape { name: self.name, shape: self.shape });
        };
        let found = match &self.data {
            Data::Inline { length, .. } => Some(*length),
            Data::External { length, .. } => *length,
            Data::Encoded => None,
        };
        match found {
            Some(found) if found != expected => {
                Err(OnnxError::Size { name: self.name, shape: self.shape, found, expected })
            }
            _ => Ok(self),
        }
    }
}
