//! The caller of a request, and the one policy function that every route asks.
//! Today a server is open to whoever may reach it, so the policy allows all; its callers need not change when it does not.

use lode_model::reference::Repository;

use crate::Error;

/// Who asks. Made at the edge, from the request's credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Caller {
    /// Nobody in particular.
    Anonymous,
    /// A part of this server, such as the model index job.
    Internal,
    /// Whoever holds a signed address of a blob. It is made at that blob's own route, and may pull from its repository.
    Link { repository: Repository },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Pull,
    Push,
    Delete,
    /// See that something exists in a listing across repositories.
    List,
    /// Run the server: collect garbage, check the storage, see and remove workers.
    Administer,
    /// Ask a model for an answer.
    Infer,
    /// Offer this machine as a worker.
    Join,
}

#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    Repository(&'a Repository),
    /// All repositories together.
    Catalog,
    Workers,
    Server,
}

/// May `caller` do this to anything at all? Asked before the body is read that names the target.
pub fn allow_some(caller: &Caller, action: Action) -> Result<(), Error> {
    match (caller, action) {
        (Caller::Internal | Caller::Anonymous, _) | (Caller::Link { .. }, Action::Pull) => Ok(()),
        (Caller::Link { .. }, _) => Err(Error::Denied),
    }
}

/// May `caller` do this? `Unauthorized` asks for credentials, `Denied` is final.
pub fn allow(caller: &Caller, action: Action, target: Target<'_>) -> Result<(), Error> {
    match (caller, action, target) {
        (Caller::Internal | Caller::Anonymous, _, _) => Ok(()),
        (Caller::Link { repository }, Action::Pull, Target::Repository(asked)) if asked == repository => {
            Ok(())
        }
        (Caller::Link { .. }, _, _) => Err(Error::Denied),
    }
}
