//! Routes by method, like those of `axum::routing`, for handlers as trait objects. The compiler then instantiates axum's
//! services once instead of once for each handler, which took it minutes.

use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::{self, MethodRouter};
use futures::future::BoxFuture;

use super::state::ServerState;

/// A handler of any type.
#[derive(Clone)]
struct AnyHandler(Arc<dyn Fn(Request, ServerState) -> BoxFuture<'static, Response> + Send + Sync>);

impl AnyHandler {
    fn of<T: 'static>(handler: impl Handler<T, ServerState>) -> AnyHandler {
        AnyHandler(Arc::new(move |request, state| Box::pin(handler.clone().call(request, state))))
    }
}

impl Handler<(), ServerState> for AnyHandler {
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request, state: ServerState) -> Self::Future {
        (self.0)(request, state)
    }
}

macro_rules! methods {
    ($($method:ident)+) => {$(
        /// Routes requests of this method to the handler. `merge` adds further methods.
        pub(crate) fn $method<T: 'static>(handler: impl Handler<T, ServerState>) -> MethodRouter<ServerState> {
            routing::$method(AnyHandler::of(handler))
        }
    )+};
}

methods!(delete get head patch post put);
