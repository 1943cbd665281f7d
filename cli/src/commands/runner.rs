//! `lode runner`: the process of one loaded model. Only a worker starts it, and it ends with its worker.

use crate::{
    args::Runner,
    error::{Failure, Outcome},
};

pub(crate) fn run(args: Runner) -> Outcome {
    lode_worker::runner::main(args.socket).map_err(|error| Failure::because("the runner stopped", &error))
}
