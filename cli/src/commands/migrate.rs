//! `lode migrate`: copies a server's database and blobs to another database and blob store, while the server
//! may serve reads.

use lode_client::Progress;
use lode_registry::{Config, Error, OpenError};
use serde_json::json;

use crate::{
    args::Migrate,
    error::{CANNOT_RUN, Failure, Outcome},
    settings, ui,
};

pub(crate) async fn run(args: Migrate) -> Outcome {
    let from = settings::data_location(&args.from, &settings::process_env)?;
    let url = |flag: &str, text: &str| {
        text.parse().map_err(|error| Failure::with_source(format!("--{flag}"), &error).code(CANNOT_RUN))
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
        return ui::print_line("already migrated; nothing to do");
    }
    ui::print_line(format!("{}, {}", ui::counted(report.blobs, "blob"), ui::format_size(report.size_bytes)))?;
    ui::print_line(format!(
        "copied in this run: {}, {}",
        ui::counted(report.blobs_copied, "blob"),
        ui::format_size(report.copied_bytes)
    ))?;
    ui::print_line(format!(
        "{} repositories, {} manifests, {} tags",
        report.repositories, report.manifests, report.tags
    ))
}

fn failed(error: &OpenError) -> Failure {
    let failure = Failure::with_source("migration failed", error);
    match error {
        OpenError::FolderInUse { .. } => failure.hint(
            "stop the server, or restart it with --read-only: its data must not change during the migration",
        ),
        OpenError::Config { setting: "to-database", .. } => failure.hint("use an empty database"),
        OpenError::Config { setting: "to-storage", .. } => failure.hint(
            "name the storage of the complete migration; to migrate to this one, use an empty database, too",
        ),
        OpenError::Config { .. } => failure.hint(
            "--data, --database and --storage (or LODE_*) name the source, --to-database and --to-storage the target",
        ),
        OpenError::Registry(Error::Storage { .. }) => {
            failure.hint("check that --data names the source server's folder; `lode fsck` finds damage; then repeat the command")
        }
        _ => failure.hint("repeat the command: it resumes where it stopped"),
    }
}
