//! Headers written and read back, malformed headers, and the files of other writers.

use proptest::prelude::*;

use super::*;
use crate::quant::ggml::Type;

fn any_value() -> impl Strategy<Value = Value> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
    let some = 0..5usize;
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        (-1e9f32..1e9).prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        bytes().prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e9f64..1e9).prop_map(Value::F64),
        proptest::collection::vec(any::<u8>(), some.clone()).prop_map(|all| Value::Array(Array::U8(all))),
        proptest::collection::vec(any::<i8>(), some.clone()).prop_map(|all| Value::Array(Array::I8(all))),
        proptest::collection::vec(any::<u16>(), some.clone()).prop_map(|all| Value::Array(Array::U16(all))),
        proptest::collection::vec(any::<i16>(), some.clone()).prop_map(|all| Value::Array(Array::I16(all))),
        proptest::collection::vec(any::<u32>(), some.clone()).prop_map(|all| Value::Array(Array::U32(all))),
        proptest::collection::vec(any::<i32>(), some.clone()).prop_map(|all| Value::Array(Array::I32(all))),
        proptest::collection::vec(-1e9f32..1e9, some.clone()).prop_map(|all| Value::Array(Array::F32(all))),
        proptest::collection::vec(any::<bool>(), some.clone()).prop_map(|all| Value::Array(Array::Bool(all))),
        proptest::collection::vec(bytes(), some.clone())
            .prop_map(|all| Value::Array(Array::String(all.into_iter().collect()))),
        proptest::collection::vec(any::<u64>(), some.clone()).prop_map(|all| Value::Array(Array::U64(all))),
        proptest::collection::vec(any::<i64>(), some.clone()).prop_map(|all| Value::Array(Array::I64(all))),
        proptest::collection::vec(-1e9f64..1e9, some).prop_map(|all| Value::Array(Array::F64(all))),
    ]
}

fn any_header() -> impl Strategy<Value = Header> {
    let keys = proptest::collection::btree_map("[a-z.é]{1,12}", any_value(), 0..8);
    let alignment = proptest::option::of(0u32..8);
    let ty = proptest::sample::select(Type::ALL);
    let dims = proptest::collection::vec(1u64..5, 0..5);
    let tensors = proptest::collection::btree_map("[a-z0-9._]{1,20}", (ty, dims), 0..6);
    (keys, alignment, tensors).prop_map(|(keys, alignment, tensors)| {
        let mut metadata = Metadata::new();
        keys.into_iter().for_each(|(key, value)| metadata.set(key, value));
        if let Some(power) = alignment {
            metadata.set("general.alignment", 1u32 << power);
        }
        let tensors = tensors.into_iter().map(|(name, (ty, mut dims))| {
            dims.truncate(4);
            match dims.first_mut() {
                Some(first) => *first *= u64::from(ty.block_elements()),
                // A scalar is not a whole block, unless blocks are single numbers.
                None => dims.push(u64::from(ty.block_elements())),
            }
            NewTensor { name, dims, ty }
        });
        Header::new(metadata, tensors).expect("all within the limits")
    })
}

proptest! {
    #[test]
    fn written_headers_are_read_back(header in any_header()) {
        let bytes = header.to_bytes();
        prop_assert_eq!(bytes.len() as u64, header.data_start);
        prop_assert_eq!(&Header::parse(&bytes, header.file_len()).unwrap(), &header);
        // However short the reads are, each error requests more bytes, but never more than the file has.
        let mut given = 0;
        loop {
            match Header::parse(&bytes[..given], header.file_len()) {
                Err(HeaderError::Incomplete { needed }) => {
                    prop_assert!(given < needed as usize && needed as usize <= bytes.len());
                    given = needed as usize;
                }
                done => {
                    prop_assert_eq!(&done.unwrap(), &header);
                    break;
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_cut_is_refused(header in any_header(), cut in any::<prop::sample::Index>()) {
        let mut bytes = header.to_bytes();
        bytes.resize(header.file_len() as usize, 0);
        let last = header.tensors.iter().map(|entry| entry.offset + entry.size_bytes().unwrap()).max();
        // Only padding may be missing.
        let needed = last.map_or(header.to_bytes().len() as u64, |last| header.data_start + last);
        let at = cut.index(needed as usize);
        let found = Header::parse(&bytes[..at], at as u64);
        let is_padding = header.tensors.is_empty() && bytes[at..].iter().all(|byte| *byte == 0);
        prop_assert!(is_padding || found.is_err());
        let is_incomplete = matches!(found, Err(HeaderError::Incomplete { .. }));
        prop_assert!(!is_incomplete);
    }

    #[test]
    fn damaged_headers_never_panic(header in any_header(), damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = header.to_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(read) = Header::parse(&bytes, header.file_len()) {
            let end = header.file_len();
            for tensor in read.to_tensors() {
                prop_assert!(tensor.parts.weight.offset + tensor.parts.weight.size_bytes <= end);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in any::<u64>()) {
        let _anything = Header::parse(&bytes, len.max(bytes.len() as u64));
        let with_front = [b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", &bytes[..]].concat();
        let _anything = Header::parse(&with_front, with_front.len() as u64);
    }
}

/// A header in parts, so that each part can be malformed.
#[derive(Clone)]
struct Raw {
    version: u32,
    tensor_count: u64,
    key_count: u64,
    keys: Vec<u8>,
    tensors: Vec<u8>,
    data: usize,
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

fn key(name: &str, ty: u32, value: &[u8]) -> Vec<u8> {
    [&string(name.as_bytes())[..], &ty.to_le_bytes(), value].concat()
}

fn tensor(name: &str, dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let mut out = string(name.as_bytes());
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
    out.extend(ty.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

impl Raw {
    fn keys(keys: &[Vec<u8>]) -> Raw {
        Raw { key_count: keys.len() as u64, keys: keys.concat(), ..Raw::empty() }
    }

    fn tensors(tensors: &[Vec<u8>]) -> Raw {
        Raw { tensor_count: tensors.len() as u64, tensors: tensors.concat(), data: 1024, ..Raw::empty() }
    }

    fn empty() -> Raw {
        Raw { version: 3, tensor_count: 0, key_count: 0, keys: vec![], tensors: vec![], data: 0 }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.key_count.to_le_bytes());
        out.extend(&self.keys);
        out.extend(&self.tensors);
        out.resize(out.len().next_multiple_of(32) + self.data, 0);
        out
    }

    fn read(&self) -> Result<Header, String> {
        let bytes = self.bytes();
        Header::read(&bytes).map_err(|error| error.to_string())
    }
}

#[test]
fn invalid_headers_have_specific_errors() {
    let one = |value: &[u8], ty| Raw::keys(&[key("a.b", ty, value)]);
    let count = |n: u64| n.to_le_bytes();
    let array = |ty: u32, n: u64, rest: &[u8]| one(&[&ty.to_le_bytes()[..], &count(n), rest].concat(), 9);
    let alignment = |n: u32| Raw::keys(&[key("general.alignment", 4, &n.to_le_bytes())]);
    let long = "t".repeat(64);
    let cases = [
        (Raw { version: 1, ..Raw::empty() }, "version is 1, expected 2 or 3"),
        (Raw { version: 4, ..Raw::empty() }, "version is 4, expected 2 or 3"),
        (Raw { version: 3 << 24, ..Raw::empty() }, "file is big-endian"),
        (Raw { tensor_count: 65_537, ..Raw::empty() }, "header has 65537 tensors"),
        (Raw { key_count: u64::MAX, ..Raw::empty() }, "header has 18446744073709551615 keys"),
        (Raw { key_count: 1, ..Raw::empty() }, "key `number 0` is empty"),
        (Raw { key_count: 2, ..Raw::keys(&[key("a", 0, &[1])]) }, "key `number 1` is empty"),
        (Raw::keys(&[string(b"\xff")]), "key `number 0` is not UTF-8"),
        (Raw::keys(&[count(u64::MAX).to_vec()]), "has a name of 18446744073709551615 bytes"),
        (Raw::keys(&[key("a", 0, &[1]), key("a", 0, &[1])]), "key `a` appears twice"),
        (one(&[1], 13), "key `a.b` has a value of type 13"),
        (one(&[2], 7), "key `a.b` has the byte 2 as a boolean"),
        (one(&count(1 << 40), 8), "key `a.b` has a string of 1099511627776 bytes"),
        (one(&count(1000), 8), "ends within key `a.b`"),
        (array(9, 1, &[]), "key `a.b` is an array of arrays"),
        (array(14, 1, &[]), "key `a.b` has a value of type 14"),
        (array(8, 1 << 60, &[]), "key `a.b` has 1152921504606846976 elements, which do not fit"),
        (array(5, 1 << 62, &[]), "which do not fit in the file"),
        (array(0, 100, &[]), "which do not fit in the file"),
        (array(7, 1, &[3]), "has the byte 3 as a boolean"),
        (alignment(0), "key `general.alignment` is not an alignment"),
        (alignment(48), "key `general.alignment` is not an alignment"),
        (alignment(1 << 21), "key `general.alignment` is not an alignment"),
        (Raw { tensor_count: 1, ..Raw::empty() }, "tensor `number 0` has an empty name"),
        (Raw::tensors(&[tensor(&long, &[4], 0, 0)]), "has a name of 64 bytes, expected at most 63"),
        (Raw::tensors(&[tensor("w", &[4; 5], 0, 0)]), "tensor `w` has 5 dimensions"),
        (Raw::tensors(&[tensor("w", &[4, 0], 0, 0)]), "tensor `w` has shape [4, 0]"),
        (Raw::tensors(&[tensor("w", &[1 << 32, 1 << 32], 0, 0)]), "whose size is zero or overflows"),
        (Raw::tensors(&[tensor("w", &[1 << 62], 0, 0)]), "whose size is zero or overflows"),
        (Raw::tensors(&[tensor("w", &[4], 4, 0)]), "tensor `w` has type 4, which is unknown or was removed"),
        (Raw::tensors(&[tensor("w", &[48], 2, 0)]), "rows of 48 elements, expected a multiple of 32 (Q4_0)"),
        (Raw::tensors(&[tensor("w", &[], 2, 0)]), "rows of 1 elements, expected a multiple of 32 (Q4_0)"),
        (Raw::tensors(&[tensor("w", &[4], 0, 8)]), "has offset 8, expected a multiple of 32"),
        (Raw::tensors(&[tensor("w", &[257], 0, 0)]), "has 1028 bytes at 0 of the data, which ends at 1024"),
        (Raw::tensors(&[tensor("w", &[4], 0, u64::MAX - 31)]), "of the data, which ends at 1024"),
        (Raw::tensors(&[tensor("w", &[4], 0, 0), tensor("w", &[4], 0, 32)]), "tensor `w` appears twice"),
        (Raw::tensors(&[tensor("v", &[9], 0, 0), tensor("w", &[4], 0, 32)]), "tensor `w` overlaps `v`"),
    ];
    for (raw, expect) in cases {
        let message = raw.read().expect_err(expect);
        assert!(message.contains(expect), "{message}\n  wanted {expect}");
    }
    assert!(Header::read(&b"GGML".to_vec()).unwrap_err().to_string().contains("does not begin with `GGUF`"));
    for short in [&b""[..], b"GG", b"GGUF", b"GGUF\x03\0\0\0\0"] {
        let message = Header::read(short).unwrap_err().to_string();
        assert!(message.contains("ends within the first 24 bytes"), "{message}");
    }
}

#[test]
fn unusual_headers_are_accepted() {
    // Version 2, gaps between tensors, data in another order than the header, and a scalar.
    let raw = Raw {
        version: 2,
        ..Raw::tensors(&[tensor("b", &[4, 2], 0, 512), tensor("a", &[32], 8, 0), tensor("c", &[], 0, 992)])
    };
    let header = raw.read().unwrap();
    let tensors = header.to_tensors();
    let [b, a, c] = &tensors[..] else { panic!("three tensors") };
    assert_eq!((b.shape.as_slice(), b.parts.weight.offset), (&[2, 4][..], header.data_start + 512));
    assert_eq!((a.dtype.as_str(), a.parts.weight.shape.as_slice()), ("Q8_0", &[34][..]));
    assert_eq!((c.shape.len(), c.parts.weight.size_bytes), (0, 4));
    // The padding after the last tensor may be missing, and all of it if there are no tensors.
    let mut bytes = Raw::tensors(&[tensor("w", &[3], 0, 0)]).bytes();
    bytes.truncate(bytes.len() - 1012);
    Header::read(&bytes).unwrap();
    Header::read(&Raw::empty().bytes()[..24]).unwrap();
}

#[test]
fn numbers_of_any_type() {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", Value::U64(3));
    metadata.set("llama.heads", Value::I32(-1));
    metadata.set("llama.eps", 1e-5f32);
    metadata.set("llama.all", Value::Array(Array::U32(vec![1, 2])));
    assert_eq!(metadata.architecture_value("block_count").and_then(Value::as_u64), Some(3));
    assert_eq!(metadata.architecture_value("heads").and_then(Value::as_u64), None);
    assert_eq!(metadata.get("llama.heads").and_then(Value::as_i64), Some(-1));
    let json = serde_json::Value::Object(metadata.to_json(false));
    assert_eq!(json["llama.eps"].as_f64(), Some(1e-5));
    assert!(json["llama.all"].is_null());
    assert_eq!(metadata.to_json(true)["llama.all"].to_string(), "[1,2]");
    metadata.set("llama.eps", 2.0f32);
    assert_eq!((metadata.len(), metadata.f64("llama.eps")), (5, Some(2.0)));
}

/// Written by Python's gguf package.
#[test]
fn files_of_another_writer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/gguf");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        seen += 1;
        let bytes = std::fs::read(&path).unwrap();
        let header = Header::read(&bytes).unwrap();
        let expected: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path.with_extension("expected.json")).unwrap()).unwrap();
        let types = expected["tensor_types"].as_object().unwrap();
        assert_eq!(types.len(), header.tensors.len(), "{path:?}");
        for entry in &header.tensors {
            assert_eq!(types[&entry.name], entry.ty.as_str(), "{path:?} {}", entry.name);
        }
        // The same keys and tensors, laid out again, give the same file.
        let tensors = header.tensors.iter().map(|entry| NewTensor {
            name: entry.name.clone(),
            dims: entry.dims.clone(),
            ty: entry.ty,
        });
        let again = Header::new(header.metadata.clone(), tensors.collect::<Vec<_>>()).unwrap();
        assert_eq!(again, header, "{path:?}");
        assert!(bytes.starts_with(&again.to_bytes()), "{path:?}");
    }
    assert_eq!(seen, 11);
}
