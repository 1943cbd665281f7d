//! Reads local Modelfiles and the Modelfiles that their FROM lines name, down to the files or the model at
//! the bottom.

use std::{
    env,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use lode_model::modelfile::{Command, Modelfile};

use crate::error::{Failure, Outcome};

/// Limit for a Modelfile: it contains text, not weights.
const MAX_BYTES: u64 = 16 << 20;

/// A resolved Modelfile.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// All commands except FROM, ADAPTER and DRAFT. Commands of base Modelfiles come first.
    pub(crate) modelfile: Modelfile,
    pub(crate) from: Origin,
    pub(crate) adapters: Vec<PathBuf>,
    pub(crate) drafts: Vec<PathBuf>,
}

/// The base of a model.
#[derive(Debug)]
pub(crate) enum Origin {
    Paths(Vec<PathBuf>),
    /// The name of a model in a registry.
    Model(String),
}

impl Recipe {
    /// A model like its base.
    pub(crate) fn new(from: Origin) -> Recipe {
        Recipe { modelfile: Modelfile::default(), from, adapters: Vec::new(), drafts: Vec::new() }
    }
}

/// Whether the file name is that of a Modelfile.
pub(crate) fn is_modelfile_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
    name == "modelfile" || name.starts_with("modelfile.") || name.ends_with(".modelfile")
}

/// Reads a Modelfile. `instead` replaces its FROM, which may then be absent.
pub(crate) fn read(path: &Path, instead: Option<PathBuf>) -> Outcome<Recipe> {
    let mut recipe = Recipe::new(Origin::Paths(instead.iter().cloned().collect()));
    read_into(path, instead.is_none(), &mut Vec::new(), &mut recipe)?;
    Ok(recipe)
}

fn read_into(
    path: &Path,
    needs_from: bool,
    above: &mut Vec<(PathBuf, PathBuf)>,
    recipe: &mut Recipe,
) -> Outcome {
    let shown = path.display();
    let cannot = |error: std::io::Error| Failure::with_source(format!("cannot read {shown}"), &error);
    // 1. Detect cycles.
    let canonical = path.canonicalize().map_err(cannot)?;
    if let Some(at) = above.iter().position(|(known, _)| *known == canonical) {
        let circle: Vec<String> = above[at..]
            .iter()
            .map(|(_, path)| path.display().to_string())
            .chain([shown.to_string()])
            .collect();
        return Err(Failure::new(format!("{shown} is made from itself: {}", circle.join(" -> ")))
            .hint("one of them needs a FROM that names a model, a file or a folder"));
    }
    // 2. Parse the file.
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(cannot)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::new(format!("{shown} is not a Modelfile: it has more than {MAX_BYTES} bytes")));
    }
    let parsed = if needs_from { Modelfile::parse(&bytes) } else { Modelfile::parse_settings(&bytes) };
    let modelfile = parsed.map_err(|error| Failure::new(format!("{shown}: {error}")))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    // 3. Resolve FROM. Commands of a base come first, so that later commands override them.
    if needs_from {
        above.push((canonical, path.to_owned()));
        for source in modelfile.sources() {
            match find(folder, source) {
                Some(base) if base.is_file() && is_modelfile_name(&base) => {
                    read_into(&base, true, above, recipe)?
                }
                Some(files) => recipe.add_paths(files, &shown)?,
                None if is_path(source) => {
                    return Err(Failure::new(format!("{shown}: FROM {source}: no such file or folder"))
                        .hint("paths are relative to the folder of the Modelfile"));
                }
                None => recipe.set_model(source, &shown)?,
            }
        }
        above.pop();
    }
    for (what, sources, found) in [
        ("ADAPTER", modelfile.adapters().collect::<Vec<_>>(), &mut recipe.adapters),
        ("DRAFT", modelfile.drafts().collect(), &mut recipe.drafts),
    ] {
        for source in sources {
            found.push(find(folder, source).ok_or_else(|| {
                Failure::new(format!("{shown}: {what} {source}: no such file or folder"))
                    .hint("paths are relative to the folder of the Modelfile")
            })?);
        }
    }
    recipe.modelfile.commands.extend(
        modelfile
            .commands
            .into_iter()
            .filter(|command| !matches!(command, Command::From(_) | Command::Adapter(_) | Command::Draft(_))),
    );
    Ok(())
}

impl Recipe {
    fn add_paths(&mut self, path: PathBuf, shown: &impl std::fmt::Display) -> Outcome {
        match &mut self.from {
            Origin::Paths(paths) => paths.push(path),
            Origin::Model(name) => return Err(mixed_bases_error(shown, name)),
        }
        Ok(())
    }

    fn set_model(&mut self, name: &str, shown: &impl std::fmt::Display) -> Outcome {
        match &self.from {
            Origin::Paths(paths) if paths.is_empty() => {
                self.from = Origin::Model(name.to_owned());
                Ok(())
            }
            Origin::Model(known) if known == name => Ok(()),
            _ => Err(mixed_bases_error(shown, name)),
        }
    }
}

fn mixed_bases_error(shown: &impl std::fmt::Display, name: &str) -> Failure {
    Failure::new(format!("{shown}: FROM {name} is a model, but another FROM names a different base"))
        .hint("use one model as the base, or files")
}

/// Whether the text can only be a path and never the name of a model, whether or not the path exists.
fn is_path(source: &str) -> bool {
    let is_marked = source == "." || source == ".." || source.starts_with(['/', '~', '\\']);
    let is_weights = [".gguf", ".safetensors", ".onnx", ".bin"].iter().any(|end| source.ends_with(end));
    is_marked || is_weights || source.starts_with("./") || source.starts_with("../")
}

/// Resolves a path as a Modelfile writes it; `None` if it does not exist.
fn find(folder: &Path, source: &str) -> Option<PathBuf> {
    let home = || env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let path = match source.strip_prefix('~') {
        Some("") => home()?,
        Some(rest) if rest.starts_with('/') => home()?.join(rest.trim_start_matches('/')),
        _ => match Path::new(source).strip_prefix(".") {
            Ok(below) if below != Path::new("") => folder.join(below),
            _ => folder.join(source),
        },
    };
    path.exists().then_some(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn failure(folder: &Path, name: &str) -> String {
        read(&folder.join(name), None).unwrap_err().to_string()
    }

    #[test]
    fn bases_are_names_files_or_other_modelfiles() {
        let folder = folder(&[
            ("Modelfile", "FROM team/base:8b\nSYSTEM one"),
            ("over.Modelfile", "FROM ./Modelfile\nSYSTEM two\nADAPTER lora.gguf"),
            ("files.Modelfile", "FROM ./weights\nFROM mmproj.gguf"),
            ("lora.gguf", ""),
            ("mmproj.gguf", ""),
            ("weights/model.safetensors", ""),
        ]);
        let recipe = read(&folder.path().join("over.Modelfile"), None).unwrap();
        assert!(matches!(&recipe.from, Origin::Model(name) if name == "team/base:8b"));
        assert_eq!(recipe.modelfile.to_string(), "SYSTEM one\nSYSTEM two\n");
        assert_eq!(recipe.adapters, [folder.path().join("lora.gguf")]);
        let recipe = read(&folder.path().join("files.Modelfile"), None).unwrap();
        let expect = [folder.path().join("./weights"), folder.path().join("mmproj.gguf")];
        assert!(matches!(&recipe.from, Origin::Paths(paths) if *paths == expect));
    }

    #[test]
    fn files_on_the_command_line_replace_from() {
        let folder = folder(&[("Modelfile", "SYSTEM hi"), ("with.Modelfile", "FROM gone/away\nSYSTEM hi")]);
        for name in ["Modelfile", "with.Modelfile"] {
            let recipe = read(&folder.path().join(name), Some("weights".into())).unwrap();
            assert!(matches!(&recipe.from, Origin::Paths(paths) if *paths == [PathBuf::from("weights")]));
            assert_eq!(recipe.modelfile.to_string(), "SYSTEM hi\n");
        }
    }

    #[test]
    fn cycles_and_missing_files_are_errors() {
        let folder = folder(&[
            ("a.Modelfile", "FROM ./b.Modelfile"),
            ("b.Modelfile", "FROM sub/../a.Modelfile"),
            ("self.Modelfile", "FROM self.Modelfile"),
            ("gap.Modelfile", "FROM ./gone"),
            ("weights.Modelfile", "FROM gone.gguf"),
            ("adapter.Modelfile", "FROM x\nADAPTER gone"),
            ("mixed.Modelfile", "FROM x\nFROM ./sub"),
            ("none.Modelfile", "SYSTEM x"),
            ("bad.Modelfile", "FROM x\nTEMPLATE \"\"\"x"),
            ("sub/file", ""),
        ]);
        let at = folder.path();
        let circle = failure(at, "a.Modelfile");
        assert!(circle.contains("is made from itself") && circle.matches(" -> ").count() == 2, "{circle}");
        assert!(failure(at, "self.Modelfile").contains("is made from itself"));
        assert!(failure(at, "gap.Modelfile").contains("FROM ./gone: no such file or folder"));
        assert!(failure(at, "weights.Modelfile").contains("FROM gone.gguf"));
        assert!(failure(at, "adapter.Modelfile").contains("ADAPTER gone"));
        assert!(failure(at, "mixed.Modelfile").contains("FROM x is a model"));
        assert!(failure(at, "none.Modelfile").contains("no FROM"));
        assert!(failure(at, "bad.Modelfile").contains("bad.Modelfile: line 2, column 10"));
        assert!(failure(at, "gone.Modelfile").contains("cannot read"));
    }
}
