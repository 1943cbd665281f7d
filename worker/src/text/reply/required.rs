//! A response that has to be a tool call: the text before the call's JSON in the model's format, and the schema
//! of the JSON.

use serde_json::{Map, Value, json};

use super::calls::{CallFormat, Shape};

/// A call that the content of a response is constrained to.
#[derive(Debug, PartialEq)]
pub struct RequiredCall {
    /// The text that the content begins with.
    pub opening: String,
    /// The schema of the JSON after it.
    pub schema: Map<String, Value>,
}

/// Why a model's calls cannot be constrained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequiredCallError {
    #[error("its tool calls are not JSON, so a call cannot be required; use tool_choice `auto`")]
    NotJson,
    #[error("its tool calls begin with the name, so name the tool in tool_choice instead of `required`")]
    NeedsName,
}

impl CallFormat {
    /// A call of one of these tools, each with its name and the schema of its arguments.
    pub fn required_call(&self, tools: &[(&str, Value)]) -> Result<RequiredCall, RequiredCallError> {
        let mut opening = format!("{}{}", self.open, self.each);
        match &self.shape {
            Shape::Json => {
                let schema = match tools {
                    [tool] => call_schema(tool, ""),
                    tools => {
                        let calls = tools.iter().enumerate();
                        let calls = calls.map(|(at, tool)| call_schema(tool, &format!("/anyOf/{at}")).into());
                        Map::from_iter([("anyOf".to_owned(), calls.collect::<Vec<Value>>().into())])
                    }
                };
                Ok(RequiredCall { opening, schema })
            }
            Shape::Named { between, behind_id } => {
                let [(name, parameters)] = tools else { return Err(RequiredCallError::NeedsName) };
                opening.push_str(name);
                opening.push_str(if behind_id.is_empty() { between } else { behind_id });
                Ok(RequiredCall { opening, schema: arguments_schema(parameters, "") })
            }
            Shape::Tagged(_) => Err(RequiredCallError::NotJson),
        }
    }
}

/// `{"name": ..., "arguments": {...}}`, at a path of the whole schema.
fn call_schema((name, parameters): &(&str, Value), path: &str) -> Map<String, Value> {
    let arguments = arguments_schema(parameters, &format!("{path}/properties/arguments"));
    let call = json!({
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    });
    if let Value::Object(call) = call { call } else { Map::new() }
}

/// The schema of arguments, which are always an object, at a path of the whole schema.
fn arguments_schema(parameters: &Value, path: &str) -> Map<String, Value> {
    let Value::Object(mut schema) = parameters.clone() else {
        return Map::from_iter([("type".to_owned(), json!("object")), ("properties".to_owned(), json!({}))]);
    };
    schema.insert("type".to_owned(), json!("object"));
    schema.remove("$id");
    let mut schema = Value::Object(schema);
    move_references(&mut schema, path);
    if let Value::Object(schema) = schema { schema } else { Map::new() }
}

/// Rewrites references to places in a schema that is now at `path` of another one.
fn move_references(schema: &mut Value, path: &str) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::String(target) if key == "$ref" => {
                        if let Some(place) = target.strip_prefix('#') {
                            *target = format!("#{path}{place}");
                        }
                    }
                    value => move_references(value, path),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| move_references(value, path)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(shape: Shape) -> CallFormat {
        CallFormat { open: "<tool_call>".into(), shape, ..CallFormat::default() }
    }

    #[test]
    fn one_of_several_tools() {
        let place =
            json!({"properties": {"at": {"$ref": "#/$defs/place"}}, "$defs": {"place": {"type": "string"}}});
        let call = format(Shape::Json).required_call(&[("look", place), ("wait", Value::Null)]).unwrap();
        assert_eq!(call.opening, "<tool_call>");
        let schema = Value::Object(call.schema);
        let look = &schema["anyOf"][0]["properties"];
        assert_eq!(look["name"], json!({"const": "look"}));
        assert_eq!(look["arguments"]["type"], "object");
        let target = look["arguments"]["properties"]["at"]["$ref"].as_str().unwrap();
        assert_eq!(schema.pointer(target.trim_start_matches('#')), Some(&json!({"type": "string"})));
        assert_eq!(
            schema["anyOf"][1]["properties"]["arguments"],
            json!({"type": "object", "properties": {}})
        );
    }

    #[test]
    fn one_tool() {
        let parameters = json!({"type": "object", "properties": {"n": {"$ref": "#/properties/m"}, "m": {}}});
        let call = format(Shape::Json).required_call(&[("look", parameters.clone())]).unwrap();
        let target = &call.schema["properties"]["arguments"]["properties"]["n"]["$ref"];
        assert_eq!(target, "#/properties/arguments/properties/m");

        let named = |behind_id: &str| Shape::Named { between: "[ID]".into(), behind_id: behind_id.into() };
        let call = format(named("[ARGS]")).required_call(&[("look", parameters.clone())]).unwrap();
        assert_eq!(call.opening, "<tool_call>look[ARGS]");
        assert_eq!(Value::Object(call.schema), parameters);
        let call = format(named("")).required_call(&[("look", Value::Null)]).unwrap();
        assert_eq!(call.opening, "<tool_call>look[ID]");
    }

    #[test]
    fn formats_that_cannot_be_constrained() {
        let named = Shape::Named { between: "[ARGS]".into(), behind_id: String::new() };
        let tools = [("look", Value::Null), ("wait", Value::Null)];
        assert_eq!(format(named).required_call(&tools), Err(RequiredCallError::NeedsName));
    }
}
