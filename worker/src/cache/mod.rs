//! Blobs on this machine: the cache folder, limited in size, and read-only folders of other programs.
//! Concurrent requests for a digest share one pull; a leased blob is never evicted.

mod fetch;
pub mod recognise;
mod store;

pub use fetch::{Model, Models};
pub use store::{Cache, Lease};

#[cfg(test)]
mod tests;
