//! Constrains the ids of a response to a grammar, after the model's reasoning. The grammar itself runs in the
//! text helper (`grammar.rs`); this module applies its masks.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::grammar::AllowedIds;
use super::reply::{Phase, Reader, ReasoningParser};
use super::sampler::{NonFiniteLogits, Sampler};
use super::{Detokenizer, Vocabulary};

/// Maximum number of whitespace tokens between the reasoning and the content.
const MAX_BLANK_TOKENS: usize = 4;

/// Constrains one response.
pub struct Constraint {
    allowed: AllowedIds,
    /// The ids that the content begins with, which are not part of the grammar.
    opening: VecDeque<u32>,
    /// The reasoning, which is not constrained; `None` once it has ended.
    thoughts: Option<ReasoningState>,
    vocabulary: Arc<Vocabulary>,
    eos: Arc<BTreeSet<u32>>,
}

/// An id that was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledId {
    pub id: u32,
    /// Whether it is part of the content: the grammar has to accept it before the next id is sampled.
    pub is_content: bool,
}

#[derive(Clone)]
struct ReasoningState {
    thinking: ReasoningParser,
    detokenizer: Detokenizer,
    /// Number of whitespace tokens after the reasoning.
    blanks: usize,
}

impl ReasoningState {
    /// Adds the next id; returns false if its text includes content.
    fn push(&mut self, id: u32) -> bool {
        let piece = self.detokenizer.push(id);
        self.thinking.push(&piece).text.is_empty()
    }
}

impl Constraint {
    /// `allowed` are the ids that the content may begin with, after the reasoning that `reader` separates.
    /// Without `may_think`, the model cannot begin to reason.
    pub fn new(
        allowed: AllowedIds,
        reader: &Reader,
        may_think: bool,
        vocabulary: Arc<Vocabulary>,
        eos: Arc<BTreeSet<u32>>,
    ) -> Constraint {
        let thinking =
            reader.reasoning_parser().filter(|thinking| may_think || thinking.phase() == Phase::Inside);
        let detokenizer = Detokenizer::new(vocabulary.clone(), reader.shown());
        let thoughts = thinking.map(|thinking| ReasoningState { thinking, detokenizer, blanks: 0 });
        Constraint { allowed, opening: VecDeque::new(), thoughts, vocabulary, eos }
    }

    /// Begins the content with these ids, before those of the grammar.
    pub fn with_opening(self, opening: Vec<u32>) -> Constraint {
        Constraint { opening: opening.into(), ..self }
    }

    /// The ids that the content may continue with.
    fn mask(&self) -> Cow<'_, [u32]> {
        let Some(&id) = self.opening.front() else { return Cow::Borrowed(&self.allowed.mask) };
        let mut mask = vec![0; (id / u32::BITS) as usize + 1];
        mask[(id / u32::BITS) as usize] = 1 << (id % u32::BITS);
        Cow::Owned(mask)
    }

    /// Sets the ids that the grammar allows after it has accepted an id.
    pub fn set_allowed(&mut self, allowed: AllowedIds) {
        self.allowed = allowed;
    }

    /// Whether the content is complete and cannot continue.
    pub fn is_complete(&self) -> bool {
        self.allowed.is_complete
    }

    /// Samples the next id from the allowed ones.
    pub fn sample(&mut self, sampler: &mut Sampler, logits: &[f32]) -> Result<SampledId, NonFiniteLogits> {
        let mut row = logits.to_vec();
        let Some(thoughts) = &self.thoughts else {
            apply_mask(&mut row, &self.mask());
            let id = sampler.sample(&row)?;
            return Ok(self.content(id));
        };
        match thoughts.thinking.phase() {
            Phase::Before { open, begun } => {
                let token = |id: u32| self.vocabulary.bytes(id);
                // A partial tag has to be completed.
                let mut mask = match begun {
                    "" => self.mask().into_owned(),
                    _ => Vec::new(),
                };
                extend_mask(&mut mask, self.vocabulary.len(), |id| continues_tag(open, begun, token(id)));
                apply_mask(&mut row, &mask);
                let id = sampler.sample(&row)?;
                if continues_tag(open, begun, token(id)) && self.think(id) {
                    return Ok(SampledId { id, is_content: false });
                }
                self.thoughts = None;
                Ok(self.content(id))
            }
            Phase::Inside => {
                // The response cannot end before its content.
                self.eos.iter().for_each(|&id| exclude_id(&mut row, id));
                loop {
                    let id = sampler.sample(&row)?;
                    if self.think(id) {
                        return Ok(SampledId { id, is_content: false });
                    }
                    exclude_id(&mut row, id);
                }
            }
            Phase::AfterTag => {
                let may_go_on = thoughts.blanks < MAX_BLANK_TOKENS;
                let is_blank = |id: u32| {
                    let token = self.vocabulary.bytes(id);
                    may_go_on && !token.is_empty() && token.trim_ascii().is_empty()
                };
                let mut mask = self.mask().into_owned();
                extend_mask(&mut mask, self.vocabulary.len(), is_blank);
                apply_mask(&mut row, &mask);
                let id = sampler.sample(&row)?;
                match &mut self.thoughts {
                    Some(thoughts) if is_blank(id) => {
                        thoughts.blanks += 1;
                        Ok(SampledId { id, is_content: false })
                    }
                    _ => {
                        self.thoughts = None;
                        Ok(self.content(id))
                    }
                }
            }
            Phase::Over => {
                self.thoughts = None;
                self.sample(sampler, logits)
            }
        }
    }

    /// An id of the content, unless it is part of the opening or ends the response.
    fn content(&mut self, id: u32) -> SampledId {
        if self.opening.front() == Some(&id) {
            self.opening.pop_front();
            return SampledId { id, is_content: false };
        }
        SampledId { id, is_content: !self.eos.contains(&id) }
    }

    /// Adds an id to the reasoning, unless its text includes content.
    fn think(&mut self, id: u32) -> bool {
        let Some(mut thoughts) = self.thoughts.clone() else { return false };
        let is_thought = thoughts.push(id);
        if is_thought {
            self.thoughts = Some(thoughts);
        }
        is_thought
    }
}

/// Whether a token continues an opening tag that has the prefix `begun` so far. A token with an incomplete
/// character does not, since the prefix is text.
pub(super) fn continues_tag(open: &str, begun: &str, token: &[u8]) -> bool {
    let (Some(rest), Ok(token)) = (open.strip_prefix(begun), std::str::from_utf8(token)) else {
        return false;
    };
    let token = if begun.is_empty() { token.trim_ascii_start() } else { token };
    !token.is_empty() && (rest.starts_with(token) || token.starts_with(rest))
}

/// Adds the ids for which `allows` is true to a mask, for a vocabulary of `len` ids.
pub(super) fn extend_mask(mask: &mut Vec<u32>, len: usize, allows: impl Fn(u32) -> bool) {
    mask.resize(mask.len().max(len.div_ceil(u32::BITS as usize)), 0);
    for id in (0..u32::try_from(len).unwrap_or(u32::MAX)).filter(|id| allows(*id)) {
        mask[(id / u32::BITS) as usize] |= 1 << (id % u32::BITS);
    }
}

/// Excludes the ids that a mask does not allow, including those beyond its end.
pub(super) fn apply_mask(row: &mut [f32], mask: &[u32]) {
    let words = mask.iter().copied().chain(std::iter::repeat(0));
    for (word, logits) in words.zip(row.chunks_mut(u32::BITS as usize)) {
        match word {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            _ => {
                let ruled_out = |at: &usize| word >> at & 1 == 0;
                (0..logits.len()).filter(ruled_out).for_each(|at| logits[at] = f32::NEG_INFINITY);
            }
        }
    }
}

fn exclude_id(row: &mut [f32], id: u32) {
    if let Some(logit) = row.get_mut(id as usize) {
        *logit = f32::NEG_INFINITY;
    }
}
