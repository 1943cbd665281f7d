//! `lode push DIR|FILE... NAME`: uploads files unchanged. Each file becomes a layer with its name as title,
//! as oras does.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use lode_model::{
    digest::{Algorithm, Digest},
    media_type,
};
use serde_json::json;

use crate::{
    annotations::distinct,
    args::Push,
    connect::Connection,
    error::{Failure, Outcome},
    files::{self, LocalFile},
    order,
    replaced::put_manifest,
    send::{self, Blob},
    ui,
};

pub(crate) async fn run(connection: &Connection, mut args: Push) -> Outcome {
    // `push NAME PATH...`, as `create` has it.
    let first = args.paths.first().and_then(|path| path.to_str()).map(str::to_owned);
    if let Some(first) = first.filter(|first| order::is_swapped(&args.name, Path::new(first))) {
        args.paths.remove(0);
        args.paths.push(std::mem::replace(&mut args.name, first).into());
    }
    let (target, _) = connection.target_tag(&args.name)?;
    let annotations = distinct(&args.annotation)?;
    let found = gather(&args.paths)?;
    let (digests, mut sent) = send::send_files(&target, &found).await?;

    let layers: Vec<_> = found
        .iter()
        .zip(digests)
        .map(|(file, digest)| {
            json!({
                "mediaType": media_type::OCTET_STREAM,
                "digest": digest,
                "size": file.size,
                "annotations": { media_type::TITLE_ANNOTATION: file.name },
            })
        })
        .collect();
    let empty = Bytes::from_static(b"{}");
    let empty_digest = Digest::of(Algorithm::Sha256, &empty);
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "artifactType": args.artifact_type,
        "config": { "mediaType": media_type::OCI_EMPTY, "digest": empty_digest, "size": empty.len(), "data": "e30=" },
        "layers": layers,
    });
    if !annotations.is_empty() {
        manifest["annotations"] = json!(annotations);
    }
    let manifest = serde_json::to_vec(&manifest).map_err(|error| Failure::new(error.to_string()))?;

    let config = Blob { digest: empty_digest, size: empty.len() as u64, content: Arc::new(empty) };
    sent.add(send::send_blobs(&target, vec![config]).await?);
    let digest = put_manifest(&target, media_type::OCI_MANIFEST, manifest.into()).await?;
    if args.json {
        return ui::json(&json!({
            "name": target.model(), "digest": digest,
            "sent_bytes": sent.sent_bytes, "shared_bytes": sent.shared_bytes,
        }));
    }
    ui::print_line(format!("pushed {target} {digest}"))?;
    ui::print_message(sent.summary());
    Ok(())
}

/// Lists the files of all paths, named relative to their folder; a single file has its own name.
fn gather(paths: &[impl AsRef<Path>]) -> Outcome<Vec<LocalFile>> {
    let mut all: Vec<LocalFile> = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path)
            .map_err(|error| Failure::with_source(format!("cannot read {}", path.display()), &error))?;
        if metadata.is_dir() {
            all.append(&mut files::walk(path)?);
        } else if metadata.is_file() {
            let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
                Failure::new(format!("{} has a name that is not UTF-8", path.display())).hint("rename it")
            })?;
            all.push(LocalFile { name: name.to_owned(), path: path.to_owned(), size: metadata.len() });
        } else {
            return Err(Failure::new(format!("{} is neither a file nor a folder", path.display())));
        }
    }
    let mut names: Vec<&str> = all.iter().map(|file| file.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Failure::new(format!("two files are named `{}`", pair[0]))
            .hint("push a folder that contains both"));
    }
    if all.is_empty() {
        return Err(Failure::new("no files to push"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_of_one_name_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a/x", "b/x", "b/y"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        let at = |name: &str| folder.path().join(name);
        assert!(gather(&[at("a/x"), at("b/x")]).is_err());
        let names: Vec<String> =
            gather(&[at("a/x"), at("b/y")]).unwrap().into_iter().map(|file| file.name).collect();
        assert_eq!(names, ["x", "y"]);
        let names: Vec<String> =
            gather(&[folder.path()]).unwrap().into_iter().map(|file| file.name).collect();
        assert_eq!(names, ["a/x", "b/x", "b/y"]);
        assert!(gather(&[at("nothing")]).is_err());
    }
}
