//! Copies: a new name for a manifest and, in another repository, links to everything that it references. No
//! bytes are copied.

use axum::extract::State;
use axum::routing::MethodRouter;
use http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::Registry;
use crate::auth::{Action, Caller};
use crate::http::methods::post;
use crate::http::model_name::ReadName;
use crate::http::state::ServerState;
use crate::http::{Failure, JsonBody, OwnHosts, RequestBody};

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = CopyRequest)]
pub(super) struct Copy {
    #[schema(required)]
    source: String,
    #[schema(required)]
    destination: String,
}

impl RequestBody for Copy {
    const ACTION: Action = Action::Push;
}

/// The copy route of an API; `read_name` parses the API's names.
pub(crate) fn copy(read_name: ReadName) -> MethodRouter<ServerState> {
    post(
        move |State(registry): State<Registry>, caller: Caller, own: OwnHosts, body: JsonBody<Copy>| async move {
            let (copy, _charge) = body.into_parts();
            let (source, destination) = (read_name(&copy.source, &own)?, read_name(&copy.destination, &own)?);
            let from =
                registry.spelling_of_manifest(&caller, &source.repositories, &source.reference).await?;
            let to = registry.spelling_to_write(&caller, &destination.repositories).await?;
            let (from, to) = ((&from, &source.reference), (&to, &destination.reference));
            let found = registry.model_copy(&caller, from, to).await?;
            if found { Ok(StatusCode::OK) } else { Err(Failure::ModelUnknown { name: copy.source }) }
        },
    )
}
