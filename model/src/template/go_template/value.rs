//! The values of templates: those Go values that ollama passes to its templates, as far as a template can
//! distinguish them.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A value. Clones share their contents.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// No value at all.
    #[default]
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    List(Arc<List>),
    Map(Arc<Map>),
    Record(Arc<Record>),
}

/// How a template prints a list, a map or a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrintStyle {
    /// As `fmt` prints it: `[a b]`, `map[k:v]`, `{a b}`.
    #[default]
    Go,
    Json,
    /// A list of one item as that item, in JSON too; other lists as `fmt` prints them.
    UnwrapSingle,
}

#[derive(Debug, Default)]
pub struct List {
    pub items: Vec<Value>,
    pub printed: PrintStyle,
    /// A nil slice: `null` as JSON, and equal to nil.
    pub is_nil: bool,
}

/// Iterated in the order of the keys.
#[derive(Debug, Default)]
pub struct Map {
    pub entries: BTreeMap<String, Value>,
    pub printed: PrintStyle,
    pub is_nil: bool,
    /// The value of a missing key: the zero value of the map's type.
    pub missing: Value,
    /// The order of the keys in JSON, if it differs.
    pub json_order: Vec<String>,
}

/// A struct: accessing a missing field is an error.
#[derive(Debug, Default)]
pub struct Record {
    pub name: &'static str,
    pub fields: Vec<Field>,
    /// Methods without arguments, and their results.
    pub methods: Vec<(&'static str, Value)>,
    pub printed: PrintStyle,
}

#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub json: &'static str,
    pub omitted: OmitRule,
    pub value: Value,
}

/// When JSON leaves a field out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OmitRule {
    Never,
    /// If it is nil: `omitempty` on an interface.
    Nil,
    /// If it is empty: `omitempty` on a string or a list.
    Empty,
}

impl Field {
    pub fn new(name: &'static str, json: &'static str, omitted: OmitRule, value: impl Into<Value>) -> Field {
        Field { name, json, omitted, value: value.into() }
    }
}

impl Value {
    pub fn list(items: Vec<Value>) -> Value {
        Value::List(Arc::new(List { items, ..List::default() }))
    }

    /// Returns a nil slice.
    pub fn nil_list(printed: PrintStyle) -> Value {
        Value::List(Arc::new(List { printed, is_nil: true, ..List::default() }))
    }

    pub fn map(entries: impl IntoIterator<Item = (String, Value)>) -> Value {
        Value::Map(Arc::new(Map { entries: entries.into_iter().collect(), ..Map::default() }))
    }

    /// Converts JSON as Go decodes it into an untyped value: every number is a float.
    pub fn from_json(json: &serde_json::Value) -> Value {
        match json {
            serde_json::Value::Null => Value::Nil,
            serde_json::Value::Bool(value) => Value::Bool(*value),
            serde_json::Value::Number(number) => Value::Float(number.as_f64().unwrap_or_default()),
            serde_json::Value::String(text) => Value::from(text.as_str()),
            serde_json::Value::Array(items) => Value::list(items.iter().map(Value::from_json).collect()),
            serde_json::Value::Object(entries) => {
                Value::map(entries.iter().map(|(key, value)| (key.clone(), Value::from_json(value))))
            }
        }
    }

    /// Whether `if` treats the value as true: not zero and not empty.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Record(_) => true,
            value => !value.is_empty(),
        }
    }

    /// Whether `omitempty` omits the value.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Value::Nil => true,
            Value::Bool(value) => !value,
            Value::Int(number) => *number == 0,
            Value::Float(number) => *number == 0.0,
            Value::Text(text) => text.is_empty(),
            Value::List(list) => list.items.is_empty(),
            Value::Map(map) => map.entries.is_empty(),
            Value::Record(_) => false,
        }
    }

    pub(super) fn is_nil(&self) -> bool {
        match self {
            Value::Nil => true,
            Value::List(list) => list.is_nil,
            Value::Map(map) => map.is_nil,
            _ => false,
        }
    }

    /// The name of the type, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float64",
            Value::Text(_) => "string",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Record(record) => record.name,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}
