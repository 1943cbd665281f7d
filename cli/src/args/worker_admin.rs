//! Arguments of the subcommands of `lode worker`.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// List the workers of a server
    List(WorkerList),
    /// Stop sending requests to a worker; requests in progress end, then its models are unloaded
    Drain(WorkerDrain),
    /// Send requests to a drained worker again
    Resume(WorkerId),
    /// End a worker's registration; one that still runs and has the worker token registers again
    #[command(visible_alias = "rm")]
    Remove(WorkerId),
}

#[derive(Debug, Args)]
pub(crate) struct WorkerList {
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  lode worker drain 0190a4c4
  lode worker list            # `drained`: it can be stopped
  lode worker resume 0190a4c4")]
pub(crate) struct WorkerDrain {
    /// Id of the worker, its first characters, or its address, as in `lode worker list`
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Send requests to it again, as `lode worker resume`
    #[arg(long)]
    pub(crate) undo: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerId {
    /// Id of the worker, its first characters, or its address, as in `lode worker list`
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}
