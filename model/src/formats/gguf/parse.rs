//! Parses headers. The bytes are untrusted: no count is used before the bytes that it counts are known to
//! exist, and every error names the key or the tensor.

use std::collections::HashSet;

use super::header::{
    DEFAULT_ALIGNMENT, Header, MAGIC, MAX_ALIGNMENT, MAX_ENTRIES, MAX_HEADER_BYTES, MAX_KEY, MAX_STRING,
    MAX_TENSOR_NAME, TensorEntry, align_up,
};
use super::value::{Array, Metadata, Strings, Value};
use crate::quant::ggml::Type;

/// The most axes of a tensor.
const MAX_DIMS: u32 = 4;

/// Why bytes are not a readable GGUF header.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HeaderError {
    /// Not an error of the file: the caller should retry with more of it.
    #[error("header is incomplete, at least {needed} bytes are needed")]
    Incomplete { needed: u64 },
    #[error("file does not begin with `GGUF`")]
    Magic,
    #[error("file is big-endian, which is not supported (version bytes {version:08x})")]
    BigEndian { version: u32 },
    #[error("version is {version}, expected 2 or 3")]
    Version { version: u32 },
    #[error("file of {file_len} bytes ends within {place}")]
    Truncated { place: String, file_len: u64 },
    #[error("header has {count} {what}, expected at most {MAX_ENTRIES}")]
    TooMany { what: &'static str, count: u64 },
    #[error("header is longer than {limit} bytes (at least {needed})")]
    TooLong { needed: u64, limit: u64 },
    #[error("key `{key}` {problem}")]
    Key { key: String, problem: KeyProblem },
    #[error("tensor `{tensor}` {problem}")]
    Tensor { tensor: String, problem: TensorProblem },
}

/// What is wrong with a key or its value. The message follows the key's name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KeyProblem {
    #[error("is empty")]
    Empty,
    #[error("is not UTF-8")]
    NotText,
    #[error("has a name of {len} bytes, expected at most {MAX_KEY}")]
    NameTooLong { len: u64 },
    #[error("appears twice")]
    Duplicate,
    #[error("has a value of type {id}, expected 0 to 12")]
    Type { id: u32 },
    #[error("is an array of arrays")]
    Nested,
    #[error("has the byte {byte} as a boolean, expected 0 or 1")]
    Bool { byte: u8 },
    #[error("has a string of {len} bytes, expected at most {MAX_STRING}")]
    String { len: u64 },
    #[error("has {count} elements, which do not fit in the file")]
    Count { count: u64 },
    #[error("is not an alignment, expected a power of two up to {MAX_ALIGNMENT}")]
    Alignment,
}

/// What is wrong with a tensor. The message follows its name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TensorProblem {
    #[error("has an empty name")]
    Empty,
    #[error("has a name that is not UTF-8")]
    NotText,
    #[error("has a name of {len} bytes, expected at most {MAX_TENSOR_NAME}")]
    NameTooLong { len: u64 },
    #[error("appears twice")]
    Duplicate,
    #[error("has {dims} dimensions, expected at most {MAX_DIMS}")]
    Dimensions { dims: u32 },
    #[error("has shape {dims:?}, whose size is zero or overflows")]
    Shape { dims: Vec<u64> },
    #[error("has type {id}, which is unknown or was removed")]
    Type { id: u32 },
    #[error("has rows of {columns} elements, expected a multiple of {block} ({ty})")]
    Rows { columns: u64, block: u64, ty: &'static str },
    #[error("has offset {offset}, expected a multiple of {alignment}")]
    Offset { offset: u64, alignment: u64 },
    #[error("has {size} bytes at {offset} of the data, which ends at {data_len}")]
    OutOfBounds { offset: u64, size: u64, data_len: u64 },
    #[error("overlaps `{other}`")]
    Overlap { other: String },
}

impl Header {
    /// Checks the header of a file of `file_len` bytes, of which `bytes` are the first.
    /// [`HeaderError::Incomplete`] requests more of them.
    pub fn parse(bytes: &[u8], file_len: u64) -> Result<Header, HeaderError> {
        let mut reader = Reader { bytes, at: 0, file_len };
        let place = || "the first 24 bytes".to_owned();
        if bytes.len() >= MAGIC.len() && bytes[..MAGIC.len()] != MAGIC {
            return Err(HeaderError::Magic);
        }
        reader.take(MAGIC.len() as u64, place)?;
        let version = u32::from_le_bytes(reader.array(place)?);
        // A big-endian version 3 reads as 0x03000000.
        if version & 0xffff == 0 && version != 0 {
            return Err(HeaderError::BigEndian { version });
        }
        if !(2..=3).contains(&version) {
            return Err(HeaderError::Version { version });
        }
        let tensor_count = u64::from_le_bytes(reader.array(place)?);
        let key_count = u64::from_le_bytes(reader.array(place)?);
        for (what, count) in [("tensors", tensor_count), ("keys", key_count)] {
            if count > MAX_ENTRIES {
                return Err(HeaderError::TooMany { what, count });
            }
        }
        let metadata = reader.metadata(key_count)?;
        let alignment = alignment(&metadata)?;
        let tensors = reader.tensors(tensor_count)?;
        let header_len = reader.at as u64;
        let data_start = align_up(header_len, alignment)
            .ok_or(HeaderError::TooLong { needed: header_len, limit: MAX_HEADER_BYTES })?;
        check_layout(&tensors, alignment, file_len.saturating_sub(data_start))?;
        Ok(Header { version, alignment, metadata, tensors, data_start })
    }
}

pub(super) fn alignment(metadata: &Metadata) -> Result<u64, HeaderError> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    value
        .as_u64()
        .filter(|n| n.is_power_of_two() && *n <= MAX_ALIGNMENT)
        .ok_or_else(|| HeaderError::Key { key: KEY.to_owned(), problem: KeyProblem::Alignment })
}

/// Checks the name, the shape and the type of a tensor, but not its offset. Returns its size.
pub(super) fn check_tensor(entry: &TensorEntry) -> Result<u64, HeaderError> {
    let failed = |problem| HeaderError::Tensor { tensor: entry.name.clone(), problem };
    if entry.name.is_empty() {
        return Err(failed(TensorProblem::Empty));
    }
    let len = entry.name.len() as u64;
    if len > MAX_TENSOR_NAME {
        return Err(failed(TensorProblem::NameTooLong { len }));
    }
    if entry.dims.len() > MAX_DIMS as usize {
        return Err(failed(TensorProblem::Dimensions { dims: entry.dims.len() as u32 }));
    }
    let shape = || failed(TensorProblem::Shape { dims: entry.dims.clone() });
    let elements = entry.dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    if !elements.is_some_and(|elements| 0 < elements && elements <= i64::MAX as u64) {
        return Err(shape());
    }
    let block = u64::from(entry.ty.block_elements());
    if !entry.columns().is_multiple_of(block) {
        let (columns, ty) = (entry.columns(), entry.ty.as_str());
        return Err(failed(TensorProblem::Rows { columns, block, ty }));
    }
    entry.size_bytes().ok_or_else(shape)
}

/// Checks that the tensors are inside the data, aligned, and do not overlap.
fn check_layout(tensors: &[TensorEntry], alignment: u64, data_len: u64) -> Result<(), HeaderError> {
    let mut runs = Vec::with_capacity(tensors.len());
    for entry in tensors {
        let failed = |problem| HeaderError::Tensor { tensor: entry.name.clone(), problem };
        let (offset, size) = (entry.offset, check_tensor(entry)?);
        if !offset.is_multiple_of(alignment) {
            return Err(failed(TensorProblem::Offset { offset, alignment }));
        }
        // The padding after the last tensor may be missing, so it is not required.
        let end = offset.checked_add(size).filter(|end| *end <= data_len);
        let end = end.ok_or_else(|| failed(TensorProblem::OutOfBounds { offset, size, data_len }))?;
        runs.push((offset, end, &entry.name));
    }
    runs.sort_unstable();
    for pair in runs.windows(2) {
        let ((_, end, other), (start, _, tensor)) = (pair[0], pair[1]);
        if start < end {
            let problem = TensorProblem::Overlap { other: other.clone() };
            return Err(HeaderError::Tensor { tensor: tensor.clone(), problem });
        }
    }
    Ok(())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file_len: u64,
}

impl<'a> Reader<'a> {
    /// Takes the next bytes. The error tells whether they are missing from the buffer or from the file.
    fn take(&mut self, len: u64, place: impl Fn() -> String) -> Result<&'a [u8], HeaderError> {
        self.expect(len, place)?;
        let start = self.at;
        // The bytes exist, so their number fits in a usize.
        self.at += len as usize;
        Ok(&self.bytes[start..self.at])
    }

    /// Checks that `len` more bytes follow.
    fn expect(&self, len: u64, place: impl Fn() -> String) -> Result<(), HeaderError> {
        let needed = (self.at as u64).checked_add(len).filter(|needed| *needed <= self.file_len);
        let Some(needed) = needed else {
            return Err(HeaderError::Truncated { place: place(), file_len: self.file_len });
        };
        if needed > MAX_HEADER_BYTES {
            return Err(HeaderError::TooLong { needed, limit: MAX_HEADER_BYTES });
        }
        if needed > self.bytes.len() as u64 {
            return Err(HeaderError::Incomplete { needed });
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self, place: impl Fn() -> String) -> Result<[u8; N], HeaderError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, place)?);
        Ok(array)
    }

    fn metadata(&mut self, count: u64) -> Result<Metadata, HeaderError> {
        let mut metadata = Metadata::new();
        let mut seen = HashSet::new();
        for number in 0..count {
            // A key without a readable name is identified by its number.
            let nameless = || format!("number {number}");
            let failed = |key: String, problem| HeaderError::Key { key, problem };
            let place = || format!("key {}", nameless());
            let len = u64::from_le_bytes(self.array(place)?);
            if len == 0 {
                return Err(failed(nameless(), KeyProblem::Empty));
            }
            if len > MAX_KEY {
                return Err(failed(nameless(), KeyProblem::NameTooLong { len }));
            }
            let key = std::str::from_utf8(self.take(len, place)?)
                .map_err(|_| failed(nameless(), KeyProblem::NotText))?;
            if !seen.insert(key) {
                return Err(failed(key.to_owned(), KeyProblem::Duplicate));
            }
            metadata.push_new(key.to_owned(), self.value(key)?);
        }
        Ok(metadata)
    }

    fn value(&mut self, key: &str) -> Result<Value, HeaderError> {
        let place = || format!("key `{key}`");
        let failed = |problem| HeaderError::Key { key: key.to_owned(), problem };
        let ty = u32::from_le_bytes(self.array(place)?);
        macro_rules! number {
            ($variant:ident, $ty:ty) => {
                Value::$variant(<$ty>::from_le_bytes(self.array(place)?))
            };
        }
        Ok(match ty {
            0 => number!(U8, u8),
            1 => number!(I8, i8),
            2 => number!(U16, u16),
            3 => number!(I16, i16),
            4 => number!(U32, u32),
            5 => number!(I32, i32),
            6 => number!(F32, f32),
            7 => Value::Bool(parse_bool(self.array::<1>(place)?[0]).map_err(failed)?),
            8 => Value::String(self.string(key)?.to_vec()),
            9 => Value::Array(self.elements(key)?),
            10 => number!(U64, u64),
            11 => number!(I64, i64),
            12 => number!(F64, f64),
            id => return Err(failed(KeyProblem::Type { id })),
        })
    }

    fn elements(&mut self, key: &str) -> Result<Array, HeaderError> {
        let place = || format!("key `{key}`");
        let failed = |problem| HeaderError::Key { key: key.to_owned(), problem };
        let ty = u32::from_le_bytes(self.array(place)?);
        let count = u64::from_le_bytes(self.array(place)?);
        // A string has at least its length field.
        let smallest: u64 = match ty {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return Err(failed(KeyProblem::Nested)),
            id => return Err(failed(KeyProblem::Type { id })),
        };
        let left = self.file_len - self.at as u64;
        let least = count.checked_mul(smallest).filter(|bytes| *bytes <= left);
        let least = least.ok_or_else(|| failed(KeyProblem::Count { count }))?;
        // Memory is reserved only after its bytes are known to exist.
        self.expect(least, place)?;
        macro_rules! numbers {
            ($variant:ident, $ty:ty) => {{
                let bytes = self.take(least, place)?.chunks_exact(size_of::<$ty>());
                let number = |chunk: &[u8]| {
                    <$ty>::from_le_bytes(chunk.try_into().expect("chunks have the size of the type"))
                };
                Array::$variant(bytes.map(number).collect())
            }};
        }
        Ok(match ty {
            0 => Array::U8(self.take(least, place)?.to_vec()),
            1 => numbers!(I8, i8),
            2 => numbers!(U16, u16),
            3 => numbers!(I16, i16),
            4 => numbers!(U32, u32),
            5 => numbers!(I32, i32),
            6 => numbers!(F32, f32),
            7 => {
                let bytes = self.take(least, place)?;
                Array::Bool(
                    bytes.iter().map(|byte| parse_bool(*byte)).collect::<Result<_, _>>().map_err(failed)?,
                )
            }
            10 => numbers!(U64, u64),
            11 => numbers!(I64, i64),
            12 => numbers!(F64, f64),
            _ => {
                let mut strings = Strings::default();
                strings.reserve(count as usize);
                for _ in 0..count {
                    strings.push(self.string(key)?);
                }
                Array::String(strings)
            }
        })
    }

    fn string(&mut self, key: &str) -> Result<&'a [u8], HeaderError> {
        let place = || format!("key `{key}`");
        let len = u64::from_le_bytes(self.array(place)?);
        if len > MAX_STRING {
            let problem = KeyProblem::String { len };
            return Err(HeaderError::Key { key: key.to_owned(), problem });
        }
        self.take(len, place)
    }

    fn tensors(&mut self, count: u64) -> Result<Vec<TensorEntry>, HeaderError> {
        let mut tensors: Vec<TensorEntry> = Vec::new();
        let mut names = HashSet::new();
        for number in 0..count {
            let nameless = || format!("number {number}");
            let place = || format!("tensor {}", nameless());
            let failed = |tensor: String, problem| HeaderError::Tensor { tensor, problem };
            let len = u64::from_le_bytes(self.array(place)?);
            if len == 0 {
                return Err(failed(nameless(), TensorProblem::Empty));
            }
            if len > MAX_TENSOR_NAME {
                return Err(failed(nameless(), TensorProblem::NameTooLong { len }));
            }
            let name = std::str::from_utf8(self.take(len, place)?)
                .map_err(|_| failed(nameless(), TensorProblem::NotText))?;
            let place = || format!("tensor `{name}`");
            let failed = |problem| failed(name.to_owned(), problem);
            if !names.insert(name) {
                return Err(failed(TensorProblem::Duplicate));
            }
            let dims = u32::from_le_bytes(self.array(place)?);
            if dims > MAX_DIMS {
                return Err(failed(TensorProblem::Dimensions { dims }));
            }
            let dims: Result<Vec<u64>, HeaderError> =
                (0..dims).map(|_| self.array(place).map(u64::from_le_bytes)).collect();
            let dims = dims?;
            let id = u32::from_le_bytes(self.array(place)?);
            let ty = Type::from_id(id).ok_or_else(|| failed(TensorProblem::Type { id }))?;
            let offset = u64::from_le_bytes(self.array(place)?);
            tensors.push(TensorEntry { name: name.to_owned(), dims, ty, offset });
        }
        Ok(tensors)
    }
}

fn parse_bool(byte: u8) -> Result<bool, KeyProblem> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        byte => Err(KeyProblem::Bool { byte }),
    }
}
