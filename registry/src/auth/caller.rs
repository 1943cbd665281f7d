//! The caller of a request, and the policy function that every route checks. A server is open to every client
//! that can reach it, so the policy allows everything today. Callers of the policy stay the same once it does
//! not.

use lode_model::reference::Repository;

use crate::Error;

/// The identity behind a request, built at the edge from its credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Caller {
    /// A client without credentials.
    Anonymous,
    /// A part of this server, such as the model index job.
    Internal,
    /// The holder of a signed URL of a blob. The blob's own route issues it; it allows pulls from that
    /// repository.
    Link { repository: Repository },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Pull,
    Push,
    Delete,
    /// See names in a listing across repositories.
    List,
    /// Operate the server: run a garbage collection or fsck, list and remove workers.
    Administer,
    /// Run inference on a model.
    Infer,
    /// Register a worker.
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

/// Returns an error if `caller` may do this to no target. Checked before the body that names the target is
/// read.
pub fn allow_some(caller: &Caller, action: Action) -> Result<(), Error> {
    match (caller, action) {
        (Caller::Internal | Caller::Anonymous, _) | (Caller::Link { .. }, Action::Pull) => Ok(()),
        (Caller::Link { .. }, _) => Err(Error::Denied),
    }
}

/// Returns an error if `caller` may not do this. `Unauthorized` asks for credentials, `Denied` is final.
pub fn allow(caller: &Caller, action: Action, target: Target<'_>) -> Result<(), Error> {
    match (caller, action, target) {
        (Caller::Internal | Caller::Anonymous, _, _) => Ok(()),
        (Caller::Link { repository }, Action::Pull, Target::Repository(requested))
            if requested == repository =>
        {
            Ok(())
        }
        (Caller::Link { .. }, _, _) => Err(Error::Denied),
    }
}
