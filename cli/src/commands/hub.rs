//! `lode create NAME hf://NAMESPACE/MODEL`: the server imports a model from the Hugging Face Hub, or from another server
//! with its API, in a job.

use std::path::PathBuf;

use http::StatusCode;
use lode_client::Registry;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    annotations::distinct,
    args::Create,
    connect::{self, Connection},
    error::{Failure, Outcome},
    job,
    replaced::TagBefore,
    ui,
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
    let annotations = distinct(&args.annotation)?;
    let request = json!({
        "model": target.model(),
        "from": source,
        "endpoint": variable("HF_ENDPOINT"),
        "quantize": args.quantize.map(|quantize| quantize.to_string()),
        "annotations": annotations,
    });
    let before = TagBefore::read(&target).await;
    let what = format!("importing {source}");
    let started = start_job(&target.registry, request, &what).await?;
    let done = job::finish_import(&target.registry, started, &what).await?;
    let Imported { digest, blobs, bytes, notices } = done.read()?;
    before.report(&digest).await;
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

/// Requests the import. The token is sent only if the source requires one.
async fn start_job(to: &Registry, mut request: Value, what: &str) -> Outcome<job::Job> {
    let mut started = job::start(to, job::IMPORT, &request).await;
    if let Err(error) = &started
        && error.status() == Some(StatusCode::FAILED_DEPENDENCY)
        && let Some((token, origin)) = token()
    {
        if !connect::is_confidential(to) {
            return Err(Failure::new(format!(
                "{what} failed: it requires a token, and {origin} is not sent to {} without TLS",
                to.server()
            ))
                .hint("use an https address of the server, or download the model and `lode create` it from its folder"));
        }
        ui::print_message(format!("sending the token in {origin} to {}, for this import", to.server()));
        request["token"] = token.into();
        started = job::start(to, job::IMPORT, &request).await;
    }
    started.map_err(|error| job::not_started(error, what))
}

/// A variable that is set to more than nothing.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The token of Hugging Face's own tools, and where it is from: HF_TOKEN, or the file in which `hf auth login` has
/// stored it.
fn token() -> Option<(String, String)> {
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
        let text = std::fs::read_to_string(&path).ok()?.trim().to_owned();
        (!text.is_empty()).then(|| (text, path.display().to_string()))
    };
    variable("HF_TOKEN").map(|token| (token, "HF_TOKEN".to_owned())).or_else(stored)
}
