//! `lode migrate`: a server's index and blobs to another database and another storage, while it goes on reading.

use lode_client::Progress;
use lode_registry::Config;
use serde_json::json;

use crate::{
    args::Migrate,
    error::{COULD_NOT, Failure, Outcome},
    settings, ui,
};

pub(crate) async fn run(args: Migrate) -> Outcome {
    let from = settings::kept(&args.from, &settings::process_env)?;
    let url = |flag: &str, text: &str| {
        text.parse().map_err(|error| Failure::because(format!("--{flag}"), &error).code(COULD_NOT))
    };
    let to = Config {
        database: Some(url("to-database", &args.to_database)?),
        storage: Some(url("to-storage", &args.to_storage)?),
        ..from.clone()
    };
    let begin = |bytes| -> std::sync::Arc<dyn Progress> { ui::Meter::bytes("moving", bytes) };
    let report = lode_registry::migrate(from, to, begin).await.map_err(|error| failed(&error))?;
    if args.json {
        return ui::json(&json!(report));
    }
    if report.done_before {
        return ui::line("everything was moved before; nothing was done");
    }
    ui::line(format!("{} blobs, {}", report.blobs, ui::size(report.size_bytes)))?;
    ui::line(format!("moved now: {} blobs, {}", report.blobs_copied, ui::size(report.copied_bytes)))?;
    ui::line(format!(
        "{} repositories, {} manifests, {} tags",
        report.repositories, report.manifests, report.tags
    ))
}

fn failed(error: &lode_registry::Error) -> Failure {
    use lode_registry::Error;
    let failure = Failure::because("the registry was not moved", error);
    match error {
        Error::FolderInUse { .. } => failure.hint(
            "stop the server, or start it again with --read-only: what it holds must not change meanwhile",
        ),
        Error::Config { setting: "to-database", .. } => failure.hint("name an empty database"),
        Error::Config { .. } => failure.hint(
            "--data, --database and --storage (or LODE_*) name what the old server has, --to-database and --to-storage where it goes",
        ),
        Error::Storage { .. } => {
            failure.hint("--data names the old server's folder; `lode fsck` finds damage; then repeat the command")
        }
        _ => failure.hint("repeat the command: it resumes where it stopped"),
    }
}
