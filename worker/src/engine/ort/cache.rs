//! The keys and values of a decoder's sequences.

use std::fmt::Debug;
use std::sync::Arc;

use ::ort::session::SessionInputValue;
use ::ort::value::{DynValue, PrimitiveTensorElementType, Tensor};

use super::ports::CachePort;
use super::run::{RunError, check_shape};

/// The keys and values of a sequence: one row of the tensors that its last run returned. Forks share them. There may
/// be more tokens than the sequence has, which keeps its first.
#[derive(Clone, Default)]
pub(super) struct Cache {
    /// `None` without tokens.
    batch: Option<Arc<Batch>>,
    row: usize,
    /// The tokens of the row before the first one of the sequence.
    padding: usize,
}

/// The keys and values that a run returned, in the order of `DecoderPorts::cache`: [rows, heads, tokens, head_dim].
struct Batch {
    values: Vec<DynValue>,
    rows: usize,
    tokens: usize,
}

/// A sequence of a run.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    /// The new tokens: at least one, and the same number for each member of a run.
    pub(super) tokens: &'a [u32],
    pub(super) cache: &'a Cache,
    /// The number of tokens before.
    pub(super) len: usize,
}

/// The keys and values that a run is given, with the same number of tokens for each member. Shorter sequences have
/// padding before their first token.
pub(super) struct Past<'a> {
    /// In the order of the ports.
    pub(super) values: Vec<SessionInputValue<'a>>,
    pub(super) tokens: usize,
}

impl Cache {
    /// The caches of the members of a run, from the keys and values that it returned. `tokens` is the number of
    /// tokens with padding.
    pub(super) fn of_run(values: Vec<DynValue>, tokens: usize, members: &[Member<'_>]) -> Vec<Cache> {
        let batch = Arc::new(Batch { values, rows: members.len(), tokens });
        let cache = |(row, member): (usize, &Member<'_>)| {
            let padding = tokens - (member.len + member.tokens.len());
            Cache { batch: Some(batch.clone()), row, padding }
        };
        members.iter().enumerate().map(cache).collect()
    }

    /// Whether its tensors also hold other sequences.
    pub(super) fn is_shared(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.rows > 1)
    }

    /// Copies the first `len` tokens into tensors that hold no other sequence.
    pub(super) fn alone(&self, ports: &[CachePort], len: usize) -> ::ort::Result<Cache> {
        let member = Member { tokens: &[], cache: self, len };
        let copy = |(at, port): (usize, &CachePort)| port.gather(at, &[member], len);
        let values = ports.iter().enumerate().map(copy).collect::<::ort::Result<_>>()?;
        Ok(Cache { batch: Some(Arc::new(Batch { values, rows: 1, tokens: len })), row: 0, padding: 0 })
    }
}

impl<'a> Past<'a> {
    /// The keys and values of the members: as the last run returned them if it had the same members, or else a copy.
    pub(super) fn of(ports: &[CachePort], members: &[Member<'a>]) -> ::ort::Result<Past<'a>> {
        if let Some(batch) = unchanged(members) {
            return Ok(Past { values: batch.values.iter().map(Into::into).collect(), tokens: batch.tokens });
        }
        let tokens = members.iter().map(|member| member.len).max().unwrap_or(0);
        let copy = |(at, port): (usize, &CachePort)| Ok(port.gather(at, members, tokens)?.into());
        Ok(Past { values: ports.iter().enumerate().map(copy).collect::<::ort::Result<_>>()?, tokens })
    }
}

/// The batch of which these members are all rows, in order and with all their tokens.
fn unchanged<'a>(members: &[Member<'a>]) -> Option<&'a Batch> {
    let batch = members.first()?.cache.batch.as_ref()?;
    let is_row = |(row, member): (usize, &Member<'_>)| {
        let Cache { batch: other, row: found, padding } = member.cache;
        let is_same = other.as_ref().is_some_and(|other| Arc::ptr_eq(batch, other));
        is_same && *found == row && padding + member.len == batch.tokens
    };
    let is_unchanged = batch.rows == members.len() && members.iter().enumerate().all(is_row);
    is_unchanged.then_some(&**batch)
}

impl CachePort {
    /// Copies the keys or values of the members into one tensor of `tokens` tokens each, the last ones of which are
    /// those of the member. `at` is the place of this port.
    fn gather(&self, at: usize, members: &[Member<'_>], tokens: usize) -> ::ort::Result<DynValue> {
        match self.is_half {
            true => self.gather_of::<half::f16>(at, members, tokens),
            false => self.gather_of::<f32>(at, members, tokens),
        }
    }

    fn gather_of<T: PrimitiveTensorElementType + Copy + Debug + Default + 'static>(
        &self,
        at: usize,
        members: &[Member<'_>],
        tokens: usize,
    ) -> ::ort::Result<DynValue> {
        let (heads, dim) = (self.heads, self.head_dim);
        let mut gathered = vec![T::default(); members.len() * heads * tokens * dim];
        for (row, Member { cache, len, .. }) in members.iter().enumerate() {
            let Some(batch) = &cache.batch else { continue };
            let (_, numbers) = batch.values[at].try_extract_tensor::<T>()?;
            for head in 0..heads {
                let from = ((cache.row * heads + head) * batch.tokens + cache.padding) * dim;
                let to = ((row * heads + head) * tokens + tokens - len) * dim;
                gathered[to..][..len * dim].copy_from_slice(&numbers[from..][..len * dim]);
            }
        }
        Ok(Tensor::from_array(([members.len(), heads, tokens, dim], gathered))?.into_dyn())
    }

    /// Fails unless the graph returned keys or values of so many rows and tokens.
    pub(super) fn check(&self, value: &DynValue, rows: usize, tokens: usize) -> Result<(), RunError> {
        let shape = match self.is_half {
            true => value.try_extract_tensor::<half::f16>()?.0,
            false => value.try_extract_tensor::<f32>()?.0,
        };
        let expected = [rows as i64, self.heads as i64, tokens as i64, self.head_dim as i64];
        check_shape(&self.present, shape, &expected)
    }
}
