//! Arguments of `lode user`, `robot`, `group`, `token`, `key`, `grant`, `visibility`, `protect`, `quota` and `audit`.

use clap::{Args, Subcommand, ValueEnum};

/// Manage the users of a server
#[derive(Debug, Subcommand)]
pub(crate) enum User {
    /// Create a user, who owns the namespace of the same name
    Add(UserAdd),
    /// List users and robots
    List(ListAccounts),
    /// Change a user's password or server role, or disable it
    Set(UserSet),
    /// Change your own password: asks for the current one, or reads both from two lines of standard input
    Password,
    /// Delete a user with its tokens, roles and robots; its repositories stay
    Rm {
        /// The user's name
        name: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
The first user must be an administrator. It ends open access: from then on every request needs
credentials, and the repositories that exist become internal.

Examples:
  lode user add admin --server-role admin
  lode user add alice --password-stdin < FILE")]
pub(crate) struct UserAdd {
    /// The user's name
    pub(crate) name: String,
    /// Read the password from standard input. On a terminal it is asked for
    #[arg(long)]
    pub(crate) password_stdin: bool,
    /// A role on the whole server
    #[arg(long, value_name = "ROLE")]
    pub(crate) server_role: Option<NewServerRole>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UserSet {
    /// The user's name
    pub(crate) name: String,
    /// Read a new password from standard input
    #[arg(long)]
    pub(crate) password_stdin: bool,
    /// A role on the whole server
    #[arg(long, value_name = "ROLE")]
    pub(crate) server_role: Option<ServerRole>,
    /// End the user's sessions, and refuse its credentials
    #[arg(long, conflicts_with = "enable")]
    pub(crate) disable: bool,
    /// Accept the user's credentials again
    #[arg(long)]
    pub(crate) enable: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListAccounts {
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum NewServerRole {
    /// Owns everything
    Admin,
    /// Reads everything, and changes nothing
    Auditor,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ServerRole {
    /// Owns everything
    Admin,
    /// Reads everything, and changes nothing
    Auditor,
    /// No role on the server
    None,
}

/// Manage the machine accounts of a namespace
#[derive(Debug, Subcommand)]
pub(crate) enum Robot {
    /// Create a robot; `lode token create --account` creates its token
    Add {
        /// The robot's name: NAMESPACE+NAME
        name: String,
        /// Print the result as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the robots of a namespace
    List {
        /// The namespace: the first part of its repositories' names
        namespace: String,
        /// Print the result as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Delete a robot with its tokens and roles
    Rm {
        /// The robot's name: NAMESPACE+NAME
        name: String,
    },
}

/// Manage groups of accounts
#[derive(Debug, Subcommand)]
pub(crate) enum Group {
    /// Create a group
    Add(GroupAdd),
    /// List groups with their members
    List {
        /// Print the result as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Delete a group with its roles
    Rm {
        /// The group's name
        name: String,
    },
    /// Add an account to a group
    Join {
        /// The group's name
        group: String,
        /// The account's name
        account: String,
    },
    /// Remove an account from a group
    Leave {
        /// The group's name
        group: String,
        /// The account's name
        account: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode group add research
  lode group add ml --provider corp
  lode group add ml --provider corp --claim /engineering/ml")]
pub(crate) struct GroupAdd {
    /// The group's name
    pub(crate) name: String,
    /// The sign-in provider that decides who is a member, as named in the server's settings
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// The provider's name for the group [default: the same name]
    #[arg(long, value_name = "VALUE", requires = "provider")]
    pub(crate) claim: Option<String>,
}

/// Manage tokens, which take the place of a password
#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Create a token, and print its secret once
    Create(TokenCreate),
    /// List the tokens of an account
    List(TokenList),
    /// Revoke a token, at once and on every replica
    Revoke(TokenRevoke),
    /// Replace a token by a new one with the same limits, and print its secret once
    Rotate(TokenRotate),
    /// Exchange the token of this CI job for one of the server, and print it
    Exchange(TokenExchange),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The server must know the job as a publisher: see `lode publisher add`. On GitHub Actions the job needs
`permissions: id-token: write`; elsewhere LODE_ID_TOKEN has the job's token, whose audience is the
server's URL.

Examples:
  lode token exchange --resource team/app |
    lode login hub.example --password-stdin
  lode token exchange --resource team+ci |
    docker login hub.example --username token --password-stdin")]
pub(crate) struct TokenExchange {
    /// The robot, or the namespace or repository to which the token is limited
    #[arg(long, value_name = "NAME")]
    pub(crate) resource: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode token create laptop
  lode token create ci --account team+ci --access write --target team/app
  lode token create chat-app --access infer --expires 30d")]
pub(crate) struct TokenCreate {
    /// What the token is for
    pub(crate) name: String,
    /// Account of the token [default: your own]
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<String>,
    /// What the token may do at most
    #[arg(long, value_name = "LEVEL", default_value = "full")]
    pub(crate) access: Access,
    /// Limit the token to a repository, or to a namespace: NAMESPACE/*. Repeatable
    #[arg(long = "target", value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
    /// How long the token is valid
    #[arg(long, value_name = "DURATION", default_value = "90d")]
    pub(crate) expires: String,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Access {
    /// Run inference and list models, without pulling them
    Infer,
    /// Pull, too
    Read,
    /// Push, too
    Write,
    /// Delete, and protect tags, too
    Maintain,
    /// Grant roles, too
    Own,
    /// Everything that the account may do
    Full,
}

#[derive(Debug, Args)]
pub(crate) struct TokenList {
    /// Account of the tokens [default: your own]
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<String>,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRevoke {
    /// The token's id, as `lode token list` prints it
    pub(crate) id: String,
    /// Account of the token [default: your own]
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRotate {
    #[command(flatten)]
    pub(crate) token: TokenRevoke,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Manage the keys with which ollama pulls and pushes
#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Add a key: the file id_ed25519.pub of the user that runs `ollama serve`
    Add(KeyAdd),
    /// List the keys of an account
    List(TokenList),
    /// Remove a key
    Rm {
        /// The key's id, as `lode key list` prints it
        id: String,
        /// Account of the key [default: your own]
        #[arg(long, value_name = "NAME")]
        account: Option<String>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode key add ~/.ollama/id_ed25519.pub
  lode key add /usr/share/ollama/.ollama/id_ed25519.pub --name server-7")]
pub(crate) struct KeyAdd {
    /// The file with the public key; `-` reads standard input
    pub(crate) file: std::path::PathBuf,
    /// A name for the key [default: the comment in the file]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Account of the key [default: your own]
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<String>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Manage roles on repositories and namespaces
#[derive(Debug, Subcommand)]
pub(crate) enum Grant {
    /// Grant a role to a user, a robot, a group, `everyone` or `anyone`
    Add(GrantAdd),
    /// List roles
    List(GrantList),
    /// Remove a role
    Rm {
        /// The user, robot or group
        subject: String,
        /// A repository, or a namespace: NAMESPACE/*
        target: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode grant add alice write 'team/*'
  lode grant add staff read team/secret
  lode grant add anyone read team/demo")]
pub(crate) struct GrantAdd {
    /// The user, robot or group; `everyone` (signed in) and `anyone` may get the role read
    pub(crate) subject: String,
    /// The role; each includes those before it
    pub(crate) role: Role,
    /// A repository, or a namespace: NAMESPACE/*
    pub(crate) target: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Role {
    /// Pull, and run inference
    Read,
    /// Push, create repositories, and move tags
    Write,
    /// Delete, and protect tags
    Maintain,
    /// Grant roles, and set the visibility
    Own,
}

#[derive(Debug, Args)]
pub(crate) struct GrantList {
    /// Only roles on this repository or namespace
    pub(crate) target: Option<String>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode visibility 'team/*' internal
  lode visibility team/secret private
  lode visibility team/secret inherit       as team/*
  lode visibility team/secret               show it")]
pub(crate) struct SetVisibility {
    /// A repository, or a namespace: NAMESPACE/*
    pub(crate) target: String,
    /// Who may read it without a role
    pub(crate) visibility: Option<Visibility>,
    /// Print the result as a JSON object
    #[arg(long, conflicts_with = "visibility")]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Visibility {
    /// Only accounts with a role
    Private,
    /// Every signed-in account
    Internal,
    /// Every client
    Public,
    /// That of the namespace
    Inherit,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A protected tag is created once. It cannot be moved or deleted, and retention rules keep it.

Examples:
  lode protect 'team/*' 'v*' 'release-*'
  lode protect 'team/*'                     list the patterns
  lode protect 'team/*' --none              remove them")]
pub(crate) struct Protect {
    /// A repository, or a namespace: NAMESPACE/*
    pub(crate) target: String,
    /// Patterns of tags, which replace the earlier ones; `*` matches any text
    pub(crate) patterns: Vec<String>,
    /// Remove all patterns
    #[arg(long, conflicts_with = "patterns")]
    pub(crate) none: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Limit how many bytes the blobs of a namespace may have
#[derive(Debug, Subcommand)]
pub(crate) enum Quota {
    /// Set the quota of a namespace
    Set {
        /// The namespace: the first part of its repositories' names
        namespace: String,
        /// The limit, such as 500GiB
        limit: lode_client::ByteSize,
    },
    /// List quotas, and how much of them is used
    List {
        /// Only this namespace, with or without a quota
        namespace: Option<String>,
        /// Print the result as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove the quota of a namespace
    Rm {
        /// The namespace
        namespace: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode audit --actor user:alice --since 7d
  lode audit --action account.sign_in --outcome refused
  lode audit --limit 0 --json > audit.jsonl")]
pub(crate) struct Audit {
    /// Only this actor: user:NAME, robot:NAME, worker:ID, anonymous or server
    #[arg(long)]
    pub(crate) actor: Option<String>,
    /// Only this action, such as manifest.push or token.create
    #[arg(long)]
    pub(crate) action: Option<String>,
    /// Only this target, such as team/app@sha256:... or user:alice
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Only this outcome
    #[arg(long)]
    pub(crate) outcome: Option<Outcome>,
    /// Only the last hours or days, such as 24h or 7d
    #[arg(long, value_name = "DURATION")]
    pub(crate) since: Option<String>,
    /// At most this many records; 0 means all
    #[arg(long, default_value_t = 100)]
    pub(crate) limit: usize,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Outcome {
    /// It was done
    Ok,
    /// It was refused
    Refused,
}
