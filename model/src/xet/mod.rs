//! The formats of Xet, in which Hugging Face's clients upload large files. A file is cut into chunks, new
//! chunks travel in xorbs, and shards say of which chunks each file consists.

pub mod hash;
pub mod shard;
pub mod xorb;

#[cfg(test)]
mod tests;
