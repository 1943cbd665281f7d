//! Modelfiles of this machine: read, with those that they are made from, down to the files or the one model at the bottom.

use std::{
    env,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use lode_model::modelfile::{Command, Modelfile};

use crate::error::{Failure, Outcome};

/// Texts, not weights.
const MAX_BYTES: u64 = 16 << 20;

/// What a Modelfile comes down to.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// What it says besides where the weights come from; of those it is made from too, theirs first.
    pub(crate) said: Modelfile,
    pub(crate) from: Origin,
    pub(crate) adapters: Vec<PathBuf>,
    pub(crate) drafts: Vec<PathBuf>,
}

/// What a model is made from.
#[derive(Debug)]
pub(crate) enum Origin {
    Paths(Vec<PathBuf>),
    /// A model, by its name in a registry.
    Model(String),
}

/// Whether a file is named as Modelfiles are.
pub(crate) fn is_named_so(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
    name == "modelfile" || name.starts_with("modelfile.") || name.ends_with(".modelfile")
}

/// Reads a Modelfile. `instead`: the files that stand in for its FROM, which it may then lack.
pub(crate) fn read(path: &Path, instead: Option<PathBuf>) -> Outcome<Recipe> {
    let mut recipe = Recipe {
        said: Modelfile::default(),
        from: Origin::Paths(instead.iter().cloned().collect()),
        adapters: Vec::new(),
        drafts: Vec::new(),
    };
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
    let cannot = |error: std::io::Error| Failure::because(format!("cannot read {shown}"), &error);
    // 1. One that is made from itself has no bottom.
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
    // 2. What it says.
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(cannot)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::new(format!("{shown} is no Modelfile: it has more than {MAX_BYTES} bytes")));
    }
    let parsed = if needs_from { Modelfile::parse(&bytes) } else { Modelfile::parse_settings(&bytes) };
    let modelfile = parsed.map_err(|error| Failure::new(format!("{shown}: {error}")))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    // 3. What it is made from. What a base says comes first, so that the later word counts.
    if needs_from {
        above.push((canonical, path.to_owned()));
        for source in modelfile.sources() {
            match find(folder, source) {
                Some(base) if base.is_file() && is_named_so(&base) => read_into(&base, true, above, recipe)?,
                Some(files) => recipe.add_paths(files, &shown)?,
                None if is_path(source) => {
                    return Err(Failure::new(format!(
                        "{shown}: FROM {source}: there is no such file or folder"
                    ))
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
                Failure::new(format!("{shown}: {what} {source}: there is no such file or folder"))
                    .hint("paths are relative to the folder of the Modelfile")
            })?);
        }
    }
    recipe.said.commands.extend(
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
            Origin::Model(name) => return Err(mixed(shown, name)),
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
            _ => Err(mixed(shown, name)),
        }
    }
}

fn mixed(shown: &impl std::fmt::Display, name: &str) -> Failure {
    Failure::new(format!("{shown}: FROM {name} is a model, and another FROM names something else"))
        .hint("a model is made from one model, or from files")
}

/// Written as only paths are: such a thing is no model's name, whether it exists or not.
fn is_path(source: &str) -> bool {
    let is_marked = source == "." || source == ".." || source.starts_with(['/', '~', '\\']);
    let is_weights = [".gguf", ".safetensors", ".onnx", ".bin"].iter().any(|end| source.ends_with(end));
    is_marked || is_weights || source.starts_with("./") || source.starts_with("../")
}

/// What there is at a path as a Modelfile writes it.
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
        assert_eq!(recipe.said.to_string(), "SYSTEM one\nSYSTEM two\n");
        assert_eq!(recipe.adapters, [folder.path().join("lora.gguf")]);
        let recipe = read(&folder.path().join("files.Modelfile"), None).unwrap();
        let expect = [folder.path().join("./weights"), folder.path().join("mmproj.gguf")];
        assert!(matches!(&recipe.from, Origin::Paths(paths) if *paths == expect));
    }

    #[test]
    fn files_named_beside_it_stand_in_for_from() {
        let folder = folder(&[("Modelfile", "SYSTEM hi"), ("with.Modelfile", "FROM gone/away\nSYSTEM hi")]);
        for name in ["Modelfile", "with.Modelfile"] {
            let recipe = read(&folder.path().join(name), Some("weights".into())).unwrap();
            assert!(matches!(&recipe.from, Origin::Paths(paths) if *paths == [PathBuf::from("weights")]));
            assert_eq!(recipe.said.to_string(), "SYSTEM hi\n");
        }
    }

    #[test]
    fn circles_and_gaps_are_told() {
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
        assert!(failure(at, "gap.Modelfile").contains("FROM ./gone: there is no such file or folder"));
        assert!(failure(at, "weights.Modelfile").contains("FROM gone.gguf"));
        assert!(failure(at, "adapter.Modelfile").contains("ADAPTER gone"));
        assert!(failure(at, "mixed.Modelfile").contains("FROM x is a model"));
        assert!(failure(at, "none.Modelfile").contains("no FROM"));
        assert!(failure(at, "bad.Modelfile").contains("bad.Modelfile: line 2, column 10"));
        assert!(failure(at, "gone.Modelfile").contains("cannot read"));
    }
}
