//! The formats of the quantised types, one row each: the file that decodes and encodes a block, how it is
//! encoded, and the scale that must be finite. Encoding is compiled twice, for any processor and for those
//! with AVX2. Both do the same operations in the same order, so that a tensor has the same bytes, and the
//! same digest, on every machine.

use super::lanes::{Lanes, ScalarLanes};
use super::scales::{e8m0, first_non_finite, float, four_e4m3, halves};
use super::types::Type;
use super::{
    iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, mxfp4, nvfp4, q1_0, q2_0, q2_k,
    q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, q8_1, q8_k, tq1_0, tq2_0,
};

macro_rules! encode {
    (none, $lanes:ident, $format:ident, $values:ident, $out:ident) => {
        unreachable!("{} has no encoder", stringify!($format))
    };
    (scalar, $lanes:ident, $format:ident, $values:ident, $out:ident) => {
        for (values, block) in $values.as_chunks().0.iter().zip($out.as_chunks_mut().0) {
            $format::encode(values, block);
        }
    };
    (lanes, $lanes:ident, $format:ident, $values:ident, $out:ident) => {
        for (values, block) in $values.as_chunks().0.iter().zip($out.as_chunks_mut().0) {
            $format::encode::<$lanes>(values, block);
        }
    };
    (whole, $lanes:ident, $format:ident, $values:ident, $out:ident) => {
        $format::encode::<$lanes>($values, $out)
    };
}

macro_rules! has_encoder {
    (none) => {
        false
    };
    ($encoder:ident) => {
        true
    };
}

macro_rules! formats {
    ($($ty:ident: $format:ident, $encoder:ident, $scale:expr;)+) => {
        impl Type {
            /// Whether Lode can quantise to this type. ggml makes the smallest IQ types only with an
            /// importance matrix, and rounding to integer types is not supported.
            pub fn is_encodable(self) -> bool {
                match self {
                    $(Type::$ty => has_encoder!($encoder),)+
                    Type::F32 | Type::F16 | Type::BF16 | Type::F64 => true,
                    Type::I8 | Type::I16 | Type::I32 | Type::I64 => false,
                }
            }
        }

        /// Decodes whole blocks of a quantised type. Compiled once for all processors: reading the bytes
        /// takes longer.
        pub(super) fn decode(ty: Type, bytes: &[u8], out: &mut [f32]) {
            match ty {
                $(Type::$ty => {
                    for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                        $format::decode(block, out);
                    }
                })+
                _ => unreachable!("{ty} is plain numbers"),
            }
        }

        #[inline(always)]
        pub(super) fn encode_blocks<L: Lanes>(ty: Type, values: &[f32], out: &mut [u8]) {
            match ty {
                $(Type::$ty => encode!($encoder, L, $format, values, out),)+
                _ => unreachable!("{ty} is plain numbers"),
            }
        }

        /// Returns the first block of a quantised type whose scale is not finite, and the scale.
        pub(super) fn first_invalid_scale(ty: Type, bytes: &[u8]) -> Option<(usize, f32)> {
            let size = ty.block_bytes() as usize;
            match ty {
                $(Type::$ty => first_non_finite(bytes, size, $scale),)+
                _ => unreachable!("{ty} is plain numbers"),
            }
        }
    };
}

// Encoders: `scalar` and `lanes` encode a block at a time, `lanes` in vector registers; `whole` encodes all
// blocks together; `none` cannot encode.
formats! {
    Q4_0: q4_0, scalar, halves([0]);
    Q4_1: q4_1, scalar, halves([0, 2]);
    Q5_0: q5_0, scalar, halves([0]);
    Q5_1: q5_1, scalar, halves([0, 2]);
    Q8_0: q8_0, lanes, halves([0]);
    Q8_1: q8_1, scalar, halves([0, 2]);
    Q2_K: q2_k, lanes, halves([80, 82]);
    Q3_K: q3_k, lanes, halves([108]);
    Q4_K: q4_k, lanes, halves([0, 2]);
    Q5_K: q5_k, lanes, halves([0, 2]);
    Q6_K: q6_k, lanes, halves([208]);
    Q8_K: q8_k, scalar, float;
    IQ1_S: iq1_s, none, halves([0]);
    IQ1_M: iq1_m, none, |b: &[u8]| b.as_array().map_or(0.0, iq1_m::scale);
    IQ2_XXS: iq2_xxs, none, halves([0]);
    IQ2_XS: iq2_xs, none, halves([0]);
    IQ2_S: iq2_s, none, halves([0]);
    IQ3_XXS: iq3_xxs, none, halves([0]);
    IQ3_S: iq3_s, none, halves([0]);
    IQ4_NL: iq4_nl, whole, halves([0]);
    IQ4_XS: iq4_xs, lanes, halves([0]);
    TQ1_0: tq1_0, scalar, halves([52]);
    TQ2_0: tq2_0, scalar, halves([64]);
    MXFP4: mxfp4, scalar, e8m0;
    NVFP4: nvfp4, scalar, four_e4m3;
    Q1_0: q1_0, scalar, halves([0]);
    Q2_0: q2_0, scalar, halves([0]);
}

/// Quantises whole blocks to a type that [`Type::is_encodable`].
pub(super) fn encode(ty: Type, values: &[f32], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::is_available() {
        return avx2::encode(ty, values, out);
    }
    encode_blocks::<ScalarLanes>(ty, values, out);
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    #![allow(unsafe_code)]

    use super::{Type, encode_blocks};
    use crate::quant::ggml::avx2::AvxLanes;

    pub(crate) fn is_available() -> bool {
        std::arch::is_x86_feature_detected!("avx2")
    }

    pub(super) fn encode(ty: Type, values: &[f32], out: &mut [u8]) {
        #[target_feature(enable = "avx2")]
        fn encode(ty: Type, values: &[f32], out: &mut [u8]) {
            encode_blocks::<AvxLanes>(ty, values, out);
        }
        assert!(is_available());
        // SAFETY: the processor has AVX2.
        unsafe { encode(ty, values, out) }
    }
}
