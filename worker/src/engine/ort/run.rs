//! One run of a graph, which ends early when its clients are gone.

use std::borrow::Cow;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use ::ort::session::RunOptions;
use ::ort::value::{DynValue, Tensor};

use super::super::{SequenceId, StepError};

/// How often a run checks whether its clients are gone.
const CANCEL_POLL: Duration = Duration::from_millis(10);
/// The longest message of the runtime in an error, in bytes.
const MAX_REASON: usize = 500;

/// Why a run has no result.
pub(super) enum RunError {
    Cancelled,
    /// The runtime's message, or what is wrong with its result.
    Failed(String),
}

impl RunError {
    pub(super) fn no_output(output: &str) -> RunError {
        RunError::Failed(format!("no output `{output}`"))
    }

    /// The error of a step in which this sequence was computed.
    pub(super) fn of_sequence(self, sequence: SequenceId) -> StepError {
        match self {
            RunError::Cancelled => StepError::Cancelled,
            RunError::Failed(reason) => StepError::Graph { sequence, reason },
        }
    }
}

impl From<::ort::Error> for RunError {
    fn from(error: ::ort::Error) -> RunError {
        RunError::Failed(reason(&error))
    }
}

/// Calls `compute`, which runs a graph with the options that it is given. The run ends early when `is_cancelled`
/// returns true.
pub(super) fn run_unless<T: Send>(
    is_cancelled: &dyn Fn() -> bool,
    compute: impl FnOnce(&RunOptions) -> Result<T, RunError> + Send,
) -> Result<T, RunError> {
    let options = RunOptions::new()?;
    let options = &options;
    let mut was_cancelled = false;
    // The runtime checks between operators whether to end, and only another thread can ask it to.
    let result = std::thread::scope(|scope| {
        let (done, finished) = channel::<()>();
        let running = scope.spawn(move || {
            let result = compute(options);
            drop(done);
            result
        });
        while finished.recv_timeout(CANCEL_POLL) == Err(RecvTimeoutError::Timeout) {
            if !was_cancelled && is_cancelled() {
                was_cancelled = options.terminate().is_ok();
            }
        }
        running.join()
    });
    if was_cancelled {
        return Err(RunError::Cancelled);
    }
    result.unwrap_or_else(|_| Err(RunError::Failed("the runtime's binding panicked".to_owned())))
}

/// A tensor of 64-bit numbers, or of 32-bit numbers. Ids, positions and flags are far below the limit of both.
pub(super) fn integers(shape: &[usize], numbers: Vec<i64>, is_long: bool) -> ::ort::Result<DynValue> {
    if is_long {
        return Ok(Tensor::from_array((shape, numbers))?.into_dyn());
    }
    let numbers: Vec<i32> = numbers.into_iter().map(|number| number as i32).collect();
    Ok(Tensor::from_array((shape, numbers))?.into_dyn())
}

/// The values of an output as float32 numbers, and its shape.
pub(super) fn floats(value: &DynValue) -> ::ort::Result<(&[i64], Cow<'_, [f32]>)> {
    if let Ok((shape, values)) = value.try_extract_tensor::<f32>() {
        return Ok((shape, values.into()));
    }
    let (shape, values) = value.try_extract_tensor::<half::f16>()?;
    Ok((shape, values.iter().map(|value| value.to_f32()).collect::<Vec<f32>>().into()))
}

/// Fails unless an output has the expected shape.
pub(super) fn check_shape(output: &str, found: &[i64], expected: &[i64]) -> Result<(), RunError> {
    match found == expected {
        true => Ok(()),
        false => {
            Err(RunError::Failed(format!("output `{output}` has shape {found:?}, expected {expected:?}")))
        }
    }
}

/// The message of an error of the runtime, in one line of bounded length.
pub(super) fn reason(error: &::ort::Error) -> String {
    let text = error.to_string();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text[..text.floor_char_boundary(MAX_REASON)].to_owned()
}
