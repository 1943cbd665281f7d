//! The command line as types: what can be written and how it is explained. No behaviour lives here.

// Doc comments here are help texts, written for a terminal.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, builder::BoolishValueParser};
use clap_complete::Shell;

use crate::connect::DEFAULT_HOST;

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
    /// Import a checkpoint folder or a .safetensors file into the registry
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
    /// Run a model with a prompt, or talk to it
    Run(Run),
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

#[derive(Debug, Args)]
#[command(after_help = "\
Settings come from flags, then LODE_* variables, then the file. Every key of the file is also a variable: gc_grace is
LODE_GC_GRACE. `lode serve --print-config` shows them all with the values in force.

Examples:
  lode serve --demo
  lode serve --listen 0.0.0.0:5000 --allow-anonymous --data /srv/lode
  LODE_GC_GRACE=0s lode serve --config lode.toml --print-config")]
pub(crate) struct Serve {
    /// Address and port; port 0 picks a free one [default: 127.0.0.1:5000]
    #[arg(long, env = "LODE_LISTEN", value_name = "ADDR", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// Folder of the index, the blobs and the local worker's cache [default: ./lode-data]
    #[arg(long, env = "LODE_DATA", value_name = "DIR", hide_env_values = true)]
    pub(crate) data: Option<PathBuf>,
    /// Where the index lives [default: lode.db in the data folder]
    #[arg(long, env = "LODE_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Where the bytes live: file:///DIR, s3://BUCKET/PREFIX, gs:// or az:// [default: the data folder]
    #[arg(long, env = "LODE_STORAGE", value_name = "URL", hide_env_values = true)]
    pub(crate) storage: Option<String>,
    /// A TOML file of settings
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Only the registry: run no models in this process
    #[arg(long, env = "LODE_NO_WORKER", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) no_worker: Option<bool>,
    /// Import the demo model that this program carries, and say what to try
    #[arg(long, env = "LODE_DEMO", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) demo: Option<bool>,
    /// Serve beyond this machine although nobody has to log in: everyone who reaches it can read, write and delete
    #[arg(long, env = "LODE_ALLOW_ANONYMOUS", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) allow_anonymous: Option<bool>,
    /// Scheme and host under which clients reach this server
    #[arg(long, env = "LODE_PUBLIC_URL", value_name = "URL", hide_env_values = true)]
    pub(crate) public_url: Vec<String>,
    /// A proxy whose X-Forwarded-* headers count; may be given more than once
    #[arg(
        long,
        env = "LODE_TRUSTED_PROXY",
        value_name = "CIDR",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) trusted_proxy: Vec<String>,
    /// How log lines are written to standard error
    #[arg(
        long,
        env = "LODE_LOG_FORMAT",
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        hide_env_values = true
    )]
    pub(crate) log_format: LogFormat,
    /// Speak https with this certificate chain, a PEM file; it is read again when it changes
    #[arg(long, env = "LODE_TLS_CERT", value_name = "FILE", hide_env_values = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, a PEM file without a passphrase
    #[arg(long, env = "LODE_TLS_KEY", value_name = "FILE", hide_env_values = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Refuse whatever would change what is held, and collect nothing: for `lode migrate`
    #[arg(long, env = "LODE_READ_ONLY", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) read_only: Option<bool>,
    /// Print the settings in force as TOML, secrets hidden, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Settings come from flags, then LODE_* variables, then the file's [worker] table. Scheduling: LODE_KEEP_ALIVE,
LODE_MAX_QUEUE, LODE_NUM_PARALLEL, LODE_MAX_LOADED_MODELS, LODE_KV_CACHE_TYPE (f32, f16, q8_0), LODE_CONTEXT_LENGTH.

Example:
  lode worker --registry https://hub.local --advertise http://10.0.0.7:5100 --listen 0.0.0.0:5100 --token $TOKEN")]
pub(crate) struct Worker {
    /// The registry to join
    #[arg(long, env = "LODE_REGISTRY", value_name = "URL", hide_env_values = true)]
    pub(crate) registry: Option<String>,
    /// Address and port that the registry's gateway calls
    #[arg(long, env = "LODE_LISTEN", value_name = "ADDR", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// How the gateway reaches this worker, if not at the address it listens on
    #[arg(long, env = "LODE_ADVERTISE", value_name = "URL", hide_env_values = true)]
    pub(crate) advertise: Option<String>,
    /// The secret that the server was given as worker token; not needed on one machine
    #[arg(long, env = "LODE_WORKER_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Folder for blobs that were pulled
    #[arg(long, env = "LODE_CACHE", value_name = "DIR", hide_env_values = true)]
    pub(crate) cache: Option<PathBuf>,
    /// A folder with blobs/<algorithm>/<hex> that is read where it lies; may be given more than once
    #[arg(long, env = "LODE_SOURCE", value_name = "DIR", value_delimiter = ',', hide_env_values = true)]
    pub(crate) source: Vec<PathBuf>,
    /// auto or cpu
    #[arg(long, env = "LODE_DEVICE", value_name = "DEVICE", hide_env_values = true)]
    pub(crate) device: Option<String>,
    /// How log lines are written to standard error
    #[arg(
        long,
        env = "LODE_LOG_FORMAT",
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        hide_env_values = true
    )]
    pub(crate) log_format: LogFormat,
    /// A TOML file of settings
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quantize {
    Int4,
    Int8,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every tensor becomes a blob of its own, so models that share tensors share their bytes: only what the registry lacks is
sent. Interrupted, repeat the command: what arrived is not sent again.

Examples:
  lode create team/mini ./checkpoint-folder
  lode create team/mini:int4 ./checkpoint-folder --quantize int4
  lode create hub.local/team/adapter ./adapter.safetensors")]
pub(crate) struct Create {
    /// What to call it
    pub(crate) name: String,
    /// A checkpoint folder, or a .safetensors file
    pub(crate) path: PathBuf,
    /// Quantise the weights on the way
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) quantize: Option<Quantize>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A model that was imported unquantised comes back byte for byte. Interrupted, repeat the command: it goes on where it
stopped, and files that are there and right are left alone.

Examples:
  lode pull team/mini --to ./mini
  lode pull hub.local/team/mini@sha256:0123...")]
pub(crate) struct Pull {
    pub(crate) name: String,
    /// The folder to write to [default: the last part of the name]
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each file becomes a layer with its name as title, as oras does it; of a folder, every file below it. `lode create` is
the better way in for a checkpoint: it stores tensors once.

Examples:
  lode push ./model.onnx ./tokenizer.json team/encoder:1
  lode push ./folder team/files")]
pub(crate) struct Push {
    /// Files and folders
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// What to call it
    #[arg(required = true)]
    pub(crate) name: String,
    /// The manifest's artifactType
    #[arg(long, value_name = "TYPE", default_value = "application/vnd.unknown.artifact.v1")]
    pub(crate) artifact_type: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Within a registry nothing is transferred. Manifests arrive with the same digest, and an index with all it lists.

Examples:
  lode cp team/mini team/mini:stable
  lode cp team/mini hub.local/team/mini")]
pub(crate) struct Cp {
    pub(crate) source: String,
    pub(crate) destination: String,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode list
  lode list team/mini
  lode list --json | jq -r '.models[].repository'")]
pub(crate) struct List {
    /// Only this repository and what lies below it
    pub(crate) repository: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    pub(crate) name: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without a PROMPT it is read from standard input; on a terminal a conversation starts.

Examples:
  lode run lode-demo \"What is 40 plus 41?\"
  echo \"Define water.\" | lode run lode-demo --temperature 0")]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) prompt: Option<String>,
    /// What the model is told before the conversation
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// 0 picks the likeliest token each time
    #[arg(long)]
    pub(crate) temperature: Option<f32>,
    /// The same seed gives the same answer
    #[arg(long)]
    pub(crate) seed: Option<i64>,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) num_predict: Option<i64>,
    /// Send the prompt as it is, without the model's template
    #[arg(long)]
    pub(crate) raw: bool,
    /// How long the model stays loaded afterwards, such as 5m
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_alive: Option<String>,
    /// Say counts and speeds afterwards
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    pub(crate) name: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tensor {
    /// List a model's tensors
    Ls(TensorLs),
    /// Write tensors to a .safetensors file
    Export(TensorExport),
}

#[derive(Debug, Args)]
pub(crate) struct TensorLs {
    pub(crate) name: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportDtype {
    F32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Only the bytes of the tensors that are named are fetched.

Examples:
  lode tensor export team/mini --to mini.safetensors
  lode tensor export team/mini:int4 model.norm.weight model.embed_tokens.weight --to two.safetensors --dtype f32")]
pub(crate) struct TensorExport {
    pub(crate) name: String,
    /// Which; all where none is named
    #[arg(value_name = "TENSOR")]
    pub(crate) tensors: Vec<String>,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Decode to this type; without it tensors are written as they are stored
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) dtype: Option<ExportDtype>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads standard input to its end, verbatim, and prints one id a line. Needs the model's tokenizer only: no worker.

Examples:
  printf 'What is water?' | lode tokenize lode-demo --json
  printf '1 2 3' | lode tokenize lode-demo --decode")]
pub(crate) struct Tokenize {
    pub(crate) name: String,
    /// Turn ids into text
    #[arg(long)]
    pub(crate) decode: bool,
    /// Add no special tokens and take none in the text for one
    #[arg(long)]
    pub(crate) no_special: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The text becomes ids without special tokens, cut into consecutive windows; every position of a window is scored, and
an incomplete window at the end is left out.

Example:
  lode perplexity lode-demo heldout.txt --window 256")]
pub(crate) struct Perplexity {
    pub(crate) name: String,
    /// A text file
    pub(crate) file: PathBuf,
    /// Ids that the model sees at once
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) window: u32,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  echo $TOKEN | lode login hub.local --username ci --password-stdin")]
pub(crate) struct Login {
    /// The registry [default: the server named by LODE_HOST]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
    #[arg(long, short)]
    pub(crate) username: Option<String>,
    /// Read the password or token from standard input
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Logout {
    /// The registry [default: the server named by LODE_HOST]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  lode gc --dry-run
  lode gc history team/mini
  lode gc undo team/mini:v1")]
pub(crate) struct Gc {
    #[command(subcommand)]
    pub(crate) command: Option<GcCommand>,
    /// Only say what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GcCommand {
    /// List what was removed and why, newest first
    History(GcHistory),
    /// Bring back a removed manifest with the tags it had, or a removed tag
    Undo(GcUndo),
}

#[derive(Debug, Args)]
pub(crate) struct GcHistory {
    /// Only of this repository
    pub(crate) repository: Option<String>,
    /// How many lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GcUndo {
    /// REPOSITORY:TAG or REPOSITORY@DIGEST
    pub(crate) name: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0: clean. 1: damage, which is a row without its bytes, wrong bytes or a dangling reference. 2: it could not
be checked. Bytes without a row and unfinished uploads are reported and are no damage.")]
pub(crate) struct Fsck {
    /// Read all bytes and compare their digests
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
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

#[derive(Debug, Args)]
#[command(after_help = "\
For a server with SQLite and a folder, on its own machine, running or not. The backup is a data folder: serve a copy of
it to restore. Repeated into the same folder, only what is new is copied.

Examples:
  lode backup --data /srv/lode --to /backup/lode
  lode backup --data /srv/lode --to /srv/snapshots/monday --link")]
pub(crate) struct Backup {
    /// The folder to write to
    #[arg(long, value_name = "DIR")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) from: Kept,
    /// Give blobs a second name instead of copying them: at once, and on the same file system only
    #[arg(long)]
    pub(crate) link: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Moves a server with SQLite and a folder. Stop it, or serve it with --read-only meanwhile. Every blob is read and its
digest compared; rows are counted on both sides. Interrupted, repeat the command: it goes on where it stopped.

Example:
  lode migrate --data /srv/lode --to-database postgres://lode@db/lode --to-storage s3://bucket/lode")]
pub(crate) struct Migrate {
    /// The database to move the index to, empty
    #[arg(long, value_name = "URL")]
    pub(crate) to_database: String,
    /// The storage to move the bytes to
    #[arg(long, value_name = "URL")]
    pub(crate) to_storage: String,
    #[command(flatten)]
    pub(crate) from: Kept,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Runner {
    /// The socket to serve on
    #[arg(long)]
    pub(crate) socket: PathBuf,
}
