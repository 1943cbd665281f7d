//! The OCI side of a model: names, digests, media types, manifests, and the two JSON blobs with a fixed form,
//! ollama's config and Lode's file view. Every other folder may use these types.

/// The schema of types that are texts in JSON.
macro_rules! string_schema {
    ($type:ident, $description:literal) => {
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let schema = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String);
                schema.description(Some($description)).into()
            }
        }

        impl utoipa::ToSchema for $type {}
    };
}

pub mod config;
pub mod digest;
pub mod files_view;
pub mod manifest;
pub mod media_type;
pub(crate) mod new_manifest;
pub mod reference;
