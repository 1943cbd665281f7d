//! Pools a model's hidden states into a vector per text. The classes of a text are a single row.

use super::embedding::Pooling;
use super::jobs::{EmbedJob, Wanted};
use super::protocol::RunnerError;

/// The hidden states of one text, accumulated in pieces.
pub(super) struct PooledText {
    pub(super) job: EmbedJob,
    sum: Vec<f64>,
    /// The number of rows so far, and of those in the sum of a mean.
    rows: usize,
    counted: usize,
}

impl PooledText {
    pub(super) fn new(job: EmbedJob) -> PooledText {
        PooledText { job, sum: Vec::new(), rows: 0, counted: 0 }
    }

    pub(super) fn add<'a>(&mut self, rows: impl Iterator<Item = &'a [f32]>) {
        let Wanted::Embedding { pooling, prompt } = self.job.wanted else {
            self.sum = rows.flatten().map(|value| f64::from(*value)).collect();
            return;
        };
        for row in rows {
            let is_excluded = self.rows < prompt;
            match pooling {
                Pooling::First if self.rows > 0 => {}
                // sentence-transformers returns zeros for a text of which all tokens are those of the prompt.
                Pooling::Mean | Pooling::Last if is_excluded => self.sum = vec![0.0; row.len()],
                Pooling::Mean if self.rows > 0 => {
                    self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
                }
                _ => self.sum = row.iter().map(|value| f64::from(*value)).collect(),
            }
            self.rows += 1;
            self.counted += usize::from(!is_excluded);
        }
    }

    pub(super) fn finish(self) {
        let is_mean = matches!(self.job.wanted, Wanted::Embedding { pooling: Pooling::Mean, .. });
        let rows = if is_mean { self.counted.max(1) as f64 } else { 1.0 };
        let vector = self.sum.iter().map(|sum| (sum / rows) as f32).collect();
        // Ignore that the reader has disconnected.
        let _ = self.job.sender.send(Ok(vector));
    }

    pub(super) fn fail(self, error: RunnerError) {
        let _ = self.job.sender.send(Err(error));
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

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::super::jobs::RequestId;
    use super::*;

    fn pooled(pooling: Pooling, prompt: usize, pieces: &[&[[f32; 2]]]) -> Vec<f32> {
        let (sender, mut receiver) = oneshot::channel();
        let wanted = Wanted::Embedding { pooling, prompt };
        let mut pool =
            PooledText::new(EmbedJob { request: RequestId::default(), ids: vec![1], wanted, sender });
        for piece in pieces {
            pool.add(piece.iter().map(<[f32; 2]>::as_slice));
        }
        pool.finish();
        receiver.try_recv().unwrap().unwrap()
    }

    #[test]
    fn pooling_does_not_depend_on_the_pieces() {
        let pieces: &[&[[f32; 2]]] = &[&[[1.0, 2.0], [3.0, 4.0]], &[[5.0, 9.0]]];
        assert_eq!(pooled(Pooling::Mean, 0, pieces), [3.0, 5.0]);
        assert_eq!(pooled(Pooling::First, 0, pieces), [1.0, 2.0]);
        assert_eq!(pooled(Pooling::Last, 0, pieces), [5.0, 9.0]);
    }

    #[test]
    fn the_tokens_of_a_prompt_are_left_out_of_a_mean() {
        let pieces: &[&[[f32; 2]]] = &[&[[1.0, 2.0], [3.0, 4.0]], &[[5.0, 9.0]]];
        for (prompt, mean, last) in
            [(1, [4.0, 6.5], [5.0, 9.0]), (2, [5.0, 9.0], [5.0, 9.0]), (3, [0.0, 0.0], [0.0, 0.0])]
        {
            assert_eq!(pooled(Pooling::Mean, prompt, pieces), mean, "{prompt}");
            assert_eq!(pooled(Pooling::Last, prompt, pieces), last, "{prompt}");
            assert_eq!(pooled(Pooling::First, prompt, pieces), [1.0, 2.0], "{prompt}");
        }
    }

    #[test]
    fn embeddings_are_truncated_then_normalised() {
        assert_eq!(l2_normalise(vec![3.0, 4.0, 12.0], Some(2)), [0.6, 0.8]);
        assert_eq!(l2_normalise(vec![0.0, 2.0], Some(5)), [0.0, 1.0]);
        assert_eq!(l2_normalise(vec![0.0, 2.0], Some(0)), [0.0, 1.0]);
        assert_eq!(l2_normalise(vec![0.0, 0.0], None), [0.0, 0.0]);
    }
}
