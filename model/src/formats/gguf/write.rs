//! Writes headers as ggml's own reader requires them, with tensors back to back in their order. The caller
//! writes the bytes of the tensors, each padded to the alignment.

use std::collections::HashSet;

use super::header::{
    Header, MAGIC, MAX_ENTRIES, MAX_HEADER_BYTES, MAX_KEY, MAX_STRING, TensorEntry, VERSION, align_up,
};
use super::parse::{HeaderError, KeyProblem, TensorProblem, alignment, check_tensor};
use super::value::{Array, Metadata, Value};
use crate::quant::ggml::Type;

/// A tensor to be written. Its offset is assigned.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTensor {
    pub name: String,
    /// The fastest-varying axis first.
    pub dims: Vec<u64>,
    pub ty: Type,
}

impl Header {
    /// Lays out a file of these keys and tensors. Fails on everything that the parser would refuse.
    pub fn new(
        metadata: Metadata,
        tensors: impl IntoIterator<Item = NewTensor>,
    ) -> Result<Header, HeaderError> {
        check_keys(&metadata)?;
        let alignment = alignment(&metadata)?;
        let mut entries: Vec<TensorEntry> = Vec::new();
        let mut names = HashSet::new();
        let mut offset = 0u64;
        for NewTensor { name, dims, ty } in tensors {
            let entry = TensorEntry { name, dims, ty, offset };
            let failed = |problem| HeaderError::Tensor { tensor: entry.name.clone(), problem };
            let size = check_tensor(&entry)?;
            if !names.insert(entry.name.clone()) {
                return Err(failed(TensorProblem::Duplicate));
            }
            let next = offset.checked_add(size).and_then(|end| align_up(end, alignment));
            offset = next.ok_or_else(|| failed(TensorProblem::Shape { dims: entry.dims.clone() }))?;
            entries.push(entry);
        }
        let count = entries.len() as u64;
        if count > MAX_ENTRIES {
            return Err(HeaderError::TooMany { what: "tensors", count });
        }
        let mut header = Header { version: VERSION, alignment, metadata, tensors: entries, data_start: 0 };
        let needed = header.written_len();
        if needed > MAX_HEADER_BYTES {
            return Err(HeaderError::TooLong { needed, limit: MAX_HEADER_BYTES });
        }
        header.data_start = needed.next_multiple_of(alignment);
        Ok(header)
    }

    /// The length of the whole file, including the padding after its last tensor.
    pub fn file_len(&self) -> u64 {
        let end = |entry: &TensorEntry| entry.offset.saturating_add(entry.size_bytes().unwrap_or(0));
        let end = self.tensors.iter().map(end).max().unwrap_or(0);
        self.data_start.saturating_add(align_up(end, self.alignment).unwrap_or(end))
    }

    /// Writes the bytes in front of the data, padding included.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data_start as usize);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            write_string(&mut out, key.as_bytes());
            write_value(&mut out, value);
        }
        for entry in &self.tensors {
            write_string(&mut out, entry.name.as_bytes());
            out.extend_from_slice(&(entry.dims.len() as u32).to_le_bytes());
            entry.dims.iter().for_each(|dim| out.extend_from_slice(&dim.to_le_bytes()));
            out.extend_from_slice(&entry.ty.id().to_le_bytes());
            out.extend_from_slice(&entry.offset.to_le_bytes());
        }
        out.resize(out.len().max(self.data_start as usize), 0);
        out
    }

    /// The length of what [`Header::to_bytes`] writes, without padding.
    fn written_len(&self) -> u64 {
        let string = |len: usize| 8 + len as u64;
        let keys = self.metadata.iter().map(|(key, value)| string(key.len()) + 4 + value_len(value));
        let tensors =
            self.tensors.iter().map(|entry| string(entry.name.len()) + 4 + 8 * entry.dims.len() as u64 + 12);
        24 + keys.sum::<u64>() + tensors.sum::<u64>()
    }
}

fn check_keys(metadata: &Metadata) -> Result<(), HeaderError> {
    let count = metadata.len() as u64;
    if count > MAX_ENTRIES {
        return Err(HeaderError::TooMany { what: "keys", count });
    }
    let mut seen = HashSet::new();
    for (key, value) in metadata.iter() {
        let failed = |problem| HeaderError::Key { key: key.to_owned(), problem };
        let longest = match value {
            Value::String(bytes) => bytes.len() as u64,
            Value::Array(Array::String(strings)) => {
                strings.iter().map(|bytes| bytes.len() as u64).max().unwrap_or(0)
            }
            _ => 0,
        };
        match key.len() as u64 {
            0 => return Err(failed(KeyProblem::Empty)),
            len if len > MAX_KEY => return Err(failed(KeyProblem::NameTooLong { len })),
            _ if !seen.insert(key) => return Err(failed(KeyProblem::Duplicate)),
            _ if longest > MAX_STRING => return Err(failed(KeyProblem::String { len: longest })),
            _ => {}
        }
    }
    Ok(())
}

fn value_len(value: &Value) -> u64 {
    match value {
        Value::U8(_) | Value::I8(_) | Value::Bool(_) => 1,
        Value::U16(_) | Value::I16(_) => 2,
        Value::U32(_) | Value::I32(_) | Value::F32(_) => 4,
        Value::U64(_) | Value::I64(_) | Value::F64(_) => 8,
        Value::String(bytes) => 8 + bytes.len() as u64,
        Value::Array(array) => {
            let count = array.len() as u64;
            let elements = match array {
                Array::U8(_) | Array::I8(_) | Array::Bool(_) => count,
                Array::U16(_) | Array::I16(_) => 2 * count,
                Array::U32(_) | Array::I32(_) | Array::F32(_) => 4 * count,
                Array::U64(_) | Array::I64(_) | Array::F64(_) => 8 * count,
                Array::String(strings) => 8 * count + strings.total_bytes() as u64,
            };
            4 + 8 + elements
        }
    }
}

fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    let mut write = |id: u32, bytes: &[u8]| {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(bytes);
    };
    match value {
        Value::U8(n) => write(0, &n.to_le_bytes()),
        Value::I8(n) => write(1, &n.to_le_bytes()),
        Value::U16(n) => write(2, &n.to_le_bytes()),
        Value::I16(n) => write(3, &n.to_le_bytes()),
        Value::U32(n) => write(4, &n.to_le_bytes()),
        Value::I32(n) => write(5, &n.to_le_bytes()),
        Value::F32(x) => write(6, &x.to_le_bytes()),
        Value::Bool(value) => write(7, &[u8::from(*value)]),
        Value::U64(n) => write(10, &n.to_le_bytes()),
        Value::I64(n) => write(11, &n.to_le_bytes()),
        Value::F64(x) => write(12, &x.to_le_bytes()),
        Value::String(bytes) => {
            write(8, &[]);
            write_string(out, bytes);
        }
        Value::Array(array) => {
            write(9, &[]);
            write_array(out, array);
        }
    }
}

fn write_array(out: &mut Vec<u8>, array: &Array) {
    let mut head = |id: u32| {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(array.len() as u64).to_le_bytes());
    };
    macro_rules! numbers {
        ($id:literal, $all:expr) => {{
            head($id);
            $all.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(all) => numbers!(0, all),
        Array::I8(all) => numbers!(1, all),
        Array::U16(all) => numbers!(2, all),
        Array::I16(all) => numbers!(3, all),
        Array::U32(all) => numbers!(4, all),
        Array::I32(all) => numbers!(5, all),
        Array::F32(all) => numbers!(6, all),
        Array::U64(all) => numbers!(10, all),
        Array::I64(all) => numbers!(11, all),
        Array::F64(all) => numbers!(12, all),
        Array::Bool(all) => {
            head(7);
            out.extend(all.iter().map(|value| u8::from(*value)));
        }
        Array::String(strings) => {
            head(8);
            strings.iter().for_each(|string| write_string(out, string));
        }
    }
}
