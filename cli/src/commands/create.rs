//! `lode create NAME PATH`: a folder or a file of weights, straight into the registry; safetensors tensor by tensor.

use std::{io, path::Path, sync::Arc};

use lode_model::import::{self as planner, ReadAt, Source, SourceFile};
use serde_json::json;

use crate::{
    args::{Create, Quantize},
    connect::Connection,
    error::{Failure, Outcome},
    files::{self, DiskFile, Found},
    import, ui,
};

pub(crate) async fn run(connection: &Connection, args: Create) -> Outcome {
    let (target, _) = connection.target_tag(&args.name)?;
    let source = source(&args.path)?;
    let quantize = args.quantize.map(|quantize| match quantize {
        Quantize::Int4 => planner::Quantize::Int4,
        Quantize::Int8 => planner::Quantize::Int8,
    });
    let imported = import::model(&target, Arc::new(source), quantize)
        .await
        .map_err(|failure| failure.while_doing(args.path.display()))?;
    for notice in &imported.notices {
        ui::say(format!("notice: {notice}"));
    }
    if args.json {
        return ui::json(&json!({
            "name": target.model(), "digest": imported.digest,
            "tensors": imported.tensors, "parameters": imported.parameters, "notices": imported.notices,
            "sent_blobs": imported.sent.sent_blobs, "sent_bytes": imported.sent.sent_bytes,
            "shared_blobs": imported.sent.shared_blobs, "shared_bytes": imported.sent.shared_bytes,
        }));
    }
    ui::line(format!(
        "created {target} {}: {} tensors, {} parameters",
        imported.digest,
        imported.tensors,
        ui::amount(imported.parameters)
    ))?;
    ui::say(imported.sent.summary());
    Ok(())
}

/// The files that are to be imported: of a folder all, of a file that one.
fn source(path: &Path) -> Outcome<Files> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| Failure::because(format!("cannot read {}", path.display()), &error))?;
    if metadata.is_dir() {
        return Ok(Files(files::walk(path)?));
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    if !metadata.is_file() || name.is_empty() {
        return Err(Failure::new(format!("{} is neither a file nor a folder", path.display())));
    }
    let lower = name.to_ascii_lowercase();
    if ![".safetensors", ".gguf", ".onnx"].iter().any(|extension| lower.ends_with(extension)) {
        return Err(Failure::new(format!(
            "{} is neither a folder nor a .safetensors, .gguf or .onnx file",
            path.display()
        ))
        .hint("name the folder that it is in, or store it as it is with `lode push`"));
    }
    Ok(Files(files::with_companions(path)?))
}

/// Files of this machine as the planner wants them; sorted by name.
struct Files(Vec<Found>);

impl Source for Files {
    fn files(&self) -> Vec<SourceFile> {
        self.0.iter().map(|file| SourceFile { path: file.name.clone(), size: file.size }).collect()
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let at = self
            .0
            .binary_search_by(|file| file.name.as_str().cmp(path))
            .map_err(|_| io::ErrorKind::NotFound)?;
        let file = DiskFile::open(&self.0[at].path)?;
        if file.len() != self.0[at].size {
            return Err(io::Error::other("it changed while it was imported"));
        }
        Ok(Box::new(file))
    }
}
