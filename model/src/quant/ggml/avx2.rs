//! [`Lanes`] in one AVX register. Only `dispatch` creates it, in functions that are compiled for AVX2, after
//! it has checked the processor. Everything here is inlined into those functions.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

use super::lanes::{LANES, Lanes};

#[derive(Clone, Copy)]
pub(super) struct AvxLanes(__m256);

/// An instruction whose operands are registers.
macro_rules! op {
    ($($call:tt)+) => {
        // SAFETY: the caller is compiled for AVX2 and runs on a processor that has it; no memory is touched.
        unsafe { $($call)+ }
    };
}

impl Lanes for AvxLanes {
    type Mask = __m256;

    #[inline(always)]
    fn from_array(x: [f32; LANES]) -> AvxLanes {
        // SAFETY: as for `op`; the eight floats are read at any alignment.
        AvxLanes(unsafe { _mm256_loadu_ps(x.as_ptr()) })
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut x = [0.0; LANES];
        // SAFETY: as for `op`; the eight floats are written at any alignment.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), self.0) };
        x
    }

    #[inline(always)]
    fn to_bytes(self) -> [u8; LANES] {
        let bytes = op!({
            let integers = _mm256_cvtps_epi32(self.0);
            let low = _mm256_castsi256_si128(integers);
            let words = _mm_packs_epi32(low, _mm256_extracti128_si256::<1>(integers));
            _mm_cvtsi128_si64(_mm_packs_epi16(words, words))
        });
        bytes.to_le_bytes()
    }

    #[inline(always)]
    fn splat(x: f32) -> AvxLanes {
        AvxLanes(op!(_mm256_set1_ps(x)))
    }

    #[inline(always)]
    fn abs(self) -> AvxLanes {
        AvxLanes(op!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0)))
    }

    #[inline(always)]
    fn sqrt(self) -> AvxLanes {
        AvxLanes(op!(_mm256_sqrt_ps(self.0)))
    }

    #[inline(always)]
    fn min(self, other: AvxLanes) -> AvxLanes {
        AvxLanes(op!(_mm256_min_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn max(self, other: AvxLanes) -> AvxLanes {
        AvxLanes(op!(_mm256_max_ps(self.0, other.0)))
    }

    #[inline(always)]
    fn less(self, other: AvxLanes) -> __m256 {
        op!(_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0))
    }

    #[inline(always)]
    fn differs(self, other: AvxLanes) -> __m256 {
        op!(_mm256_cmp_ps::<_CMP_NEQ_UQ>(self.0, other.0))
    }

    #[inline(always)]
    fn and(a: __m256, b: __m256) -> __m256 {
        op!(_mm256_and_ps(a, b))
    }

    #[inline(always)]
    fn any(mask: __m256) -> bool {
        op!(_mm256_movemask_ps(mask)) != 0
    }

    #[inline(always)]
    fn select(mask: __m256, a: AvxLanes, b: AvxLanes) -> AvxLanes {
        AvxLanes(op!(_mm256_blendv_ps(b.0, a.0, mask)))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $instruction:ident),+) => {
        $(impl $trait for AvxLanes {
            type Output = AvxLanes;

            #[inline(always)]
            fn $method(self, other: AvxLanes) -> AvxLanes {
                AvxLanes(op!($instruction(self.0, other.0)))
            }
        })+
    };
}

operators!(Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);
