//! `GET /lode/v1/openapi.json`: the OpenAPI document of Lode's own API. Its schemas are derived from the types of
//! requests and responses, and its operations are the tables of this folder.

mod access;
mod content;
mod inference;
mod operation;
mod server;

use std::sync::LazyLock;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use lode_model::digest::Digest;
use serde_json::Value;
use utoipa::openapi::path::Paths;
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    ResponseBuilder, Schema, Type,
};
use utoipa::{PartialSchema, ToSchema};

use self::operation::{Operation, PROBLEM};
use super::error::Problem;
use crate::http::Failure;
use crate::http::conditional::{etag, matches_tag};

/// The media type of a failure.
const PROBLEM_JSON: &str = "application/problem+json";
const DESCRIPTION: &str = "Lode's own routes, for its command line, workers and scripts. On a server without accounts \
    everyone may do everything; otherwise each operation names the rights that it needs. A private repository looks \
    like a missing one.";

/// A group of operations.
struct Group {
    name: &'static str,
    description: &'static str,
    operations: Vec<Operation>,
}

/// The document, serialised once.
static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    let json = Bytes::from(serde_json::to_vec(&build()).expect("a document is JSON"));
    Document { etag: etag(&Digest::sha256(&json)), json }
});

struct Document {
    json: Bytes,
    etag: String,
}

/// The document as a JSON value.
pub(crate) fn document() -> Value {
    serde_json::from_slice(&DOCUMENT.json).expect("a document is JSON")
}

/// Everyone may read the document: it describes the program and not this server's content. The entity tag is weak,
/// because the response may be compressed.
pub(crate) async fn get(headers: HeaderMap) -> Result<Response, Failure> {
    let is_known = matches_tag(&headers, &DOCUMENT.etag);
    let tag = HeaderValue::try_from(format!("W/{}", DOCUMENT.etag)).map_err(|_| Failure::RouteUnknown)?;
    let cached = [(header::ETAG, tag), (header::CACHE_CONTROL, HeaderValue::from_static("public, no-cache"))];
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, cached).into_response());
    }
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(operation::JSON))];
    Ok((cached, kind, Body::from(DOCUMENT.json.clone())).into_response())
}

fn build() -> OpenApi {
    let groups = [
        content::repositories(),
        inference::group(),
        server::workers(),
        server::jobs(),
        server::server(),
        access::group(),
    ];
    let mut paths = Paths::new();
    let mut schemas = vec![(Problem::name().into(), Problem::schema())];
    let mut tags = Vec::new();
    for Group { name, description, operations } in groups {
        tags.push(TagBuilder::new().name(name).description(Some(description)).build());
        for mut operation in operations {
            schemas.append(&mut operation.schemas);
            let (path, method) = (operation.path, operation.method.clone());
            paths.add_path_operation(path, vec![method], operation.build(name));
        }
    }
    for (_, schema) in &mut schemas {
        allow_absent_parts(schema);
    }
    let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name(Problem::name())));
    let problem = ResponseBuilder::new()
        .description("A failure: its status, and a text for people")
        .content(PROBLEM_JSON, problem.build());
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .response(PROBLEM, problem)
        .security_scheme(
            "bearer",
            scheme(HttpAuthScheme::Bearer, "An access token of an account, or a worker's credential."),
        )
        .security_scheme(
            "basic",
            scheme(HttpAuthScheme::Basic, "An account with its password, or with a token as the password."),
        );
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Lode")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(DESCRIPTION)),
        )
        .paths(paths)
        .components(Some(components.build()))
        .tags(Some(tags))
        .security(Some([
            SecurityRequirement::default(),
            SecurityRequirement::new::<_, [&str; 0], _>("bearer", []),
            SecurityRequirement::new::<_, [&str; 0], _>("basic", []),
        ]))
        .build()
}

/// The fields of a flattened `Option` may all be absent. utoipa describes it as an object or null.
fn allow_absent_parts(schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::AllOf(all)) = schema else { return };
    for part in &mut all.items {
        let RefOr::T(Schema::OneOf(one)) = part else { continue };
        let is_null = |item: &RefOr<Schema>| matches!(item, RefOr::T(Schema::Object(object)) if object.schema_type == Type::Null.into());
        if one.items.iter().any(is_null) {
            let present = one.items.drain(..).filter(|item| !is_null(item));
            let object = RefOr::T(ObjectBuilder::new().into());
            let any = present.chain([object]).fold(AnyOfBuilder::new(), AnyOfBuilder::item);
            *part = RefOr::T(any.into());
        }
    }
}

fn scheme(scheme: HttpAuthScheme, description: &str) -> SecurityScheme {
    SecurityScheme::Http(HttpBuilder::new().scheme(scheme).description(Some(description)).build())
}
