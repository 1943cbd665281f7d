//! `lode pull NAME [--to DIR]`: downloads the files of a model or artifact to a folder and verifies each. With
//! `--include` and `--exclude`, only some of them.

use std::{collections::BTreeSet, path::PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use lode_model::files_view::FileEntry;
use serde_json::json;

use crate::{
    args::Pull,
    assemble,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    stored_files::{self, StoredFiles},
    ui,
};

pub(crate) async fn run(connection: &Connection, args: Pull) -> Outcome {
    let target = connection.target(&args.name)?;
    let selection = Selection::new(&args.include, &args.exclude)?;
    let StoredFiles { digest, entries, sizes } = stored_files::list(&target, "lode pull").await?;
    let entries = selection.apply(&target, entries)?;
    let assembled: Vec<String> =
        entries.iter().filter(|entry| entry.assembled).map(|entry| entry.path.clone()).collect();
    let folder = args.folder.or(args.to).unwrap_or_else(|| PathBuf::from(stored_files::last_part(&target)));
    let names: Vec<String> = entries.iter().map(|entry| entry.path.clone()).collect();
    if let Some((file, below)) = file_used_as_folder(&names) {
        return Err(Failure::new(format!("{target} has both a file `{file}` and a file `{below}`")));
    }
    let written = assemble::write(&target, &folder, entries, &sizes).await?;
    if args.json {
        return ui::json(&json!({
            "name": target.model(), "digest": digest, "folder": folder, "files": names,
            "bytes": written.bytes, "kept": written.kept, "assembled": !assembled.is_empty(),
        }));
    }
    let kept = if written.kept > 0 { format!(" ({} existed already)", written.kept) } else { String::new() };
    ui::print_message(format!(
        "pulled {target} to {}: {}, {}{kept}",
        folder.display(),
        ui::counted(written.files as u64, "file"),
        ui::format_size(written.bytes)
    ));
    match assembled.as_slice() {
        [] => {}
        [path] if path.ends_with(".gguf") => {
            ui::print_message(format!(
                "{path} was created during the import and replaces the original weights"
            ));
        }
        _ => ui::print_message(
            "the weights were quantised or converted during the import: the safetensors files differ from the original files",
        ),
    }
    Ok(())
}

/// The files that a pull is limited to.
struct Selection {
    include: Option<GlobSet>,
    exclude: GlobSet,
}

impl Selection {
    fn new(include: &[String], exclude: &[String]) -> Outcome<Selection> {
        let include = if include.is_empty() { None } else { Some(glob_set("--include", include)?) };
        Ok(Selection { include, exclude: glob_set("--exclude", exclude)? })
    }

    fn selects(&self, path: &str) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(path)) && !self.exclude.is_match(path)
    }

    fn apply(&self, target: &Target, mut entries: Vec<FileEntry>) -> Outcome<Vec<FileEntry>> {
        let all: Vec<String> = entries.iter().map(|entry| entry.path.clone()).collect();
        entries.retain(|entry| self.selects(&entry.path));
        if entries.is_empty() && !all.is_empty() {
            return Err(Failure::new(format!("--include and --exclude select no file of {target}"))
                .hint(stored_files::shown(&all)));
        }
        Ok(entries)
    }
}

/// Patterns as in other download tools: `*` matches any text, folders included.
fn glob_set(option: &str, patterns: &[String]) -> Outcome<GlobSet> {
    let invalid = |error: globset::Error| Failure::with_source(format!("{option} is not a pattern"), &error);
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(GlobBuilder::new(pattern).literal_separator(false).build().map_err(invalid)?);
    }
    set.build().map_err(invalid)
}

/// A file that another file's path needs as a folder, and that other file.
fn file_used_as_folder(paths: &[String]) -> Option<(&str, &str)> {
    let files: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
    paths.iter().find_map(|path| {
        let mut folders = path.match_indices('/').map(|(end, _)| &path[..end]);
        folders.find(|folder| files.contains(folder)).map(|folder| (folder, path.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_select_files() {
        let check = |include: &[&str], exclude: &[&str], expect: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let selection = Selection::new(&owned(include), &owned(exclude)).unwrap();
            let files = ["config.json", "model.safetensors", "vae/config.json", "README.md"];
            let selected: Vec<&str> = files.into_iter().filter(|path| selection.selects(path)).collect();
            assert_eq!(selected, expect, "{include:?} {exclude:?}");
        };
        check(&[], &[], &["config.json", "model.safetensors", "vae/config.json", "README.md"]);
        check(&["*.json"], &[], &["config.json", "vae/config.json"]);
        check(&["*.json", "README.md"], &["vae/*"], &["config.json", "README.md"]);
        check(&["vae/*"], &[], &["vae/config.json"]);
        check(&[], &["*.{safetensors,json}"], &["README.md"]);
        check(&["?EADME.md"], &[], &["README.md"]);
        assert!(Selection::new(&["[".to_owned()], &[]).is_err());
    }

    #[test]
    fn a_file_cannot_be_a_folder_too() {
        let found = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            file_used_as_folder(&paths).map(|(file, below)| (file.to_owned(), below.to_owned()))
        };
        assert_eq!(found(&["a", "b/a", "ab/c"]), None);
        assert_eq!(found(&["a/b/c", "a"]), Some(("a".to_owned(), "a/b/c".to_owned())));
        assert_eq!(found(&["x/y", "x/y/z"]), Some(("x/y".to_owned(), "x/y/z".to_owned())));
    }
}
