//! `lode show`: showing a model.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Show {
    pub(crate) name: String,
    /// Print a Modelfile that makes it again
    #[arg(long, group = "part")]
    pub(crate) modelfile: bool,
    /// Print its template
    #[arg(long, group = "part")]
    pub(crate) template: bool,
    /// Print what it is told before the conversation
    #[arg(long, group = "part")]
    pub(crate) system: bool,
    /// Print its options
    #[arg(long, group = "part")]
    pub(crate) parameters: bool,
    /// Print its licence
    #[arg(long, group = "part")]
    pub(crate) license: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
