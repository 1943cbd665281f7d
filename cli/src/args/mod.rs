//! The command line as types: what can be written and how it is explained, one file a verb. No behaviour lives here.

// Doc comments here are help texts, written for a terminal.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

mod backup;
mod completions;
mod cp;
mod create;
mod diff;
mod embed;
mod fsck;
mod gc;
mod list;
mod login;
mod migrate;
mod perplexity;
mod ps;
mod pull;
mod push;
mod rm;
mod run;
mod runner;
mod serve;
mod show;
mod stop;
mod tensor;
mod tokenize;
mod worker;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, builder::BoolishValueParser};

use crate::connect::DEFAULT_HOST;

pub(crate) use backup::Backup;
pub(crate) use completions::Completions;
pub(crate) use cp::Cp;
pub(crate) use create::Create;
pub(crate) use diff::Diff;
pub(crate) use embed::Embed;
pub(crate) use fsck::Fsck;
pub(crate) use gc::{Gc, GcCommand, GcHistory, GcUndo};
pub(crate) use list::List;
pub(crate) use login::{Login, Logout};
pub(crate) use migrate::Migrate;
pub(crate) use perplexity::Perplexity;
pub(crate) use ps::Ps;
pub(crate) use pull::Pull;
pub(crate) use push::Push;
pub(crate) use rm::Rm;
pub(crate) use run::Run;
pub(crate) use runner::Runner;
pub(crate) use serve::Serve;
pub(crate) use show::Show;
pub(crate) use stop::Stop;
pub(crate) use tensor::{ExportDtype, Tensor, TensorExport, TensorLs};
pub(crate) use tokenize::Tokenize;
pub(crate) use worker::Worker;

/// A model registry that serves: push models with any OCI client, list them, take them apart, run them.
#[derive(Debug, Parser)]
#[command(
    name = "lode",
    version,
    propagate_version = false,
    max_term_width = 110,
    arg_required_else_help = true
)]
#[command(after_help = "\
NAME is [host[:port]/]repository[:tag|@digest]. The first part is a host only if it contains `.` or `:` or is
`localhost`; the tag defaults to `latest`. Without a host it is the server named by LODE_HOST.

Try it:
  lode serve --demo
  lode run lode-demo \"What is 40 plus 41?\"
  lode create team/mini ./checkpoint-folder")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The server of names without a host: a URL, or host[:port]
    #[arg(
        long,
        global = true,
        env = "LODE_HOST",
        value_name = "URL",
        default_value = DEFAULT_HOST,
        hide_env_values = true
    )]
    pub(crate) host: String,

    /// Speak http to hosts that are not on this machine
    #[arg(long, global = true, env = "LODE_PLAIN_HTTP", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, hide_possible_values = true, value_name = "BOOL", hide_env_values = true)]
    pub(crate) plain_http: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the registry, the gateway and a local worker
    Serve(Serve),
    /// Run an inference node that serves models of a registry
    Worker(Worker),
    /// Make a model in the registry: from files, or from another model
    Create(Create),
    /// Write a model's files to a folder, each verified
    Pull(Pull),
    /// Send files to the registry as they are, titled by their names
    Push(Push),
    /// Copy a model or any other artifact, within a registry or between two
    Cp(Cp),
    /// Remove a tag, or a manifest by digest
    Rm(Rm),
    /// List the models of a registry
    #[command(visible_alias = "ls")]
    List(List),
    /// Show what a model is made of
    Show(Show),
    /// Compare two models, tensor by tensor
    Diff(Diff),
    /// Run a model with a prompt, or talk to it
    Run(Run),
    /// Turn texts into vectors
    Embed(Embed),
    /// List the models that are loaded
    Ps(Ps),
    /// Unload a model
    Stop(Stop),
    /// List tensors, or write them to a file
    #[command(subcommand)]
    Tensor(Tensor),
    /// Turn standard input into a model's token ids, and back
    Tokenize(Tokenize),
    /// Measure how well a model predicts a text
    Perplexity(Perplexity),
    /// Keep a login for a registry
    Login(Login),
    /// Forget the login for a registry
    Logout(Logout),
    /// Remove what nothing refers to any more
    Gc(Gc),
    /// Compare the index with the stored bytes
    Fsck(Fsck),
    /// Copy a server's index and blobs to a folder while it goes on
    Backup(Backup),
    /// Move a server's index and blobs to another database and another storage
    Migrate(Migrate),
    /// Print a completion script for a shell
    Completions(Completions),
    /// The process of one loaded model; a worker starts it
    #[command(hide = true)]
    Runner(Runner),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Where a server keeps what it has.
#[derive(Debug, Args)]
pub(crate) struct Kept {
    /// The server's data folder [default: ./lode-data]
    #[arg(long, env = "LODE_DATA", value_name = "DIR", hide_env_values = true)]
    pub(crate) data: Option<PathBuf>,
    /// Its index, if it is not in that folder
    #[arg(long, env = "LODE_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Its bytes, if they are not in that folder
    #[arg(long, env = "LODE_STORAGE", value_name = "URL", hide_env_values = true)]
    pub(crate) storage: Option<String>,
    /// Its file of settings
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}
