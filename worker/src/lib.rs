//! The inference node: pulls models from a registry, keeps them in a cache, runs each in a process of its own.
//! `lode serve` and `lode worker` start it with [`start`]; the processes it starts run [`runner::main`].

pub mod arch;
pub mod engine;
pub mod kernels;
pub mod runner;
pub mod text;
