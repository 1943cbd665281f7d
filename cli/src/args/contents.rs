//! Arguments of `lode repo`, `lode tag` and `lode manifest`.

use clap::{Args, Subcommand};

/// List all repositories, with models, images and other artifacts, or move one
#[derive(Debug, Subcommand)]
#[command(visible_alias = "repository")]
pub(crate) enum Repo {
    /// List repositories with their tags, size, pulls and the time of the last change
    #[command(visible_alias = "ls")]
    List(RepoList),
    /// Move a repository to another name, with all that belongs to it
    #[command(visible_alias = "mv")]
    Move(RepoMove),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Tags, history, card, roles, protected tags and visibility move with it, and no bytes are sent or copied. The old name
no longer exists. It needs the role `own` on both names; NEW has no content, and no tag of OLD is protected.

Examples:
  lode repo move team/mini team/small")]
pub(crate) struct RepoMove {
    /// Repository: [host/]repository
    #[arg(value_name = "OLD")]
    pub(crate) from: String,
    /// Its new name on the same server: repository
    #[arg(value_name = "NEW")]
    pub(crate) to: String,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The size is that of all blobs in the repository, each counted once. Repositories share blobs, so the
sizes may add up to more than the server stores. PULLS are those of the last 30 days.

Examples:
  lode repo list
  lode repo list team
  lode repo list --json | jq -r '.repositories[].repository'")]
pub(crate) struct RepoList {
    /// Only this repository and the repositories below it: [host/]repository
    pub(crate) prefix: Option<String>,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the tags of a repository, show how they were moved, or undo a move
#[derive(Debug, Subcommand)]
pub(crate) enum Tag {
    /// List tags with the kind, the size and the digest of what they name
    #[command(visible_alias = "ls")]
    List(TagList),
    /// List the moves and deletions of tags, newest first
    History(TagHistory),
    /// Move a tag back to the manifest to which it pointed before
    Undo(TagUndo),
}

#[derive(Debug, Args)]
#[command(after_help = "\
KIND is model, image, index, or the artifact type. The size of an index is that of its manifests
together.

Examples:
  lode tag list team/image
  lode tag list team/image --json | jq -r '.tags[] | [.tag, .digest] | @tsv'")]
pub(crate) struct TagList {
    /// Repository: [host/]repository
    pub(crate) repository: String,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A server keeps the last 1,000 moves of each repository. UNDO is `no` if the tag was new, or if its previous
manifest was deleted.

Examples:
  lode tag history team/mini
  lode tag history team/mini --tag v1 --json")]
pub(crate) struct TagHistory {
    /// Repository: [host/]repository
    pub(crate) repository: String,
    /// Only moves of this tag
    #[arg(long)]
    pub(crate) tag: Option<String>,
    /// Number of moves to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --position the last move or deletion of the tag is undone. It fails if the manifest was deleted;
`lode gc undo` restores a deleted manifest.

Examples:
  lode tag undo team/mini:v1
  lode tag undo team/mini:v1 --position 12")]
pub(crate) struct TagUndo {
    /// Tag to move back: [host/]repository[:tag]
    pub(crate) name: String,
    /// Undo this move, whatever followed: a position that `lode tag history` lists
    #[arg(long, value_name = "N")]
    pub(crate) position: Option<i64>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the manifests of a repository, or show one
#[derive(Debug, Subcommand)]
pub(crate) enum Manifest {
    /// List all manifests of a repository, with and without tags, newest first
    #[command(visible_alias = "ls")]
    List(ManifestList),
    /// Show a manifest: its config, layers, annotations, or the manifests that an index lists
    #[command(visible_alias = "show")]
    Inspect(ManifestInspect),
}

#[derive(Debug, Args)]
#[command(after_help = "\
KIND is model, image, index, or the artifact type. SUBJECT is the manifest that a signature, an SBOM or
another referrer describes.

Example:
  lode manifest list team/image")]
pub(crate) struct ManifestList {
    /// Repository: [host/]repository
    pub(crate) repository: String,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode manifest inspect team/image:v1
  lode manifest inspect team/image@sha256:0123...
  lode manifest inspect team/image:v1 --raw | sha256sum")]
pub(crate) struct ManifestInspect {
    /// Model, image or other artifact: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Print the manifest itself, byte for byte
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
