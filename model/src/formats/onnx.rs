//! Finds the initializers of an ONNX file by walking its protobuf fields (`onnx.proto`): names, types, shapes
//! and byte ranges. Only tags, lengths and small fields are read; weights are skipped, wherever they are
//! stored between them.

use std::io;

use crate::read_at::ReadAt;
use crate::safetensors::{Dtype, byte_size};

/// The most initializers of a file.
const MAX_TENSORS: usize = 250_000;
/// The most fields and the most reads of a file, so that a file of only tags has a bounded cost.
const MAX_FIELDS: u64 = 8_000_000;
const MAX_READS: u64 = 250_000;
/// The longest name, in bytes.
const MAX_TEXT: u64 = 4096;
/// The most axes of a tensor.
const MAX_DIMS: usize = 64;
/// The size of one read.
const WINDOW_BYTES: u64 = 64 * 1024;
/// The longest varint, in bytes.
const VARINT_BYTES: u64 = 10;

/// The parts of a file that Lode reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// The tool that wrote the file.
    pub producer: Option<String>,
    /// In the order of the file.
    pub tensors: Vec<Initializer>,
}

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

/// Why bytes are not a readable ONNX file.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    #[error("field at byte {at} is damaged or exceeds its message")]
    Damaged { at: u64 },
    #[error("the file has no graph")]
    NoGraph,
    #[error("the file exceeds the limit on {what}")]
    LimitExceeded { what: &'static str },
    #[error("an initializer at byte {at} has no name")]
    Nameless { at: u64 },
    #[error("initializer `{name}` of shape {shape:?} has {found} bytes, expected {expected}")]
    Size { name: String, shape: Vec<u64>, found: u64, expected: u64 },
    #[error("initializer `{name}` has shape {shape:?}, whose size overflows")]
    Shape { name: String, shape: Vec<u64> },
    #[error("initializer `{name}` is stored outside the file, but does not give its location")]
    Location { name: String },
    #[error("reading failed")]
    Read(#[source] io::Error),
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

impl Model {
    /// Returns the files that hold some of the weights, each once, as the model names them.
    pub fn locations(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self
            .tensors
            .iter()
            .filter_map(|tensor| match &tensor.data {
                Data::External { location, .. } => Some(location.as_str()),
                _ => None,
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the path of a file that a model names, relative to the model's own path.
    pub fn resolve_location(path: &str, location: &str) -> String {
        let location = location.trim_start_matches("./");
        match path.rsplit_once('/') {
            Some((folder, _)) => format!("{folder}/{location}"),
            None => location.to_owned(),
        }
    }

    /// Reads a file by walking its fields.
    pub fn read(file: &dyn ReadAt) -> Result<Model, OnnxError> {
        let mut walk = FieldReader { file, start: 0, window: Vec::new(), fields: 0, reads: 0 };
        let mut model = Model::default();
        let mut has_graph = false;
        let mut at = 0;
        while at < file.len() {
            let field = walk.field(&mut at, file.len())?;
            match (field.number, field.value) {
                // ModelProto.producer_name
                (2, Wire::Bytes { start, end }) => model.producer = Some(walk.text(start, end)?),
                // ModelProto.graph
                (7, Wire::Bytes { start, end }) => {
                    has_graph = true;
                    walk.graph(start, end, &mut model)?;
                }
                _ => {}
            }
        }
        if has_graph { Ok(model) } else { Err(OnnxError::NoGraph) }
    }
}

/// A field of a message: its number, and its value or byte range.
struct Field {
    number: u64,
    value: Wire,
}

#[derive(Clone, Copy)]
enum Wire {
    Varint(u64),
    Bytes {
        start: u64,
        end: u64,
    },
    /// Four or eight bytes.
    Fixed,
}

struct FieldReader<'a> {
    file: &'a dyn ReadAt,
    /// The offset of the window in the file.
    start: u64,
    window: Vec<u8>,
    fields: u64,
    reads: u64,
}

impl FieldReader<'_> {
    /// Returns some bytes, at most as many as a window has.
    fn bytes(&mut self, at: u64, length: u64) -> Result<&[u8], OnnxError> {
        let end = self.start + self.window.len() as u64;
        if at < self.start || at + length > end {
            self.reads += 1;
            if self.reads > MAX_READS {
                return Err(OnnxError::LimitExceeded { what: "reads" });
            }
            self.start = at;
            self.window.resize(WINDOW_BYTES.min(self.file.len().saturating_sub(at)) as usize, 0);
            self.file.read_at(at, &mut self.window).map_err(OnnxError::Read)?;
        }
        let from = (at - self.start) as usize;
        self.window.get(from..from + length as usize).ok_or(OnnxError::Damaged { at })
    }

    fn varint(&mut self, at: &mut u64, end: u64) -> Result<u64, OnnxError> {
        let damaged = OnnxError::Damaged { at: *at };
        let bytes = self.bytes(*at, VARINT_BYTES.min(end.saturating_sub(*at)))?;
        let mut value = 0u64;
        for (nth, byte) in bytes.iter().enumerate() {
            // The tenth byte has one bit left.
            if nth == 9 && *byte > 1 {
                return Err(damaged);
            }
            value |= u64::from(byte & 0x7f) << (7 * nth);
            if byte & 0x80 == 0 {
                *at += nth as u64 + 1;
                return Ok(value);
            }
        }
        Err(damaged)
    }

    /// Reads the field at `at`, in a message that ends at `end`, and moves `at` behind it.
    fn field(&mut self, at: &mut u64, end: u64) -> Result<Field, OnnxError> {
        self.fields += 1;
        if self.fields > MAX_FIELDS {
            return Err(OnnxError::LimitExceeded { what: "fields" });
        }
        let start = *at;
        let tag = self.varint(at, end)?;
        let damaged = || OnnxError::Damaged { at: start };
        let fixed = |at: u64, length: u64| at.checked_add(length).filter(|at| *at <= end).ok_or_else(damaged);
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint(at, end)?),
            1 => {
                *at = fixed(*at, 8)?;
                Wire::Fixed
            }
            2 => {
                let length = self.varint(at, end)?;
                let start = *at;
                *at = fixed(start, length)?;
                Wire::Bytes { start, end: *at }
            }
            5 => {
                *at = fixed(*at, 4)?;
                Wire::Fixed
            }
            _ => return Err(damaged()),
        };
        match tag >> 3 {
            0 => Err(damaged()),
            number => Ok(Field { number, value }),
        }
    }

    fn text(&mut self, start: u64, end: u64) -> Result<String, OnnxError> {
        if end - start > MAX_TEXT {
            return Err(OnnxError::LimitExceeded { what: "text" });
        }
        let bytes = self.bytes(start, end - start)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| OnnxError::Damaged { at: start })
    }

    fn graph(&mut self, start: u64, end: u64, model: &mut Model) -> Result<(), OnnxError> {
        let mut at = start;
        while at < end {
            // GraphProto.initializer
            if let Field { number: 5, value: Wire::Bytes { start, end } } = self.field(&mut at, end)? {
                if model.tensors.len() == MAX_TENSORS {
                    return Err(OnnxError::LimitExceeded { what: "initializers" });
                }
                let tensor = self.tensor(start, end)?;
                model.tensors.push(tensor);
            }
        }
        Ok(())
    }

    fn tensor(&mut self, start: u64, end: u64) -> Result<Initializer, OnnxError> {
        let (mut name, mut data_type, mut shape) = (String::new(), 0, Vec::new());
        let mut data: Option<Data> = None;
        let mut outside = ExternalData::default();
        let mut at = start;
        while at < end {
            let Field { number, value } = self.field(&mut at, end)?;
            match (number, value) {
                // dims, one by one or packed
                (1, Wire::Varint(dim)) => shape.push(dim),
                (1, Wire::Bytes { start, end }) => {
                    let mut at = start;
                    while at < end && shape.len() <= MAX_DIMS {
                        shape.push(self.varint(&mut at, end)?);
                    }
                }
                (2, Wire::Varint(number)) => data_type = number,
                (8, Wire::Bytes { start, end }) => name = self.text(start, end)?,
                // float_data, raw_data and double_data are arrays if they are in one piece.
                (4 | 9 | 10, Wire::Bytes { start, end }) => {
                    data = Some(match data {
                        None => Data::Inline { offset: start, length: end - start },
                        Some(_) => Data::Encoded,
                    });
                }
                // int32_data, string_data, int64_data and uint64_data are not arrays, and neither is unpacked
                // data.
                (4..=7 | 10 | 11, _) => data = Some(Data::Encoded),
                (13, Wire::Bytes { start, end }) => self.external(start, end, &mut outside)?,
                (14, Wire::Varint(location)) => outside.is_external = location == 1,
                _ => {}
            }
            if shape.len() > MAX_DIMS {
                return Err(OnnxError::LimitExceeded { what: "dimensions" });
            }
        }
        if name.is_empty() {
            return Err(OnnxError::Nameless { at: start });
        }
        let data = match (outside, data) {
            (ExternalData { is_external: true, location: Some(location), offset, length }, _) => {
                Data::External { location, offset, length }
            }
            (ExternalData { is_external: true, .. }, _) => return Err(OnnxError::Location { name }),
            (_, Some(data)) => data,
            // An empty array has no data field at all.
            (_, None) => Data::Inline { offset: start, length: 0 },
        };
        let tensor = Initializer { name, data_type, shape, data };
        tensor.check()
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
        match key.as_str() {
            "offset" => outside.offset = number()?,
            "length" => outside.length = Some(number()?),
            "location" => outside.location = Some(value),
            _ => {}
        }
        Ok(())
    }
}

#[derive(Default)]
struct ExternalData {
    is_external: bool,
    location: Option<String>,
    offset: u64,
    length: Option<u64>,
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(mut n: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
        out
    }

    fn number(field: u64, n: u64) -> Vec<u8> {
        [varint(field << 3), varint(n)].concat()
    }

    fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
        [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
    }

    fn model(initializers: &[Vec<u8>]) -> Vec<u8> {
        let tensors: Vec<u8> = initializers.iter().flat_map(|tensor| bytes(5, tensor)).collect();
        [number(1, 8), bytes(2, b"maker"), bytes(7, &[bytes(2, b"g"), tensors].concat())].concat()
    }

    fn tensor(name: &str, data_type: u64, dims: &[u64], rest: &[Vec<u8>]) -> Vec<u8> {
        let dims: Vec<u8> = dims.iter().flat_map(|dim| number(1, *dim)).collect();
        [dims, number(2, data_type), bytes(8, name.as_bytes()), rest.concat()].concat()
    }

    #[test]
    fn initializers_are_located() {
        let entry = |key: &str, value: &str| {
            bytes(13, &[bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat())
        };
        let file = model(&[
            tensor("raw", 1, &[2, 3], &[bytes(9, &[7; 24])]),
            // The data comes first, the dims are packed, and the data is much longer than one read.
            [bytes(9, &[9; 200_000]), bytes(1, &varint(100_000)), number(2, 10), bytes(8, b"half")].concat(),
            tensor("shape", 7, &[2], &[bytes(7, &[1, 2])]),
            tensor(
                "outside",
                1,
                &[4],
                &[entry("location", "m.data"), entry("offset", "64"), entry("length", "16"), number(14, 1)],
            ),
            tensor("scalar", 1, &[], &[bytes(4, &[0; 4])]),
        ]);
        let read = Model::read(&file).unwrap();
        assert_eq!(read.producer.as_deref(), Some("maker"));
        let names: Vec<&str> = read.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["raw", "half", "shape", "outside", "scalar"]);
        let Data::Inline { offset, length: 24 } = read.tensors[0].data else {
            panic!("{:?}", read.tensors[0])
        };
        assert_eq!(file[offset as usize..][..24], [7; 24]);
        let Data::Inline { offset, length: 200_000 } = read.tensors[1].data else { panic!("in the file") };
        assert!(file[offset as usize..][..200_000].iter().all(|byte| *byte == 9));
        assert_eq!((read.tensors[1].dtype(), &read.tensors[1].shape[..]), (Some(Dtype::F16), &[100_000][..]));
        assert_eq!(read.tensors[2].data, Data::Encoded);
        let outside = Data::External { location: "m.data".to_owned(), offset: 64, length: Some(16) };
        assert_eq!(read.tensors[3].data, outside);
        assert_eq!(read.locations(), ["m.data"]);
    }

    #[test]
    fn invalid_files_are_refused() {
        let refused = |file: &[u8]| Model::read(&file.to_vec()).unwrap_err().to_string();
        assert_eq!(refused(b""), "the file has no graph");
        assert!(refused(b"this is text").contains("damaged"));
        let wrong = model(&[tensor("w", 1, &[2, 3], &[bytes(9, &[0; 20])])]);
        assert_eq!(refused(&wrong), "initializer `w` of shape [2, 3] has 20 bytes, expected 24");
        let huge = model(&[tensor("w", 1, &[u64::MAX, 3], &[])]);
        assert!(refused(&huge).contains("initializer `w` has shape"));
        assert!(refused(&model(&[tensor("", 1, &[], &[])])).contains("has no name"));
        assert!(
            refused(&model(&[tensor("w", 1, &[], &[number(14, 1)])])).contains("does not give its location")
        );
        let whole = model(&[tensor("raw", 1, &[6], &[bytes(9, &[7; 24])])]);
        for cut in 1..whole.len() {
            assert!(Model::read(&whole[..cut].to_vec()).is_err(), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _anything = Model::read(&bytes);
            let _anything = Model::read(&model(&[bytes]));
        }
    }
}
