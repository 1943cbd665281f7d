//! The OpenAPI document describes the routes of `/lode/v1`, and their responses: `App::send` checks each of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use boon::{Compiler, SchemaIndex, Schemas};
use http::{Method, Request};
use serde_json::{Value, json};

use super::routes::ROUTES;
use super::{App, TestResponse};
use crate::api::openapi::document;

/// The address of the document for references.
const DOCUMENT: &str = "mem:///openapi.json";

static CHECKER: LazyLock<Checker> = LazyLock::new(|| {
    let document = document();
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    compiler.enable_format_assertions();
    compiler.add_resource(DOCUMENT, document.clone()).unwrap();
    let mut places = Vec::new();
    find_bodies(&document, String::new(), &mut places);
    let compiled = places.into_iter().map(|place| {
        let index = compiler.compile(&format!("{DOCUMENT}#{place}"), &mut schemas).unwrap();
        (place, index)
    });
    Checker { compiled: compiled.collect(), document, schemas }
});

/// The document, and the schemas of its bodies by their place in it.
struct Checker {
    document: Value,
    schemas: Schemas,
    compiled: HashMap<String, SchemaIndex>,
}

/// Adds the places of all schemas of bodies: `.../content/MEDIA-TYPE/schema`.
fn find_bodies(value: &Value, place: String, found: &mut Vec<String>) {
    for (key, inner) in value.as_object().into_iter().flatten() {
        let inner_place = format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"));
        if key == "content" {
            let kinds = inner.as_object().into_iter().flatten();
            found.extend(kinds.map(|(kind, _)| format!("{inner_place}/{}/schema", kind.replace('/', "~1"))));
        } else if key != "schemas" {
            find_bodies(inner, inner_place, found);
        }
    }
}

/// The tag of operations whose responses are a worker's, except lists. In these tests workers respond with anything;
/// `tests/clients/python/openapi.py` checks the responses of a real one.
const INFERENCE: &str = "Inference";

/// Panics if a response below `/lode/v1` is not as documented.
pub(super) fn check(method: &Method, path: &str, response: &TestResponse) {
    let is_compressed = response.headers.contains_key("content-encoding");
    if !path.starts_with("/lode/v1/") || response.body.is_empty() || is_compressed {
        return;
    }
    let Checker { document, schemas, compiled } = &*CHECKER;
    let Some((template, operation)) = find(document, method, path) else {
        assert!(!response.status.is_success(), "{method} {path}: not in the document");
        return;
    };
    if response.status.is_success() && operation["tags"][0] == INFERENCE && method == Method::POST {
        return;
    }
    let place = response_place(template, method, operation, response.status.as_str());
    let kind = response.header("content-type").split(';').next().unwrap_or_default();
    let schema = compiled.get(&format!("{place}/content/{}/schema", kind.replace('/', "~1")));
    let status = response.status;
    let schema = *schema.unwrap_or_else(|| panic!("{method} {template}: {status}, {kind} is not documented"));
    let lines: Vec<&[u8]> = match kind {
        "application/x-ndjson" => response.body.split(|byte| *byte == b'\n').collect(),
        _ => vec![&response.body],
    };
    for line in lines.into_iter().filter(|line| !line.is_empty()) {
        let value: Value = serde_json::from_slice(line).unwrap();
        if let Err(error) = schemas.validate(&value, schema) {
            panic!("{method} {template}: {status} is not as documented: {error}\n{value}");
        }
    }
}

/// The template of a path, and its operation.
fn find<'a>(document: &'a Value, method: &Method, path: &str) -> Option<(&'a str, &'a Value)> {
    let all = document["paths"].as_object().unwrap().iter().filter(|(template, _)| matches(template, path));
    let fixed_parts = |template: &str| template.split('/').filter(|part| !part.starts_with('{')).count();
    let (template, item) = all.max_by_key(|(template, _)| fixed_parts(template))?;
    Some((template, item.get(method.as_str().to_lowercase())?))
}

/// The place of the response with a status in the document.
fn response_place(template: &str, method: &Method, operation: &Value, status: &str) -> String {
    let responses = &operation["responses"];
    let status = if responses.get(status).is_some() { status } else { "default" };
    match responses[status]["$ref"].as_str() {
        Some(reference) => reference.trim_start_matches('#').to_owned(),
        None => {
            let method = method.as_str().to_lowercase();
            format!("/paths/{}/{method}/responses/{status}", template.replace('/', "~1"))
        }
    }
}

/// Whether a path may be of a template. A name has any number of parts.
fn matches(template: &str, path: &str) -> bool {
    fn parts_match(template: &[&str], path: &[&str]) -> bool {
        match (template.split_first(), path.split_first()) {
            (None, None) => true,
            (Some((&"{name}", rest)), Some((_, after))) => {
                parts_match(rest, after) || parts_match(template, after)
            }
            (Some((part, rest)), Some((given, after))) => {
                (part.starts_with('{') || part == given) && parts_match(rest, after)
            }
            _ => false,
        }
    }
    let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    parts_match(&template, &path)
}

#[test]
fn the_document_has_every_route() {
    let document = document();
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        described.extend(
            item.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())),
        );
    }
    let routes = ROUTES.iter().filter(|(_, route, ..)| route.starts_with("/lode/v1/"));
    let routes: BTreeSet<_> = routes.map(|(method, route, ..)| format!("{method} {route}")).collect();
    assert_eq!(described, routes);
}

#[tokio::test]
async fn the_document_is_cached_and_compressed() {
    let app = App::new().await;
    let got = app.get("/lode/v1/openapi.json").await;
    assert_eq!(got.status, 200);
    let document = got.json();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let asks = || Request::get("/lode/v1/openapi.json");
    let known = app.send(asks().header("if-none-match", got.header("etag")), "").await;
    assert_eq!((known.status.as_u16(), known.body.len()), (304, 0));
    assert_eq!(known.header("etag"), got.header("etag"));
    let compressed = app.send(asks().header("accept-encoding", "gzip"), "").await;
    assert_eq!(compressed.header("content-encoding"), "gzip");
    assert_eq!(compressed.header("etag"), got.header("etag"));
    assert!(compressed.body.len() < 20_000, "{} bytes", compressed.body.len());
}

#[test]
fn schemas_follow_the_types() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    // Unknown fields are refused, enums have their values, and times have their format.
    assert_eq!(schemas["GrantRequest"]["additionalProperties"], false);
    assert_eq!(schemas["Role"]["enum"], json!(["read", "write", "maintain", "own"]));
    assert_eq!(schemas["TokenInfo"]["properties"]["created_at"]["format"], "date-time");
    let deleted = schemas["WebhookDelivery"]["properties"]["created_at"]["description"].as_str().unwrap();
    assert!(deleted.contains("Milliseconds since 1970"), "{deleted}");
    // Every reference has a target.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
}

#[tokio::test]
async fn the_page_shows_every_operation() {
    let app = App::new().await;
    let got = app.send(Request::get("/-/api").header("host", "127.0.0.1:5000"), "").await;
    assert_eq!(got.status, 200);
    assert!(got.header("content-security-policy").contains("script-src 'self'"));
    let page = got.text();
    for (path, item) in document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(
                page.contains(&format!("<code>{} {path}</code>", method.to_uppercase())),
                "{method} {path}"
            );
            let id = operation["operationId"].as_str().unwrap();
            assert!(page.contains(&format!("<details id=\"{id}\">")), "{id}");
        }
    }
    // Links within the page have a target, and the examples name this server.
    for target in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(page.contains(&format!("id=\"{target}\"")), "{target}");
    }
    let example = "curl -H &#34;Authorization: Bearer $TOKEN&#34; http://127.0.0.1:5000/lode/v1/repositories";
    assert!(page.contains(example), "{page}");
    assert!(!page.contains("`"));
}
