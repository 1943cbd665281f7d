//! `lode`, the one binary: starts the server or a worker, and is the client of any registry.
//! What can be typed is in args/, what it does in commands/.

mod allocator;
mod args;
mod artifact;
mod assemble;
mod commands;
mod connect;
mod derived;
mod descriptors;
mod error;
mod files;
mod import;
mod job;
mod logging;
mod modelfile;
#[cfg(test)]
mod reference;
mod send;
mod settings;
mod spool;
mod traces;
mod ui;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command, Serve, Worker};
use error::{COULD_NOT, Failure, Outcome, PIPE_CLOSED};

fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            // Whoever closed the pipe knows why.
            if failure.exit_code() != PIPE_CLOSED {
                ui::say(failure.to_string());
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn dispatch(cli: Cli) -> Outcome<ExitCode> {
    // A runner makes its own threads, and nothing may run before it has set them up.
    if let Command::Runner(args) = cli.command {
        logging::start("info", logging::inherited_format(), None);
        return commands::runner::run(args).map(|()| ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because("cannot start", &error).code(COULD_NOT))?;
    // Everything worth knowing where a server runs, only warnings where a person typed a command.
    let mut traces = None;
    match &cli.command {
        Command::Serve(Serve { log_format, .. }) | Command::Worker(Worker { log_format, .. }) => {
            let _inside = runtime.enter();
            traces = traces::wanted().then(|| traces::provider(None)).transpose()?;
            logging::start("info", *log_format, traces.as_ref());
            descriptors::raise_limit();
            allocator::release_when_idle();
        }
        _ => logging::start("warn", logging::inherited_format(), None),
    }
    let outcome = runtime.block_on(commands::run(cli));
    if let Some(traces) = traces
        && let Err(error) = traces.shutdown()
    {
        tracing::warn!(%error, "the last traces were not sent");
    }
    // A read of standard input or a stuck connection must not hold the process.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    outcome
}
