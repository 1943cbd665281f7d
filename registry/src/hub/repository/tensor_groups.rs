//! Tensors as people look at them: the same tensor of repeated layers is one line, and lines are grouped by the
//! part of the model that they begin with.

use std::collections::{BTreeMap, HashMap};

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use lode_model::tensor::TensorInfo;

/// The tensors of one part of the model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TensorGroup {
    pub(super) prefix: String,
    pub(super) lines: Vec<TensorLine>,
    pub(super) tensors: u64,
    pub(super) size_bytes: u64,
}

/// Tensors whose names differ in numbers only, of one type and shape.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TensorLine {
    /// With ranges in the place of the numbers: `layers.0..31.mlp.up_proj.weight`.
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) count: u64,
    pub(super) elements: u64,
    pub(super) size_bytes: u64,
    /// How many of them other models have, too.
    pub(super) shared: u64,
    /// The repository of one of those models.
    pub(super) other: Option<Repository>,
}

/// A line while its tensors are counted.
struct Folded {
    /// The parts of the name between dots; `None` is a number.
    parts: Vec<Option<String>>,
    /// The lowest and the highest number at each place.
    ranges: Vec<(u64, u64)>,
    line: TensorLine,
}

/// Groups tensors, in the order in which each line first appears. `shared`: the blobs that other models have, too.
pub(super) fn group_tensors<'a>(
    tensors: impl IntoIterator<Item = &'a TensorInfo>,
    shared: &HashMap<Digest, Repository>,
) -> Vec<TensorGroup> {
    let mut places: BTreeMap<(String, String, Vec<u64>), usize> = BTreeMap::new();
    let mut folded: Vec<Folded> = Vec::new();
    for tensor in tensors {
        let (pattern, numbers) = pattern_of(&tensor.name);
        let key = (pattern, tensor.dtype.clone(), tensor.shape.clone());
        let at = *places.entry(key).or_insert_with(|| {
            folded.push(Folded {
                parts: tensor
                    .name
                    .split('.')
                    .map(|part| number(part).is_none().then(|| part.to_owned()))
                    .collect(),
                ranges: numbers.iter().map(|number| (*number, *number)).collect(),
                line: TensorLine {
                    name: String::new(),
                    dtype: tensor.dtype.clone(),
                    shape: tensor.shape.clone(),
                    count: 0,
                    elements: 0,
                    size_bytes: 0,
                    shared: 0,
                    other: None,
                },
            });
            folded.len() - 1
        });
        let entry = &mut folded[at];
        for (range, number) in entry.ranges.iter_mut().zip(&numbers) {
            *range = (range.0.min(*number), range.1.max(*number));
        }
        let elements = tensor.shape.iter().fold(1_u64, |product, n| product.saturating_mul(*n));
        entry.line.count += 1;
        entry.line.elements = entry.line.elements.saturating_add(elements);
        entry.line.size_bytes = entry.line.size_bytes.saturating_add(tensor.size_bytes);
        if let Some(other) = shared.get(&tensor.digest) {
            entry.line.shared += 1;
            entry.line.other.get_or_insert_with(|| other.clone());
        }
    }
    let mut groups: Vec<TensorGroup> = Vec::new();
    for entry in folded {
        let name = entry.name();
        let prefix = prefix_of(&entry.parts);
        let line = TensorLine { name, ..entry.line };
        let at = groups.iter().position(|group| group.prefix == prefix).unwrap_or_else(|| {
            groups.push(TensorGroup { prefix, lines: Vec::new(), tensors: 0, size_bytes: 0 });
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.tensors += line.count;
        group.size_bytes = group.size_bytes.saturating_add(line.size_bytes);
        group.lines.push(line);
    }
    groups
}

impl Folded {
    fn name(&self) -> String {
        let mut ranges = self.ranges.iter();
        let part = |part: &Option<String>| match part {
            Some(text) => text.clone(),
            None => match ranges.next() {
                Some((first, last)) if first == last => first.to_string(),
                Some((first, last)) => format!("{first}..{last}"),
                None => String::new(),
            },
        };
        self.parts.iter().map(part).collect::<Vec<_>>().join(".")
    }
}

fn number(part: &str) -> Option<u64> {
    let is_number = !part.is_empty() && part.len() <= 6 && part.bytes().all(|byte| byte.is_ascii_digit());
    part.parse().ok().filter(|_| is_number)
}

/// The name with `*` in the place of each number, and the numbers.
fn pattern_of(name: &str) -> (String, Vec<u64>) {
    let mut numbers = Vec::new();
    let parts = name.split('.').map(|part| match number(part) {
        Some(value) => {
            numbers.push(value);
            "*"
        }
        None => part,
    });
    (parts.collect::<Vec<_>>().join("."), numbers)
}

/// The part of a model that a tensor belongs to: its name up to the first number, else without its last two parts.
fn prefix_of(parts: &[Option<String>]) -> String {
    let begin: Vec<&str> = parts.iter().map_while(Option::as_deref).collect();
    let kept = match begin.len() == parts.len() {
        true => begin.len().saturating_sub(2).max(1).min(begin.len().saturating_sub(1)),
        false => begin.len(),
    };
    begin[..kept].join(".")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tensor(name: &str, dtype: &str, shape: &[u64]) -> TensorInfo {
        let size: u64 = shape.iter().product::<u64>() * 2;
        let value = json!({"name": name, "dtype": dtype, "shape": shape, "digest": Digest::sha256(name.as_bytes()),
            "offset": 0, "size_bytes": size, "parts": {"weight": {"offset": 0, "size_bytes": size, "dtype": dtype, "shape": shape}}});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn repeated_layers_are_one_line() {
        let mut tensors = vec![tensor("model.embed_tokens.weight", "BF16", &[8, 4])];
        for layer in 0..32 {
            tensors.push(tensor(&format!("model.layers.{layer}.mlp.up_proj.weight"), "BF16", &[16, 4]));
            tensors.push(tensor(&format!("model.layers.{layer}.input_layernorm.weight"), "F32", &[4]));
        }
        tensors.push(tensor("model.layers.32.mlp.up_proj.weight", "F32", &[16, 4]));
        tensors.push(tensor("lm_head.weight", "BF16", &[8, 4]));
        let other: Repository = "team/base".parse().unwrap();
        let shared = HashMap::from([(tensors[1].digest.clone(), other.clone())]);
        let groups = group_tensors(&tensors, &shared);
        let prefixes: Vec<&str> = groups.iter().map(|group| group.prefix.as_str()).collect();
        assert_eq!(prefixes, ["model", "model.layers", "lm_head"]);
        let names: Vec<&str> = groups[1].lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "model.layers.0..31.mlp.up_proj.weight",
                "model.layers.0..31.input_layernorm.weight",
                "model.layers.32.mlp.up_proj.weight"
            ]
        );
        assert_eq!((groups[1].lines[0].count, groups[1].lines[0].elements), (32, 32 * 64));
        assert_eq!((groups[1].lines[0].shared, &groups[1].lines[0].other), (1, &Some(other)));
        assert_eq!((groups[1].lines[1].shared, &groups[1].lines[1].other), (0, &None));
        assert_eq!(groups[1].tensors, 65);
        assert!(group_tensors(&[], &shared).is_empty());
    }

    #[test]
    fn odd_names_are_kept() {
        let odd = [
            tensor("", "F32", &[]),
            tensor("..", "F32", &[1]),
            tensor("0", "F32", &[2]),
            tensor("a", "F32", &[3]),
        ];
        let names: Vec<String> = group_tensors(&odd, &HashMap::new())
            .into_iter()
            .flat_map(|group| group.lines)
            .map(|line| line.name)
            .collect();
        assert_eq!(names, ["", "..", "0", "a"]);
    }
}
