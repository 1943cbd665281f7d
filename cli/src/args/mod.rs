//! Command-line arguments as clap types, one file per command. The doc comments are the help texts. This
//! module has no behaviour.

// Help texts are written for a terminal, not for rustdoc.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

mod access;
mod backup;
mod cat;
mod completions;
mod contents;
mod convert;
mod cp;
mod create;
mod diff;
mod doctor;
mod embed;
mod fsck;
mod gc;
mod list;
mod login;
mod migrate;
mod perplexity;
mod ps;
mod publisher;
mod pull;
mod push;
mod rerank;
mod rm;
mod run;
mod runner;
mod search;
mod serve;
mod shared;
mod show;
mod status;
mod stop;
mod tensor;
mod tokenize;
mod worker;
mod worker_admin;

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand};

/// The default address of `lode serve`.
pub(crate) const DEFAULT_HOST: &str = "http://127.0.0.1:5000";

pub(crate) use access::{
    Audit, Grant, Group, GroupAdd, Key, KeyAdd, Protect, Quota, Robot, SetVisibility, Token, TokenCreate,
    TokenExchange, TokenRevoke, TokenRotate, User, UserAdd, UserSet, Visibility,
};
pub(crate) use backup::Backup;
pub(crate) use cat::Cat;
pub(crate) use completions::Completions;
pub(crate) use contents::{
    Manifest, ManifestInspect, ManifestList, Repo, RepoList, RepoMove, Tag, TagHistory, TagList, TagUndo,
};
pub(crate) use convert::Convert;
pub(crate) use cp::Cp;
pub(crate) use create::Create;
pub(crate) use diff::Diff;
pub(crate) use doctor::Doctor;
pub(crate) use embed::Embed;
pub(crate) use fsck::Fsck;
pub(crate) use gc::{Gc, GcCommand, GcHistory, GcUndo};
pub(crate) use list::List;
pub(crate) use login::{Login, Logout, Whoami};
pub(crate) use migrate::Migrate;
pub(crate) use perplexity::Perplexity;
pub(crate) use ps::Ps;
pub(crate) use publisher::{Publisher, PublisherAdd};
pub(crate) use pull::Pull;
pub(crate) use push::Push;
pub(crate) use rerank::Rerank;
pub(crate) use rm::Rm;
pub(crate) use run::{Run, Think};
pub(crate) use runner::Runner;
pub(crate) use search::Search;
pub(crate) use serve::Serve;
pub(crate) use shared::{DataLocation, LogFormat};
pub(crate) use show::Show;
pub(crate) use status::Status;
pub(crate) use stop::Stop;
pub(crate) use tensor::{ExportDtype, Tensor, TensorExport, TensorLs};
pub(crate) use tokenize::Tokenize;
pub(crate) use worker::Worker;
pub(crate) use worker_admin::{WorkerCommand, WorkerDrain, WorkerId};

/// OCI model registry and inference server: push, create, inspect and run models
#[derive(Debug, Parser)]
#[command(
    name = "lode",
    version,
    propagate_version = false,
    max_term_width = 110,
    arg_required_else_help = true
)]
#[command(after_help = "\
NAME is [host[:port]/]repository[:tag|@digest]. The first part is a host only if it contains `.` or
`:` or is `localhost`. The default tag is `latest`. Names without a host belong to the server that
LODE_HOST or --host names.

Get started:
  lode serve --demo
  lode run lode-demo \"What is 40 plus 41?\"
  lode create team/mini ./checkpoint-folder")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// Default registry for names without a host: a URL, or host[:port]
    #[arg(
        long,
        global = true,
        env = "LODE_HOST",
        value_name = "URL",
        default_value = DEFAULT_HOST,
        hide_env_values = true
    )]
    pub(crate) host: String,

    /// Connect to remote hosts over plain HTTP instead of HTTPS
    #[arg(long, global = true, env = "LODE_PLAIN_HTTP", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, hide_possible_values = true, value_name = "BOOL", hide_env_values = true)]
    pub(crate) plain_http: bool,

    /// PEM file with authorities to trust for HTTPS, in addition to the system's
    #[arg(long, global = true, env = "LODE_CA_FILE", value_name = "FILE", hide_env_values = true)]
    pub(crate) ca_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a server: registry, gateway and a local worker
    Serve(Serve),
    /// Start a worker, an inference node that runs the models of a registry; or list, drain and remove workers
    Worker(Worker),
    /// Create a model in a registry, from files or from another model
    Create(Create),
    /// Create a model in another format: a GGUF or a checkpoint
    Convert(Convert),
    /// Download a model's files to a folder and verify them
    Pull(Pull),
    /// Print one file of a model
    Cat(Cat),
    /// Upload files unchanged, as one layer per file
    Push(Push),
    /// Copy a model or another artifact, within a registry or between two
    Cp(Cp),
    /// Remove a tag, or a manifest by digest
    Rm(Rm),
    /// List the models in a registry
    #[command(visible_alias = "ls")]
    List(List),
    /// Search the models of a registry by words, task, size and other facts
    Search(Search),
    #[command(subcommand)]
    Repo(Repo),
    #[command(subcommand)]
    Tag(Tag),
    #[command(subcommand)]
    Manifest(Manifest),
    /// Show a model's metadata, config and related models
    Show(Show),
    /// Compare two models, tensor by tensor
    Diff(Diff),
    /// Generate text from a prompt, or chat with a model
    Run(Run),
    /// Compute the embeddings of texts
    Embed(Embed),
    /// Rank documents by their relevance to a query
    Rerank(Rerank),
    /// List the loaded models
    Ps(Ps),
    /// Unload a model
    Stop(Stop),
    /// List a model's tensors, or export them to a file
    #[command(subcommand)]
    Tensor(Tensor),
    /// Convert text to a model's token ids, or token ids to text
    Tokenize(Tokenize),
    /// Measure a model's perplexity on a text file
    Perplexity(Perplexity),
    /// Save the credentials for a registry
    Login(Login),
    /// Remove the saved credentials for a registry
    Logout(Logout),
    /// Show the account that is signed in, and what its credentials may do
    Whoami(Whoami),
    #[command(subcommand)]
    User(User),
    #[command(subcommand)]
    Robot(Robot),
    #[command(subcommand)]
    Group(Group),
    #[command(subcommand)]
    Token(Token),
    #[command(subcommand)]
    Key(Key),
    #[command(subcommand)]
    Grant(Grant),
    #[command(subcommand)]
    Publisher(Publisher),
    /// Set who may read a repository or a namespace without a role
    Visibility(SetVisibility),
    /// Protect tags from being moved or deleted, by pattern
    Protect(Protect),
    #[command(subcommand)]
    Quota(Quota),
    /// Show the state of a server: storage, database, workers and jobs
    Status(Status),
    /// Show who did what, newest first
    Audit(Audit),
    /// Collect garbage now, list removals, or undo one
    Gc(Gc),
    /// Check the database against the blob store
    Fsck(Fsck),
    /// Back up a server's database and blobs to a folder, without stopping the server
    Backup(Backup),
    /// Move a server's data to another database and blob store
    Migrate(Migrate),
    /// Check what this machine has for running models: processor, memory, GPUs and their libraries
    Doctor(Doctor),
    /// Print a shell completion script
    Completions(Completions),
    /// Run one loaded model; started by a worker
    #[command(hide = true)]
    Runner(Runner),
}
