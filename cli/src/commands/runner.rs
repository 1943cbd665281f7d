//! `lode runner`: the process of one loaded model. Only a worker starts it, and it ends with its worker. With `--text` it is the helper
//! process of such a one, which evaluates templates, tokenizers and grammars.

use crate::{
    args::Runner,
    error::{Failure, Outcome},
};

pub(crate) fn run(args: Runner) -> Outcome {
    match args.socket {
        Some(socket) => {
            lode_worker::runner::main(socket).map_err(|error| Failure::because("the runner stopped", &error))
        }
        // `--text`: the arguments have one of the two.
        None => lode_worker::runner::text_main()
            .map_err(|error| Failure::because("the runner's helper stopped", &error)),
    }
}
