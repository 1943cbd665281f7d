//! `GET /v1/models` and `/v1/models/{model}`.

use axum::extract::State;
use lode_model::reference::Repository;
use serde::Serialize;
use serde_json::{Value, json};

use crate::Registry;
use crate::app::TaggedModel;
use crate::auth::Caller;
use crate::http::model_name::{self, ModelName};
use crate::http::{Failure, Json, Path};

#[derive(Serialize)]
pub(crate) struct Model {
    id: String,
    object: &'static str,
    /// Seconds since 1970.
    created: i64,
    owned_by: String,
}

pub(crate) async fn list(State(registry): State<Registry>, caller: Caller) -> Result<Json<Value>, Failure> {
    let entry = |model: TaggedModel| {
        Model::new(format!("{}:{}", model.repository, model.tag), &model.repository, model.modified_at)
    };
    let data: Vec<Model> = registry.model_list_all(&caller).await?.into_iter().map(entry).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

pub(crate) async fn show(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Model>, Failure> {
    let ModelName { repositories, reference } = model_name::parse_exact(&name)?;
    let model = registry.model_show(&caller, repositories.first(), &reference).await?;
    let model = model.ok_or_else(|| Failure::ModelUnknown { name: name.clone() })?;
    Ok(Json(Model::new(name, repositories.first(), model.modified_at)))
}

impl Model {
    fn new(id: String, repository: &Repository, modified_at: i64) -> Model {
        let owner = repository.as_str().rsplit_once('/').map_or("library", |(owner, _)| owner);
        Model { id, object: "model", created: modified_at / 1000, owned_by: owner.to_owned() }
    }
}
