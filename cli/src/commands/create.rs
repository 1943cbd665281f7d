//! `lode create NAME PATH [-f Modelfile]`: creates a model in a registry, from local files or from an
//! existing model, with changes or with quantised weights.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use lode_model::{
    import::{self as planner, Conversion, Format, ReadAt, Source, SourceFile},
    media_type,
    modelfile::{Edits, Role},
    reference::Name,
};
use serde_json::{Value, json};

use super::hub;
use crate::{
    annotations::distinct,
    args::Create,
    connect::{self, Connection, Target},
    derived,
    error::{Failure, Outcome},
    files::{self, DiskFile, LocalFile},
    import, job,
    modelfile::{self, Origin, Recipe},
    order,
    replaced::TagBefore,
    send::UploadStats,
    ui,
};

/// File extensions of weights.
const WEIGHTS: [&str; 3] = [".safetensors", ".gguf", ".onnx"];
/// File extensions of adapter weights.
const ADAPTER_ENDS: [&str; 2] = [".gguf", ".safetensors"];
/// The file to read if the command names none.
const MODELFILE: &str = "Modelfile";
/// Folders in a model for the files of adapters and draft models.
const ADAPTER_FOLDER: &str = "adapter";
const DRAFT_FOLDER: &str = "draft";

pub(crate) async fn run(connection: &Connection, mut args: Create) -> Outcome {
    let path = args.path.as_deref().and_then(Path::to_str).unwrap_or_default().to_owned();
    if hub::is_address(&args.name) && !path.is_empty() {
        let source = std::mem::replace(&mut args.name, path);
        return hub::create(connection, &args, &source).await;
    }
    if hub::is_address(&path) {
        return hub::create(connection, &args, &path).await;
    }
    // `create PATH NAME`: source, then destination, as the other commands have it.
    if let Some(path) = args.path.take() {
        match path.to_str().filter(|_| order::is_swapped(&args.name, &path)) {
            Some(name) => args.path = Some(std::mem::replace(&mut args.name, name.to_owned()).into()),
            None => args.path = Some(path),
        }
    }
    let (target, _) = connection.target_tag(&args.name)?;
    let recipe = match &args.from {
        Some(name) => Recipe::new(Origin::Model(name.clone())),
        None => recipe(args.path.clone(), args.file.clone())?,
    };
    for name in recipe.modelfile.deprecated() {
        ui::print_message(format!("notice: PARAMETER {name} is obsolete and is ignored"));
    }
    let from = match recipe.from {
        Origin::Paths(paths) => ModelBase::Files(source(&paths)?, paths),
        Origin::Model(name) => ModelBase::Model(base(connection, &target, &name)?),
    };
    let mut edits = Edits::from_modelfile(&recipe.modelfile);
    edits.annotations.extend(distinct(&args.annotation)?);
    edits.check().map_err(|error| {
        Failure::with_source("cannot create this model", &error)
            .hint("to use a Jinja template, store it with the weights as chat_template.jinja")
    })?;
    let mut sent = UploadStats::default();
    for (kind, folder, paths) in [
        (media_type::OLLAMA_ADAPTER, ADAPTER_FOLDER, &recipe.adapters),
        (media_type::OLLAMA_DRAFT, DRAFT_FOLDER, &recipe.drafts),
    ] {
        let found = extra_files(paths)?;
        if !found.is_empty() {
            let (layers, extra) = derived::extra_files(&target, kind, folder, found).await?;
            edits.layers.extend(layers);
            sent.add(extra);
        }
    }
    let conversion = args.quantize;
    let new = NewModel { target: &target, json: args.json, edits: &edits, conversion, sent };
    match from {
        ModelBase::Files(source, paths) => new.create_from_files(source, &paths).await,
        ModelBase::Model(base) if conversion.is_some() => new.create_converted(&base).await,
        ModelBase::Model(base) => new.create_from_model(&base).await,
    }
}

/// The base of the new model.
enum ModelBase {
    Files(Files, Vec<PathBuf>),
    Model(Target),
}

/// The model to create, without its base.
pub(super) struct NewModel<'a> {
    pub(super) target: &'a Target,
    pub(super) edits: &'a Edits,
    pub(super) conversion: Option<Conversion>,
    /// The uploads before those of the base.
    pub(super) sent: UploadStats,
    /// Whether the result is printed as JSON.
    pub(super) json: bool,
}

impl NewModel<'_> {
    pub(super) async fn create_from_files(self, source: Files, paths: &[PathBuf]) -> Outcome {
        let NewModel { target, edits, conversion, mut sent, json } = self;
        let imported =
            import::model(target, Arc::new(source), conversion, edits).await.map_err(|failure| {
                let named: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                failure.with_context(named.join(", "))
            })?;
        for notice in &imported.notices {
            ui::print_message(format!("notice: {notice}"));
        }
        sent.add(imported.sent);
        if json {
            return ui::json(&json!({
                "name": target.model(), "digest": imported.digest,
                "tensors": imported.tensors, "parameters": imported.parameters, "notices": imported.notices,
                "sent_blobs": sent.sent_blobs, "sent_bytes": sent.sent_bytes,
                "shared_blobs": sent.shared_blobs, "shared_bytes": sent.shared_bytes,
            }));
        }
        ui::print_line(format!(
            "created {target} {}: {}, {} parameters",
            imported.digest,
            ui::counted(imported.tensors, "tensor"),
            ui::format_count(imported.parameters)
        ))?;
        ui::print_message(sent.summary());
        Ok(())
    }

    async fn create_from_model(self, base: &Target) -> Outcome {
        let NewModel { target, edits, conversion: _, mut sent, json } = self;
        let made = derived::model(target, base, edits).await?;
        sent.add(made.sent);
        if json {
            return ui::json(&json!({
                "name": target.model(), "digest": made.digest, "base": base.model(),
                "sent_blobs": sent.sent_blobs, "sent_bytes": sent.sent_bytes,
                "shared_blobs": sent.shared_blobs, "shared_bytes": sent.shared_bytes,
            }));
        }
        ui::print_line(format!("created {target} {} from {base}", made.digest))?;
        ui::print_message(sent.summary());
        Ok(())
    }

    /// The server converts the weights of a model that it has, in a job.
    pub(super) async fn create_converted(self, base: &Target) -> Outcome {
        let NewModel { target, edits, conversion, sent: _, json } = self;
        if base.registry.host() != target.registry.host() {
            return Err(Failure::new(format!("{base} is in another registry than {target}"))
                .hint(format!("`lode cp {base} {target}` copies it there first")));
        }
        if !edits.layers.is_empty() {
            return Err(Failure::new("a model cannot be quantised and get an adapter at the same time")
                .hint("create the quantised model first, and a second one from it with the ADAPTER"));
        }
        let (format, quantize) = conversion.map(Conversion::named).unwrap_or_default();
        let request = json!({
            "model": target.model(), "from": base.model(),
            "format": format.map(Format::as_str), "quantize": quantize,
            "template": edits.template, "system": edits.system, "parameters": edits.parameters,
            "license": edits.licenses, "renderer": edits.renderer, "parser": edits.parser,
            "requires": edits.requires, "messages": messages(edits), "annotations": edits.annotations,
        });
        let before = TagBefore::read(target).await;
        let started = job::start(&target.registry, "lode/v1/models", &request).await;
        let from = format!("FROM {base}");
        let started = started.map_err(|error| base.not_found(error).with_context(&from))?;
        let done = job::finish(&target.registry, started, &format!("creating {target}")).await;
        let done = done.map_err(|failure| failure.with_context(&from))?;
        let digest = done.result["digest"].as_str().unwrap_or_default().to_owned();
        before.report(&digest).await;
        if json {
            let mut created = json!({ "name": target.model(), "base": base.model() });
            if let (Value::Object(created), Value::Object(result)) = (&mut created, done.result) {
                created.extend(result);
            }
            return ui::json(&created);
        }
        for notice in done.result["notices"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            ui::print_message(format!("notice: {notice}"));
        }
        let form = conversion.map(|conversion| format!(", as {conversion}")).unwrap_or_default();
        ui::print_line(format!("created {target} {digest} from {base}{form}"))
    }
}

/// The messages of a Modelfile, as requests have them.
fn messages(edits: &Edits) -> Vec<Value> {
    let message = |(role, content): &(Role, String)| json!({ "role": role.as_str(), "content": content });
    edits.messages.iter().map(message).collect()
}

/// The recipe of the model: a Modelfile, or only the files at a path.
fn recipe(path: Option<PathBuf>, file: Option<PathBuf>) -> Outcome<Recipe> {
    match (path, file) {
        (path, Some(file)) => modelfile::read(&file, path),
        (Some(path), None) if path.is_file() && modelfile::is_modelfile_name(&path) => {
            modelfile::read(&path, None)
        }
        (Some(path), None) => Ok(Recipe::new(Origin::Paths(vec![path]))),
        (None, None) if Path::new(MODELFILE).is_file() => modelfile::read(Path::new(MODELFILE), None),
        (None, None) => Err(Failure::new("no base for the model")
            .hint("name a folder or a file, a Modelfile with -f, or a stored model with --from")),
    }
}

/// Resolves the model in FROM. Without a host it is in the registry of the new model.
pub(super) fn base(connection: &Connection, target: &Target, name: &str) -> Outcome<Target> {
    let parsed: Name = name.parse().map_err(|error| {
        let nothing = format!("FROM {name} is neither a file, a folder nor a model name");
        connect::not_a_name(name, &error).with_context(nothing)
    })?;
    match parsed.host {
        Some(_) => connection.target(name),
        None => Ok(Target {
            host: target.host.clone(),
            registry: target.registry.clone(),
            repository: parsed.repository,
            reference: parsed.reference,
        }),
    }
}

/// The files to import: all files of a folder, or one file with its companions.
pub(super) fn source(paths: &[PathBuf]) -> Outcome<Files> {
    let mut all = Vec::new();
    for path in paths {
        let found = found(path)?;
        if !path.is_file() {
            all.extend(found);
            continue;
        }
        let name = path.to_string_lossy().to_ascii_lowercase();
        if !WEIGHTS.iter().any(|end| name.ends_with(end)) {
            return Err(Failure::new(format!(
                "{} is neither a folder nor a .safetensors, .gguf or .onnx file",
                path.display()
            ))
            .hint("name its folder, or store the file unchanged with `lode push`"));
        }
        all.extend(files::find_companions(path)?);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    // The caller may name several parts of one split file.
    all.dedup_by(|a, b| a.path == b.path);
    Ok(Files(all))
}

/// The files of an adapter; the headers of its weights are validated.
fn extra_files(paths: &[PathBuf]) -> Outcome<Vec<LocalFile>> {
    let mut all: Vec<LocalFile> = Vec::new();
    for path in paths {
        let found = found(path)?;
        for file in &found {
            let name = file.name.to_ascii_lowercase();
            let end = ADAPTER_ENDS.iter().find(|end| name.ends_with(*end));
            if let Some(end) = end {
                let alone = Files(vec![LocalFile { name: format!("adapter{end}"), ..file.clone() }]);
                planner::plan(&alone, &planner::Options::default())
                    .map_err(|error| Failure::with_source(file.path.display(), &error))?;
            }
        }
        if !found
            .iter()
            .any(|file| ADAPTER_ENDS.iter().any(|end| file.name.to_ascii_lowercase().ends_with(end)))
        {
            return Err(Failure::new(format!("{} has no adapter weights", path.display()))
                .hint("an adapter is a .gguf or .safetensors file, or a folder that contains one"));
        }
        all.extend(found);
    }
    Ok(all)
}

fn found(path: &Path) -> Outcome<Vec<LocalFile>> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| Failure::with_source(format!("cannot read {}", path.display()), &error))?;
    if metadata.is_dir() {
        return files::walk(path);
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    if !metadata.is_file() || name.is_empty() {
        return Err(Failure::new(format!("{} is neither a file nor a folder", path.display())));
    }
    Ok(vec![LocalFile { name, path: path.to_owned(), size: metadata.len() }])
}

/// Local files as an import source, sorted by name.
pub(super) struct Files(Vec<LocalFile>);

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
            return Err(io::Error::other("the file changed during the import"));
        }
        Ok(Box::new(file))
    }
}
