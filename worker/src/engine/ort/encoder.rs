//! Encoders: graphs that return the hidden states or the classes of whole texts.

use ::ort::session::{RunOptions, Session, SessionInputValue};

use super::super::{RowSelection, Slice, StepError};
use super::engine::{Computed, Graph};
use super::grouping::{RUN_TOKENS, Sharing, group};
use super::ports::{EncoderPorts, Input, InputKind, OutputKind};
use super::run::{RunError, check_shape, floats, integers, run_unless};
use super::sequences::Sequences;

/// How texts become runs of an encoder.
pub(super) struct Encoder {
    pub(super) ports: EncoderPorts,
    pub(super) sharing: Sharing,
    /// The number of values in a row of the output.
    pub(super) width: usize,
    pub(super) pad_token: u32,
    pub(super) has_types: bool,
}

/// The texts of one run, padded to the longest.
struct Padded {
    texts: usize,
    tokens: usize,
    /// The numbers of each input, [texts, tokens], in the order of the graph.
    inputs: Vec<Vec<i64>>,
}

impl Encoder {
    /// Pads slices, of which the first is the longest.
    fn pad(&self, slices: &[&Slice<'_>]) -> Padded {
        let tokens = slices.first().map_or(0, |slice| slice.tokens.len());
        let numbers = |input: &Input| {
            let mut numbers = Vec::with_capacity(slices.len() * tokens);
            for slice in slices {
                let text = slice.tokens;
                // The first token with the second type.
                let second = match slice.want {
                    RowSelection::Score { second } if self.has_types => second,
                    _ => tokens,
                };
                for at in 0..tokens {
                    numbers.push(match input.kind {
                        InputKind::Ids => i64::from(text.get(at).copied().unwrap_or(self.pad_token)),
                        InputKind::Mask => i64::from(at < text.len()),
                        InputKind::Types => i64::from(at < text.len() && at >= second),
                        InputKind::Positions => at as i64,
                    });
                }
            }
            numbers
        };
        Padded { texts: slices.len(), tokens, inputs: self.ports.inputs.iter().map(numbers).collect() }
    }
}

impl Graph for Encoder {
    /// A sequence is one slice, of which nothing is kept.
    type State = ();

    fn width(&self) -> usize {
        self.width
    }

    fn compute(
        &self,
        session: &mut Session,
        _: &Sequences<()>,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Vec<Computed<()>>, StepError> {
        let mut rows = vec![Vec::new(); slices.len()];
        let is_wanted = |want| matches!(want, RowSelection::Hidden | RowSelection::Score { .. });
        let wanted: Vec<usize> = (0..slices.len()).filter(|at| is_wanted(slices[*at].want)).collect();
        let lengths: Vec<usize> = wanted.iter().map(|at| slices[*at].tokens.len()).collect();
        let width = self.width;
        for members in group(&lengths, self.sharing, RUN_TOKENS) {
            if is_cancelled() {
                return Err(StepError::Cancelled);
            }
            let members: Vec<usize> = members.into_iter().map(|at| wanted[at]).collect();
            let batch = self.pad(&members.iter().map(|at| &slices[*at]).collect::<Vec<_>>());
            let tokens = batch.tokens;
            let (session, ports) = (&mut *session, &self.ports);
            let values = run_unless(is_cancelled, |options| compute(session, ports, width, batch, options))
                // The others are computed again, in other groups.
                .map_err(|error| error.of_sequence(slices[members[0]].sequence))?;
            for (row, at) in members.into_iter().enumerate() {
                let len = slices[at].tokens.len();
                rows[at] = match self.ports.kind {
                    // Every way of pooling equal rows gives that row.
                    OutputKind::Pooled => values[row * width..(row + 1) * width].repeat(len),
                    OutputKind::Classes => values[row * width..(row + 1) * width].to_vec(),
                    OutputKind::Tokens => values[row * tokens * width..][..len * width].to_vec(),
                };
            }
        }
        Ok(rows.into_iter().map(|rows| (rows, ())).collect())
    }
}

/// Runs the graph once, and returns the rows of all texts, with the rows of padding: [texts, tokens, width], or
/// [texts, width] if the output has a row for each text.
fn compute(
    session: &mut Session,
    ports: &EncoderPorts,
    width: usize,
    batch: Padded,
    options: &RunOptions,
) -> Result<Vec<f32>, RunError> {
    let shape = [batch.texts, batch.tokens];
    let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(ports.inputs.len());
    for (input, numbers) in ports.inputs.iter().zip(batch.inputs) {
        inputs.push((&input.name, integers(&shape, numbers, input.is_long)?.into()));
    }
    let outputs = session.run_with_options(inputs, options)?;
    let output = outputs.get(&ports.output).ok_or_else(|| RunError::no_output(&ports.output))?;
    let (found, values) = floats(output)?;
    let expected = match ports.kind {
        OutputKind::Pooled | OutputKind::Classes => vec![batch.texts as i64, width as i64],
        OutputKind::Tokens => vec![batch.texts as i64, batch.tokens as i64, width as i64],
    };
    check_shape(&ports.output, found, &expected)?;
    Ok(values.into_owned())
}
