//! The header of a safetensors file, parsed and checked against the length of the file. Dtypes are the
//! `safetensors` crate's; the parser is our own, because its errors name the tensor and the expected value.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

pub use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::read_at::ReadAt;

/// The longest header that is read, in bytes (the format's own limit).
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The length of the field in front of the header: a little-endian u64, the header's length.
pub const LENGTH_BYTES: u64 = 8;

/// One entry of a header. Every field has been checked against the file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    pub name: String,
    pub dtype: Dtype,
    /// Row-major.
    pub shape: Vec<u64>,
    /// The offset of its bytes from the start of the data.
    pub begin: u64,
    /// The end of its bytes, exclusive.
    pub end: u64,
}

impl TensorEntry {
    pub fn size_bytes(&self) -> u64 {
        self.end - self.begin
    }

    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// A checked header.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// In the order of their data, which has neither gaps nor overlaps.
    tensors: Vec<TensorEntry>,
    /// Positions in `tensors`, ordered by name.
    by_name: Vec<u32>,
    metadata: BTreeMap<String, String>,
    data_start: u64,
}

/// Why a file is not a valid safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error(
        "file of {len} bytes is too short for a safetensors header (expected at least {LENGTH_BYTES} bytes and the header)"
    )]
    TooShort { len: u64 },
    #[error("header length is {len}, expected at most {limit} (the file has {file_len} bytes)")]
    Length { len: u64, limit: u64, file_len: u64 },
    #[error("header does not begin with `{{`, expected a JSON object")]
    NotAnObject,
    #[error("header is not a table of tensors")]
    Json(#[source] serde_json::Error),
    #[error("tensor `{name}` appears twice in the header, expected once")]
    Duplicate { name: String },
    #[error("header has {count} tensors, expected at most {}", u32::MAX)]
    TooMany { count: usize },
    #[error("tensor `{name}` has shape {shape:?}, whose size overflows")]
    Overflow { name: String, shape: Vec<u64> },
    #[error("tensor `{name}` begins at {begin} and ends at {end}, expected begin <= end")]
    Reversed { name: String, begin: u64, end: u64 },
    #[error("tensor `{name}` ends at {end}, expected at most {data_len} (the data's length)")]
    OutOfBounds { name: String, end: u64, data_len: u64 },
    #[error("tensor `{name}` of {dtype} and shape {shape:?} has {found} bytes, expected {expected}")]
    Size { name: String, dtype: Dtype, shape: Vec<u64>, found: u64, expected: u64 },
    #[error("tensor `{name}` of {dtype} and shape {shape:?} does not fill whole bytes")]
    PartialByte { name: String, dtype: Dtype, shape: Vec<u64> },
    #[error("tensor `{name}` begins at {begin} and overlaps `{previous}`, expected to begin at {expected}")]
    Overlap { name: String, previous: String, begin: u64, expected: u64 },
    #[error("tensor `{name}` begins at {begin} after a gap, expected to begin at {expected}")]
    Gap { name: String, begin: u64, expected: u64 },
    #[error("data has {data_len} bytes, expected {expected} (the end of the last tensor)")]
    Trailing { data_len: u64, expected: u64 },
    #[error("reading failed")]
    Read(#[source] io::Error),
}

/// The length of the JSON header of a file, from the file's first eight bytes.
pub fn header_len(first: [u8; LENGTH_BYTES as usize], file_len: u64) -> Result<u64, HeaderError> {
    let room = file_len.checked_sub(LENGTH_BYTES).ok_or(HeaderError::TooShort { len: file_len })?;
    let len = u64::from_le_bytes(first);
    let limit = room.min(MAX_HEADER_BYTES);
    if len > limit {
        return Err(HeaderError::Length { len, limit, file_len });
    }
    Ok(len)
}

impl Header {
    /// Reads and checks the header of a file.
    pub fn read(file: &(impl ReadAt + ?Sized)) -> Result<Header, HeaderError> {
        let file_len = file.len();
        if file_len < LENGTH_BYTES {
            return Err(HeaderError::TooShort { len: file_len });
        }
        let mut first = [0; LENGTH_BYTES as usize];
        file.read_at(0, &mut first).map_err(HeaderError::Read)?;
        let len = header_len(first, file_len)?;
        // At most MAX_HEADER_BYTES, so it fits in a usize.
        let mut json = vec![0; len as usize];
        file.read_at(LENGTH_BYTES, &mut json).map_err(HeaderError::Read)?;
        Header::parse(&json, file_len - LENGTH_BYTES - len)
    }

    /// Checks a header (the JSON alone) against the length of the data that follows it.
    pub fn parse(json: &[u8], data_len: u64) -> Result<Header, HeaderError> {
        if json.len() as u64 > MAX_HEADER_BYTES {
            let len = json.len() as u64;
            return Err(HeaderError::Length { len, limit: MAX_HEADER_BYTES, file_len: data_len });
        }
        if json.first() != Some(&b'{') {
            return Err(HeaderError::NotAnObject);
        }
        let Table { mut tensors, metadata } = serde_json::from_slice(json).map_err(HeaderError::Json)?;
        let count = tensors.len();
        if u32::try_from(count).is_err() {
            return Err(HeaderError::TooMany { count });
        }

        tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
        let by_name = order_by_name(&tensors)?;

        let mut expected = 0;
        let mut previous: Option<&TensorEntry> = None;
        for tensor in &tensors {
            check_extent(tensor, data_len)?;
            let (name, begin) = (|| tensor.name.clone(), tensor.begin);
            match previous {
                Some(previous) if begin < expected => {
                    let previous = previous.name.clone();
                    return Err(HeaderError::Overlap { name: name(), previous, begin, expected });
                }
                _ if begin > expected => return Err(HeaderError::Gap { name: name(), begin, expected }),
                _ => {}
            }
            expected = tensor.end;
            previous = Some(tensor);
        }
        if expected != data_len {
            return Err(HeaderError::Trailing { data_len, expected });
        }
        Ok(Header { tensors, by_name, metadata, data_start: LENGTH_BYTES + json.len() as u64 })
    }

    /// Returns the same data with some tensors renamed and with other metadata.
    pub(crate) fn renamed(
        &self,
        names: &BTreeMap<String, String>,
        metadata: BTreeMap<String, String>,
    ) -> Result<Header, HeaderError> {
        let mut tensors = self.tensors.clone();
        for tensor in &mut tensors {
            if let Some(name) = names.get(&tensor.name) {
                tensor.name.clone_from(name);
            }
        }
        Ok(Header { by_name: order_by_name(&tensors)?, tensors, metadata, data_start: self.data_start })
    }

    /// The tensors in the order of their data.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    pub fn get(&self, name: &str) -> Option<&TensorEntry> {
        let entry = |position: u32| &self.tensors[position as usize];
        let at = self.by_name.binary_search_by(|position| entry(*position).name.as_str().cmp(name)).ok()?;
        Some(entry(self.by_name[at]))
    }

    /// `__metadata__`; empty where it is absent or null.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The offset of the data in the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }
}

/// Returns the positions of tensors, ordered by name. Duplicate names are an error.
fn order_by_name(tensors: &[TensorEntry]) -> Result<Vec<u32>, HeaderError> {
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    by_name.sort_by(|a, b| tensors[*a as usize].name.cmp(&tensors[*b as usize].name));
    for pair in by_name.windows(2) {
        let name = &tensors[pair[0] as usize].name;
        if *name == tensors[pair[1] as usize].name {
            return Err(HeaderError::Duplicate { name: name.clone() });
        }
    }
    Ok(by_name)
}

/// Returns the size of a tensor of this type and shape; `None` if it is not whole bytes or overflows.
pub fn byte_size(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
    let bits = elements.checked_mul(dtype.bitsize() as u64)?;
    (bits % 8 == 0).then_some(bits / 8)
}

fn check_extent(tensor: &TensorEntry, data_len: u64) -> Result<(), HeaderError> {
    let TensorEntry { name, dtype, shape, begin, end } = tensor;
    let (begin, end, name) = (*begin, *end, || name.clone());
    if begin > end {
        return Err(HeaderError::Reversed { name: name(), begin, end });
    }
    if end > data_len {
        return Err(HeaderError::OutOfBounds { name: name(), end, data_len });
    }
    let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    let bits = elements.and_then(|elements| elements.checked_mul(dtype.bitsize() as u64));
    let bits = bits.ok_or_else(|| HeaderError::Overflow { name: name(), shape: shape.clone() })?;
    if bits % 8 != 0 {
        return Err(HeaderError::PartialByte { name: name(), dtype: *dtype, shape: shape.clone() });
    }
    let (found, expected) = (end - begin, bits / 8);
    if found != expected {
        return Err(HeaderError::Size { name: name(), dtype: *dtype, shape: shape.clone(), found, expected });
    }
    Ok(())
}

/// Writes the front of a safetensors file, length included: keys sorted, metadata first, padded with spaces
/// to a multiple of eight, with the data of the tensors in the order given. ollama's extractor writes the
/// same bytes for one tensor, so that a tensor has the same digest whichever tool imported it.
pub fn write_header(tensors: &[(&str, Dtype, &[u64])], metadata: &BTreeMap<String, String>) -> Vec<u8> {
    use serde_json::{Value, json};

    let mut end = 0;
    let entries: BTreeMap<&str, Value> = tensors
        .iter()
        .map(|(name, dtype, shape)| {
            let begin = end;
            end += byte_size(*dtype, shape).expect("a tensor that was checked has whole bytes");
            (*name, json!({"dtype": dtype.to_string(), "shape": shape, "data_offsets": [begin, end]}))
        })
        .collect();
    let mut table = serde_json::Map::new();
    if !metadata.is_empty() {
        table.insert("__metadata__".to_owned(), json!(metadata));
    }
    table.extend(entries.into_iter().map(|(name, entry)| (name.to_owned(), entry)));

    let mut json = serde_json::to_vec(&table).expect("a table of strings and numbers is JSON");
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    bytes
}

/// The parsed JSON object, including duplicate keys.
struct Table {
    tensors: Vec<TensorEntry>,
    metadata: BTreeMap<String, String>,
}

#[derive(serde::Deserialize)]
struct RawEntry {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor;

        impl<'de> Visitor<'de> for TableVisitor {
            type Value = Table;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
                let mut tensors = Vec::new();
                let mut metadata = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if metadata.is_some() {
                            return Err(A::Error::duplicate_field("__metadata__"));
                        }
                        // MLX's writer stores null if there is none.
                        let map = map.next_value::<Option<BTreeMap<String, String>>>();
                        let map = map.map_err(|e| A::Error::custom(format!("`__metadata__`: {e}")))?;
                        metadata = Some(map.unwrap_or_default());
                        continue;
                    }
                    let entry: RawEntry =
                        map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
                    let (begin, end) = entry.data_offsets;
                    tensors.push(TensorEntry { name, dtype: entry.dtype, shape: entry.shape, begin, end });
                }
                Ok(Table { tensors, metadata: metadata.unwrap_or_default() })
            }
        }

        deserializer.deserialize_map(TableVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    }

    /// Returns all messages of an error's chain.
    fn message(error: &HeaderError) -> String {
        let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    }

    #[test]
    fn reads_a_header() {
        let json = format!(
            r#"{{"__metadata__":{{"format":"pt"}},"b":{},"a":{}}}   "#,
            entry("BF16", "[2,3]", 0, 12),
            entry("F32", "[]", 12, 16)
        );
        let header = Header::parse(json.as_bytes(), 16).unwrap();
        assert_eq!(header.metadata()["format"], "pt");
        assert_eq!(header.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert!(header.get("a").unwrap().shape.is_empty());
        assert_eq!(header.get("b").unwrap().elements(), 6);
        assert_eq!(header.get("c"), None);
        assert_eq!(header.data_start(), 8 + json.len() as u64);
        assert!(Header::parse(br#"{"__metadata__":null}"#, 0).unwrap().tensors().is_empty());
    }

    #[test]
    fn hostile_headers_are_refused_by_name() {
        let good = entry("U8", "[4]", 0, 4);
        let max = u64::MAX.to_string();
        for (json, expect) in [
            (format!(r#"{{"w":{good},"w":{good}}}"#), "tensor `w` appears twice"),
            (format!(r#"{{"w":{good},"x":{}}}"#, entry("U8", "[2]", 2, 4)), "overlaps `w`"),
            (
                format!(r#"{{"x":{}}}"#, entry("U8", "[2]", 2, 4)),
                "tensor `x` begins at 2 after a gap, expected to begin at 0",
            ),
            (format!(r#"{{"w":{}}}"#, entry("U8", "[3]", 0, 3)), "data has 4 bytes, expected 3"),
            (format!(r#"{{"w":{}}}"#, entry("U8", "[5]", 0, 5)), "tensor `w` ends at 5, expected at most 4"),
            (format!(r#"{{"w":{}}}"#, entry("U8", "[4]", 4, 0)), "begins at 4 and ends at 0"),
            (
                format!(r#"{{"w":{}}}"#, entry("F32", "[2]", 0, 4)),
                "tensor `w` of F32 and shape [2] has 4 bytes, expected 8",
            ),
            (format!(r#"{{"w":{}}}"#, entry("F4", "[3]", 0, 4)), "does not fill whole bytes"),
            (format!(r#"{{"w":{}}}"#, entry("U8", &format!("[{max},2]"), 0, 4)), "tensor `w` has shape"),
            (format!(r#"{{"w":{}}}"#, entry("F64", &format!("[{max}]"), 0, 4)), "overflows"),
            (format!(r#"{{"w":{}}}"#, entry("Q99", "[4]", 0, 4)), "tensor `w`: unknown variant `Q99`"),
            (format!(r#"{{"w":{}}}"#, entry("U8", "[-4]", 0, 4)), "tensor `w`: invalid value"),
            (r#"{"w":{"dtype":"U8","shape":[4]}}"#.to_owned(), "tensor `w`: missing field `data_offsets`"),
            (r#"{"w":7}"#.to_owned(), "tensor `w`: invalid type"),
            (r#"{"__metadata__":{"a":1}}"#.to_owned(), "`__metadata__`: invalid type"),
            (r#"{"__metadata__":{},"__metadata__":{}}"#.to_owned(), "duplicate field `__metadata__`"),
            ("[1]".to_owned(), "expected a JSON object"),
            (" {}".to_owned(), "expected a JSON object"),
            (r#"{"w":"#.to_owned(), "EOF"),
            (format!(r#"{{"w":{}"#, "[".repeat(500)), "tensor `w`: "),
        ] {
            let error = Header::parse(json.as_bytes(), 4).expect_err(&json);
            assert!(
                message(&error).contains(expect),
                "{json}\n  gave {}\n  wanted {expect}",
                message(&error)
            );
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let file = |len: u64, rest: &[u8]| [&len.to_le_bytes(), rest].concat();
        let error = |bytes: Vec<u8>| Header::read(&bytes).unwrap_err();
        assert!(matches!(error(vec![]), HeaderError::TooShort { len: 0 }));
        assert!(matches!(error(vec![0; 7]), HeaderError::TooShort { len: 7 }));
        assert!(matches!(error(file(0, b"")), HeaderError::NotAnObject));
        assert!(matches!(error(file(3, b"{}")), HeaderError::Length { len: 3, limit: 2, .. }));
        assert!(matches!(error(file(u64::MAX, b"{}")), HeaderError::Length { .. }));
        assert!(matches!(
            header_len((MAX_HEADER_BYTES + 1).to_le_bytes(), u64::MAX),
            Err(HeaderError::Length { limit: MAX_HEADER_BYTES, .. })
        ));
        assert!(Header::read(&file(2, b"{}")).is_ok());
        assert!(matches!(error(file(2, b"{}x")), HeaderError::Trailing { data_len: 1, expected: 0 }));
    }

    #[test]
    fn written_headers_read_back() {
        let metadata = BTreeMap::from([("quant_type".to_owned(), "int4".to_owned())]);
        let bytes = write_header(&[("z", Dtype::U32, &[2, 2]), ("a", Dtype::BF16, &[3])], &metadata);
        assert_eq!(bytes.len() % 8, 0);
        let text = std::str::from_utf8(&bytes[8..]).unwrap();
        assert_eq!(
            text.trim_end(),
            r#"{"__metadata__":{"quant_type":"int4"},"a":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"z":{"dtype":"U32","shape":[2,2],"data_offsets":[0,16]}}"#
        );
        let header = Header::parse(&bytes[8..], 22).unwrap();
        assert_eq!(header.tensors()[0].name, "z");
        assert_eq!(header.metadata(), &metadata);
    }

    proptest! {
        #[test]
        fn read_never_panics(bytes: Vec<u8>, len in 0u64..64) {
            let _ = Header::read(&bytes);
            let _ = Header::read(&[&len.to_le_bytes(), bytes.as_slice()].concat());
        }

        #[test]
        fn parse_never_panics_on_damage(at in 0usize..200, byte: u8, data_len in 0u64..24) {
            let mut json = format!(r#"{{"b":{},"a":{}}}"#, entry("BF16", "[2,3]", 0, 12), entry("F32", "[1]", 12, 16)).into_bytes();
            let at = at % json.len();
            json[at] = byte;
            if let Ok(header) = Header::parse(&json, data_len) {
                let total: u64 = header.tensors().iter().map(TensorEntry::size_bytes).sum();
                prop_assert_eq!(total, data_len);
            }
        }
    }
}
