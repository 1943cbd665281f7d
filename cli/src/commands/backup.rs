//! `lode backup`: copies the database and blobs of a server on this machine, while the server runs.

use lode_client::Progress;
use lode_registry::{BackupMode, Error, OpenError};
use serde_json::json;

use crate::{
    args::Backup,
    error::{Failure, Outcome},
    settings, ui,
};

pub(crate) async fn run(args: Backup) -> Outcome {
    let config = settings::data_location(&args.from, &settings::process_env)?;
    let how = if args.link { BackupMode::Link } else { BackupMode::Copy };
    let begin = |bytes| -> std::sync::Arc<dyn Progress> { ui::Meter::bytes("backup", bytes) };
    let report =
        lode_registry::backup(&config, &args.to, how, begin).await.map_err(|error| failed(&error))?;
    if args.json {
        return ui::json(&json!(report));
    }
    ui::print_line(format!("{}, {}", ui::counted(report.blobs, "blob"), ui::format_size(report.size_bytes)))?;
    ui::print_line(format!(
        "new: {}, {}",
        ui::counted(report.blobs_copied, "blob"),
        ui::format_size(report.copied_bytes)
    ))
}

fn failed(error: &OpenError) -> Failure {
    let failure = Failure::with_source("backup failed", error);
    match error {
        OpenError::Config { setting: "database" | "storage", .. } => {
            failure.hint("for Postgres and object storage, see docs/guide/backup.md")
        }
        OpenError::Config { setting: "--to", .. } => failure
            .hint("--to must name an empty folder or a folder of earlier backups, outside the data folder"),
        OpenError::FolderInUse { .. } => failure.hint("--to must name a folder that no server uses"),
        OpenError::Registry(Error::Storage { .. }) => {
            failure.hint("check that --data names the server's folder; `lode fsck` finds damage")
        }
        _ => failure,
    }
}
