//! Eight floats at a time. The groups of a block are searched side by side, each in the order of the scalar
//! rule, so that no sum crosses lanes. Every implementation does the same operations, so that all give the
//! same bits.

use std::ops::{Add, Div, Mul, Sub};

use super::block::{BELOW_HALF, ROUND};

pub(super) const LANES: usize = 8;

/// One float of each of eight groups.
pub(super) trait Lanes:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The results of a comparison for eight groups.
    type Mask: Copy;

    fn from_array(x: [f32; LANES]) -> Self;
    fn to_array(self) -> [f32; LANES];

    /// Converts integers from -128 to 127 to bytes, in two's complement.
    fn to_bytes(self) -> [u8; LANES];

    fn splat(x: f32) -> Self;
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;

    /// The smaller; `other` if either is NaN.
    fn min(self, other: Self) -> Self;

    /// The larger; `other` if either is NaN.
    fn max(self, other: Self) -> Self;

    fn less(self, other: Self) -> Self::Mask;
    fn differs(self, other: Self) -> Self::Mask;
    fn and(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    fn any(mask: Self::Mask) -> bool;

    /// `a` where the mask is set, else `b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    /// `1 / x`, and zero for zero.
    #[inline(always)]
    fn inverse(self) -> Self {
        Self::select(self.differs(Self::zero()), Self::splat(1.0) / self, Self::zero())
    }

    /// Rounds to the nearest integer, ties away from zero. The magnitude must be well below 2^22.
    #[inline(always)]
    fn nearest_away(self) -> Self {
        let magnitude = self.abs();
        let even = (magnitude + Self::splat(ROUND)) - Self::splat(ROUND);
        // Only a tie that was rounded down leaves a half.
        let tie = Self::splat(BELOW_HALF).less(magnitude - even);
        let nearest = Self::select(tie, even + Self::splat(1.0), even);
        Self::select(self.less(Self::zero()), Self::zero() - nearest, nearest)
    }

    /// Rounds to the nearest integer from `low` to `high`, ties to even; NaN becomes `low`.
    #[inline(always)]
    fn code(self, low: f32, high: f32) -> Self {
        // Clamp first, because rounding by addition needs a small number; the code is the same.
        let x = self.max(Self::splat(low)).min(Self::splat(high));
        (x + Self::splat(ROUND)) - Self::splat(ROUND)
    }
}

/// The implementation for any processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScalarLanes([f32; LANES]);

impl ScalarLanes {
    #[inline(always)]
    fn zip(mut self, other: ScalarLanes, f: impl Fn(f32, f32) -> f32) -> ScalarLanes {
        for (x, y) in self.0.iter_mut().zip(other.0) {
            *x = f(*x, y);
        }
        self
    }
}

impl Lanes for ScalarLanes {
    type Mask = [bool; LANES];

    #[inline(always)]
    fn from_array(x: [f32; LANES]) -> ScalarLanes {
        ScalarLanes(x)
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        self.0
    }

    #[inline(always)]
    fn to_bytes(self) -> [u8; LANES] {
        self.0.map(|x| x as i8 as u8)
    }

    #[inline(always)]
    fn splat(x: f32) -> ScalarLanes {
        ScalarLanes([x; LANES])
    }

    #[inline(always)]
    fn abs(self) -> ScalarLanes {
        ScalarLanes(self.0.map(f32::abs))
    }

    #[inline(always)]
    fn sqrt(self) -> ScalarLanes {
        ScalarLanes(self.0.map(f32::sqrt))
    }

    #[inline(always)]
    fn min(self, other: ScalarLanes) -> ScalarLanes {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, other: ScalarLanes) -> ScalarLanes {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn less(self, other: ScalarLanes) -> [bool; LANES] {
        std::array::from_fn(|lane| self.0[lane] < other.0[lane])
    }

    #[inline(always)]
    fn differs(self, other: ScalarLanes) -> [bool; LANES] {
        std::array::from_fn(|lane| self.0[lane] != other.0[lane])
    }

    #[inline(always)]
    fn and(a: [bool; LANES], b: [bool; LANES]) -> [bool; LANES] {
        std::array::from_fn(|lane| a[lane] & b[lane])
    }

    #[inline(always)]
    fn any(mask: [bool; LANES]) -> bool {
        mask.contains(&true)
    }

    #[inline(always)]
    fn select(mask: [bool; LANES], a: ScalarLanes, b: ScalarLanes) -> ScalarLanes {
        ScalarLanes(std::array::from_fn(|lane| if mask[lane] { a.0[lane] } else { b.0[lane] }))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:tt),+) => {
        $(impl $trait for ScalarLanes {
            type Output = ScalarLanes;

            #[inline(always)]
            fn $method(self, other: ScalarLanes) -> ScalarLanes {
                self.zip(other, |a, b| a $op b)
            }
        })+
    };
}

operators!(Add add +, Sub sub -, Mul mul *, Div div /);

/// Arranges eight groups of `N` elements side by side: element `i` of each.
#[inline(always)]
pub(super) fn side_by_side<L: Lanes, const N: usize>(groups: &[[f32; N]; LANES]) -> [L; N] {
    let mut x = [L::zero(); N];
    for (i, x) in x.iter_mut().enumerate() {
        let [a, b, c, d, e, f, g, h] = groups;
        *x = L::from_array([a[i], b[i], c[i], d[i], e[i], f[i], g[i], h[i]]);
    }
    x
}

/// Splits a block into eight groups of 32.
#[inline(always)]
pub(super) fn groups_of_32<L: Lanes>(x: &[f32; 256]) -> [L; 32] {
    side_by_side(x.as_chunks().0.as_array().expect("256 are eight times 32"))
}

/// Splits a block into twice eight groups of 16.
#[inline(always)]
pub(super) fn groups_of_16<L: Lanes>(x: &[f32; 256]) -> [[L; 16]; 2] {
    let (low, high) = x.as_chunks().0.split_at(LANES);
    [
        side_by_side(low.as_array().expect("128 are eight times 16")),
        side_by_side(high.as_array().expect("128 are eight times 16")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::report;

    fn check<L: Lanes>() {
        let x = [-127.5, -2.5, -0.49999997, 0.0, 0.5, 1.5, 2.4999998, 126.5];
        let nearest = L::from_array(x).nearest_away();
        assert_eq!(nearest.to_array(), x.map(f32::round));
        assert_eq!(nearest.to_bytes(), x.map(|x| x.round() as i8 as u8));
    }

    #[test]
    fn rounding() {
        check::<ScalarLanes>();
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn rounding_in_registers() {
        if super::super::dispatch::avx2::is_available() {
            check::<super::super::avx2::AvxLanes>();
        } else {
            report::skip_optional(&report::current_test(), "this processor lacks AVX2");
        }
    }
}
