//! One operation of the document: a method and a path with its parameters, bodies and rights.

use lode_model::reference::{Reference, Repository};
use utoipa::openapi::path::{Operation as OpenApiOperation, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::{
    Content, HeaderBuilder, HttpMethod, KnownFormat, ObjectBuilder, Ref, RefOr, Required, ResponseBuilder,
    Schema, SchemaFormat, Type,
};
use utoipa::{PartialSchema, ToSchema};

pub(super) const JSON: &str = "application/json";
pub(super) const NDJSON: &str = "application/x-ndjson";
/// The name of the response of every failure among the components.
pub(super) const PROBLEM: &str = "Problem";

/// Schemas by name, as `ToSchema` collects them.
pub(super) type Schemas = Vec<(String, RefOr<Schema>)>;

/// A schema of the components, and those that it refers to.
pub(super) struct Named {
    name: String,
    schemas: Schemas,
}

impl Named {
    pub(super) fn new(name: &str, schema: impl Into<RefOr<Schema>>) -> Named {
        Named { name: name.to_owned(), schemas: vec![(name.to_owned(), schema.into())] }
    }

    /// Adds a schema that this one refers to.
    pub(super) fn with(mut self, other: Named) -> Named {
        self.schemas.extend(other.schemas);
        self
    }
}

/// The schema of a type.
pub(super) fn of<T: ToSchema>() -> Named {
    let mut named = Named::new(&T::name(), T::schema());
    T::schemas(&mut named.schemas);
    named
}

/// A route and a method.
pub(super) struct Operation {
    pub(super) method: HttpMethod,
    pub(super) path: &'static str,
    pub(super) schemas: Schemas,
    operation: OperationBuilder,
}

impl Operation {
    /// `id` names the operation in generated clients.
    fn new(method: HttpMethod, path: &'static str, id: &str, summary: &str) -> Operation {
        let problem = Ref::new(format!("#/components/responses/{PROBLEM}"));
        let mut operation = OperationBuilder::new()
            .operation_id(Some(id))
            .summary(Some(summary))
            .response("default", RefOr::Ref(problem));
        for name in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
            let (schema, description) = path_parameter(path, name);
            let parameter = ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .description(Some(description))
                .schema(Some(schema));
            operation = operation.parameter(parameter);
        }
        Operation { method, path, schemas: Vec::new(), operation }
    }

    pub(super) fn get(path: &'static str, id: &str, summary: &str) -> Operation {
        Operation::new(HttpMethod::Get, path, id, summary)
    }

    pub(super) fn post(path: &'static str, id: &str, summary: &str) -> Operation {
        Operation::new(HttpMethod::Post, path, id, summary)
    }

    pub(super) fn put(path: &'static str, id: &str, summary: &str) -> Operation {
        Operation::new(HttpMethod::Put, path, id, summary)
    }

    pub(super) fn patch(path: &'static str, id: &str, summary: &str) -> Operation {
        Operation::new(HttpMethod::Patch, path, id, summary)
    }

    pub(super) fn delete(path: &'static str, id: &str, summary: &str) -> Operation {
        Operation::new(HttpMethod::Delete, path, id, summary)
    }

    /// The rights that the caller needs.
    pub(super) fn needs(mut self, rights: &str) -> Operation {
        self.operation = self.operation.description(Some(format!("Needs: {rights}.")));
        self
    }

    pub(super) fn query(mut self, parameter: ParameterBuilder) -> Operation {
        self.operation = self.operation.parameter(parameter);
        self
    }

    /// A listing in pages of at most `limit` entries.
    pub(super) fn pages(self, limit: u32) -> Operation {
        let n = format!("The size of the page, at most {limit}.");
        self.query(number("n", &n))
            .query(text("last", "Entries after this one: the end of the previous page."))
    }

    pub(super) fn body(mut self, body: Named) -> Operation {
        let content = self.content(body);
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        self.operation = self.operation.request_body(Some(body.build()));
        self
    }

    /// A JSON response.
    pub(super) fn returns(self, status: u16, description: &str, body: Named) -> Operation {
        self.responds(status, description, &[JSON], body)
    }

    /// A page of a listing, with the address of the next one.
    pub(super) fn returns_page(mut self, body: Named) -> Operation {
        let link = HeaderBuilder::new()
            .description(Some(
                "The address of the next page, with `rel=\"next\"`, while more entries follow.",
            ))
            .schema(Some(ObjectBuilder::new().schema_type(Type::String)));
        let response = ResponseBuilder::new().description("A page").header("Link", link.build());
        let content = self.content(body);
        self.operation = self.operation.response("200", response.content(JSON, content));
        self
    }

    /// A stream with one JSON record a line. With `or_whole`, clients may ask for one JSON value instead.
    pub(super) fn streams(self, description: &str, record: Named, or_whole: bool) -> Operation {
        let types: &[&str] = if or_whole { &[NDJSON, JSON] } else { &[NDJSON] };
        self.responds(200, description, types, record)
    }

    /// A response without a body.
    pub(super) fn returns_nothing(mut self, status: u16, description: &str) -> Operation {
        let response = ResponseBuilder::new().description(description);
        self.operation = self.operation.response(status.to_string(), response);
        self
    }

    /// Adds that everyone may read the response.
    pub(super) fn open_to_everyone(mut self) -> Operation {
        self.operation = self.operation.securities(Some([Default::default()]));
        self
    }

    fn responds(mut self, status: u16, description: &str, types: &[&str], body: Named) -> Operation {
        let content = self.content(body);
        let response =
            types.iter().fold(ResponseBuilder::new().description(description), |response, kind| {
                response.content(*kind, content.clone())
            });
        self.operation = self.operation.response(status.to_string(), response);
        self
    }

    fn content(&mut self, body: Named) -> Content {
        self.schemas.extend(body.schemas);
        Content::new(Some(Ref::from_schema_name(body.name)))
    }

    pub(super) fn build(self, tag: &str) -> OpenApiOperation {
        self.operation.tag(tag).build()
    }
}

fn path_parameter(path: &str, name: &str) -> (RefOr<Schema>, &'static str) {
    let plain = || ObjectBuilder::new().schema_type(Type::String).into();
    let id = || {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid)))
    };
    match name {
        "reference" => (Reference::schema(), "A tag or a digest."),
        "id" => (id().into(), "The id."),
        "account" => (plain(), "The name of an account."),
        _ if path.starts_with("/lode/v1/accounts") => (plain(), "The name of an account."),
        _ if path.starts_with("/lode/v1/groups") => (plain(), "The name of a group."),
        _ => (Repository::schema(), "A repository. The slashes between its parts may be escaped."),
    }
}

/// A parameter of the query.
pub(super) fn text(name: &str, description: &str) -> ParameterBuilder {
    parameter(name, description, ObjectBuilder::new().schema_type(Type::String))
}

pub(super) fn number(name: &str, description: &str) -> ParameterBuilder {
    parameter(name, description, ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)))
}

pub(super) fn choice(name: &str, values: &[&str], description: &str) -> ParameterBuilder {
    let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(values.iter().copied()));
    parameter(name, description, schema)
}

fn parameter(name: &str, description: &str, schema: ObjectBuilder) -> ParameterBuilder {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema))
}
