//! The block types of GGUF files: their table, exact decoding to float32, and quantisation as in ggml. Each
//! format has one file, which decodes and encodes one block at any address. `types` has a row for each type,
//! and `dispatch` has a row for each format.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod block;
pub mod codebooks;
mod codec;
mod dispatch;
mod fit;
mod lanes;
mod scales;
mod types;
mod validate;

mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_1;
mod q8_k;
mod tq1_0;
mod tq2_0;

pub use codec::{EncodeError, decode_f32_into, encode};
pub use types::{Type, UnknownType};
pub use validate::{InvalidBlocks, validate};

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
