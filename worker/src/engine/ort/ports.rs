//! The inputs and outputs of graphs by their names: of encoders, and of decoders with a cache of keys and values.

use ::ort::session::Session;
use ::ort::value::{Outlet, TensorElementType, ValueType};
use lode_model::onnx;

/// The names of outputs with a hidden state for each token, of those with one for each text, and of those
/// with the classes of each text.
const HIDDEN_OUTPUTS: [&str; 3] = ["last_hidden_state", "token_embeddings", "hidden_states"];
const POOLED_OUTPUT: &str = "sentence_embedding";
/// Classes of each text, or the logits after each token of a decoder.
const LOGITS_OUTPUT: &str = "logits";
/// What the names of a decoder's inputs and outputs with keys and values begin with. The rest is equal:
/// `past_key_values.0.key` and `present.0.key`.
const PAST: &str = "past_key_values.";
const PRESENT: &str = "present.";
/// The input with the number of last tokens for which a decoder computes logits.
const LOGITS_TO_KEEP: &str = "num_logits_to_keep";
/// The input of a merged decoder that selects its branch with keys and values of earlier tokens.
const CACHE_BRANCH: &str = "use_cache_branch";

/// What a graph computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraphKind {
    /// Hidden states or classes of whole texts.
    Encoder,
    /// The logits of the next token, from new tokens and the keys and values of those before.
    Decoder,
}

/// An input with a number for each token.
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

/// The inputs of an encoder, and the output that is used.
pub(super) struct EncoderPorts {
    pub(super) inputs: Vec<Input>,
    pub(super) output: String,
    pub(super) kind: OutputKind,
    /// The number of values in a row, if the graph states it.
    pub(super) width: Option<usize>,
}

/// What a row of an encoder's output stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputKind {
    /// A token: hidden states.
    Tokens,
    /// A text: an embedding.
    Pooled,
    /// A text: its classes.
    Classes,
}

/// The inputs and outputs of a decoder.
pub(super) struct DecoderPorts {
    pub(super) inputs: Vec<Input>,
    /// The input with the number of logits to compute, and whether it is a vector of one number.
    pub(super) logits_to_keep: Option<(String, bool)>,
    /// The input of a merged decoder that is true if there are earlier tokens, and whether it is a vector of one value.
    pub(super) cache_branch: Option<(String, bool)>,
    pub(super) logits: String,
    /// The number of logits of a token, if the graph states it.
    pub(super) width: Option<usize>,
    pub(super) cache: Vec<CachePort>,
}

/// The keys or the values of a layer: [sequences, heads, tokens, head_dim].
pub(super) struct CachePort {
    /// The input for the tokens before.
    pub(super) past: String,
    /// The output for those and the new ones.
    pub(super) present: String,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) is_half: bool,
}

/// Tells encoders and decoders apart by the names of their inputs and outputs, and refuses other graphs.
pub(super) fn graph_kind(graph: &onnx::Graph) -> Result<GraphKind, String> {
    let is_decoder = graph.inputs.iter().any(|name| name.starts_with(PAST));
    let is_known = |name: &str| {
        InputKind::of_name(name).is_some()
            || is_decoder && (name.starts_with(PAST) || [LOGITS_TO_KEEP, CACHE_BRANCH].contains(&name))
    };
    if let Some(name) = graph.inputs.iter().find(|name| !is_known(name)) {
        let known = InputKind::NAMES.map(|(known, _)| known).join("`, `");
        let of_decoder = || format!("`, `{LOGITS_TO_KEEP}`, `{CACHE_BRANCH}`, `{PAST}*");
        let cache = if is_decoder { of_decoder() } else { String::new() };
        return Err(format!("its input `{name}` is not supported (supported: `{known}{cache}`)"));
    }
    if !graph.inputs.iter().any(|name| name == "input_ids") {
        return Err("it has no input `input_ids`".to_owned());
    }
    if is_decoder {
        return Ok(GraphKind::Decoder);
    }
    if let Some(name) = graph.outputs.iter().find(|name| name.starts_with("present")) {
        return Err(format!(
            "it returns keys and values (`{name}`), but takes none of earlier tokens; export a decoder with both \
             (task `text-generation-with-past`)"
        ));
    }
    Ok(GraphKind::Encoder)
}

impl InputKind {
    const NAMES: [(&str, InputKind); 4] = [
        ("input_ids", InputKind::Ids),
        ("attention_mask", InputKind::Mask),
        ("token_type_ids", InputKind::Types),
        ("position_ids", InputKind::Positions),
    ];

    fn of_name(name: &str) -> Option<InputKind> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

impl Input {
    /// `None` for an input with a default, which may have any name.
    fn of(outlet: &Outlet) -> Result<Option<Input>, String> {
        let name = outlet.name().to_owned();
        let is_long = match tensor_type(outlet) {
            Some((TensorElementType::Int64, [_, _])) => true,
            Some((TensorElementType::Int32, [_, _])) => false,
            _ => return Err(format!("its input `{name}` is not a matrix of int64 or int32 numbers")),
        };
        Ok(InputKind::of_name(&name).map(|kind| Input { name, kind, is_long }))
    }
}

impl EncoderPorts {
    pub(super) fn of(session: &Session) -> Result<EncoderPorts, String> {
        let mut inputs = Vec::new();
        for outlet in session.inputs() {
            inputs.extend(Input::of(outlet)?);
        }
        let outputs = session.outputs();
        let named =
            HIDDEN_OUTPUTS.iter().find_map(|name| outputs.iter().find(|outlet| outlet.name() == *name));
        let hidden = named.filter(|outlet| is_float(outlet, 3));
        // Logits of tokens have three axes, too, but are no hidden states.
        let first = || outputs.iter().find(|outlet| is_float(outlet, 3) && outlet.name() != LOGITS_OUTPUT);
        let by_text = |name: &str| outputs.iter().find(|outlet| outlet.name() == name && is_float(outlet, 2));
        let found = hidden.or_else(first).map(|output| (output, OutputKind::Tokens));
        let found = found.or_else(|| Some((by_text(POOLED_OUTPUT)?, OutputKind::Pooled)));
        let found = found.or_else(|| Some((by_text(LOGITS_OUTPUT)?, OutputKind::Classes)));
        let Some((output, kind)) = found else {
            return Err(format!(
                "it has no output with a hidden state for each token, such as `{}`, and none with the classes of a text, \
                 `{LOGITS_OUTPUT}` ({}); export it for feature extraction or text classification, or a decoder \
                 for `text-generation-with-past`",
                HIDDEN_OUTPUTS[0],
                list_outputs(outputs)
            ));
        };
        Ok(EncoderPorts { inputs, output: output.name().to_owned(), kind, width: row_width(output) })
    }
}

impl DecoderPorts {
    pub(super) fn of(session: &Session) -> Result<DecoderPorts, String> {
        let outputs = session.outputs();
        let (mut inputs, mut cache) = (Vec::new(), Vec::new());
        let (mut logits_to_keep, mut cache_branch) = (None, None);
        for outlet in session.inputs() {
            let name = outlet.name();
            if let Some(rest) = name.strip_prefix(PAST) {
                cache.push(CachePort::of(outlet, format!("{PRESENT}{rest}"), outputs)?);
            } else if name == LOGITS_TO_KEEP {
                let is_vector = match tensor_type(outlet) {
                    Some((TensorElementType::Int64, [])) => false,
                    Some((TensorElementType::Int64, [_])) => true,
                    _ => return Err(format!("its input `{name}` is not an int64 number")),
                };
                logits_to_keep = Some((name.to_owned(), is_vector));
            } else if name == CACHE_BRANCH {
                let is_vector = match tensor_type(outlet) {
                    Some((TensorElementType::Bool, [])) => false,
                    Some((TensorElementType::Bool, [_])) => true,
                    _ => return Err(format!("its input `{name}` is not one bool")),
                };
                cache_branch = Some((name.to_owned(), is_vector));
            } else {
                if let Some((_, &[_, tokens])) = tensor_type(outlet)
                    && tokens > 0
                {
                    return Err(format!(
                        "its input `{name}` takes exactly {tokens} tokens at a time, expected any number"
                    ));
                }
                inputs.extend(Input::of(outlet)?);
            }
        }
        let logits = outputs.iter().find(|outlet| outlet.name() == LOGITS_OUTPUT && is_float(outlet, 3));
        let logits = logits.ok_or_else(|| {
            format!(
                "it has no output `{LOGITS_OUTPUT}` with a row for each token ({})",
                list_outputs(outputs)
            )
        })?;
        let width = row_width(logits);
        let logits = LOGITS_OUTPUT.to_owned();
        Ok(DecoderPorts { inputs, logits_to_keep, cache_branch, logits, width, cache })
    }
}

impl CachePort {
    fn of(input: &Outlet, present: String, outputs: &[Outlet]) -> Result<CachePort, String> {
        let past = input.name().to_owned();
        let axis = |length: i64| usize::try_from(length).ok().filter(|length| *length > 0);
        let known = tensor_type(input).and_then(|(ty, shape)| match (ty, shape) {
            (TensorElementType::Float32, &[_, heads, _, dim]) => Some((false, axis(heads)?, axis(dim)?)),
            (TensorElementType::Float16, &[_, heads, _, dim]) => Some((true, axis(heads)?, axis(dim)?)),
            _ => None,
        });
        let Some((is_half, heads, head_dim)) = known else {
            return Err(format!(
                "its input `{past}` is not a tensor of float32 or float16 numbers of the shape \
                 [batch, heads, tokens, head size], with the numbers of heads and of their values"
            ));
        };
        if !outputs.iter().any(|outlet| outlet.name() == present) {
            return Err(format!(
                "it has no output `{present}` for its input `{past}` ({})",
                list_outputs(outputs)
            ));
        }
        Ok(CachePort { past, present, heads, head_dim, is_half })
    }

    /// The bytes of a token.
    pub(super) fn token_bytes(&self) -> usize {
        self.heads.saturating_mul(self.head_dim).saturating_mul(if self.is_half { 2 } else { 4 })
    }
}

/// Whether the graph takes an exact number of texts.
pub(super) fn has_fixed_batch(session: &Session) -> bool {
    let batch = |outlet: &Outlet| tensor_type(outlet).and_then(|(_, shape)| shape.first().copied());
    let ids =
        session.inputs().iter().find(|outlet| InputKind::of_name(outlet.name()) == Some(InputKind::Ids));
    ids.and_then(batch).is_some_and(|texts| texts > 0)
}

fn tensor_type(outlet: &Outlet) -> Option<(TensorElementType, &[i64])> {
    match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } => Some((*ty, shape)),
        _ => None,
    }
}

/// Whether an output is a tensor of float32 or float16 numbers with this number of axes.
fn is_float(outlet: &Outlet, rank: usize) -> bool {
    tensor_type(outlet).is_some_and(|(ty, shape)| {
        matches!(ty, TensorElementType::Float32 | TensorElementType::Float16) && shape.len() == rank
    })
}

/// The length of an output's last axis, if the graph states it.
fn row_width(outlet: &Outlet) -> Option<usize> {
    let (_, shape) = tensor_type(outlet)?;
    usize::try_from(*shape.last()?).ok().filter(|width| *width > 0)
}

fn list_outputs(outputs: &[Outlet]) -> String {
    let names: Vec<&str> = outputs.iter().map(Outlet::name).collect();
    format!("its outputs: `{}`", names.join("`, `"))
}
