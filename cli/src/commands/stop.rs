//! `lode stop NAME`: unloads a model after its requests in progress.

use serde_json::{Value, json};

use crate::{
    args::Stop,
    connect::{Connection, Target},
    error::Outcome,
    pages::fetch_all,
    ui,
};

pub(crate) async fn run(connection: &Connection, args: Stop) -> Outcome {
    let target = connection.target(&args.name)?;
    let model: Value = match target.registry.json_get(&target.api_path("models")).await {
        Err(error) if error.is_not_found() => return Err(target.not_found(error)),
        // A token that may only run the model does not read its manifest.
        model => model.unwrap_or_default(),
    };
    // Without the list, the request below decides.
    if is_loaded(&target, &model["digest"]).await == Some(false) {
        ui::print_message(format!("{target} is not loaded"));
        return Ok(());
    }
    let request = json!({ "model": target.model(), "keep_alive": 0, "stream": false });
    let _done: Value = target
        .registry
        .json_post("lode/v1/generate", &request)
        .await
        .map_err(|error| target.not_found(error))?;
    ui::print_message(format!("stopped {target}"));
    Ok(())
}

/// Whether a worker has the model in memory, by any of its names. `None` if the server does not say.
async fn is_loaded(target: &Target, digest: &Value) -> Option<bool> {
    let digest = digest.as_str()?;
    let hex = digest.split_once(':').map_or(digest, |(_, hex)| hex);
    let loaded = fetch_all(&target.registry, "lode/v1/ps", "models").await.ok()?;
    Some(loaded.iter().filter_map(|model| model["digest"].as_str()).any(|loaded| loaded.ends_with(hex)))
}
