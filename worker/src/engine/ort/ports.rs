//! The inputs of a graph by their names, and the output that is used.

use ::ort::session::Session;
use ::ort::value::{Outlet, TensorElementType, ValueType};

/// The names of outputs with a hidden state for each token, of those with one for each text, and of those
/// with the classes of each text.
const HIDDEN_OUTPUTS: [&str; 3] = ["last_hidden_state", "token_embeddings", "hidden_states"];
const POOLED_OUTPUT: &str = "sentence_embedding";
const CLASSES_OUTPUT: &str = "logits";

/// The inputs of a graph, and the output that is used.
pub(super) struct Ports {
    pub(super) inputs: Vec<Input>,
    pub(super) output: String,
    pub(super) kind: OutputKind,
    /// The number of values in a row, if the graph states it.
    pub(super) width: Option<usize>,
}

/// What a row of the output stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputKind {
    /// A token: hidden states.
    Tokens,
    /// A text: an embedding.
    Pooled,
    /// A text: its classes.
    Classes,
}

pub(super) struct Input {
    pub(super) name: String,
    pub(super) kind: InputKind,
    /// Whether its numbers have 64 bits rather than 32.
    pub(super) is_long: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    Ids,
    Mask,
    Types,
    Positions,
}

impl InputKind {
    pub(super) const NAMES: [(&str, InputKind); 4] = [
        ("input_ids", InputKind::Ids),
        ("attention_mask", InputKind::Mask),
        ("token_type_ids", InputKind::Types),
        ("position_ids", InputKind::Positions),
    ];

    pub(super) fn of_name(name: &str) -> Option<InputKind> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

impl Ports {
    pub(super) fn of(session: &Session) -> Result<Ports, String> {
        let mut inputs = Vec::new();
        for outlet in session.inputs() {
            let name = outlet.name().to_owned();
            let is_long = match tensor_type(outlet) {
                Some((TensorElementType::Int64, [_, _])) => true,
                Some((TensorElementType::Int32, [_, _])) => false,
                _ => return Err(format!("its input `{name}` is not a matrix of int64 or int32 numbers")),
            };
            // Inputs with a default may have any name.
            if let Some(kind) = InputKind::of_name(&name) {
                inputs.push(Input { name, kind, is_long });
            }
        }
        let is_number =
            |ty: TensorElementType| matches!(ty, TensorElementType::Float32 | TensorElementType::Float16);
        let of_rank = |outlet: &&Outlet, rank: usize| {
            tensor_type(outlet).is_some_and(|(ty, shape)| is_number(ty) && shape.len() == rank)
        };
        let outputs = session.outputs();
        let named =
            HIDDEN_OUTPUTS.iter().find_map(|name| outputs.iter().find(|outlet| outlet.name() == *name));
        let hidden = named.filter(|outlet| of_rank(outlet, 3));
        // Logits of tokens have three axes, too, but are no hidden states.
        let first = || outputs.iter().find(|outlet| of_rank(outlet, 3) && outlet.name() != CLASSES_OUTPUT);
        let by_text = |name: &str| outputs.iter().find(|outlet| outlet.name() == name && of_rank(outlet, 2));
        let found = hidden.or_else(first).map(|output| (output, OutputKind::Tokens));
        let found = found.or_else(|| Some((by_text(POOLED_OUTPUT)?, OutputKind::Pooled)));
        let found = found.or_else(|| Some((by_text(CLASSES_OUTPUT)?, OutputKind::Classes)));
        let Some((output, kind)) = found else {
            let names: Vec<&str> = outputs.iter().map(Outlet::name).collect();
            return Err(format!(
                "it has no output with a hidden state for each token, such as `{}`, and none with the classes of a text, \
                 `{CLASSES_OUTPUT}` (its outputs: `{}`); export it for feature extraction or text classification",
                HIDDEN_OUTPUTS[0],
                names.join("`, `")
            ));
        };
        let shape = tensor_type(output).map_or(&[][..], |(_, shape)| shape);
        Ok(Ports {
            inputs,
            output: output.name().to_owned(),
            kind,
            width: shape.last().and_then(|width| usize::try_from(*width).ok()).filter(|width| *width > 0),
        })
    }
}

fn tensor_type(outlet: &Outlet) -> Option<(TensorElementType, &[i64])> {
    match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } => Some((*ty, shape)),
        _ => None,
    }
}
