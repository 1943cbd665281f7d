//! `lode create NAME hf://NAMESPACE/MODEL`: the server imports a model from the Hugging Face Hub, or from another server
//! with its API, in a job.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    args::Create,
    connect::Connection,
    error::{Failure, Outcome},
    job, ui,
};

/// The beginning of an address on the Hub.
const SCHEME: &str = "hf://";

/// Whether a source is on the Hub.
pub(super) fn is_address(text: &str) -> bool {
    text.starts_with(SCHEME)
}

/// The result of the job.
#[derive(Deserialize)]
struct Imported {
    digest: String,
    blobs: u64,
    bytes: u64,
    notices: Vec<String>,
}

pub(super) async fn create(connection: &Connection, args: &Create, source: &str) -> Outcome {
    if args.file.is_some() {
        return Err(Failure::new("a Modelfile cannot change a model while it is imported")
            .hint("import it first, and create a second model with `FROM` its name"));
    }
    let (target, _) = connection.target_tag(&args.name)?;
    let annotations: serde_json::Map<String, Value> =
        args.annotation.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let request = json!({
        "model": target.model(),
        "from": source,
        "endpoint": variable("HF_ENDPOINT"),
        "token": token(),
        "quantize": args.quantize.map(|quantize| quantize.to_string()),
        "annotations": annotations,
    });
    let started = job::start(&target.registry, job::IMPORT, &request).await.map_err(|error| {
        match error.status().map(|status| status.as_u16()) {
            Some(404 | 405) => Failure::from(error).hint("an older server does not import from the Hub"),
            _ => Failure::from(error),
        }
    })?;
    let done = job::finish(&target.registry, started, &format!("importing {source}")).await;
    let done = done.map_err(|failure| failure.hint(job::KEPT))?;
    let Imported { digest, blobs, bytes, notices } = done.read()?;
    for notice in &notices {
        ui::print_message(format!("notice: {notice}"));
    }
    if args.json {
        return ui::json(&json!({
            "name": target.model(), "digest": digest, "source": source,
            "files": blobs, "bytes": bytes, "notices": notices,
        }));
    }
    let size = ui::format_size(bytes);
    ui::print_line(format!("created {target} {digest} from {source}: {}, {size}", ui::counted(blobs, "file")))
}

/// A variable that is set to more than nothing.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The token of Hugging Face's own tools: HF_TOKEN, or the file in which `hf auth login` has stored it.
fn token() -> Option<String> {
    let stored = || {
        let cache = || {
            let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
            cache.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))
        };
        let home = || {
            let home = variable("HF_HOME").map(PathBuf::from);
            home.or_else(|| Some(cache()?.join("huggingface")))
        };
        let path = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home()?.join("token")))?;
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    variable("HF_TOKEN").or_else(stored)
}
