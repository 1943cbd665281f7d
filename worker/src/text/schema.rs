//! Closes the objects of a JSON schema: unnamed properties are generated only if the schema allows them
//! explicitly, with `additionalProperties` (or `patternProperties`, `unevaluatedProperties`). JSON Schema
//! allows them by default, but a model that may invent properties does not always stop, and clients' classes
//! do not have them. llama.cpp does the same.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Maximum number of definitions inlined where `allOf` refers to them; objects with further references stay
/// open.
const MAX_INLINED: usize = 256;
const MAX_DEPTH: usize = 64;

/// Keywords with which a schema itself specifies unnamed properties.
const OPENING_KEYWORDS: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
/// Keywords for one schema, schemas by name, and lists of schemas, which describe values within the value.
const ONE: [&str; 3] = ["additionalProperties", "items", "contains"];
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const LISTED: [&str; 2] = ["prefixItems", "items"];
/// Keywords for lists of schemas of the same value, of which all or one must match.
const SAME_VALUE: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Sets `additionalProperties` to false for every object with named properties, unless the schema specifies
/// it.
pub(super) fn close(schema: Map<String, Value>) -> Map<String, Value> {
    let root = Value::Object(schema);
    let mut closed = root.clone();
    SchemaCloser { root: &root, inlined: 0 }.close(&mut closed, false, MAX_DEPTH);
    match closed {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

struct SchemaCloser<'a> {
    root: &'a Value,
    inlined: usize,
}

impl SchemaCloser<'_> {
    /// `is_part`: the value must match other schemas as well, and only the enclosing schema is closed.
    fn close(&mut self, schema: &mut Value, is_part: bool, depth: usize) {
        let Value::Object(schema) = schema else { return };
        if depth == 0 {
            return;
        }
        let combines = schema.contains_key("allOf");
        let has_properties = schema.contains_key("properties");
        // A reference combined with other keywords is another schema that must match.
        if (combines || has_properties)
            && let Some(reference) = schema.remove("$ref")
        {
            let part = Value::Object(Map::from_iter([("$ref".to_owned(), reference)]));
            match schema.entry("allOf").or_insert_with(|| Value::Array(Vec::new())) {
                Value::Array(parts) => parts.push(part),
                other => *other = Value::Array(vec![part]),
            }
        }
        let is_shared = has_properties || schema.contains_key("allOf") || is_part;
        if is_shared {
            self.inline_parts(schema, depth);
        }
        if !is_part {
            self.close_object(schema);
        }
        for key in SAME_VALUE {
            if let Some(Value::Array(parts)) = schema.get_mut(key) {
                let is_part = key == "allOf" || is_shared;
                parts.iter_mut().for_each(|part| self.close(part, is_part, depth - 1));
            }
        }
        for key in ONE {
            if let Some(inner) = schema.get_mut(key) {
                self.close(inner, false, depth - 1);
            }
        }
        for key in NAMED {
            if let Some(Value::Object(named)) = schema.get_mut(key) {
                named.values_mut().for_each(|inner| self.close(inner, false, depth - 1));
            }
        }
        for key in LISTED {
            if let Some(Value::Array(listed)) = schema.get_mut(key) {
                listed.iter_mut().for_each(|inner| self.close(inner, false, depth - 1));
            }
        }
    }

    fn inline_parts(&mut self, schema: &mut Map<String, Value>, depth: usize) {
        for key in SAME_VALUE {
            if let Some(Value::Array(parts)) = schema.get_mut(key) {
                parts.iter_mut().for_each(|part| self.inline(part, depth - 1));
            }
        }
    }

    /// Inlines the definition that a part refers to: a definition is closed, but a part must not be.
    fn inline(&mut self, part: &mut Value, depth: usize) {
        while self.inlined < MAX_INLINED
            && let Some(reference) = part.get("$ref").and_then(Value::as_str)
            && part.as_object().is_some_and(|part| part.len() == 1)
            && let Some(pointer) = reference.strip_prefix('#').filter(|pointer| !pointer.is_empty())
            && let Some(definition) = self.root.pointer(pointer)
        {
            self.inlined += 1;
            *part = definition.clone();
        }
        if let Value::Object(part) = part
            && depth > 0
        {
            self.inline_parts(part, depth);
        }
    }

    /// Adds the properties named by the parts of an object's schema to the schema itself, and allows no
    /// others.
    fn close_object(&mut self, schema: &mut Map<String, Value>) {
        let mut named = BTreeSet::new();
        let is_open = !collect(schema, &mut named, MAX_DEPTH);
        let is_object = schema.get("type").is_none_or(|kind| {
            kind == "object" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "object"))
        });
        let has_parts = schema.contains_key("allOf") && !named.is_empty();
        if is_open || !is_object || !(schema.contains_key("properties") || has_parts) {
            return;
        }
        let own = schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(own) = own {
            for name in named {
                own.entry(name).or_insert(Value::Bool(true));
            }
            schema.insert("additionalProperties".into(), Value::Bool(false));
        }
    }
}

/// Collects the properties named by a schema and its parts. Returns false if one of them specifies unnamed
/// properties itself or cannot be resolved.
fn collect(schema: &Map<String, Value>, named: &mut BTreeSet<String>, depth: usize) -> bool {
    if depth == 0 || OPENING_KEYWORDS.iter().any(|key| schema.contains_key(*key)) {
        return false;
    }
    if let Some(Value::Object(own)) = schema.get("properties") {
        named.extend(own.keys().cloned());
    }
    let parts = SAME_VALUE.iter().filter_map(|key| schema.get(*key)?.as_array()).flatten();
    let mut parts = parts.filter_map(Value::as_object);
    // The properties of an unresolved reference are unknown.
    parts.all(|part| !part.contains_key("$ref") && collect(part, named, depth - 1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, expect: Value) {
        let Value::Object(map) = schema.clone() else { panic!("{schema}") };
        assert_eq!(Value::Object(close(map)), expect, "{schema}");
    }

    #[test]
    fn objects_are_closed_by_default() {
        check(
            json!({"type": "object", "properties": {"a": {"properties": {"b": {}}}}}),
            json!({"type": "object", "properties": {"a": {"properties": {"b": {}}, "additionalProperties": false}},
                "additionalProperties": false}),
        );
        check(json!({"properties": {}}), json!({"properties": {}, "additionalProperties": false}));
        for same in [
            json!({"type": "object"}),
            json!({}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}),
            json!({"properties": {"a": {}}, "patternProperties": {"^x": {}}}),
            json!({"type": "string"}),
            json!({"enum": [{"properties": {"a": 1}}]}),
        ] {
            check(same.clone(), same);
        }
    }

    #[test]
    fn definitions_lists_and_choices() {
        let open = || json!({"properties": {"a": {}}});
        let closed = || json!({"properties": {"a": {}}, "additionalProperties": false});
        check(
            json!({"$defs": {"x": open()}, "$ref": "#/$defs/x"}),
            json!({"$defs": {"x": closed()}, "$ref": "#/$defs/x"}),
        );
        check(
            json!({"items": open(), "prefixItems": [open()]}),
            json!({"items": closed(), "prefixItems": [closed()]}),
        );
        check(json!({"anyOf": [open(), {"type": "null"}]}), json!({"anyOf": [closed(), {"type": "null"}]}));
        check(json!({"additionalProperties": open()}), json!({"additionalProperties": closed()}));
    }

    #[test]
    fn parts_of_one_object_are_closed_together() {
        check(
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}],
                "properties": {"a": true, "b": true}, "additionalProperties": false}),
        );
        // A definition stays closed for other references to it.
        check(
            json!({"$defs": {"x": {"properties": {"a": {}}}}, "properties": {"b": {}}, "$ref": "#/$defs/x"}),
            json!({"$defs": {"x": {"properties": {"a": {}}, "additionalProperties": false}},
                "properties": {"b": {}, "a": true}, "allOf": [{"properties": {"a": {}}}], "additionalProperties": false}),
        );
        check(
            json!({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}, {"required": ["a"]}]}),
            json!({"properties": {"a": {}, "b": true}, "anyOf": [{"properties": {"b": {}}}, {"required": ["a"]}],
                "additionalProperties": false}),
        );
        // Two steps of inheritance.
        let schema = json!({"$defs": {"a": {"properties": {"a": {}}}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
            "allOf": [{"$ref": "#/$defs/b"}]});
        let Value::Object(schema) = schema else { panic!() };
        let closed = Value::Object(close(schema));
        assert_eq!(
            (&closed["properties"], &closed["additionalProperties"]),
            (&json!({"a": true}), &json!(false))
        );
        // A part that allows other properties, and an unresolved reference.
        for same in [
            json!({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": true}]}),
            json!({"properties": {"a": {}}, "anyOf": [{"$ref": "#/nowhere"}]}),
        ] {
            check(same.clone(), same);
        }
    }

    #[test]
    fn references_do_not_multiply() {
        let doubled = (0..40).map(|at| {
            let next = format!("#/$defs/d{}", at + 1);
            (format!("d{at}"), json!({"allOf": [{"$ref": next}, {"$ref": next}]}))
        });
        let schema = json!({"$defs": doubled.collect::<Map<_, _>>(), "allOf": [{"$ref": "#/$defs/d0"}]});
        let Value::Object(schema) = schema else { panic!() };
        assert!(serde_json::to_vec(&close(schema)).unwrap().len() < 1 << 20);
        let Value::Object(own) = json!({"allOf": [{"$ref": "#/allOf/0"}], "properties": {"a": {}}}) else {
            panic!()
        };
        close(own);
    }
}
