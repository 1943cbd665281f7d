//! An OpenAPI document as groups of operations and tables of fields.

use serde_json::{Map, Value, json};

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

pub(super) struct Group {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) operations: Vec<Operation>,
}

pub(super) struct Operation {
    pub(super) id: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) summary: Html,
    pub(super) needs: Html,
    pub(super) parameters: Vec<Field>,
    pub(super) body: Vec<Field>,
    /// The body refuses unknown fields.
    pub(super) is_strict: bool,
    pub(super) responses: Vec<Response>,
    /// The arguments of curl after the address of the server.
    pub(super) example: Example,
}

pub(super) struct Response {
    pub(super) status: String,
    pub(super) description: Html,
    /// Whether it may be a stream of records.
    pub(super) is_stream: bool,
    pub(super) fields: Vec<Field>,
}

/// A command: what comes before and after the address of the server.
pub(super) struct Example {
    pub(super) before: String,
    pub(super) after: String,
}

/// A parameter of the path or the query, or a field of an object.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) is_required: bool,
    pub(super) description: Html,
}

/// The type of a value: a text with the name of a type in it, which the page describes.
pub(super) struct Kind {
    pub(super) before: String,
    pub(super) name: Option<String>,
    pub(super) after: &'static str,
}

/// A type that fields refer to by its name.
pub(super) struct Type {
    pub(super) name: String,
    pub(super) description: Html,
    pub(super) values: Vec<String>,
    pub(super) fields: Vec<Field>,
}

/// Harmless HTML.
pub(super) struct Html(pub(super) String);

impl Html {
    /// A text in which backticks mark code.
    fn of(text: &str) -> Html {
        let mut html = String::with_capacity(text.len());
        for (at, part) in text.split('`').enumerate() {
            let escaped = part.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            match at % 2 {
                0 => html.push_str(&escaped),
                _ => html.extend(["<code>", &escaped, "</code>"]),
            }
        }
        Html(html)
    }
}

pub(super) fn groups(document: &Value) -> Vec<Group> {
    let view = View { document };
    let tags = document["tags"].as_array().into_iter().flatten();
    let group = |tag: &Value| Group {
        name: text(&tag["name"]),
        description: text(&tag["description"]),
        operations: view.operations(&tag["name"]),
    };
    tags.map(group).collect()
}

/// The types that fields refer to.
pub(super) fn types(document: &Value) -> Vec<Type> {
    let view = View { document };
    let mut names: Vec<&str> = Vec::new();
    let operations = groups(document).into_iter().flat_map(|group| group.operations);
    let mut fields: Vec<Field> = Vec::new();
    for operation in operations {
        fields.extend(operation.parameters);
        fields.extend(operation.body);
        fields.extend(operation.responses.into_iter().flat_map(|response| response.fields));
    }
    let schemas = document["components"]["schemas"].as_object();
    while let Some(field) = fields.pop() {
        let known = schemas.and_then(|all| all.get_key_value(field.kind.name.as_deref()?));
        if let Some((name, schema)) = known.filter(|(name, _)| !names.contains(&name.as_str())) {
            names.push(name);
            fields.extend(view.fields(schema));
        }
    }
    names.sort_unstable();
    let described = names.into_iter().map(|name| {
        let schema = &document["components"]["schemas"][name];
        let values = schema["enum"].as_array().into_iter().flatten();
        Type {
            name: name.to_owned(),
            description: Html::of(schema["description"].as_str().unwrap_or_default()),
            values: values.map(text).collect(),
            fields: view.fields(schema),
        }
    });
    described.collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

struct View<'a> {
    document: &'a Value,
}

impl<'a> View<'a> {
    fn operations(&self, tag: &Value) -> Vec<Operation> {
        let mut found = Vec::new();
        for (path, item) in self.document["paths"].as_object().into_iter().flatten() {
            for method in METHODS {
                let operation = &item[method];
                if &operation["tags"][0] == tag {
                    found.push(self.operation(method, path, operation));
                }
            }
        }
        found
    }

    fn operation(&self, method: &str, path: &str, operation: &'a Value) -> Operation {
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        let responses = operation["responses"].as_object().into_iter().flatten();
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        Operation {
            id: text(&operation["operationId"]),
            method: method.to_uppercase(),
            path: path.to_owned(),
            summary: Html::of(operation["summary"].as_str().unwrap_or_default()),
            needs: Html::of(operation["description"].as_str().unwrap_or_default()),
            example: self.example(method, path, operation),
            parameters: parameters.map(|parameter| self.parameter(parameter)).collect(),
            body: self.fields(body),
            is_strict: self.resolve(body)["additionalProperties"] == false,
            responses: responses
                .filter(|(status, _)| *status != "default")
                .map(|(status, response)| self.response(status, response))
                .collect(),
        }
    }

    fn parameter(&self, parameter: &'a Value) -> Field {
        Field {
            name: text(&parameter["name"]),
            kind: self.kind(&parameter["schema"]),
            is_required: parameter["required"] == true,
            description: Html::of(parameter["description"].as_str().unwrap_or_default()),
        }
    }

    fn response(&self, status: &str, response: &'a Value) -> Response {
        let content = response["content"].as_object();
        let schema = content.and_then(|content| content.values().next()).map(|content| &content["schema"]);
        Response {
            status: status.to_owned(),
            description: Html::of(response["description"].as_str().unwrap_or_default()),
            is_stream: content.is_some_and(|content| content.contains_key("application/x-ndjson")),
            fields: schema.map(|schema| self.fields(schema)).unwrap_or_default(),
        }
    }

    /// The schema that a reference names, or the schema itself.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let place = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        place.and_then(|place| self.document.pointer(place)).unwrap_or(schema)
    }

    /// The fields of an object: its own, and those of its parts.
    fn fields(&self, schema: &'a Value) -> Vec<Field> {
        self.properties(schema)
            .into_iter()
            .map(|(name, schema, is_required)| Field {
                name: name.to_owned(),
                kind: self.kind(schema),
                is_required,
                description: Html::of(description(schema)),
            })
            .collect()
    }

    /// Names, schemas, and whether an object must have the field.
    fn properties(&self, schema: &'a Value) -> Vec<(&'a str, &'a Value, bool)> {
        let schema = self.resolve(schema);
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let own = schema["properties"].as_object().into_iter().flatten();
        let mut all: Vec<_> = own
            .map(|(name, schema)| (name.as_str(), schema, required.iter().any(|other| other == name)))
            .collect();
        for (key, is_all) in [("allOf", true), ("oneOf", false), ("anyOf", false)] {
            for part in schema[key].as_array().into_iter().flatten() {
                let part = self.properties(part).into_iter();
                all.extend(part.map(|(name, schema, is_required)| (name, schema, is_all && is_required)));
            }
        }
        all
    }

    fn kind(&self, schema: &'a Value) -> Kind {
        if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
            return Kind { before: String::new(), name: Some(name.to_owned()), after: "" };
        }
        if let Some(items) = schema.get("items") {
            let kind = self.kind(items);
            return Kind { before: format!("list of {}", kind.before), ..kind };
        }
        let parts = ["oneOf", "anyOf", "allOf"].into_iter().find_map(|key| schema[key].as_array());
        if let Some(parts) = parts {
            let (null, others): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part["type"] == "null");
            if let [only] = others[..] {
                let after = if null.is_empty() { "" } else { " or null" };
                return Kind { after, ..self.kind(only) };
            }
        }
        Kind { before: plain_kind(schema), name: None, after: "" }
    }

    fn example(&self, method: &str, path: &str, operation: &'a Value) -> Example {
        let mut after = path.to_owned();
        for (name, value) in [
            ("{name}/members/{account}", "staff/members/alice"),
            ("accounts/{name}", "accounts/alice"),
            ("groups/{name}", "groups/staff"),
            ("{name}", "team/mini"),
            ("{reference}", "latest"),
            ("{id}", "ID"),
        ] {
            after = after.replace(name, value);
        }
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let mut separator = '?';
        for parameter in parameters.filter(|one| one["in"] == "query" && one["required"] == true) {
            let name = text(&parameter["name"]);
            let value = match name.as_str() {
                "size" => "1048576",
                "kind" => "damage",
                "robot" => "team%2Bci",
                _ => "team/mini:v1",
            };
            after.push_str(&format!("{separator}{name}={value}"));
            separator = '&';
        }
        let quoted = |after: String| if after.contains('?') { format!("{after}'") } else { after };
        let quote = if after.contains('?') { "'" } else { "" };
        let mut after = quoted(after);
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if !body.is_null() {
            after.push_str(&format!(" -d '{}'", self.body_example(body)));
        }
        let method = match method {
            "get" => String::new(),
            "post" if !body.is_null() => String::new(),
            other => format!(" -X {}", other.to_uppercase()),
        };
        Example { before: format!("curl -H \"Authorization: Bearer $TOKEN\"{method} {quote}"), after }
    }

    /// A body with the required fields, or else the first one.
    fn body_example(&self, body: &'a Value) -> Value {
        let all = self.properties(body);
        let has_required = all.iter().any(|(.., is_required)| *is_required);
        let mut example = Map::new();
        for (at, (name, schema, is_required)) in all.into_iter().enumerate() {
            if is_required || (at == 0 && !has_required) {
                example.insert(name.to_owned(), self.value_example(name, schema));
            }
        }
        Value::Object(example)
    }

    fn value_example(&self, field: &str, schema: &'a Value) -> Value {
        let named = self.kind(schema).name.unwrap_or_default();
        let schema = self.resolve(schema);
        let kind = schema["type"].as_array().map_or(&schema["type"], |all| &all[0]);
        match (kind.as_str().unwrap_or_default(), named.as_str(), field) {
            _ if schema["enum"].is_array() => schema["enum"][0].clone(),
            (_, "Repository", "namespace") => json!("team"),
            (_, "Repository", _) => json!("team/mini"),
            (_, "AccessTarget", _) => json!("team/*"),
            (_, _, "model" | "source") => json!("team/mini:v1"),
            (_, _, "destination") => json!("team/mini:stable"),
            (_, "Tag", _) | (_, _, "reference") => json!("v1"),
            (_, _, "subject" | "name") => json!("alice"),
            (_, _, "from") => json!("hf://NAMESPACE/MODEL"),
            (_, _, "robot") => json!("team+ci"),
            (_, _, "key") => json!("ssh-ed25519 ..."),
            (_, _, "advertise") => json!("http://worker:11435"),
            ("boolean", ..) => json!(true),
            ("integer" | "number", ..) => json!(1),
            ("array", ..) => json!([]),
            ("object", ..) => json!({}),
            _ => json!("..."),
        }
    }
}

/// The description of a field. That of one that may be null can be at the type that it has otherwise.
fn description(field: &Value) -> &str {
    let parts = field["oneOf"].as_array().into_iter().flatten();
    let mut all = [field].into_iter().chain(parts).filter_map(|schema| schema["description"].as_str());
    all.next().unwrap_or_default()
}

/// The name of a JSON type, or the values of an enumeration.
fn plain_kind(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(text).collect();
        return values.join(", ");
    }
    let name = |kind: &Value| match (kind.as_str(), schema["format"].as_str()) {
        (Some("string"), Some("date-time")) => "time, RFC 3339".to_owned(),
        (Some("string"), Some(format)) => format.to_owned(),
        (Some("string"), None) => "text".to_owned(),
        (Some(kind), _) => kind.to_owned(),
        (None, _) => "any".to_owned(),
    };
    match schema["type"].as_array() {
        Some(kinds) => kinds.iter().map(name).collect::<Vec<_>>().join(" or "),
        None => name(&schema["type"]),
    }
}
