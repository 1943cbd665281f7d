//! Decoders: graphs that take new tokens with the keys and values of those before, and return the logits after them
//! and the keys and values of all.

use std::fmt::Debug;
use std::sync::Arc;

use ::ort::session::{RunOptions, Session, SessionInputValue};
use ::ort::value::{DynValue, PrimitiveTensorElementType, Tensor};

use super::super::{RowSelection, Slice, StepError};
use super::engine::{Computed, Graph};
use super::ports::{CachePort, DecoderPorts, Input, InputKind};
use super::run::{RunError, check_shape, floats, integers, run_unless};
use super::sequences::Sequences;

/// The most tokens of a run: the graph may compute the logits of all.
pub(super) const RUN_TOKENS: usize = 256;

/// How slices become runs of a decoder: one after the other.
pub(super) struct Decoder {
    pub(super) ports: DecoderPorts,
    /// The number of logits of a token.
    pub(super) width: usize,
}

/// The keys and values of a sequence as the graph returned them, in the order of [`DecoderPorts::cache`]; shared by
/// forks. They may have more tokens than the sequence, which keeps its first.
#[derive(Clone, Default)]
pub(super) struct Cache {
    /// Empty without tokens.
    values: Arc<Vec<DynValue>>,
    tokens: usize,
}

impl Graph for Decoder {
    type State = Cache;

    fn width(&self) -> usize {
        self.width
    }

    fn compute(
        &self,
        session: &mut Session,
        sequences: &Sequences<Cache>,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Vec<Computed<Cache>>, StepError> {
        let mut computed = Vec::with_capacity(slices.len());
        for slice in slices {
            let (cache, len) = match sequences.get(slice.sequence) {
                Some(sequence) => (sequence.state.clone(), sequence.len),
                None => (Cache::default(), 0),
            };
            let result = self.compute_slice(session, (cache, len), is_cancelled, slice);
            computed.push(result.map_err(|error| error.of_sequence(slice.sequence))?);
        }
        Ok(computed)
    }
}

impl Decoder {
    /// Computes a slice after the first `len` tokens of a cache. Returns the rows that it requests, and the keys and
    /// values of the whole sequence.
    fn compute_slice(
        &self,
        session: &mut Session,
        (mut cache, mut len): (Cache, usize),
        is_cancelled: &dyn Fn() -> bool,
        slice: &Slice<'_>,
    ) -> Result<Computed<Cache>, RunError> {
        let (ports, width) = (&self.ports, self.width);
        let mut rows = Vec::new();
        let mut rest = slice.tokens;
        while let Some((tokens, after)) = rest.split_at_checked(rest.len().min(RUN_TOKENS))
            && !tokens.is_empty()
        {
            rest = after;
            let wanted = match slice.want {
                RowSelection::All => tokens.len(),
                RowSelection::Last if rest.is_empty() => 1,
                _ => 0,
            };
            let past = cache;
            let run = Run { tokens, len, past, wanted, width };
            let session = &mut *session;
            let (logits, present) = run_unless(is_cancelled, |options| run.compute(session, ports, options))?;
            rows.extend(logits);
            cache = present;
            len += tokens.len();
        }
        Ok((rows, cache))
    }
}

/// One run of the graph.
struct Run<'a> {
    /// The new tokens, at least one.
    tokens: &'a [u32],
    /// The number of tokens before them.
    len: usize,
    past: Cache,
    /// For how many of the last new tokens logits are wanted.
    wanted: usize,
    /// The number of logits of a token.
    width: usize,
}

impl Run<'_> {
    fn compute(
        self,
        session: &mut Session,
        ports: &DecoderPorts,
        options: &RunOptions,
    ) -> Result<Computed<Cache>, RunError> {
        let new = self.tokens.len();
        let total = self.len + new;
        let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::new();
        for input in &ports.inputs {
            inputs.push((&input.name, self.numbers(input)?.into()));
        }
        if let Some((name, is_vector)) = &ports.logits_to_keep {
            // 0 stands for all.
            let keep = vec![self.wanted.max(1) as i64];
            let shape: &[usize] = if *is_vector { &[1] } else { &[] };
            inputs.push((name, integers(shape, keep, true)?.into()));
        }
        let is_whole = self.past.tokens == self.len && self.len > 0;
        for (at, port) in ports.cache.iter().enumerate() {
            let past = match self.past.values.get(at) {
                Some(value) if is_whole => value.into(),
                Some(value) => port.first_tokens(value, self.len)?.into(),
                None => port.empty()?.into(),
            };
            inputs.push((&port.past, past));
        }
        let mut outputs = session.run_with_options(inputs, options)?;
        let mut values = Vec::with_capacity(ports.cache.len());
        for port in &ports.cache {
            let value = outputs.remove(&port.present).ok_or_else(|| RunError::no_output(&port.present))?;
            port.check(&value, total)?;
            values.push(value);
        }
        let logits = match self.wanted {
            0 => Vec::new(),
            wanted => {
                let output = outputs.get(&ports.logits).ok_or_else(|| RunError::no_output(&ports.logits))?;
                let (found, logits) = floats(output)?;
                // Some graphs compute the last rows only.
                let rows = found.get(1).map_or(0, |rows| usize::try_from(*rows).unwrap_or(0));
                let expected = rows.clamp(wanted, new);
                check_shape(&ports.logits, found, &[1, expected as i64, self.width as i64])?;
                logits[(expected - wanted) * self.width..].to_vec()
            }
        };
        Ok((logits, Cache { values: Arc::new(values), tokens: total }))
    }

    /// The numbers of an input.
    fn numbers(&self, input: &Input) -> ::ort::Result<DynValue> {
        let (new, total) = (self.tokens.len(), self.len + self.tokens.len());
        let numbers: Vec<i64> = match input.kind {
            InputKind::Ids => self.tokens.iter().map(|id| i64::from(*id)).collect(),
            // Also for the tokens before.
            InputKind::Mask => vec![1; total],
            InputKind::Types => vec![0; new],
            InputKind::Positions => (self.len as i64..total as i64).collect(),
        };
        integers(&[1, numbers.len()], numbers, input.is_long)
    }
}

impl CachePort {
    /// Keys or values of no tokens.
    fn empty(&self) -> ::ort::Result<DynValue> {
        let shape = [1, self.heads, 0, self.head_dim];
        match self.is_half {
            true => Ok(Tensor::from_array((shape, Vec::<half::f16>::new()))?.into_dyn()),
            false => Ok(Tensor::from_array((shape, Vec::<f32>::new()))?.into_dyn()),
        }
    }

    /// The keys or values of the first `len` tokens.
    fn first_tokens(&self, value: &DynValue, len: usize) -> ::ort::Result<DynValue> {
        match self.is_half {
            true => self.first_tokens_of::<half::f16>(value, len),
            false => self.first_tokens_of::<f32>(value, len),
        }
    }

    fn first_tokens_of<T: PrimitiveTensorElementType + Copy + Debug + 'static>(
        &self,
        value: &DynValue,
        len: usize,
    ) -> ::ort::Result<DynValue> {
        let (shape, numbers) = value.try_extract_tensor::<T>()?;
        let tokens = shape.get(2).map_or(0, |tokens| *tokens as usize);
        let heads = numbers.chunks_exact((tokens * self.head_dim).max(1));
        let first: Vec<T> =
            heads.flat_map(|head| &head[..len.min(tokens) * self.head_dim]).copied().collect();
        Ok(Tensor::from_array(([1, self.heads, len, self.head_dim], first))?.into_dyn())
    }

    /// Fails unless the graph returned keys or values of this many tokens.
    fn check(&self, value: &DynValue, tokens: usize) -> Result<(), RunError> {
        let shape = match self.is_half {
            true => value.try_extract_tensor::<half::f16>()?.0,
            false => value.try_extract_tensor::<f32>()?.0,
        };
        let expected = [1, self.heads as i64, tokens as i64, self.head_dim as i64];
        check_shape(&self.present, shape, &expected)
    }
}
