//! Folders of ONNX files. Each file is stored whole, and so are the files that hold its weights. Files are
//! parsed, so that a damaged file, or one with missing weights, is refused.

use std::collections::{BTreeMap, HashMap};

use super::error::ImportError;
use super::plan::{Options, Plan};
use super::whole_file::{push_whole, side_file_type};
use crate::config::{ModelConfig, format_parameter_count};
use crate::formats::weight_format::WeightFormat;
use crate::media_type;
use crate::onnx::{Data, Initializer, Model};
use crate::source::{Source, SourceFile};

pub(super) fn plan(
    source: &dyn Source,
    files: &[SourceFile],
    options: &Options,
) -> Result<Plan, ImportError> {
    let (models, rest): (Vec<_>, Vec<_>) =
        files.iter().partition(|file| file.weight_format() == Some(WeightFormat::Onnx));
    if let (Some(conversion), Some(file)) = (options.conversion, models.first()) {
        return Err(ImportError::ConvertOnnx { path: file.path.clone(), conversion });
    }
    let (mut layers, mut recipes) = (Vec::new(), Vec::new());
    let (mut tensors, mut parameters) = (0, 0u64);
    let mut elements = BTreeMap::<String, u64>::new();
    let sizes: HashMap<&str, u64> = files.iter().map(|file| (file.path.as_str(), file.size)).collect();
    for file in models {
        let model = read(source, file)?;
        for tensor in &model.tensors {
            check_outside(file, tensor, &sizes)?;
            let count = tensor.shape.iter().fold(1u64, |product, dim| product.saturating_mul(*dim));
            parameters = parameters.saturating_add(count);
            if let Some(dtype) = tensor.dtype() {
                let sum = elements.entry(dtype.to_string()).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        tensors += model.tensors.len() as u64;
        push_whole(&mut layers, &mut recipes, media_type::ONNX, file);
    }
    for file in rest {
        push_whole(&mut layers, &mut recipes, side_file_type(source, file)?, file);
    }
    recipes.sort_by(|a, b| a.path.cmp(&b.path));
    let main = elements.into_iter().rev().max_by_key(|(_, sum)| *sum).map(|(dtype, _)| dtype);
    let config = ModelConfig {
        model_format: WeightFormat::Onnx.as_str().to_owned(),
        model_type: format_parameter_count(parameters),
        file_type: main.unwrap_or_default(),
        ..ModelConfig::default()
    };
    let notices = match recipes.iter().any(|recipe| recipe.path == "config.json") {
        true => Vec::new(),
        false => vec!["without config.json, an ONNX model is stored, but cannot be run".to_owned()],
    };
    Ok(Plan { layers, config, notices, tensors, parameters, annotations: BTreeMap::new(), files: recipes })
}

fn read(source: &dyn Source, file: &SourceFile) -> Result<Model, ImportError> {
    let path = || file.path.clone();
    let opened = source.open(&file.path).map_err(|source| ImportError::Read { path: path(), source })?;
    Model::read(&*opened).map_err(|source| ImportError::Onnx { path: path(), source })
}

/// Checks that weights in another file are part of the folder. `sizes` has the size of each file by path.
fn check_outside(
    file: &SourceFile,
    tensor: &Initializer,
    sizes: &HashMap<&str, u64>,
) -> Result<(), ImportError> {
    let Data::External { location, offset, length } = &tensor.data else { return Ok(()) };
    let found = sizes.get(Model::resolve_location(&file.path, location).as_str());
    let length = tensor.size_bytes().or(*length).unwrap_or(0);
    match found {
        Some(found) if offset.checked_add(length).is_some_and(|end| end <= *found) => Ok(()),
        found => Err(ImportError::OnnxData {
            path: file.path.clone(),
            tensor: tensor.name.clone(),
            location: location.clone(),
            problem: if found.is_some() { "is too short" } else { "is missing" },
        }),
    }
}
