//! Decoders: graphs that take new tokens with the keys and values of those before, and return the logits after them
//! and the keys and values of all.

use std::time::{Duration, Instant};

use ::ort::session::{RunOptions, Session, SessionInputValue};
use ::ort::value::{DynValue, Tensor};

use super::super::{RowSelection, Slice, StepError};
use super::cache::{Cache, Member, Past};
use super::engine::{Computed, Graph};
use super::grouping::{Sharing, group};
use super::ports::{DecoderPorts, Input, InputKind};
use super::run::{RunError, check_shape, floats, integers, run_unless};
use super::sequences::Sequences;

/// The most tokens of a sequence in a run: the graph may compute the logits of all.
pub(super) const RUN_TOKENS: usize = 256;
/// The tokens that a merged decoder computes when it is loaded, and how many of them come first.
const PROBE_TOKENS: usize = 12;
const PROBE_PAST: usize = 4;
/// A graph that needs longer appends one token at a time.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// The largest difference of two results for the same tokens, as a part of the range of the logits.
const PROBE_TOLERANCE: f32 = 1.0 / 500.0;

/// How slices become runs of a decoder: those of one token share runs, the others are computed one after the other.
pub(super) struct Decoder {
    pub(super) ports: DecoderPorts,
    /// Which sequences may share a run.
    pub(super) sharing: Sharing,
    /// The number of logits of a token.
    pub(super) width: usize,
    /// Whether a run may append several tokens to a sequence that is not empty.
    pub(super) appends_several: bool,
}

impl Graph for Decoder {
    type State = Cache;

    fn width(&self) -> usize {
        self.width
    }

    fn prepare(&self, sequences: &mut Sequences<Cache>, slices: &[Slice<'_>]) {
        // A sequence that is not in this step must not keep the tensors of the others in memory.
        sequences.update(|id, len, cache| {
            if !cache.is_shared() || slices.iter().any(|slice| slice.sequence == id) {
                return;
            }
            match cache.alone(&self.ports.cache, len) {
                Ok(copy) => *cache = copy,
                Err(error) => tracing::debug!(%error, "failed to copy the keys and values of a sequence"),
            }
        });
    }

    fn compute(
        &self,
        session: &mut Session,
        sequences: &Sequences<Cache>,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Vec<Computed<Cache>>, StepError> {
        let nothing = Cache::default();
        let member = |slice: &Slice<'_>| match sequences.get(slice.sequence) {
            Some(sequence) => (&sequence.state, sequence.len),
            None => (&nothing, 0),
        };
        let members: Vec<Member<'_>> = slices
            .iter()
            .map(|slice| (slice, member(slice)))
            .map(|(slice, (cache, len))| Member { tokens: slice.tokens, cache, len })
            .collect();
        let mut computed = vec![Computed::default(); slices.len()];
        let mut alone: Vec<usize> = (0..slices.len()).filter(|at| slices[*at].tokens.len() > 1).collect();
        for group in self.groups(&members) {
            if group.len() == 1 {
                alone.extend(group);
                continue;
            }
            let batch: Vec<Member<'_>> = group.iter().map(|at| members[*at]).collect();
            let wanted = usize::from(group.iter().any(|at| slices[*at].want != RowSelection::Nothing));
            match self.run(session, is_cancelled, &batch, wanted) {
                Ok(results) => {
                    for (at, (rows, cache)) in group.into_iter().zip(results) {
                        let is_wanted = slices[at].want != RowSelection::Nothing;
                        computed[at] = (if is_wanted { rows } else { Vec::new() }, cache);
                    }
                }
                Err(RunError::Cancelled) => return Err(StepError::Cancelled),
                // Which of them failed shows when each is computed alone.
                Err(RunError::Failed(reason)) => {
                    tracing::debug!(reason, "a run of several sequences failed");
                    alone.extend(group);
                }
            }
        }
        for at in alone {
            let result = self.compute_slice(session, is_cancelled, members[at], slices[at].want);
            computed[at] = result.map_err(|error| error.of_sequence(slices[at].sequence))?;
        }
        Ok(computed)
    }
}

impl Decoder {
    /// Checks a merged decoder with a few tokens of a context of `context_length`. Some exporters trace its branch for
    /// keys and values with one new token, so that several would see those after them. Other decoders have one branch.
    pub(super) fn probe(&mut self, session: &mut Session, context_length: usize) {
        if self.ports.cache_branch.is_none() {
            return;
        }
        self.appends_several = true;
        self.appends_several = self.is_right_in_pieces(session, context_length).unwrap_or_else(|error| {
            let reason = if let RunError::Failed(reason) = &error { reason } else { "it takes too long" };
            tracing::debug!(reason, "a merged decoder cannot append several tokens in one run");
            false
        });
        if !self.appends_several {
            tracing::info!(
                "this merged ONNX decoder appends one token at a time to earlier ones, so long prompts are slow; \
                 an export without `use_cache_branch` is faster"
            );
        }
    }

    /// Whether tokens have the same logits in one run as in two, the second of which appends several.
    fn is_right_in_pieces(&self, session: &mut Session, context_length: usize) -> Result<bool, RunError> {
        let count = PROBE_TOKENS.min(context_length);
        // The first ids are often special tokens.
        let first = if self.width >= 10 * PROBE_TOKENS { self.width / 2 } else { 0 };
        let tokens: Vec<u32> = (first..self.width).cycle().take(count).map(|id| id as u32).collect();
        let Some((past, new)) = tokens.split_at_checked(PROBE_PAST) else { return Ok(false) };
        let nothing = Cache::default();
        let start = Member { tokens: &tokens, cache: &nothing, len: 0 };
        let started = Instant::now();
        let is_late = || started.elapsed() > PROBE_TIMEOUT;
        let (whole, _) = self.compute_slice(session, &is_late, start, RowSelection::All)?;
        let start = Member { tokens: past, ..start };
        let (_, cache) = self.compute_slice(session, &is_late, start, RowSelection::Nothing)?;
        let rest = Member { tokens: new, cache: &cache, len: past.len() };
        let (rows, _) = self.compute_slice(session, &is_late, rest, RowSelection::All)?;
        let expected = &whole[past.len() * self.width..];
        let (min, max) = expected.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
        let tolerance = (max - min) * PROBE_TOLERANCE;
        let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= tolerance;
        Ok(new.len() > 1 && rows.len() == expected.len() && rows.iter().zip(expected).all(is_close))
    }

    /// Groups the members with one new token, as positions. The members of a group keep their order, so that the next
    /// step can use the tensors of this one.
    fn groups(&self, members: &[Member<'_>]) -> Vec<Vec<usize>> {
        let single: Vec<usize> = (0..members.len()).filter(|at| members[*at].tokens.len() == 1).collect();
        let lengths: Vec<usize> = single.iter().map(|at| members[*at].len + 1).collect();
        let mut groups = group(&lengths, self.sharing, usize::MAX);
        for group in &mut groups {
            group.iter_mut().for_each(|at| *at = single[*at]);
            group.sort_unstable();
        }
        groups
    }

    /// Computes a slice in pieces. Returns the rows that it requests, and the keys and values of the whole sequence.
    fn compute_slice(
        &self,
        session: &mut Session,
        is_cancelled: &dyn Fn() -> bool,
        member: Member<'_>,
        want: RowSelection,
    ) -> Result<Computed<Cache>, RunError> {
        let Member { mut tokens, cache, mut len } = member;
        let (mut rows, mut cache) = (Vec::new(), cache.clone());
        let limit = |len: usize| if len > 0 && !self.appends_several { 1 } else { RUN_TOKENS };
        while let Some((piece, rest)) = tokens.split_at_checked(tokens.len().min(limit(len)))
            && !piece.is_empty()
        {
            tokens = rest;
            let wanted = match want {
                RowSelection::All => piece.len(),
                RowSelection::Last if rest.is_empty() => 1,
                _ => 0,
            };
            let member = Member { tokens: piece, cache: &cache, len };
            let result = self.run(session, is_cancelled, &[member], wanted)?;
            for (logits, present) in result {
                rows.extend(logits);
                cache = present;
            }
            len += piece.len();
        }
        Ok((rows, cache))
    }

    /// Runs the graph once. Returns the logits of the last `wanted` tokens of each member, and its keys and values.
    fn run(
        &self,
        session: &mut Session,
        is_cancelled: &dyn Fn() -> bool,
        members: &[Member<'_>],
        wanted: usize,
    ) -> Result<Vec<Computed<Cache>>, RunError> {
        run_unless(is_cancelled, |options| self.run_with(session, options, members, wanted))
    }

    fn run_with(
        &self,
        session: &mut Session,
        options: &RunOptions,
        members: &[Member<'_>],
        wanted: usize,
    ) -> Result<Vec<Computed<Cache>>, RunError> {
        let ports = &self.ports;
        let new = members.first().map_or(0, |member| member.tokens.len());
        let past = Past::of(&ports.cache, members)?;
        let total = past.tokens + new;
        let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::new();
        for input in &ports.inputs {
            inputs.push((&input.name, numbers(input, members, new, total)?.into()));
        }
        if let Some((name, is_vector)) = &ports.logits_to_keep {
            // 0 stands for all.
            let keep = vec![wanted.max(1) as i64];
            let shape: &[usize] = if *is_vector { &[1] } else { &[] };
            inputs.push((name, integers(shape, keep, true)?.into()));
        }
        if let Some((name, is_vector)) = &ports.cache_branch {
            let shape: &[usize] = if *is_vector { &[1] } else { &[] };
            inputs.push((name, Tensor::from_array((shape, vec![past.tokens > 0]))?.into()));
        }
        let past_names = ports.cache.iter().map(|port| port.past.as_str());
        inputs.extend(past_names.zip(past.values));
        let mut outputs = session.run_with_options(inputs, options)?;
        let mut values = Vec::with_capacity(ports.cache.len());
        for port in &ports.cache {
            let value = outputs.remove(&port.present).ok_or_else(|| RunError::no_output(&port.present))?;
            port.check(&value, members.len(), total)?;
            values.push(value);
        }
        let mut rows = vec![Vec::new(); members.len()];
        if wanted > 0 {
            let output = outputs.get(&ports.logits).ok_or_else(|| RunError::no_output(&ports.logits))?;
            let (found, logits) = floats(output)?;
            // Some graphs compute the last rows only.
            let computed = found.get(1).map_or(0, |rows| usize::try_from(*rows).unwrap_or(0));
            let computed = computed.clamp(wanted, new);
            check_shape(&ports.logits, found, &[members.len() as i64, computed as i64, self.width as i64])?;
            for (row, rows) in rows.iter_mut().enumerate() {
                let end = (row + 1) * computed * self.width;
                *rows = logits[end - wanted * self.width..end].to_vec();
            }
        }
        Ok(rows.into_iter().zip(Cache::of_run(values, total, members)).collect())
    }
}

/// The numbers of an input, for `new` tokens of each member. `total` is their number with those before and padding.
fn numbers(input: &Input, members: &[Member<'_>], new: usize, total: usize) -> ::ort::Result<DynValue> {
    let mut numbers: Vec<i64> = Vec::with_capacity(members.len() * total);
    for Member { tokens, len, .. } in members {
        match input.kind {
            InputKind::Ids => numbers.extend(tokens.iter().map(|id| i64::from(*id))),
            // Also for the tokens before.
            InputKind::Mask => {
                let padding = total - new - len;
                numbers.extend((0..total).map(|at| i64::from(at >= padding)));
            }
            InputKind::Types => numbers.extend(std::iter::repeat_n(0, new)),
            InputKind::Positions => numbers.extend(*len as i64..(len + new) as i64),
        }
    }
    integers(&[members.len(), numbers.len() / members.len().max(1)], numbers, input.is_long)
}
