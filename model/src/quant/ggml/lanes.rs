//! Eight floats at a time: the groups of a block side by side, so that each is searched in the order of the scalar rule and none
//! needs a sum across lanes. Plain arrays, which compilers turn into vector registers of whatever size there is.

use std::array::from_fn;
use std::ops::{Add, Div, Mul, Sub};

pub(super) const LANES: usize = 8;

/// One float of each of eight groups.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(32))]
pub(super) struct Lanes(pub(super) [f32; LANES]);

/// What held for each of eight groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask([bool; LANES]);

impl Lanes {
    pub(super) const ZERO: Lanes = Lanes([0.0; LANES]);

    #[inline(always)]
    pub(super) fn splat(x: f32) -> Lanes {
        Lanes([x; LANES])
    }

    #[inline(always)]
    pub(super) fn map(self, f: impl Fn(f32) -> f32) -> Lanes {
        Lanes(from_fn(|lane| f(self.0[lane])))
    }

    #[inline(always)]
    fn zip(self, other: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
        Lanes(from_fn(|lane| f(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    pub(super) fn abs(self) -> Lanes {
        self.map(f32::abs)
    }

    /// The smaller; `other` where one of them is not a number.
    #[inline(always)]
    pub(super) fn min(self, other: Lanes) -> Lanes {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    /// The larger; `other` where one of them is not a number.
    #[inline(always)]
    pub(super) fn max(self, other: Lanes) -> Lanes {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    pub(super) fn less(self, other: Lanes) -> Mask {
        Mask(from_fn(|lane| self.0[lane] < other.0[lane]))
    }

    #[inline(always)]
    pub(super) fn differs(self, other: Lanes) -> Mask {
        Mask(from_fn(|lane| self.0[lane] != other.0[lane]))
    }

    /// `1 / x`, and zero for zero.
    #[inline(always)]
    pub(super) fn inverse(self) -> Lanes {
        self.map(|x| if x == 0.0 { 0.0 } else { 1.0 / x })
    }

    /// To the nearest integer from `low` to `high`, ties to even; what is not a number becomes `low`.
    #[inline(always)]
    pub(super) fn code(self, low: f32, high: f32) -> Lanes {
        // Within the range first, where rounding by addition is right; that gives the same code.
        self.max(Lanes::splat(low)).min(Lanes::splat(high)).map(super::block::nearest_even)
    }
}

impl Mask {
    /// `a` where it held, else `b`.
    #[inline(always)]
    pub(super) fn select(self, a: Lanes, b: Lanes) -> Lanes {
        Lanes(from_fn(|lane| if self.0[lane] { a.0[lane] } else { b.0[lane] }))
    }

    #[inline(always)]
    pub(super) fn and(self, other: Mask) -> Mask {
        Mask(from_fn(|lane| self.0[lane] & other.0[lane]))
    }

    #[inline(always)]
    pub(super) fn any(self) -> bool {
        self.0.into_iter().fold(false, |any, held| any | held)
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $op:tt) => {
        impl $trait for Lanes {
            type Output = Lanes;

            #[inline(always)]
            fn $method(self, other: Lanes) -> Lanes {
                self.zip(other, |a, b| a $op b)
            }
        }
    };
}

operator!(Add, add, +);
operator!(Sub, sub, -);
operator!(Mul, mul, *);
operator!(Div, div, /);

/// Eight groups of `N` elements side by side: element `i` of each.
#[inline(always)]
pub(super) fn side_by_side<const N: usize>(groups: &[[f32; N]; LANES]) -> [Lanes; N] {
    from_fn(|i| Lanes(from_fn(|lane| groups[lane][i])))
}

/// A block as eight groups of 32.
#[inline(always)]
pub(super) fn thirty_twos(x: &[f32; 256]) -> [Lanes; 32] {
    side_by_side(x.as_chunks().0.as_array().expect("256 are eight times 32"))
}

/// A block as twice eight groups of 16.
#[inline(always)]
pub(super) fn sixteens(x: &[f32; 256]) -> [[Lanes; 16]; 2] {
    let (low, high) = x.as_chunks().0.split_at(LANES);
    [low, high].map(|groups| side_by_side(groups.as_array().expect("128 are eight times 16")))
}
