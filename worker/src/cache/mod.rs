//! Blobs on this machine: a folder of our own, capped in size, and read-only folders that others keep.
//! Each digest is pulled at most once however many want it; a blob that is leased is never evicted.

mod fetch;
pub mod recognise;
mod store;

pub use fetch::{Model, Models};
pub use store::{Cache, Lease};

#[cfg(test)]
mod tests;
