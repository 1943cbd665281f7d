//! The state of the routes: what their handlers and extractors use.

use axum::extract::FromRef;

use crate::Registry;
use crate::gateway::Gateway;

#[derive(Clone)]
pub(crate) struct ServerState {
    pub(crate) registry: Registry,
    /// Sends inference requests to the workers.
    pub(crate) gateway: Gateway,
}

impl FromRef<ServerState> for Registry {
    fn from_ref(state: &ServerState) -> Registry {
        state.registry.clone()
    }
}
