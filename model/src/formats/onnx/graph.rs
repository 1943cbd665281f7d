//! Checks the whole graph of an untrusted ONNX file before a runtime sees it: operators, order, names, and the
//! size and location of all data. What the checks do not expect is refused, so that no other reading of the
//! same bytes refers to a file or to memory outside of the model.

use std::collections::{BTreeSet, HashSet};

use super::error::OnnxError;
use super::fields::{Field, FieldReader, Wire};
use super::tensor::{Data, TensorFields};
use crate::read_at::ReadAt;

/// The operator domains that may be used: ONNX's own, and the operators that are built into the ONNX Runtime.
pub const DOMAINS: [&str; 4] = ["", "ai.onnx", "ai.onnx.ml", "com.microsoft"];

/// Operators that read files or run code that is not part of the model.
const REFUSED_OPERATORS: [&str; 7] =
    ["ATen", "ATenGrad", "EPContext", "PythonOp", "PythonOpGrad", "Snpe", "YieldOp"];

/// Operators that choose the scale of integers by all values of a batch.
const DYNAMIC_QUANTISATION: [&str; 4] =
    ["DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QAttention"];

/// The most nodes of a file, and the most names that they define.
const MAX_NODES: usize = 250_000;
const MAX_NAMES: usize = 1_000_000;
/// The most graphs inside of each other.
const MAX_DEPTH: usize = 8;
/// The longest axis of a tensor.
const MAX_DIM: u64 = 1 << 40;

/// What a checked file needs and gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The inputs that a caller has to give: those without an initializer.
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// The files that hold initializers, as the graph names them, each once.
    pub locations: BTreeSet<String>,
    /// Whether results for one row of a batch depend on the other rows.
    pub quantises_dynamically: bool,
    /// Whether it has attention as one operator of the ONNX Runtime's own, which takes padding only at the end.
    pub fuses_attention: bool,
}

/// Why a file must not be run.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    #[error(transparent)]
    File(#[from] OnnxError),
    #[error("the file has {0}, which is not supported; export the model without it")]
    Unsupported(&'static str),
    #[error("{node}: operator `{operator}` is of domain `{domain}`, expected one of `{}`", DOMAINS.join("`, `"))]
    Domain { node: String, operator: String, domain: String },
    #[error("{node}: operator `{operator}` may read files or run code, so it is refused")]
    Operator { node: String, operator: String },
    #[error(
        "{node} reads `{input}`, expected the name of an input, an initializer or an output of an earlier node"
    )]
    Order { node: String, input: String },
    #[error("{place} defines `{name}` a second time, expected each name to be defined once")]
    Duplicate { place: String, name: String },
    #[error("the graph's output `{name}` is not the name of an input, an initializer or an output of a node")]
    Output { name: String },
    #[error(
        "{tensor} is stored in `{location}`, expected the relative path of a file of the model, without `..`"
    )]
    Location { tensor: String, location: String },
    #[error("{tensor} is stored in `{location}`, which is not a file of the model")]
    MissingFile { tensor: String, location: String },
    #[error("{tensor} is stored in `{location}` up to byte {end}, but the file has {size} bytes")]
    ShortFile { tensor: String, location: String, end: u64, size: u64 },
    #[error("{tensor} is stored outside the file, expected only initializers of the outermost graph to be")]
    Outside { tensor: String },
    #[error(
        "{tensor} has the key `{key}` in its external data, expected each of location, offset, length and checksum once"
    )]
    Key { tensor: String, key: String },
    #[error("{tensor} has data type {data_type}, expected a type from 1 to 26")]
    DataType { tensor: String, data_type: u64 },
    #[error("{tensor} has data location {data_location}, expected 0 or 1")]
    DataLocation { tensor: String, data_location: u64 },
    #[error("{tensor} has shape {shape:?}, which is too large")]
    Shape { tensor: String, shape: Vec<u64> },
    #[error("{tensor} of shape {shape:?} has {found} bytes, expected {expected}")]
    Size { tensor: String, shape: Vec<u64>, found: u64, expected: u64 },
}

impl Graph {
    /// Checks a file. `file_size` returns the size of another file of the model by the location that this file
    /// gives, which is a plain relative path.
    pub fn read(file: &dyn ReadAt, file_size: &dyn Fn(&str) -> Option<u64>) -> Result<Graph, GraphError> {
        let mut checker = Checker {
            fields: FieldReader::new(file),
            file_size,
            found: Graph::default(),
            scopes: Vec::new(),
            nodes: 0,
            names: 0,
        };
        // Runtimes read files with this mark in another format, in which nothing would have been checked.
        if file.len() >= 8 && checker.fields.bytes(4, 4)? == b"ORTM" {
            return Err(GraphError::Unsupported("the mark of a file in ORT format"));
        }
        let (mut at, mut graph) = (0, None);
        while at < file.len() {
            let Field { number, value } = checker.fields.field(&mut at, file.len())?;
            match (number, value) {
                (7, Wire::Bytes { .. }) if graph.is_some() => {
                    return Err(GraphError::Unsupported("several graphs"));
                }
                (7, Wire::Bytes { start, end }) => graph = Some((start, end)),
                (20, Wire::Bytes { .. }) => return Err(GraphError::Unsupported("training information")),
                (25, Wire::Bytes { .. }) => {
                    return Err(GraphError::Unsupported("functions of its own (model-local functions)"));
                }
                _ => {}
            }
        }
        let (start, end) = graph.ok_or(OnnxError::NoGraph)?;
        checker.graph(start, end)?;
        Ok(checker.found)
    }
}

struct Checker<'a> {
    fields: FieldReader<'a>,
    file_size: &'a dyn Fn(&str) -> Option<u64>,
    found: Graph,
    /// The names that are visible: those of the outermost graph first.
    scopes: Vec<HashSet<String>>,
    nodes: usize,
    names: usize,
}

/// The parts of a node that the checks need.
#[derive(Default)]
struct Node {
    inputs: Vec<String>,
    outputs: Vec<String>,
    name: String,
    operator: String,
    domain: String,
    /// Byte ranges of the attributes.
    attributes: Vec<(u64, u64)>,
}

impl Node {
    /// The node in messages.
    fn label(&self) -> String {
        match (self.name.as_str(), self.outputs.iter().find(|output| !output.is_empty())) {
            ("", Some(output)) => format!("the node that gives `{output}`"),
            (name, _) => format!("node `{name}`"),
        }
    }
}

impl Checker<'_> {
    fn graph(&mut self, start: u64, end: u64) -> Result<(), GraphError> {
        if self.scopes.len() == MAX_DEPTH {
            return Err(OnnxError::LimitExceeded { what: "graphs inside of each other" }.into());
        }
        let is_outermost = self.scopes.is_empty();
        self.scopes.push(HashSet::new());
        let (mut nodes, mut inputs, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        let mut initializers = HashSet::new();
        let mut at = start;
        while at < end {
            let Field { number, value: Wire::Bytes { start, end } } = self.fields.field(&mut at, end)? else {
                continue;
            };
            match number {
                1 => {
                    self.nodes += 1;
                    if self.nodes > MAX_NODES {
                        return Err(OnnxError::LimitExceeded { what: "nodes" }.into());
                    }
                    nodes.push((start, end));
                }
                5 => {
                    let tensor = self.fields.tensor(start, end)?;
                    if tensor.name.is_empty() {
                        return Err(OnnxError::Nameless { at: start }.into());
                    }
                    let label = format!("initializer `{}`", tensor.name);
                    self.tensor(&label, &tensor, is_outermost)?;
                    self.count_name()?;
                    if initializers.contains(&tensor.name) {
                        return Err(duplicate("an initializer", tensor.name));
                    }
                    initializers.insert(tensor.name);
                }
                11 => inputs.push(self.value_name(start, end)?),
                12 => outputs.push(self.value_name(start, end)?),
                15 => return Err(GraphError::Unsupported("sparse tensors")),
                _ => {}
            }
        }
        for name in &inputs {
            self.define(|| "an input of the graph".to_owned(), name)?;
        }
        // An input may have an initializer, which is its default.
        let has_default: HashSet<&String> =
            inputs.iter().filter(|name| initializers.contains(*name)).collect();
        for name in initializers.iter().filter(|name| !has_default.contains(name)) {
            self.define(|| "an initializer".to_owned(), name)?;
        }
        if is_outermost {
            self.found.inputs = inputs.iter().filter(|name| !has_default.contains(name)).cloned().collect();
            self.found.outputs.clone_from(&outputs);
        }
        for (start, end) in nodes {
            self.node(start, end)?;
        }
        if let Some(name) = outputs.into_iter().find(|name| !self.is_defined(name)) {
            return Err(GraphError::Output { name });
        }
        self.scopes.pop();
        Ok(())
    }

    fn node(&mut self, start: u64, end: u64) -> Result<(), GraphError> {
        let mut node = Node::default();
        let mut at = start;
        while at < end {
            let Field { number, value: Wire::Bytes { start, end } } = self.fields.field(&mut at, end)? else {
                continue;
            };
            match number {
                1 => node.inputs.push(self.fields.text(start, end)?),
                2 => node.outputs.push(self.fields.text(start, end)?),
                3 => node.name = self.fields.text(start, end)?,
                4 => node.operator = self.fields.text(start, end)?,
                5 => node.attributes.push((start, end)),
                7 => node.domain = self.fields.text(start, end)?,
                _ => {}
            }
        }
        if !DOMAINS.contains(&node.domain.as_str()) {
            let (operator, domain) = (node.operator.clone(), node.domain.clone());
            return Err(GraphError::Domain { node: node.label(), operator, domain });
        }
        if REFUSED_OPERATORS.contains(&node.operator.as_str()) {
            return Err(GraphError::Operator { node: node.label(), operator: node.operator });
        }
        self.found.quantises_dynamically |= DYNAMIC_QUANTISATION.contains(&node.operator.as_str());
        self.found.fuses_attention |= node.domain == "com.microsoft" && node.operator.ends_with("Attention");
        // Optional inputs and outputs that are absent have empty names.
        if let Some(input) = node.inputs.iter().find(|name| !name.is_empty() && !self.is_defined(name)) {
            return Err(GraphError::Order { node: node.label(), input: input.clone() });
        }
        for (start, end) in &node.attributes {
            self.attribute(&node, *start, *end)?;
        }
        for output in node.outputs.iter().filter(|name| !name.is_empty()) {
            self.define(|| node.label(), output)?;
        }
        Ok(())
    }

    fn attribute(&mut self, node: &Node, start: u64, end: u64) -> Result<(), GraphError> {
        let (mut tensors, mut graphs) = (0, 0);
        let mut at = start;
        while at < end {
            let Field { number, value: Wire::Bytes { start, end } } = self.fields.field(&mut at, end)? else {
                continue;
            };
            match number {
                5 | 10 => {
                    tensors += usize::from(number == 5);
                    let tensor = self.fields.tensor(start, end)?;
                    self.tensor(&format!("a tensor of {}", node.label()), &tensor, false)?;
                }
                6 | 11 => {
                    graphs += usize::from(number == 6);
                    self.graph(start, end)?;
                }
                21 => {
                    return Err(GraphError::Unsupported("a reference to an attribute outside of a function"));
                }
                22 | 23 => return Err(GraphError::Unsupported("sparse tensors")),
                _ => {}
            }
            // Parsers merge the messages of one field into one.
            if tensors > 1 || graphs > 1 {
                return Err(GraphError::Unsupported("an attribute with two values"));
            }
        }
        Ok(())
    }

    /// Checks the type, the shape and the data of a tensor.
    fn tensor(&mut self, label: &str, tensor: &TensorFields, may_be_outside: bool) -> Result<(), GraphError> {
        let TensorFields { data_type, shape, data, data_bytes, data_location, external, .. } = tensor;
        let name = || label.to_owned();
        let bits = element_bits(*data_type)
            .ok_or_else(|| GraphError::DataType { tensor: name(), data_type: *data_type })?;
        let too_large = || GraphError::Shape { tensor: name(), shape: shape.clone() };
        let elements = shape
            .iter()
            .try_fold(1u64, |product, dim| (*dim <= MAX_DIM).then(|| product.checked_mul(*dim)).flatten());
        let elements = elements.ok_or_else(too_large)?;
        let size = |bits: u64| elements.checked_mul(bits).map(|bits| bits.div_ceil(8));
        let wrong =
            |found, expected| GraphError::Size { tensor: name(), shape: shape.clone(), found, expected };
        match (data_location, data) {
            (0, Some(Data::Inline { length, .. })) => {
                // Texts are never one array.
                let expected = bits.map_or(Some(*length), size).ok_or_else(too_large)?;
                if *length != expected {
                    return Err(wrong(*length, expected));
                }
            }
            // Each element takes a byte or more, except for several small ones in a number.
            (0, Some(_)) => {
                let least = elements.div_ceil(8 / bits.unwrap_or(8).min(8));
                if *data_bytes < least {
                    return Err(wrong(*data_bytes, least));
                }
            }
            (0, None) if elements > 0 => {
                return Err(wrong(0, size(bits.unwrap_or(8)).unwrap_or(u64::MAX)));
            }
            (0, None) => {}
            (1, _) if !may_be_outside => return Err(GraphError::Outside { tensor: name() }),
            (1, _) => {
                let size = bits.and_then(size).ok_or_else(too_large)?;
                if let Some(key) = external.odd_key.clone() {
                    return Err(GraphError::Key { tensor: name(), key });
                }
                if let Some(length) = external.length.filter(|length| *length != size) {
                    return Err(wrong(length, size));
                }
                let location = external.location.clone().unwrap_or_default();
                self.outside(label, location, external.offset, size)?;
            }
            (other, _) => {
                return Err(GraphError::DataLocation { tensor: name(), data_location: *other });
            }
        }
        Ok(())
    }

    /// Checks the place of a tensor in another file.
    fn outside(&mut self, label: &str, location: String, offset: u64, size: u64) -> Result<(), GraphError> {
        let tensor = label.to_owned();
        if !is_plain_path(&location) {
            return Err(GraphError::Location { tensor, location });
        }
        let Some(file_size) = (self.file_size)(&location) else {
            return Err(GraphError::MissingFile { tensor, location });
        };
        let end = offset.saturating_add(size);
        if end > file_size {
            return Err(GraphError::ShortFile { tensor, location, end, size: file_size });
        }
        self.found.locations.insert(location);
        Ok(())
    }

    /// Reads the name of a `ValueInfoProto`.
    fn value_name(&mut self, start: u64, end: u64) -> Result<String, OnnxError> {
        self.count_name()?;
        let mut name = String::new();
        let mut at = start;
        while at < end {
            if let Field { number: 1, value: Wire::Bytes { start, end } } = self.fields.field(&mut at, end)? {
                name = self.fields.text(start, end)?;
            }
        }
        if name.is_empty() { Err(OnnxError::Damaged { at: start }) } else { Ok(name) }
    }

    fn count_name(&mut self) -> Result<(), OnnxError> {
        self.names += 1;
        if self.names > MAX_NAMES { Err(OnnxError::LimitExceeded { what: "names" }) } else { Ok(()) }
    }

    fn is_defined(&self, name: &str) -> bool {
        self.scopes.iter().any(|scope| scope.contains(name))
    }

    /// Makes a name visible from here to the end of its graph.
    fn define(&mut self, place: impl FnOnce() -> String, name: &str) -> Result<(), GraphError> {
        self.count_name()?;
        if self.is_defined(name) {
            return Err(duplicate(place(), name.to_owned()));
        }
        let scope = self.scopes.last_mut().expect("a graph is being checked");
        scope.insert(name.to_owned());
        Ok(())
    }
}

fn duplicate(place: impl Into<String>, name: String) -> GraphError {
    GraphError::Duplicate { place: place.into(), name }
}

/// The size of an element of a `TensorProto.DataType`; the inner value is `None` for texts.
fn element_bits(data_type: u64) -> Option<Option<u64>> {
    Some(Some(match data_type {
        8 => return Some(None),
        25 | 26 => 2,
        21..=23 => 4,
        2 | 3 | 9 | 17..=20 | 24 => 8,
        4 | 5 | 10 | 16 => 16,
        1 | 6 | 12 => 32,
        7 | 11 | 13 | 14 => 64,
        15 => 128,
        _ => return None,
    }))
}

/// Whether a location is a relative path below the folder of the model. Runtimes give a meaning of their own
/// to some names with `*`.
fn is_plain_path(location: &str) -> bool {
    let is_plain = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.chars().any(|c| c.is_control() || matches!(c, '\\' | '*' | ':'))
    };
    location.split('/').all(is_plain)
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
