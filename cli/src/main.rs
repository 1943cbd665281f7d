//! The `lode` program: starts a server or a worker, and is the command-line client of any registry.
//! args/ has the arguments, commands/ the behaviour.

mod allocator;
mod annotations;
mod args;
mod artifact;
mod assemble;
mod command_line;
mod commands;
mod complete;
mod connect;
mod copy;
mod derived;
mod descriptors;
mod error;
mod files;
mod import;
mod job;
mod logging;
#[cfg(test)]
mod metrics_reference;
mod modelfile;
mod order;
mod pages;
#[cfg(test)]
mod reference;
mod replaced;
mod send;
mod settings;
mod spool;
mod stored_files;
mod suggest;
mod table;
mod times;
mod traces;
mod ui;
mod variables;

use std::process::ExitCode;

use args::{Cli, Command, Serve, Worker};
use error::{CANNOT_RUN, Failure, Outcome, PIPE_CLOSED};

fn main() -> ExitCode {
    complete::answer_shell();
    match dispatch(command_line::parse()) {
        Ok(code) => code,
        Err(failure) => {
            // The reader closed the pipe, so the error has no recipient.
            if failure.exit_code() != PIPE_CLOSED {
                ui::print_message(failure.to_string());
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn dispatch(cli: Cli) -> Outcome<ExitCode> {
    // A runner creates its own threads, and configures the process before it starts the first one.
    if let Command::Runner(args) = cli.command {
        logging::start("info", logging::inherited_format(), None)?;
        return commands::runner::run(args).map(|()| ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::with_source("cannot start", &error).code(CANNOT_RUN))?;
    // Servers and workers log at level info, other commands at level warn.
    let mut traces = None;
    match &cli.command {
        Command::Serve(Serve { log_format, .. })
        | Command::Worker(Worker { log_format, command: None, .. }) => {
            let _inside = runtime.enter();
            traces = traces::is_enabled().then(|| traces::provider(None)).transpose()?;
            logging::start("info", *log_format, traces.as_ref())?;
            descriptors::raise_limit();
            allocator::release_when_idle();
        }
        // The error of the command has what the verifier logs.
        _ => logging::start("warn,rustls_platform_verifier=off", logging::inherited_format(), None)?,
    }
    let outcome = runtime.block_on(commands::run(cli));
    if let Some(traces) = traces
        && let Err(error) = traces.shutdown()
    {
        tracing::warn!(%error, "failed to send the last traces");
    }
    // A pending read of standard input or a stuck connection must not delay the exit.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    outcome
}
