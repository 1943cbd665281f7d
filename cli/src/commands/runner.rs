//! `lode runner`: the process of one loaded model. A worker starts it, and it ends with its worker. With
//! `--text` it is the text helper of a runner, which evaluates templates, tokenizers and grammars. With
//! `--probe` it tests the GPUs of this machine, for the worker that starts it.

use crate::{
    args::Runner,
    error::{Failure, Outcome},
    ui,
};

pub(crate) fn run(args: Runner) -> Outcome {
    if let Some(request) = args.probe {
        let request = serde_json::from_str(&request)
            .map_err(|error| Failure::with_source("invalid request of a probe", &error))?;
        return ui::print_line(lode_worker::device::probe_main(&request));
    }
    match args.socket {
        Some(socket) => lode_worker::runner::main(socket)
            .map_err(|error| Failure::with_source("the runner failed", &error)),
        // Without a socket, the arguments include `--text`.
        None => lode_worker::runner::text_main()
            .map_err(|error| Failure::with_source("the text helper failed", &error)),
    }
}
