//! The primitives of prelude.cuh.
