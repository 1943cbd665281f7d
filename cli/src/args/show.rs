//! Arguments of `lode show`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Model or artifact: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Print a Modelfile that recreates the model
    #[arg(long, group = "part")]
    pub(crate) modelfile: bool,
    /// Print the prompt template
    #[arg(long, group = "part")]
    pub(crate) template: bool,
    /// Print the system message
    #[arg(long, group = "part")]
    pub(crate) system: bool,
    /// Print the parameters
    #[arg(long, group = "part")]
    pub(crate) parameters: bool,
    /// Print the licence
    #[arg(long, group = "part")]
    pub(crate) license: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
