//! The searches for scales that the K and IQ4 formats are made with, for eight groups at a time.
//! Source: ggml `src/ggml-quants.c`, without an importance matrix; sums go in the order of its scalar code.

use std::array::from_fn;

use super::lanes::Lanes;

/// Groups whose largest magnitude is below this are zero.
pub(super) const SMALLEST: f32 = 1e-15;

/// How a scale and a minimum are searched for: codes from 0 to `levels`, and inverse scales `(first + step * s + levels) / range`.
pub(super) struct Search {
    pub(super) levels: f32,
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) steps: u32,
    /// Whether the error is the sum of magnitudes rather than of squares.
    pub(super) magnitudes: bool,
}

/// Fits `scale * code - min` with codes from zero up to eight groups, with a weight for each element: scales and minima.
#[inline(always)]
pub(super) fn asymmetric<const N: usize>(
    x: &[Lanes; N],
    weights: &[Lanes; N],
    how: &Search,
) -> (Lanes, Lanes) {
    let levels = Lanes::splat(how.levels);
    let (mut low, mut high) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (weights[0], weights[0] * x[0]);
    for (x, w) in x.iter().zip(weights).skip(1) {
        low = x.min(low);
        high = x.max(high);
        sum_w = sum_w + *w;
        sum_x = sum_x + *w * *x;
    }
    low = low.min(Lanes::ZERO);
    let varies = low.less(high);

    let error = |codes: &[Lanes; N], scale: Lanes, min: Lanes| {
        let mut sum = Lanes::ZERO;
        for ((code, x), w) in codes.iter().zip(x).zip(weights) {
            let difference = scale * *code + min - *x;
            let error = if how.magnitudes { difference.abs() } else { difference * difference };
            sum = sum + *w * error;
        }
        sum
    };

    let inverse = levels / (high - low);
    let (mut scale, mut min) = (Lanes::splat(1.0) / inverse, low);
    let codes = codes_from(x, inverse, min, how.levels);
    let mut best = error(&codes, scale, min);
    for step in 0..=how.steps {
        // The smallest value that is fitted to moves with the best fit so far.
        let candidate = Lanes::splat(how.first + how.step * step as f32 + how.levels) / (high - min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (Lanes::ZERO, Lanes::ZERO, Lanes::ZERO);
        let codes = codes_from(x, candidate, min, how.levels);
        for ((code, x), w) in codes.iter().zip(x).zip(weights) {
            let weighted = *w * *code;
            sum_l = sum_l + weighted;
            sum_l2 = sum_l2 + weighted * *code;
            sum_xl = sum_xl + weighted * *x;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        let solvable = Lanes::ZERO.less(determinant);
        let new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let new_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        let above = Lanes::ZERO.less(new_min);
        let new_scale = above.select(sum_xl / sum_l2, new_scale);
        let new_min = above.select(Lanes::ZERO, new_min);
        let new_error = error(&codes, new_scale, new_min);
        let better = solvable.and(new_error.less(best));
        best = better.select(new_error, best);
        scale = better.select(new_scale, scale);
        min = better.select(new_min, min);
    }
    (varies.select(scale, Lanes::ZERO), Lanes::ZERO - varies.select(min, low))
}

#[inline(always)]
fn codes_from<const N: usize>(x: &[Lanes; N], inverse: Lanes, min: Lanes, levels: f32) -> [Lanes; N] {
    from_fn(|i| (inverse * (x[i] - min)).code(0.0, levels))
}

/// For each of eight groups the first element of the largest magnitude, with its sign.
#[inline(always)]
pub(super) fn peaks<const N: usize>(x: &[Lanes; N]) -> Lanes {
    let (mut peak, mut largest) = (Lanes::ZERO, Lanes::ZERO);
    for x in x {
        let magnitude = x.abs();
        let larger = largest.less(magnitude);
        peak = larger.select(*x, peak);
        largest = larger.select(magnitude, largest);
    }
    peak
}

/// A code's objective: what of the group it explains, to be compared as `xl^2 / l2`.
#[derive(Clone, Copy)]
struct Sums {
    xl: Lanes,
    l2: Lanes,
}

impl Sums {
    /// Over codes, weighted by the squares of the elements.
    #[inline(always)]
    fn of<const N: usize>(x: &[Lanes; N], code: impl Fn(Lanes) -> Lanes) -> Sums {
        let mut sums = Sums { xl: Lanes::ZERO, l2: Lanes::ZERO };
        for x in x {
            let (w, code) = (*x * *x, code(*x));
            let weighted = w * *x * code;
            sums.xl = sums.xl + weighted;
            sums.l2 = sums.l2 + w * code * code;
        }
        sums
    }

    #[inline(always)]
    fn scale(self) -> Lanes {
        Lanes::ZERO.less(self.l2).select(self.xl / self.l2, Lanes::ZERO)
    }
}

/// Of inverse scales, the one whose codes explain most, as the scale that goes with its codes. The first need not explain anything.
#[inline(always)]
pub(super) fn best_scale<const N: usize>(
    x: &[Lanes; N],
    first: Lanes,
    others: impl Iterator<Item = Lanes>,
    code: impl Fn(Lanes) -> Lanes,
) -> Lanes {
    let sums = Sums::of(x, |x| code(first * x));
    let mut scale = sums.scale();
    let mut best = scale * sums.xl;
    for candidate in others {
        let sums = Sums::of(x, |x| code(candidate * x));
        let better = Lanes::ZERO.less(sums.l2).and((best * sums.l2).less(sums.xl * sums.xl));
        scale = better.select(sums.scale(), scale);
        best = better.select(scale * sums.xl, best);
    }
    zero_where_tiny(x, scale)
}

/// Codes from `-levels` to `levels - 1` that each in turn move to where they explain more, in up to five rounds: the scales that
/// go with them.
#[inline(always)]
pub(super) fn descend<const N: usize>(x: &[Lanes; N], levels: f32) -> Lanes {
    let inverse = Lanes::splat(-levels) / peaks(x);
    let code = |x: Lanes| x.code(-levels, levels - 1.0);
    let mut codes: [Lanes; N] = from_fn(|i| code(inverse * x[i]));
    let mut sums = Sums::of(x, |x| code(inverse * x));
    for _ in 0..5 {
        let mut changed = false;
        for (x, code) in x.iter().zip(&mut codes) {
            let w = *x * *x;
            let without = Sums { xl: sums.xl - w * *x * *code, l2: sums.l2 - w * *code * *code };
            let new = (*x * without.l2 / without.xl).code(-levels, levels - 1.0);
            let with = Sums { xl: without.xl + w * *x * new, l2: without.l2 + w * new * new };
            let better = Lanes::ZERO
                .less(without.xl)
                .and(new.differs(*code))
                .and(Lanes::ZERO.less(with.l2))
                .and((sums.xl * sums.xl * with.l2).less(with.xl * with.xl * sums.l2));
            *code = better.select(new, *code);
            sums.xl = better.select(with.xl, sums.xl);
            sums.l2 = better.select(with.l2, sums.l2);
            changed |= better.any();
        }
        if !changed {
            break;
        }
    }
    zero_where_tiny(x, sums.scale())
}

#[inline(always)]
fn zero_where_tiny<const N: usize>(x: &[Lanes; N], scale: Lanes) -> Lanes {
    peaks(x).abs().less(Lanes::splat(SMALLEST)).select(Lanes::ZERO, scale)
}
