//! `GET /-/api`: Lode's own API for people. The page shows the OpenAPI document of `/lode/v1/openapi.json`.

mod document_view;

use std::sync::LazyLock;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::request::Parts;

use self::document_view::{Group, Type};
use super::page::{Shell, render_browsed};
use crate::Registry;
use crate::api::openapi::document;
use crate::auth::Caller;
use crate::http::Failure;
use crate::http::links::own_base_url;

/// The document as the page shows it.
static REFERENCE: LazyLock<Reference> = LazyLock::new(|| {
    let document = document();
    Reference { groups: document_view::groups(&document), types: document_view::types(&document) }
});

struct Reference {
    groups: Vec<Group>,
    types: Vec<Type>,
}

#[derive(Template)]
#[template(path = "api.html")]
struct ApiPage {
    shell: Shell,
    groups: &'static [Group],
    types: &'static [Type],
    /// The address of this server.
    base: String,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    request: Parts,
) -> Result<Response, Failure> {
    let base = own_base_url(&request, registry.config());
    Ok(render_browsed(&ApiPage {
        shell: Shell::of(&registry, &caller).await?,
        groups: &REFERENCE.groups,
        types: &REFERENCE.types,
        base: base.unwrap_or_else(|| "http://localhost:5000".to_owned()),
    }))
}
