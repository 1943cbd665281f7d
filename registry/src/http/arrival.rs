//! How a request arrived. The accept loop stores it in the request's extensions.

#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestArrival {
    pub(crate) https: bool,
    /// Whether it arrived on the internal listener, which web pages must not reach either.
    pub(crate) internal: bool,
}
