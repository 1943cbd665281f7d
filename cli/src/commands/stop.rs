//! `lode stop NAME`: unloads a model after its requests in progress.

use serde_json::{Value, json};

use crate::{args::Stop, connect::Connection, error::Outcome, ui};

pub(crate) async fn run(connection: &Connection, args: Stop) -> Outcome {
    let target = connection.target(&args.name)?;
    let request = json!({ "model": target.model(), "keep_alive": 0, "stream": false });
    let _done: Value = target
        .registry
        .json_post("lode/v1/generate", &request)
        .await
        .map_err(|error| target.not_found(error))?;
    ui::print_message(format!("stopped {target}"));
    Ok(())
}
