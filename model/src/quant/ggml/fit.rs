//! The scale searches of the K and IQ4 formats, for eight groups at a time. Source: ggml `src/ggml-quants.c`,
//! without an importance matrix; sums have the order of its scalar code. Loops are used rather than closures,
//! which need not be compiled for the instruction set of their caller.

use super::lanes::Lanes;

/// Groups whose largest magnitude is below this are zero.
pub(super) const SMALLEST: f32 = 1e-15;

/// The search for a scale and a minimum: codes from 0 to `levels`, and inverse scales `(first + step * s +
/// levels) / range`.
pub(super) struct Search {
    pub(super) levels: f32,
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) steps: u32,
    /// Whether the error is the sum of magnitudes rather than of squares.
    pub(super) magnitudes: bool,
}

/// Fits `scale * code - min` with codes from zero up to eight groups, with a weight for each element. Returns
/// the scales and the minima.
#[inline(always)]
pub(super) fn fit_scale_and_min<L: Lanes, const N: usize>(
    x: &[L; N],
    weights: &[L; N],
    how: &Search,
) -> (L, L) {
    let levels = L::splat(how.levels);
    let (mut low, mut high) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (weights[0], weights[0] * x[0]);
    for (x, w) in x.iter().zip(weights).skip(1) {
        low = x.min(low);
        high = x.max(high);
        sum_w = sum_w + *w;
        sum_x = sum_x + *w * *x;
    }
    low = low.min(L::zero());
    let varies = low.less(high);

    let inverse = levels / (high - low);
    let (mut scale, mut min) = (L::splat(1.0) / inverse, low);
    let mut codes = [L::zero(); N];
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (inverse * (*x - min)).code(0.0, how.levels);
    }
    let mut best = error(x, weights, &codes, scale, min, how.magnitudes);
    for step in 0..=how.steps {
        // The lower end of the fitted range moves with the best fit so far.
        let candidate = L::splat(how.first + how.step * step as f32 + how.levels) / (high - min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (L::zero(), L::zero(), L::zero());
        for ((code, x), w) in codes.iter_mut().zip(x).zip(weights) {
            *code = (candidate * (*x - min)).code(0.0, how.levels);
            let weighted = *w * *code;
            sum_l = sum_l + weighted;
            sum_l2 = sum_l2 + weighted * *code;
            sum_xl = sum_xl + weighted * *x;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        let solvable = L::zero().less(determinant);
        let new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let new_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        let above = L::zero().less(new_min);
        let new_scale = L::select(above, sum_xl / sum_l2, new_scale);
        let new_min = L::select(above, L::zero(), new_min);
        let new_error = error(x, weights, &codes, new_scale, new_min, how.magnitudes);
        let better = L::and(solvable, new_error.less(best));
        best = L::select(better, new_error, best);
        scale = L::select(better, new_scale, scale);
        min = L::select(better, new_min, min);
    }
    (L::select(varies, scale, L::zero()), L::zero() - L::select(varies, min, low))
}

#[inline(always)]
fn error<L: Lanes, const N: usize>(
    x: &[L; N],
    weights: &[L; N],
    codes: &[L; N],
    scale: L,
    min: L,
    magnitudes: bool,
) -> L {
    let mut sum = L::zero();
    for ((code, x), w) in codes.iter().zip(x).zip(weights) {
        let difference = scale * *code + min - *x;
        let error = if magnitudes { difference.abs() } else { difference * difference };
        sum = sum + *w * error;
    }
    sum
}

/// Returns for each of eight groups the first element of the largest magnitude, with its sign.
#[inline(always)]
fn peaks<L: Lanes, const N: usize>(x: &[L; N]) -> L {
    let (mut peak, mut largest) = (L::zero(), L::zero());
    for x in x {
        let magnitude = x.abs();
        let larger = largest.less(magnitude);
        peak = L::select(larger, *x, peak);
        largest = L::select(larger, magnitude, largest);
    }
    peak
}

/// Sums that measure how much of a group its codes explain, compared as `xl^2 / l2`; weighted by the squares
/// of the elements.
#[derive(Clone, Copy)]
struct Sums<L> {
    xl: L,
    l2: L,
}

impl<L: Lanes> Sums<L> {
    #[inline(always)]
    fn scale(self) -> L {
        L::select(L::zero().less(self.l2), self.xl / self.l2, L::zero())
    }
}

/// Rounds a number to its code, or to the value of its code.
pub(super) trait Nearest {
    fn nearest<L: Lanes>(x: L) -> L;
}

#[inline(always)]
fn sums<L: Lanes, C: Nearest, const N: usize>(x: &[L; N], inverse: L) -> Sums<L> {
    let mut sums = Sums { xl: L::zero(), l2: L::zero() };
    for x in x {
        let (w, code) = (*x * *x, C::nearest(inverse * *x));
        sums.xl = sums.xl + w * *x * code;
        sums.l2 = sums.l2 + w * code * code;
    }
    sums
}

/// Returns the scale for the best of the inverse scales `numerators / peak`, whose codes explain most of the
/// group. The first candidate need not explain anything.
#[inline(always)]
pub(super) fn best_scale<L: Lanes, C: Nearest, const N: usize>(x: &[L; N], numerators: &[f32]) -> L {
    let peaks = peaks(x);
    let (mut scale, mut best) = (L::zero(), L::zero());
    for (number, numerator) in numerators.iter().enumerate() {
        let sums = sums::<L, C, N>(x, L::splat(*numerator) / peaks);
        let fitted = sums.scale();
        if number == 0 {
            (scale, best) = (fitted, fitted * sums.xl);
            continue;
        }
        let better = L::and(L::zero().less(sums.l2), (best * sums.l2).less(sums.xl * sums.xl));
        scale = L::select(better, fitted, scale);
        best = L::select(better, fitted * sums.xl, best);
    }
    zero_where_tiny(peaks, scale)
}

/// Codes from -4 to 3.
struct ThreeBits;

impl Nearest for ThreeBits {
    #[inline(always)]
    fn nearest<L: Lanes>(x: L) -> L {
        x.code(-4.0, 3.0)
    }
}

/// Moves each three-bit code in turn to where it explains more, in up to five rounds. Returns the scales for
/// these codes.
#[inline(always)]
pub(super) fn refine_codes<L: Lanes, const N: usize>(x: &[L; N]) -> L {
    let peaks = peaks(x);
    let inverse = L::splat(-4.0) / peaks;
    let mut codes = [L::zero(); N];
    for (code, x) in codes.iter_mut().zip(x) {
        *code = ThreeBits::nearest(inverse * *x);
    }
    let mut sums = sums::<L, ThreeBits, N>(x, inverse);
    for _ in 0..5 {
        let mut changed = false;
        for (x, code) in x.iter().zip(&mut codes) {
            let w = *x * *x;
            let without = Sums { xl: sums.xl - w * *x * *code, l2: sums.l2 - w * *code * *code };
            let new = ThreeBits::nearest(*x * without.l2 / without.xl);
            let with = Sums { xl: without.xl + w * *x * new, l2: without.l2 + w * new * new };
            let moves = L::and(L::zero().less(without.xl), new.differs(*code));
            let explains = (sums.xl * sums.xl * with.l2).less(with.xl * with.xl * sums.l2);
            let better = L::and(L::and(moves, L::zero().less(with.l2)), explains);
            *code = L::select(better, new, *code);
            sums.xl = L::select(better, with.xl, sums.xl);
            sums.l2 = L::select(better, with.l2, sums.l2);
            changed |= L::any(better);
        }
        if !changed {
            break;
        }
    }
    zero_where_tiny(peaks, sums.scale())
}

#[inline(always)]
fn zero_where_tiny<L: Lanes>(peaks: L, scale: L) -> L {
    L::select(peaks.abs().less(L::splat(SMALLEST)), L::zero(), scale)
}
