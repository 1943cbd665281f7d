//! `/hf/api/models/{name}` and `/hf/api/models/{name}/revision/{revision}`: what is known of a model, with its files.

use axum::extract::State;
use lode_model::reference::Repository;
use serde_json::{Map, Value, json};

use super::entries::{TreeEntry, hf_time};
use crate::Registry;
use crate::app::{ListedModel, MAIN, ManifestFile, Revision, commit_id};
use crate::auth::Caller;
use crate::http::{Failure, HfName, Json, Path, Query};

/// The front matter of the model card.
const CARD_DATA: &str = "cardData";

pub(crate) async fn main(
    State(registry): State<Registry>,
    caller: Caller,
    Path(HfName(repository)): Path<HfName>,
    query: Query,
) -> Result<Json<Value>, Failure> {
    show(&registry, &caller, &repository, MAIN, &query).await
}

pub(crate) async fn revision(
    State(registry): State<Registry>,
    caller: Caller,
    Path((HfName(repository), name)): Path<(HfName, String)>,
    query: Query,
) -> Result<Json<Value>, Failure> {
    show(&registry, &caller, &repository, &name, &query).await
}

async fn show(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    name: &str,
    query: &Query,
) -> Result<Json<Value>, Failure> {
    let revision = registry.revision(caller, repository, name).await?;
    registry.audit_pull(caller, repository, &revision.digest);
    let facts = registry.revision_facts(&revision).await?;
    let mut object = object(&facts);
    object.insert("siblings".to_owned(), siblings(&revision, query.is_true("blobs")));
    let is_wanted = query.get("expand").is_none() || query.all("expand").any(|name| name == CARD_DATA);
    if is_wanted && let Some(stated) = registry.card_front_matter(caller, &revision).await? {
        object.insert(CARD_DATA.to_owned(), stated);
    }
    Ok(Json(Value::Object(expanded(object, query))))
}

fn siblings(revision: &Revision, with_sizes: bool) -> Value {
    let sibling = |(path, file): (&String, &ManifestFile)| match with_sizes {
        false => json!({ "rfilename": path }),
        true => {
            let entry = json!(TreeEntry::file(path, file, None));
            let mut sibling = json!({"rfilename": path, "size": entry["size"], "blobId": entry["oid"]});
            if let Some(lfs) = entry.get("lfs") {
                sibling["lfs"] =
                    json!({"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]});
            }
            sibling
        }
    };
    revision.files.files.iter().map(sibling).collect()
}

/// The fields that a listing shows, too.
pub(super) fn object(facts: &ListedModel) -> Map<String, Value> {
    let (name, model) = (facts.repository.as_str(), &facts.model);
    let stated = &facts.facts;
    let tags = stated.hf_tags(&model.format, model.architecture.as_deref(), model.quantization.as_deref());
    let mut object = json!({
        "_id": commit_id(&facts.digest),
        "id": name,
        "modelId": name,
        "sha": commit_id(&facts.digest),
        "lastModified": hf_time(facts.modified_at),
        "createdAt": hf_time(facts.created_at),
        "private": facts.is_private,
        "disabled": false,
        "gated": false,
        "downloads": facts.pulls.recent,
        "downloadsAllTime": facts.pulls.all_time,
        "likes": 0,
        "tags": tags,
        "usedStorage": model.size_bytes,
    });
    if let Some((author, _)) = name.split_once('/') {
        object["author"] = author.into();
    }
    for (field, value) in [("pipeline_tag", &stated.task), ("library_name", &stated.library)] {
        if let Some(value) = value {
            object[field] = value.as_str().into();
        }
    }
    if let Some(total) = model.parameters {
        match model.format.as_str() {
            "safetensors" => {
                let ty = model.quantization.as_deref().unwrap_or("unknown");
                object["safetensors"] = json!({"parameters": {ty: total}, "total": total});
            }
            "gguf" => object["gguf"] = json!({"total": total, "architecture": model.architecture}),
            _ => {}
        }
    }
    match object {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// The fields that the query names; without any, those that the Hub returns by default.
pub(super) fn expanded(mut object: Map<String, Value>, query: &Query) -> Map<String, Value> {
    let wanted: Vec<&str> = query.all("expand").collect();
    if wanted.is_empty() {
        object.remove("downloadsAllTime");
    } else {
        object.retain(|name, _| ["_id", "id"].contains(&name.as_str()) || wanted.contains(&name.as_str()));
    }
    object
}
