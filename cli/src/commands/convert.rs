//! `lode convert SOURCE DESTINATION --to FORMAT`: creates a model in another format, from a stored model in a
//! job of its server, or from local files.

use std::path::{Path, PathBuf};

use lode_model::{import::Conversion, modelfile::Edits};

use super::create::{self, NewModel};
use super::hub;
use crate::{
    annotations::distinct,
    args::Convert,
    connect::Connection,
    error::{Failure, Outcome},
    send::UploadStats,
};

pub(crate) async fn run(connection: &Connection, args: Convert) -> Outcome {
    let Convert { source, destination, to, r#type, annotation, json } = args;
    if hub::is_address(&source) {
        return Err(Failure::new(format!("{source} is not stored here"))
            .hint(format!("`lode create NAME {source}` imports it; convert that model then")));
    }
    let conversion = Conversion::read(Some(to.into()), r#type.as_deref())
        .map_err(|error| Failure::with_source("--type", &error))?;
    let (target, _) = connection.target_tag(&destination)?;
    let edits = Edits { annotations: distinct(&annotation)?, ..Edits::default() };
    edits.check().map_err(|error| Failure::with_source("cannot create this model", &error))?;
    let new = NewModel { target: &target, json, edits: &edits, conversion, sent: UploadStats::default() };
    if is_path(&source) {
        let paths = [PathBuf::from(&source)];
        return new.create_from_files(create::source(&paths)?, &paths).await;
    }
    let base = create::base(connection, &target, &source)?;
    new.create_converted(&base).await
}

/// Whether a source is local. The name of a model may also be that of a folder.
fn is_path(source: &str) -> bool {
    source.starts_with(['.', '/']) || Path::new(source).is_file()
}
