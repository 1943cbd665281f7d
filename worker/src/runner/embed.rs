//! Embeddings: pools a model's hidden states into a vector per text. The pooling is configured by
//! sentence-transformers' files in a checkpoint, and by `pooling_type` in a GGUF; the default is the mean.

use lode_model::gguf::Metadata;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::batch::RequestId;
use super::protocol::{ModelSpec, RunnerError};
use super::text_side::{format_error_chain, read_json};
use crate::text::{Special, Tokenizer, TokenizerError};

/// One text to embed.
pub(crate) struct EmbedJob {
    /// The request that the text belongs to.
    pub(crate) request: RequestId,
    /// At least one.
    pub(crate) ids: Vec<u32>,
    pub(crate) pooling: Pooling,
    pub(crate) answer: oneshot::Sender<Result<Vec<f32>, RunnerError>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pooling {
    #[default]
    Mean,
    /// The first token, `[CLS]`.
    First,
    Last,
}

/// The embedding settings of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runner) struct Embedding {
    pub(super) pooling: Pooling,
    /// Maximum length of a text with its special tokens, if it is less than the model's context.
    pub(super) max_tokens: Option<usize>,
    /// An unsupported setting of the model; embedding requests fail with it.
    pub(super) refused: Option<String>,
}

impl Embedding {
    /// From sentence-transformers' files.
    pub(super) fn of_checkpoint(spec: &ModelSpec) -> Result<Embedding, RunnerError> {
        let json = |name: &str| read_json(spec, name);
        let mut embedding = Embedding::default();
        if let Some(modules) = json("modules.json")? {
            let kinds = modules.as_array().into_iter().flatten();
            let kinds = kinds.filter_map(|module| module.get("type")?.as_str()?.rsplit('.').next());
            let mut unknown = kinds.filter(|kind| !["Transformer", "Pooling", "Normalize"].contains(kind));
            embedding.refused = unknown.next().map(|kind| format!("module `{kind}`"));
        }
        if let Some(pooling) = json("1_Pooling/config.json")? {
            let modes = pooling.as_object().into_iter().flatten();
            let mut modes = modes.filter(|(key, on)| key.starts_with("pooling_mode_") && **on == true);
            match (modes.next().map(|(key, _)| key.as_str()), modes.next()) {
                (None | Some("pooling_mode_mean_tokens"), None) => {}
                (Some("pooling_mode_cls_token"), None) => embedding.pooling = Pooling::First,
                (Some("pooling_mode_lasttoken"), None) => embedding.pooling = Pooling::Last,
                (Some(mode), None) => embedding.refused = Some(format!("pooling mode `{mode}`")),
                (_, Some(_)) => embedding.refused = Some("a combination of pooling modes".to_owned()),
            }
        }
        let limit = json("sentence_bert_config.json")?;
        let limit = limit.and_then(|file| file.get("max_seq_length")?.as_u64());
        embedding.max_tokens = limit.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
        Ok(embedding)
    }

    pub(super) fn of_gguf(metadata: &Metadata) -> Embedding {
        let mut embedding = Embedding::default();
        match metadata.architecture_value("pooling_type").and_then(|value| value.as_u64()) {
            // 0 is no pooling, which does not define an embedding of a whole text, so the mean is used.
            None | Some(0 | 1) => {}
            Some(2) => embedding.pooling = Pooling::First,
            Some(3) => embedding.pooling = Pooling::Last,
            Some(4) => embedding.refused = Some("pooling for ranking".to_owned()),
            Some(other) => embedding.refused = Some(format!("pooling type {other}")),
        }
        embedding
    }
}

/// The hidden states of one text, accumulated in pieces.
pub(super) struct PooledText {
    pub(super) job: EmbedJob,
    sum: Vec<f64>,
    rows: usize,
}

impl PooledText {
    pub(super) fn new(job: EmbedJob) -> PooledText {
        PooledText { job, sum: Vec::new(), rows: 0 }
    }

    pub(super) fn add<'a>(&mut self, rows: impl Iterator<Item = &'a [f32]>) {
        for row in rows {
            match self.job.pooling {
                Pooling::First if self.rows > 0 => {}
                Pooling::Mean if self.rows > 0 => {
                    self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
                }
                _ => self.sum = row.iter().map(|value| f64::from(*value)).collect(),
            }
            self.rows += 1;
        }
    }

    pub(super) fn finish(self) {
        let rows = if self.job.pooling == Pooling::Mean { self.rows.max(1) as f64 } else { 1.0 };
        let vector = self.sum.iter().map(|sum| (sum / rows) as f32).collect();
        // Ignore that the reader has disconnected.
        let _ = self.job.answer.send(Ok(vector));
    }

    pub(super) fn fail(self, error: RunnerError) {
        let _ = self.job.answer.send(Err(error));
    }
}

/// The first `dimensions` values of a vector, L2-normalised. A zero vector is unchanged.
pub(super) fn l2_normalise(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    vector.truncate(dimensions.filter(|dimensions| *dimensions > 0).unwrap_or(usize::MAX));
    let square: f64 = vector.iter().map(|value| f64::from(*value).powi(2)).sum();
    if square > 0.0 {
        let factor = square.sqrt().recip();
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    }
    vector
}

/// Why a text cannot be embedded within a limit, with ollama's messages.
#[derive(Debug, thiserror::Error)]
pub(super) enum IdsError {
    #[error("{}", format_error_chain(.0))]
    Tokenizer(TokenizerError),
    #[error("the input length exceeds the context length")]
    TooLong,
    /// The limit leaves no token of the text besides the special tokens.
    #[error("input after truncation exceeds maximum context length")]
    NoTokensLeft,
}

/// A text's ids with its special tokens, truncated to the limit if allowed. The special tokens are kept.
pub(super) fn tokenize_within(
    tokenizer: &Tokenizer,
    text: &str,
    limit: usize,
    truncate: bool,
) -> Result<Vec<u32>, IdsError> {
    let whole = tokenizer.encode_with(text, Special::ALL).map_err(IdsError::Tokenizer)?;
    if whole.len() <= limit {
        return Ok(whole);
    }
    if !truncate {
        return Err(IdsError::TooLong);
    }
    let bare = tokenizer.encode_with(text, Special::PARSE).map_err(IdsError::Tokenizer)?;
    let around = whole.len().saturating_sub(bare.len());
    let room = limit.saturating_sub(around);
    // Ollama refuses a limit of one token even for models without special tokens.
    if room == 0 || limit == 1 {
        return Err(IdsError::NoTokensLeft);
    }
    let mut ids = match (0..=around).find(|at| whole[*at..].starts_with(&bare)) {
        Some(before) => [&whole[..before], &bare[..room], &whole[before + bare.len()..]].concat(),
        None => whole,
    };
    ids.truncate(limit);
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, pieces: &[&[[f32; 2]]]) -> Vec<f32> {
        let (answer, mut receiver) = oneshot::channel();
        let mut pool =
            PooledText::new(EmbedJob { request: RequestId::default(), ids: vec![1], pooling, answer });
        for piece in pieces {
            pool.add(piece.iter().map(<[f32; 2]>::as_slice));
        }
        pool.finish();
        receiver.try_recv().unwrap().unwrap()
    }

    #[test]
    fn pooling_does_not_depend_on_the_pieces() {
        let pieces: &[&[[f32; 2]]] = &[&[[1.0, 2.0], [3.0, 4.0]], &[[5.0, 9.0]]];
        assert_eq!(pooled(Pooling::Mean, pieces), [3.0, 5.0]);
        assert_eq!(pooled(Pooling::First, pieces), [1.0, 2.0]);
        assert_eq!(pooled(Pooling::Last, pieces), [5.0, 9.0]);
    }

    #[test]
    fn embeddings_are_truncated_then_normalised() {
        assert_eq!(l2_normalise(vec![3.0, 4.0, 12.0], Some(2)), [0.6, 0.8]);
        assert_eq!(l2_normalise(vec![0.0, 2.0], Some(5)), [0.0, 1.0]);
        assert_eq!(l2_normalise(vec![0.0, 2.0], Some(0)), [0.0, 1.0]);
        assert_eq!(l2_normalise(vec![0.0, 0.0], None), [0.0, 0.0]);
    }

    #[test]
    fn gguf_pooling() {
        let check = |number: Option<u32>, expect: Pooling, refused: bool| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", "bert");
            if let Some(number) = number {
                metadata.set("bert.pooling_type", number);
            }
            let embedding = Embedding::of_gguf(&metadata);
            assert_eq!((embedding.pooling, embedding.refused.is_some()), (expect, refused), "{number:?}");
        };
        check(None, Pooling::Mean, false);
        check(Some(1), Pooling::Mean, false);
        check(Some(2), Pooling::First, false);
        check(Some(3), Pooling::Last, false);
        check(Some(4), Pooling::Mean, true);
    }
}
