//! Models split over several files, `NAME-00001-of-00003.gguf`. Each file is a GGUF; the first has the
//! model's keys. This module only checks whether the files belong together; they are not merged.

use std::collections::HashMap;

use super::header::Header;

/// The name of one file of a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartName<'a> {
    /// The part in front of the numbers, folders included.
    pub prefix: &'a str,
    /// Counted from 1.
    pub number: u32,
    pub count: u32,
}

/// Why files do not make up one model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error("`{prefix}` is split over {count} files, and number {number} is missing")]
    Missing { prefix: String, count: u32, number: u32 },
    #[error("key `{key}` of `{path}` is {found}, expected {expected}")]
    Key { path: String, key: &'static str, found: String, expected: u64 },
    #[error("tensor `{tensor}` is in `{first}` and in `{second}`")]
    Duplicate { tensor: String, first: String, second: String },
    #[error("`{prefix}` has {found} tensors in all its files, expected {expected} (`split.tensors.count`)")]
    Tensors { prefix: String, found: u64, expected: u64 },
}

impl<'a> PartName<'a> {
    /// Parses the numbers at the end of a file's name; `None` if it has none.
    pub fn parse(path: &'a str) -> Option<PartName<'a>> {
        PartName::parse_as(path, ".gguf")
    }

    /// As [`PartName::parse`], for another file extension: checkpoints are numbered alike.
    pub fn parse_as(path: &'a str, end: &str) -> Option<PartName<'a>> {
        let (front, count) = path.strip_suffix(end)?.rsplit_once("-of-")?;
        let (prefix, number) = front.rsplit_once('-')?;
        let digits = |text: &str| -> Option<u32> {
            let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        let (number, count) = (digits(number)?, digits(count)?);
        (1 <= number && number <= count).then_some(PartName { prefix, number, count })
    }

    /// Returns the name of another file of the same model.
    pub fn sibling(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count)
    }
}

/// Checks the files of one split model, in any order: no part is missing, the numbers are right, and no
/// tensor appears twice.
pub fn check_parts(parts: &[(&str, &Header)]) -> Result<(), SplitError> {
    let Some(name) = parts.first().and_then(|(path, _)| PartName::parse(path)) else { return Ok(()) };
    let mut by_number: HashMap<u32, (&str, &Header)> = HashMap::new();
    for (path, header) in parts {
        if let Some(part) = PartName::parse(path) {
            by_number.insert(part.number, (path, header));
        }
    }
    let prefix = || name.prefix.to_owned();
    let mut homes: HashMap<&str, &str> = HashMap::new();
    let mut total = None;
    for number in 1..=name.count {
        let missing = || SplitError::Missing { prefix: prefix(), count: name.count, number };
        let (path, header) = *by_number.get(&number).ok_or_else(missing)?;
        for (key, expected) in [("split.no", u64::from(number - 1)), ("split.count", name.count.into())] {
            let value = header.metadata.get(key);
            if value.and_then(|value| value.as_u64()) != Some(expected) {
                let found = value.map_or("absent".to_owned(), |value| value.to_json().to_string());
                return Err(SplitError::Key { path: path.to_owned(), key, found, expected });
            }
        }
        total = total.or_else(|| header.metadata.u64("split.tensors.count"));
        for entry in &header.tensors {
            if let Some(first) = homes.insert(&entry.name, path) {
                let (first, second) = (first.to_owned(), path.to_owned());
                return Err(SplitError::Duplicate { tensor: entry.name.clone(), first, second });
            }
        }
    }
    let found = homes.len() as u64;
    match total {
        Some(expected) if expected != found => Err(SplitError::Tensors { prefix: prefix(), found, expected }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Metadata, NewTensor, Value};
    use crate::quant::ggml::Type;

    #[test]
    fn names() {
        for (path, expect) in [
            ("m-00001-of-00003.gguf", Some(("m", 1, 3))),
            ("a/b-00003-of-00003.gguf", Some(("a/b", 3, 3))),
            ("m-00004-of-00003.gguf", None),
            ("m-00000-of-00003.gguf", None),
            ("m-1-of-3.gguf", None),
            ("m-00001-of-00003.safetensors", None),
            ("m-+0001-of-00003.gguf", None),
            ("m.gguf", None),
        ] {
            let found = PartName::parse(path);
            assert_eq!(found.map(|part| (part.prefix, part.number, part.count)), expect, "{path}");
        }
        assert_eq!(PartName::parse("m-00001-of-00003.gguf").unwrap().sibling(2), "m-00002-of-00003.gguf");
    }

    #[test]
    fn parts_belong_together() {
        let part = |number: u16, count: u16, total: i32, tensor: &str| {
            let mut metadata = Metadata::new();
            metadata.set("split.no", Value::U16(number));
            metadata.set("split.count", Value::U16(count));
            metadata.set("split.tensors.count", Value::I32(total));
            let tensor = NewTensor { name: tensor.to_owned(), dims: vec![4], ty: Type::F32 };
            Header::new(metadata, [tensor]).unwrap()
        };
        let (first, second) = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf");
        let check = |a: Header, b: Header| {
            check_parts(&[(second, &b), (first, &a)]).map_err(|error| error.to_string())
        };
        assert_eq!(check(part(0, 2, 2, "a"), part(1, 2, 2, "b")), Ok(()));
        let refused = |a, b| check(a, b).unwrap_err();
        assert!(refused(part(1, 2, 2, "a"), part(1, 2, 2, "b")).starts_with("key `split.no` of `m-00001"));
        assert!(refused(part(0, 2, 2, "a"), part(1, 3, 2, "b")).contains("`split.count`"));
        assert!(refused(part(0, 2, 2, "a"), part(1, 2, 2, "a")).starts_with("tensor `a` is in"));
        assert!(refused(part(0, 2, 3, "a"), part(1, 2, 3, "b")).contains("expected 3"));
        let alone = check_parts(&[(first, &part(0, 2, 2, "a"))]).unwrap_err().to_string();
        assert_eq!(alone, "`m` is split over 2 files, and number 2 is missing");
    }
}
