//! Files that become one layer each: unchanged, or generated here in place of originals.

use super::error::ImportError;
use super::files::{MAX_JSON_BYTES, parse_file};
use super::layer::Content;
use super::plan::PlannedLayer;
use super::recipe::{FileOrigin, FileRecipe};
use crate::files_view;
use crate::media_type;
use crate::source::{Source, SourceFile};

/// Adds a file unchanged as a layer, unless it is empty.
pub(super) fn push_whole(
    layers: &mut Vec<PlannedLayer>,
    recipes: &mut Vec<FileRecipe>,
    media_type: &'static str,
    file: &SourceFile,
) {
    recipes.push(FileRecipe::whole(file, layers.len()));
    if file.size > 0 {
        layers.push(PlannedLayer {
            media_type,
            name: Some(file.path.clone()),
            size: file.size,
            content: Content::file(&file.path, file.size),
        });
    }
}

/// Adds a generated file, which replaces the original of the same name or originals of other names.
pub(super) fn push_assembled(
    layers: &mut Vec<PlannedLayer>,
    recipes: &mut Vec<FileRecipe>,
    media_type: &'static str,
    path: &str,
    content: Content,
) {
    let file = SourceFile { path: path.to_owned(), size: content.size() };
    recipes.push(FileRecipe { origin: FileOrigin::Assembled, ..FileRecipe::whole(&file, layers.len()) });
    layers.push(PlannedLayer { media_type, name: Some(file.path), size: file.size, content });
}

/// Adds the other files of a model: its licence as a licence layer, every other file as a plain file.
pub(super) fn push_side_files(
    source: &dyn Source,
    layers: &mut Vec<PlannedLayer>,
    recipes: &mut Vec<FileRecipe>,
    files: &[&SourceFile],
) -> Result<(), ImportError> {
    for file in files {
        let kind = match is_license(&file.path) {
            true => media_type::OLLAMA_LICENSE,
            false => side_file_type(source, file)?,
        };
        push_whole(layers, recipes, kind, file);
    }
    Ok(())
}

/// Returns the layer type of a file that is stored with a model: JSON only if the file is valid JSON.
pub(super) fn side_file_type(source: &dyn Source, file: &SourceFile) -> Result<&'static str, ImportError> {
    if !file.path.ends_with(".json") || file.size > MAX_JSON_BYTES || file.path == files_view::LAYER_NAME {
        return Ok(media_type::OCTET_STREAM);
    }
    let is_json = parse_file::<serde::de::IgnoredAny>(source, file)?.is_ok();
    Ok(if is_json { media_type::OLLAMA_JSON } else { media_type::OCTET_STREAM })
}

/// `LICENSE`, `LICENCE.txt`, `COPYING`, at the top level, where a model's own licence is.
fn is_license(path: &str) -> bool {
    let name = path.to_ascii_uppercase();
    ["LICENSE", "LICENCE", "COPYING"]
        .iter()
        .any(|word| name.strip_prefix(word).is_some_and(|rest| matches!(rest, "" | ".TXT" | ".MD")))
}
