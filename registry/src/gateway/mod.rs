//! The gateway: sends an inference request to a worker that can serve it, and streams the response back. Its
//! callers resolve names with the rights of the client, and pass the table of workers. The gateway
//! authenticates to each worker with the secret of its registration.

mod choose;
mod clients;
mod conversation;
mod error;
mod forward;
mod unload;
mod unread;

#[cfg(test)]
pub(crate) use choose::rank_workers;
pub(crate) use clients::RequestClient;
pub(crate) use error::GatewayError;
pub(crate) use forward::{Gateway, InferenceRequest, WorkerResponse};
pub(crate) use unload::is_unload;
