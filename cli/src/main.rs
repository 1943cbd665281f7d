//! `lode`, the one binary: starts the server or a worker, and is the client of any registry.
//! What can be typed is in args.rs, what it does in commands/.

mod args;
mod assemble;
mod commands;
mod connect;
mod error;
mod files;
mod import;
#[cfg(test)]
mod reference;
mod settings;
mod ui;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use error::{COULD_NOT, Failure, Outcome, PIPE_CLOSED};

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging(&cli.command);
    match dispatch(cli) {
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
        return commands::runner::run(args).map(|()| ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because("cannot start", &error).code(COULD_NOT))?;
    let outcome = runtime.block_on(commands::run(cli));
    // A read of standard input or a stuck connection must not hold the process.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    outcome
}

/// Logs go to stderr: everything worth knowing where a server runs, only warnings where a person typed a command. LODE_LOG says otherwise.
fn start_logging(command: &Command) {
    let default = match command {
        Command::Serve(_) | Command::Worker(_) | Command::Runner(_) => "info",
        _ => "warn",
    };
    let filter = std::env::var("LODE_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = tracing_subscriber::EnvFilter::new(filter.as_deref().unwrap_or(default));
    let json = std::env::var("LODE_LOG_FORMAT").is_ok_and(|format| format == "json");
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if json {
        builder.json().init();
    } else {
        builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).with_target(false).init();
    }
}
