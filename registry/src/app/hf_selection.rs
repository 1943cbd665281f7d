//! Which files of a repository on the Hub make a model: the weights in one format, and the texts that belong to them.

use lode_model::gguf::PartName;

use crate::hf_client::HfFile;

/// Ends of the names of files that describe a model.
const TEXTS: [&str; 6] = [".json", ".txt", ".model", ".jinja", ".md", ".tiktoken"];
/// Names of licences.
const LICENSES: [&str; 3] = ["license", "licence", "notice"];
/// The types that are tried if a repository has several GGUF files, as llama.cpp does.
const PREFERRED: [&str; 2] = ["q4_k_m", "q8_0"];
/// How many names an error lists.
const SHOWN: usize = 10;

/// Why no files can be chosen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SelectionError {
    #[error("the repository has no weights in a format that can be imported: safetensors, GGUF or ONNX")]
    NoWeights,
    #[error(
        "the repository has several models; add a part of the name of one to the address, such as `:Q4_K_M`: {names}"
    )]
    Ambiguous { names: String },
    /// The repository has other weights, or none.
    #[error(
        "the repository has no GGUF file, so none with `{variant}` in its name; leave out `:{variant}` to import other weights"
    )]
    NoGguf { variant: String },
    #[error("no GGUF file of the repository has `{variant}` in its name; there are: {names}")]
    VariantUnknown { variant: String, names: String },
}

/// The files to import: safetensors with texts, or one GGUF with the parts of its file, or ONNX. `variant` is a part of
/// the name of a GGUF file.
pub(crate) fn select(files: Vec<HfFile>, variant: Option<&str>) -> Result<Vec<HfFile>, SelectionError> {
    let has = |end: &str| files.iter().any(|file| file.path.ends_with(end));
    if variant.is_some() || (has(".gguf") && !has(".safetensors")) {
        return select_gguf(files, variant);
    }
    let weights = if has(".safetensors") {
        // Another copy of the same weights, in the format of their authors.
        let is_copy = |path: &str| {
            path.starts_with("consolidated") && files.iter().any(|file| file.path.starts_with("model"))
        };
        let all = files.iter().filter(|file| file.path.ends_with(".safetensors"));
        all.filter(|file| !is_copy(&file.path)).map(|file| file.path.clone()).collect::<Vec<_>>()
    } else if has(".onnx") {
        let is_part = |path: &str| path.contains(".onnx");
        files.iter().filter(|file| is_part(&file.path)).map(|file| file.path.clone()).collect()
    } else {
        return Err(SelectionError::NoWeights);
    };
    Ok(files.into_iter().filter(|file| weights.contains(&file.path) || is_text(&file.path)).collect())
}

fn select_gguf(files: Vec<HfFile>, variant: Option<&str>) -> Result<Vec<HfFile>, SelectionError> {
    let is_model = |file: &&HfFile| {
        let lower = file.path.to_ascii_lowercase();
        lower.ends_with(".gguf") && !lower.contains("mmproj") && !lower.contains("imatrix")
    };
    let mut stems: Vec<String> = files.iter().filter(is_model).map(|file| stem(&file.path)).collect();
    stems.sort_unstable();
    stems.dedup();
    let names = |stems: &[String]| stems.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let with = |part: &str| -> Vec<String> {
        let part = part.to_ascii_lowercase();
        stems.iter().filter(|stem| stem.to_ascii_lowercase().contains(&part)).cloned().collect()
    };
    let chosen = match (variant, stems.as_slice()) {
        (Some(variant), []) => return Err(SelectionError::NoGguf { variant: variant.to_owned() }),
        (None, []) => return Err(SelectionError::NoWeights),
        (None, [_]) => stems.clone(),
        (Some(variant), _) => match with(variant) {
            found if found.is_empty() => {
                let (variant, names) = (variant.to_owned(), names(&stems));
                return Err(SelectionError::VariantUnknown { variant, names });
            }
            found => found,
        },
        (None, _) => PREFERRED
            .iter()
            .map(|part| with(part))
            .find(|found| !found.is_empty())
            .unwrap_or_else(|| stems.clone()),
    };
    let [chosen] = chosen.as_slice() else {
        return Err(SelectionError::Ambiguous { names: names(&chosen) });
    };
    Ok(files.into_iter().filter(|file| file.path.ends_with(".gguf") && stem(&file.path) == *chosen).collect())
}

/// The name of a GGUF file without the number of its part.
fn stem(path: &str) -> String {
    PartName::parse(path)
        .map_or_else(|| path.trim_end_matches(".gguf").to_owned(), |part| part.prefix.to_owned())
}

fn is_text(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let name = lower.rsplit_once('/').map_or(lower.as_str(), |(_, name)| name);
    TEXTS.iter().any(|end| name.ends_with(end)) || LICENSES.iter().any(|license| name.starts_with(license))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(paths: &[&str], variant: Option<&str>) -> Result<Vec<String>, String> {
        let file =
            |path: &&str| HfFile { path: (*path).to_owned(), size: 1, sha256: None, oid: String::new() };
        let chosen = select(paths.iter().map(file).collect(), variant).map_err(|error| error.to_string())?;
        Ok(chosen.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn a_checkpoint_is_its_weights_and_texts() {
        let paths = [
            ".gitattributes",
            "LICENSE",
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model.safetensors",
            "onnx/model.onnx",
            "original/params.json",
            "pytorch_model.bin",
            "tokenizer.model",
            "unet/model.safetensors",
        ];
        let expect = [
            "LICENSE",
            "README.md",
            "config.json",
            "model.safetensors",
            "original/params.json",
            "tokenizer.model",
            "unet/model.safetensors",
        ];
        assert_eq!(selected(&paths, None).unwrap(), expect);
        assert_eq!(selected(&["a.onnx", "a.onnx_data", "b.bin"], None).unwrap(), ["a.onnx", "a.onnx_data"]);
        assert!(selected(&["pytorch_model.bin", "config.json"], None).unwrap_err().contains("no weights"));
    }

    #[test]
    fn one_gguf_file_is_chosen() {
        let one = ["README.md", "m.gguf", "mmproj-F16.gguf"];
        assert_eq!(selected(&one, None).unwrap(), ["m.gguf"]);
        let several = ["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"];
        assert_eq!(selected(&several, None).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(selected(&several, Some("q2_k")).unwrap(), ["m-Q2_K.gguf"]);
        assert!(selected(&several, Some("q5")).unwrap_err().contains("m-Q2_K, m-Q4_K_M, m-Q8_0"));
        let ambiguous = selected(&["a-Q5_0.gguf", "b-Q5_0.gguf"], None).unwrap_err();
        assert!(ambiguous.contains("`:Q4_K_M`: a-Q5_0, b-Q5_0"), "{ambiguous}");
        let parts = ["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf", "other-Q2_K.gguf"];
        assert_eq!(
            selected(&parts, Some("q/m")).unwrap(),
            ["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf"]
        );
    }
}
