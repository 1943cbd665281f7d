//! The metadata of a GGUF file: keys in order, with values of the format's thirteen types. Strings are bytes,
//! because tokens need not be UTF-8.

use serde_json::{Number, json};

/// The keys and values of a header, in their order. No key appears twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
}

/// A value. The number above each variant is its type in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// 0
    U8(u8),
    /// 1
    I8(i8),
    /// 2
    U16(u16),
    /// 3
    I16(i16),
    /// 4
    U32(u32),
    /// 5
    I32(i32),
    /// 6
    F32(f32),
    /// 7
    Bool(bool),
    /// 8
    String(Vec<u8>),
    /// 9
    Array(Array),
    /// 10
    U64(u64),
    /// 11
    I64(i64),
    /// 12
    F64(f64),
}

/// The elements of an array. Arrays cannot be nested.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Strings in one buffer: a vocabulary has hundreds of thousands of short ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// The end offset of each string.
    ends: Vec<usize>,
}

impl Strings {
    pub fn push(&mut self, string: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(string.as_ref());
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, at: usize) -> Option<&[u8]> {
        let start = match at.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.bytes.get(start..*self.ends.get(at)?)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|at| self.get(at).unwrap_or_default())
    }

    /// The total number of bytes.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn reserve(&mut self, count: usize) {
        self.ends.reserve(count);
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Strings {
        let mut all = Strings::default();
        strings.into_iter().for_each(|string| all.push(string));
        all
    }
}

impl Array {
    pub fn len(&self) -> usize {
        match self {
            Array::U8(all) => all.len(),
            Array::I8(all) => all.len(),
            Array::U16(all) => all.len(),
            Array::I16(all) => all.len(),
            Array::U32(all) => all.len(),
            Array::I32(all) => all.len(),
            Array::F32(all) => all.len(),
            Array::Bool(all) => all.len(),
            Array::String(all) => all.len(),
            Array::U64(all) => all.len(),
            Array::I64(all) => all.len(),
            Array::F64(all) => all.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an element as a value.
    pub fn get(&self, at: usize) -> Option<Value> {
        Some(match self {
            Array::U8(all) => Value::U8(*all.get(at)?),
            Array::I8(all) => Value::I8(*all.get(at)?),
            Array::U16(all) => Value::U16(*all.get(at)?),
            Array::I16(all) => Value::I16(*all.get(at)?),
            Array::U32(all) => Value::U32(*all.get(at)?),
            Array::I32(all) => Value::I32(*all.get(at)?),
            Array::F32(all) => Value::F32(*all.get(at)?),
            Array::Bool(all) => Value::Bool(*all.get(at)?),
            Array::String(all) => Value::String(all.get(at)?.to_vec()),
            Array::U64(all) => Value::U64(*all.get(at)?),
            Array::I64(all) => Value::I64(*all.get(at)?),
            Array::F64(all) => Value::F64(*all.get(at)?),
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = Value> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    pub fn as_strings(&self) -> Option<&Strings> {
        if let Array::String(strings) = self { Some(strings) } else { None }
    }
}

impl Value {
    /// The text of a string that is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(bytes) = self { std::str::from_utf8(bytes).ok() } else { None }
    }

    /// Any integer that is not negative: files differ in the type that they use for a key.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::U64(n) => Some(n),
            Value::I8(n) => n.try_into().ok(),
            Value::I16(n) => n.try_into().ok(),
            Value::I32(n) => n.try_into().ok(),
            Value::I64(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// Any integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::I8(n) => Some(n.into()),
            Value::I16(n) => Some(n.into()),
            Value::I32(n) => Some(n.into()),
            Value::I64(n) => Some(n),
            _ => self.as_u64()?.try_into().ok(),
        }
    }

    /// Any number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(x) => Some(x.into()),
            Value::F64(x) => Some(x),
            _ => self.as_i64().map(|n| n as f64).or_else(|| self.as_u64().map(|n| n as f64)),
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(value) = self { Some(*value) } else { None }
    }

    pub fn as_array(&self) -> Option<&Array> {
        if let Value::Array(array) = self { Some(array) } else { None }
    }

    /// Converts to JSON. Numbers that JSON cannot represent become null; strings that are not UTF-8 get
    /// replacement characters.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            // The shortest decimal of this float32, rather than all digits of the same value as a float64.
            Value::F32(x) => x
                .to_string()
                .parse::<f64>()
                .ok()
                .and_then(Number::from_f64)
                .map_or(serde_json::Value::Null, Into::into),
            Value::F64(x) => Number::from_f64(*x).map_or(serde_json::Value::Null, Into::into),
            Value::Bool(value) => json!(value),
            Value::String(bytes) => json!(String::from_utf8_lossy(bytes)),
            Value::Array(array) => array.iter().map(|value| value.to_json()).collect(),
            _ => match self.as_i64() {
                Some(n) => json!(n),
                None => json!(self.as_u64()),
            },
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.as_bytes().to_vec())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text.into_bytes())
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Value {
        Value::U32(n)
    }
}

impl From<f32> for Value {
    fn from(x: f32) -> Value {
        Value::F32(x)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

impl Metadata {
    pub fn new() -> Metadata {
        Metadata::default()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(found, _)| found == key).map(|(_, value)| value)
    }

    /// Sets a key: in its place if it exists, else at the end.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.entries.iter_mut().find(|(found, _)| *found == key) {
            Some((_, old)) => *old = value,
            None => self.entries.push((key, value)),
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.entries.iter().position(|(found, _)| found == key)?;
        Some(self.entries.remove(at).1)
    }

    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    pub fn f64(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    pub fn bool(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Option<&str> {
        self.str("general.architecture")
    }

    /// Returns a key of the architecture: `hyper("block_count")` is `llama.block_count` for a llama.
    pub fn architecture_value(&self, key: &str) -> Option<&Value> {
        self.get(&format!("{}.{key}", self.architecture()?))
    }

    /// Adds a key that is known to be new.
    pub(super) fn push_new(&mut self, key: String, value: Value) {
        self.entries.push((key, value));
    }
}
