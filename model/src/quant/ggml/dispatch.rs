//! Selects the format of each type. Encoding is compiled twice, for any processor and for those with AVX2.
//! Both do the same operations in the same order, so that a tensor has the same bytes, and the same digest,
//! on every machine.

use super::lanes::{Lanes, ScalarLanes};
use super::types::Type;
use super::{
    iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, mxfp4, nvfp4, q1_0, q2_0, q2_k,
    q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, q8_1, q8_k, tq1_0, tq2_0,
};

macro_rules! decode {
    ($format:ident, $bytes:ident, $out:ident) => {
        for (block, out) in $bytes.as_chunks().0.iter().zip($out.as_chunks_mut().0) {
            $format::decode(block, out);
        }
    };
}

macro_rules! encode {
    ($format:ident $(::<$lanes:ident>)?, $values:ident, $out:ident) => {
        for (values, block) in $values.as_chunks().0.iter().zip($out.as_chunks_mut().0) {
            $format::encode $(::<$lanes>)? (values, block);
        }
    };
}

/// Quantises whole blocks to a type that [`Type::is_encodable`].
pub(super) fn encode(ty: Type, values: &[f32], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::is_available() {
        return avx2::encode(ty, values, out);
    }
    encode_blocks::<ScalarLanes>(ty, values, out);
}

/// Decodes whole blocks of a quantised type. Compiled once for all processors: reading the bytes takes
/// longer.
pub(super) fn decode(ty: Type, bytes: &[u8], out: &mut [f32]) {
    match ty {
        Type::Q4_0 => decode!(q4_0, bytes, out),
        Type::Q4_1 => decode!(q4_1, bytes, out),
        Type::Q5_0 => decode!(q5_0, bytes, out),
        Type::Q5_1 => decode!(q5_1, bytes, out),
        Type::Q8_0 => decode!(q8_0, bytes, out),
        Type::Q8_1 => decode!(q8_1, bytes, out),
        Type::Q2_K => decode!(q2_k, bytes, out),
        Type::Q3_K => decode!(q3_k, bytes, out),
        Type::Q4_K => decode!(q4_k, bytes, out),
        Type::Q5_K => decode!(q5_k, bytes, out),
        Type::Q6_K => decode!(q6_k, bytes, out),
        Type::Q8_K => decode!(q8_k, bytes, out),
        Type::IQ1_S => decode!(iq1_s, bytes, out),
        Type::IQ1_M => decode!(iq1_m, bytes, out),
        Type::IQ2_XXS => decode!(iq2_xxs, bytes, out),
        Type::IQ2_XS => decode!(iq2_xs, bytes, out),
        Type::IQ2_S => decode!(iq2_s, bytes, out),
        Type::IQ3_XXS => decode!(iq3_xxs, bytes, out),
        Type::IQ3_S => decode!(iq3_s, bytes, out),
        Type::IQ4_NL => decode!(iq4_nl, bytes, out),
        Type::IQ4_XS => decode!(iq4_xs, bytes, out),
        Type::TQ1_0 => decode!(tq1_0, bytes, out),
        Type::TQ2_0 => decode!(tq2_0, bytes, out),
        Type::MXFP4 => decode!(mxfp4, bytes, out),
        Type::NVFP4 => decode!(nvfp4, bytes, out),
        Type::Q1_0 => decode!(q1_0, bytes, out),
        Type::Q2_0 => decode!(q2_0, bytes, out),
        Type::F32 | Type::F16 | Type::BF16 | Type::F64 | Type::I8 | Type::I16 | Type::I32 | Type::I64 => {
            unreachable!("{ty} is plain numbers")
        }
    }
}

#[inline(always)]
pub(super) fn encode_blocks<L: Lanes>(ty: Type, values: &[f32], out: &mut [u8]) {
    match ty {
        Type::Q4_0 => encode!(q4_0, values, out),
        Type::Q4_1 => encode!(q4_1, values, out),
        Type::Q5_0 => encode!(q5_0, values, out),
        Type::Q5_1 => encode!(q5_1, values, out),
        Type::Q8_0 => encode!(q8_0::<L>, values, out),
        Type::Q8_1 => encode!(q8_1, values, out),
        Type::Q8_K => encode!(q8_k, values, out),
        Type::Q2_K => encode!(q2_k::<L>, values, out),
        Type::Q3_K => encode!(q3_k::<L>, values, out),
        Type::Q4_K => encode!(q4_k::<L>, values, out),
        Type::Q5_K => encode!(q5_k::<L>, values, out),
        Type::Q6_K => encode!(q6_k::<L>, values, out),
        Type::IQ4_NL => iq4_nl::encode::<L>(values, out),
        Type::IQ4_XS => encode!(iq4_xs::<L>, values, out),
        Type::TQ1_0 => encode!(tq1_0, values, out),
        Type::TQ2_0 => encode!(tq2_0, values, out),
        Type::MXFP4 => encode!(mxfp4, values, out),
        Type::NVFP4 => encode!(nvfp4, values, out),
        Type::Q1_0 => encode!(q1_0, values, out),
        Type::Q2_0 => encode!(q2_0, values, out),
        _ => unreachable!("{ty} cannot be made"),
    }
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
