//! `lode create NAME hf://NAMESPACE/MODEL`: the server imports a model from the Hugging Face Hub, or from another server
//! with its API.

use std::path::PathBuf;

use futures::StreamExt;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::diff::Lines;
use crate::{
    args::Create,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    ui,
};

/// The beginning of an address on the Hub.
const SCHEME: &str = "hf://";
const ROUTE: &str = "lode/v1/import";

/// Whether a source is on the Hub.
pub(super) fn is_address(text: &str) -> bool {
    text.starts_with(SCHEME)
}

#[derive(Deserialize)]
struct Record {
    status: Option<String>,
    notice: Option<String>,
    error: Option<String>,
    digest: Option<String>,
    total: Option<u64>,
    completed: Option<u64>,
    files: Option<u64>,
    bytes: Option<u64>,
}

pub(super) async fn create(connection: &Connection, args: &Create, source: &str) -> Outcome {
    if args.file.is_some() {
        return Err(Failure::new("a Modelfile cannot change a model while it is imported")
            .hint("import it first, and create a second model with `FROM` its name"));
    }
    let (target, _) = connection.target_tag(&args.name)?;
    let annotations: serde_json::Map<String, serde_json::Value> =
        args.annotation.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let request = json!({
        "model": target.model(),
        "from": source,
        "endpoint": variable("HF_ENDPOINT"),
        "token": token(),
        "quantize": args.quantize.map(|quantize| quantize.to_string()),
        "annotations": annotations,
    });
    tokio::select! {
        done = follow(&target, args, source, &request) => done,
        signal = tokio::signal::ctrl_c() => {
            signal?;
            Err(Failure::new("interrupted").hint("repeat the command to continue").code(crate::job::INTERRUPTED))
        }
    }
}

async fn follow(target: &Target, args: &Create, source: &str, request: &serde_json::Value) -> Outcome {
    let response = target.registry.json_stream(Method::POST, ROUTE, request).await.map_err(|error| {
        match error.status().map(|status| status.as_u16()) {
            Some(404 | 405) => Failure::from(error).hint("an older server does not import from the Hub"),
            _ => Failure::from(error),
        }
    })?;
    let meter = ui::Meter::wait(&format!("importing {source}"));
    let mut lines = Lines { bytes: response.bytes_stream().boxed(), buffer: Vec::new() };
    let (mut notices, mut fetched, mut digest) = (Vec::new(), (0, 0), None);
    while let Some(line) = lines.next().await? {
        let record: Record = serde_json::from_slice(&line)
            .map_err(|error| Failure::with_source("cannot parse the server's response", &error))?;
        if let Some(error) = record.error {
            meter.end();
            return Err(Failure::new(format!("importing {source}: {error}"))
                .hint("files that were fetched completely are kept: repeat the command to continue"));
        }
        if let (Some(files), Some(bytes)) = (record.files, record.bytes) {
            fetched = (files, bytes);
        }
        notices.extend(record.notice);
        match (record.status.as_deref(), record.digest) {
            (Some("created"), Some(created)) => digest = Some(created),
            (Some(status), _) => meter.say(match record.total {
                Some(total) => {
                    let completed = ui::format_size(record.completed.unwrap_or_default());
                    format!("{status}: {completed} of {}", ui::format_size(total))
                }
                None => status.to_owned(),
            }),
            (None, _) => {}
        }
    }
    meter.end();
    let digest = digest.ok_or_else(|| {
        Failure::new("the server's response ended before its last record")
            .hint("the server's log has the reason; repeat the command to continue")
    })?;
    for notice in &notices {
        ui::print_message(format!("notice: {notice}"));
    }
    let (files, bytes) = fetched;
    if args.json {
        return ui::json(&json!({
            "name": target.model(), "digest": digest, "source": source,
            "files": files, "bytes": bytes, "notices": notices,
        }));
    }
    let size = ui::format_size(bytes);
    ui::print_line(format!("created {target} {digest} from {source}: {}, {size}", ui::counted(files, "file")))
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
