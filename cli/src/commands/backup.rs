//! `lode backup`: the index and the blobs of a server on this machine, while it goes on.

use lode_client::Progress;
use lode_registry::Take;
use serde_json::json;

use crate::{
    args::Backup,
    error::{Failure, Outcome},
    settings, ui,
};

pub(crate) async fn run(args: Backup) -> Outcome {
    let config = settings::kept(&args.from, &settings::process_env)?;
    let how = if args.link { Take::Link } else { Take::Copy };
    let begin = |bytes| -> std::sync::Arc<dyn Progress> { ui::Meter::bytes("backup", bytes) };
    let report =
        lode_registry::backup(&config, &args.to, how, begin).await.map_err(|error| failed(&error))?;
    if args.json {
        return ui::json(&json!(report));
    }
    ui::line(format!("{} blobs, {}", report.blobs, ui::size(report.size_bytes)))?;
    ui::line(format!("new: {} blobs, {}", report.blobs_copied, ui::size(report.copied_bytes)))
}

fn failed(error: &lode_registry::Error) -> Failure {
    use lode_registry::Error;
    let failure = Failure::because("the backup was not made", error);
    match error {
        Error::Config { setting: "database" | "storage", .. } => {
            failure.hint("for Postgres and object storage, see docs/guide/backup.md")
        }
        Error::Config { setting: "--to", .. } => {
            failure.hint("--to names an empty folder, or one that only backups are in")
        }
        Error::FolderInUse { .. } => failure.hint("--to names a folder of its own, which no server uses"),
        Error::Storage { .. } => failure.hint("--data names the server's folder; `lode fsck` finds damage"),
        _ => failure,
    }
}
