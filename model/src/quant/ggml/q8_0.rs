//! Q8_0: 32 signed codes of 8 bits. Block: d f16, `qs[32]`.

use super::block::{half, inverse, largest, put_half};
use super::lanes::{LANES, Lanes};

pub(super) fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (x, code) in out.iter_mut().zip(&block[2..]) {
        *x = d * f32::from(*code as i8);
    }
}

#[inline(always)]
pub(super) fn encode<L: Lanes>(x: &[f32; 32], block: &mut [u8; 34]) {
    let d = largest(x) / 127.0;
    let id = L::splat(inverse(d));
    put_half(block, 0, d);
    for (codes, x) in block[2..].as_chunks_mut::<LANES>().0.iter_mut().zip(x.as_chunks::<LANES>().0) {
        let x = (L::from_array(*x) * id).max(L::splat(-127.0)).min(L::splat(127.0));
        *codes = x.nearest_away().to_bytes();
    }
}
