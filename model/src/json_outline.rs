//! The outline of a JSON request body: the model that it names, the number of its values, and whether one of
//! its lists is too long. It is read in one pass that builds no values. Servers read it before they parse or
//! forward a body.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// How many messages, tools, inputs, windows, documents, images or files one request may have.
pub const MAX_ITEMS: usize = 10_000;

/// Fields of requests whose entries are limited.
const LIMITED: [&str; 11] = [
    "messages",
    "tools",
    "input",
    "windows",
    "documents",
    "images",
    "files",
    "adapters",
    "draft_files",
    "license",
    "parameters",
];

/// Fields that hold token ids, which are parsed into integers rather than into values.
const ID_LISTS: [&str; 3] = ["context", "windows", "prompt_ids"];

/// The largest size of a parsed value besides its text: a `serde_json::Value` or a map entry, in a list that
/// doubled when it grew.
const VALUE_BYTES: usize = 160;
/// The same for a token id.
const ID_BYTES: usize = 8;

/// The model name and the counts of a request body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// The text of the field `model`; `None` where it is absent or null.
    pub model: Option<String>,
    /// Values and keys at any depth, token ids excepted.
    pub values: usize,
    /// Token ids.
    pub ids: usize,
    /// Bytes of the text.
    pub len: usize,
}

/// Why the outline of a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OutlineError {
    #[error("`{field}` has more than {limit} entries")]
    TooManyItems { field: &'static str, limit: usize },
    #[error(transparent)]
    Json(serde_json::Error),
}

impl Outline {
    /// Checks that `json` is one JSON object within the limits, and counts what it holds.
    pub fn read(json: &[u8]) -> Result<Outline, OutlineError> {
        let mut outline = Outline { len: json.len(), ..Outline::default() };
        let mut too_long = None;
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let body = Body { outline: &mut outline, too_long: &mut too_long };
        let read = body.deserialize(&mut deserializer).and_then(|()| deserializer.end());
        match (read, too_long) {
            (Ok(()), _) => Ok(outline),
            (Err(_), Some(field)) => Err(OutlineError::TooManyItems { field, limit: MAX_ITEMS }),
            (Err(error), None) => Err(OutlineError::Json(error)),
        }
    }

    /// An upper estimate of the memory that the parsed body takes, in addition to the raw text.
    pub fn parsed_bytes(&self) -> usize {
        let values = self.values.saturating_mul(VALUE_BYTES);
        let ids = self.ids.saturating_mul(ID_BYTES);
        self.len.saturating_add(values).saturating_add(ids)
    }
}

/// The top-level object.
struct Body<'a> {
    outline: &'a mut Outline,
    too_long: &'a mut Option<&'static str>,
}

impl<'de> DeserializeSeed<'de> for Body<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut has_model = false;
        while let Some(Key(field)) = map.next_key()? {
            self.outline.values += 1;
            let Some(field) = field else {
                map.next_value_seed(Values { outline: self.outline, has_ids: false, limit: None })?;
                continue;
            };
            if field == "model" {
                if std::mem::replace(&mut has_model, true) {
                    return Err(A::Error::duplicate_field("model"));
                }
                self.outline.model = map.next_value()?;
                self.outline.values += 1;
                continue;
            }
            let limit = LIMITED.contains(&field).then_some(Limit { field, too_long: self.too_long });
            let has_ids = ID_LISTS.contains(&field);
            map.next_value_seed(Values { outline: self.outline, has_ids, limit })?;
        }
        Ok(())
    }
}

/// A key of the top-level object, if the outline uses it.
struct Key(Option<&'static str>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        struct KeyVisitor;

        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Key, E> {
                let known = ["model"].iter().chain(&LIMITED).chain(&ID_LISTS);
                Ok(Key(known.copied().find(|known| *known == text)))
            }
        }
        deserializer.deserialize_identifier(KeyVisitor)
    }
}

/// The limit on the entries of one field.
struct Limit<'a> {
    field: &'static str,
    too_long: &'a mut Option<&'static str>,
}

impl Limit<'_> {
    fn check<E: serde::de::Error>(&mut self, entries: usize) -> Result<(), E> {
        if entries <= MAX_ITEMS {
            return Ok(());
        }
        *self.too_long = Some(self.field);
        Err(E::custom("too many entries"))
    }
}

/// Counts a value and everything in it.
struct Values<'a> {
    outline: &'a mut Outline,
    /// Whether numbers are token ids.
    has_ids: bool,
    limit: Option<Limit<'a>>,
}

impl Values<'_> {
    fn count<E>(self) -> Result<(), E> {
        self.outline.values += 1;
        Ok(())
    }

    fn count_number<E>(self) -> Result<(), E> {
        if self.has_ids {
            self.outline.ids += 1;
        } else {
            self.outline.values += 1;
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Values<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Values<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.count()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.count_number()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.count_number()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.count_number()
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        self.count()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.count()
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        self.outline.values += 1;
        let mut entries = 0;
        loop {
            let entry = Values { outline: self.outline, has_ids: self.has_ids, limit: None };
            if list.next_element_seed(entry)?.is_none() {
                return Ok(());
            }
            entries += 1;
            self.limit.as_mut().map_or(Ok(()), |limit| limit.check(entries))?;
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.outline.values += 1;
        let mut entries = 0;
        while map.next_key::<IgnoredAny>()?.is_some() {
            self.outline.values += 1;
            map.next_value_seed(Values { outline: self.outline, has_ids: self.has_ids, limit: None })?;
            entries += 1;
            self.limit.as_mut().map_or(Ok(()), |limit| limit.check(entries))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Outline, String> {
        Outline::read(json.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_counted_without_being_built() {
        let check = |json: &str, model: Option<&str>, values: usize, ids: usize| {
            let expect = Outline { model: model.map(str::to_owned), values, ids, len: json.len() };
            assert_eq!(read(json), Ok(expect), "{json}");
        };
        check("{}", None, 0, 0);
        check(r#"{"model":"team\/mini"}"#, Some("team/mini"), 2, 0);
        check(r#" {"x":[{},{"a":null}],"model":null} "#, None, 8, 0);
        check(r#"{"context":[1,2,3],"windows":[[1,2],[]],"model":"m"}"#, Some("m"), 8, 5);
        check(r#"{"messages":[{"role":"user","content":"x,{"}]}"#, None, 7, 0);
    }

    #[test]
    fn bad_bodies_are_refused() {
        let check = |json: &str, expect: &str| {
            let error = read(json).expect_err("a bad body");
            assert!(error.contains(expect), "{json}: {error}");
        };
        check("", "EOF");
        check("[]", "an object");
        check("{} x", "trailing");
        check(r#"{"model":7}"#, "expected a string");
        check(r#"{"model":"a","model":"b"}"#, "duplicate");
        check(&format!(r#"{{"x":{}"#, "[".repeat(100_000)), "recursion limit");
    }

    #[test]
    fn lists_are_limited_by_their_own_entries() {
        let list = |field: &str, entries: usize| {
            let entries = vec![r#"{"role":"user","content":[1,2,3]}"#; entries].join(",");
            read(&format!("{{\"{field}\":[{entries}]}}"))
        };
        assert!(list("messages", MAX_ITEMS).is_ok());
        for field in LIMITED {
            assert_eq!(list(field, MAX_ITEMS + 1), Err(format!("`{field}` has more than 10000 entries")));
        }
        // Lists of token ids, and unknown fields, are bounded only by their size.
        assert!(list("context", MAX_ITEMS + 1).is_ok() && list("x", MAX_ITEMS + 1).is_ok());
        let files: Vec<String> = (0..=MAX_ITEMS).map(|n| format!("\"{n}\":\"x\"")).collect();
        let error = read(&format!("{{\"files\":{{{}}}}}", files.join(",")));
        assert_eq!(error, Err("`files` has more than 10000 entries".to_owned()));
    }
}
