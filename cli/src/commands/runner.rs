//! `lode runner`: the process of one loaded model. A worker starts it, and it ends with its worker. With
//! `--text` it is the text helper of a runner, which evaluates templates, tokenizers and grammars.

use crate::{
    args::Runner,
    error::{Failure, Outcome},
};

pub(crate) fn run(args: Runner) -> Outcome {
    match args.socket {
        Some(socket) => lode_worker::runner::main(socket)
            .map_err(|error| Failure::with_source("the runner failed", &error)),
        // Without a socket, the arguments include `--text`.
        None => lode_worker::runner::text_main()
            .map_err(|error| Failure::with_source("the text helper failed", &error)),
    }
}
