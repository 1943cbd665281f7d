//! Arguments of `lode publisher`.

use clap::{ArgGroup, Args, Subcommand};

/// Manage trusted publishers: CI jobs that sign in as a robot without a stored secret
#[derive(Debug, Subcommand)]
pub(crate) enum Publisher {
    /// Let the jobs of a workflow or a pipeline sign in as a robot
    Add(PublisherAdd),
    /// List the publishers of a robot
    List {
        /// The robot: NAMESPACE+NAME
        robot: String,
        /// Show all columns, whatever the width of the terminal
        #[arg(long)]
        wide: bool,
        /// Print the result as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove a publisher, and revoke its tokens
    Rm {
        /// The robot: NAMESPACE+NAME
        robot: String,
        /// The publisher's id, as `lode publisher list` prints it
        id: String,
    },
}

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("service").required(true).multiple(false).args(["github", "gitlab", "oidc"]),
    after_help = "\
The job gets a token for 60 minutes with `lode token exchange`. It has the robot's roles, and at most
writes.

Examples:
  lode publisher add team+ci --github octo-org/octo-repo \\
    --workflow publish.yml --environment release
  lode publisher add team+ci --gitlab my-group/my-project \\
    --claim ref_protected=true
  lode publisher add team+ci --oidc --issuer https://oidc.example/cluster \\
    --claim sub=system:serviceaccount:ml:trainer"
)]
pub(crate) struct PublisherAdd {
    /// The robot as which the jobs sign in: NAMESPACE+NAME
    pub(crate) robot: String,
    /// A repository on GitHub, whose Actions publish
    #[arg(long, value_name = "OWNER/NAME", requires = "workflow")]
    pub(crate) github: Option<String>,
    /// GitHub: the file of the workflow in .github/workflows
    #[arg(long, value_name = "FILE", requires = "github")]
    pub(crate) workflow: Option<String>,
    /// A project on GitLab, whose CI publishes
    #[arg(long, value_name = "GROUP/NAME")]
    pub(crate) gitlab: Option<String>,
    /// GitLab: the file of the pipeline [default: .gitlab-ci.yml]
    #[arg(long, value_name = "FILE", requires = "gitlab")]
    pub(crate) config_file: Option<String>,
    /// Any other issuer of OpenID Connect tokens; --claim says which of its tokens count
    #[arg(long, requires = "issuer", requires = "claim")]
    pub(crate) oidc: bool,
    /// The issuer's URL, exactly as in its tokens [default: GitHub's or GitLab's own]
    #[arg(long, value_name = "URL")]
    pub(crate) issuer: Option<String>,
    /// Only jobs of this environment
    #[arg(long, value_name = "NAME")]
    pub(crate) environment: Option<String>,
    /// Only tokens with this claim. Repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) claim: Vec<String>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
