//! `dot_blocks` with AMX, for many columns: one instruction multiplies sixteen columns with the sixteen rows of a
//! panel. The panels, the scaling and the order of additions are those of the AVX-512 version, which processes
//! everything else.
//!
//! Rust has no stable intrinsics for AMX, so its instructions are written in assembly.
#![allow(unsafe_code)] // Executes instructions in assembly.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::super::formats::integer_formats;
use super::super::rows::Rows;
use super::super::window::Window;
use super::avx512;
use super::blocks::{Iq4Nl, Mxfp4Block, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::columns::{Block, Columns, LaneOrder, TILE};
use super::groups::{Affine, Mxfp4, Nvfp4, Nvfp4Block};
use super::k_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::panel::{self, CODES, MultiplyTile, R};

/// Minimum number of columns for tiles.
const MIN_COLUMNS: usize = 9;

/// Whether the processor has AMX for bytes and the system lets this process use it.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| is_present() && request_permission())
}

/// Whether the processor has the instructions and the system saves the tiles.
fn is_present() -> bool {
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    /// Tile configuration and tile data.
    const SAVED: u64 = 0b11 << 17;
    #[target_feature(enable = "xsave")]
    fn saved_state() -> u64 {
        // SAFETY: the processor has XSAVE, and the system has enabled it.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: XSAVE is reported only if the system has enabled it.
    let is_saved = || is_x86_feature_detected!("xsave") && unsafe { saved_state() } & SAVED == SAVED;
    let has_leaf = __cpuid(0).eax >= 7;
    has_leaf && __cpuid_count(7, 0).edx & (AMX_TILE | AMX_INT8) == AMX_TILE | AMX_INT8 && is_saved()
}

/// Asks Linux for the larger register state, for all threads of this process.
fn request_permission() -> bool {
    if !cfg!(target_os = "linux") {
        return false;
    }
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_STATE: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let status: i64;
    // SAFETY: the system call changes nothing but the permitted register state. It overwrites only these registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => status,
            in("rdi") REQUEST_STATE,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    status == 0
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn dot_blocks(rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    let has_tiles = x.len() >= MIN_COLUMNS && !super::has_small_codes(rows.dtype());
    let in_panels = if has_tiles { rows.len() / R * R } else { 0 };
    if in_panels > 0 {
        assert!(x.cols() == rows.cols() && out.rows() >= x.len() && out.cols() >= rows.len());
        let rows = rows.range(0, in_panels);
        let _tiles = TileRegisters;
        integer_formats!(choose[rows.dtype(), format => panel::products::<_, Amx>(format, &rows, x, out, scratch), else {
            super::scalar(&rows, x, out, scratch)
        }]);
    }
    if in_panels < rows.len() {
        let rest = rows.range(in_panels, rows.len() - in_panels);
        avx512::dot_blocks(&rest, x, &mut out.columns(in_panels, rest.len()), scratch);
    }
}

/// Releases the tile registers on drop, so that the system no longer saves them.
struct TileRegisters;

impl Drop for TileRegisters {
    fn drop(&mut self) {
        // SAFETY: only callers of `dot_blocks` create one, on a processor with AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// The shapes of the tile registers, as the processor reads them.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Configures register 0 for the products, 1 for `t` columns and 2 for a panel, with `codes` codes of each row.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn configure(t: usize, codes: usize) {
    let mut shapes =
        Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    let registers = [(t, 4 * R), (t, codes), (codes / 4, 4 * R)];
    for (n, (rows, row_bytes)) in registers.into_iter().enumerate() {
        (shapes.rows[n], shapes.row_bytes[n]) = (rows as u8, row_bytes as u16);
    }
    // SAFETY: the processor has AMX, and the shapes are within its limits: sixteen rows of 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
}

/// The products of the codes of each row and column.
#[repr(C, align(64))]
struct Products([[i32; R]; TILE]);

/// Multiplies codes of columns, at the distance of blocks, with codes of a panel. The registers are configured for
/// their number.
///
/// # Safety
/// The codes exist.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe fn multiply(x: *const i8, panel: *const __m512i, to: &mut Products) {
    // SAFETY: guaranteed by the caller; `to` has space for sixteen rows.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tileloadd tmm1, [{x} + {block}]",
            "tileloadd tmm2, [{panel} + {vector}]",
            "tdpbsud tmm0, tmm1, tmm2",
            "tilestored [{to} + {vector}], tmm0",
            x = in(reg) x,
            block = in(reg) size_of::<Block>(),
            panel = in(reg) panel,
            vector = in(reg) size_of::<__m512i>(),
            to = in(reg) &raw mut to.0,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            options(nostack),
        );
    }
}

/// Multiplies all columns of a tile at once, for one scale of each row.
struct Amx;

impl MultiplyTile for Amx {
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn multiply<const N: usize, const IS_ABOVE: bool>(
        panel: &[__m512i],
        (x, t): (&[Block], usize),
        above: u32,
        out: &mut Window<'_>,
        (j, i): (usize, usize),
    ) {
        let len = const { panel::block_len(N, !IS_ABOVE) };
        let depth = panel.len() / len;
        assert!(panel.len() == depth * len && x.len() == depth * t && t <= TILE);
        let codes = 4 * CODES / N;
        configure(t, codes);
        let mut sums = [[_mm512_setzero_ps(); TILE]; N];
        let mut products = [const { Products([[0; R]; TILE]) }; 2];
        let start = |step: usize, products: &mut [Products; 2]| {
            let (b, lane) = (step / N, step % N);
            let group = if N == 16 { LaneOrder::GROUPS_OF_16[lane] } else { LaneOrder::GROUPS_OF_32[lane] };
            let first = usize::from(group) * codes;
            let (x, panel) = (&raw const x[b * t].codes[first], &raw const panel[b * len + first / 4]);
            // SAFETY: the columns have `codes` codes from `first` on, and the panel as many of each row. The registers are
            // configured for these shapes.
            unsafe { multiply(x, panel, &mut products[step % 2]) }
        };
        start(0, &mut products);
        for (b, (panel, x)) in panel.chunks_exact(len).zip(x.chunks_exact(t)).enumerate() {
            for (lane, sums) in sums.iter_mut().enumerate() {
                let step = b * N + lane;
                // The next products are computed while these are scaled.
                if step + 1 < depth * N {
                    start(step + 1, &mut products);
                }
                let coarse = if N == 16 { lane / 8 * 4 + lane % 4 } else { lane };
                let scale = _mm512_castsi512_ps(panel[CODES + lane]);
                let minimum = if IS_ABOVE { scale } else { _mm512_castsi512_ps(panel[CODES + N + lane]) };
                // Not an iterator over all of them, for which the compiler keeps its state in memory.
                for c in 0..t {
                    // SAFETY: sixteen products.
                    let mut dots = unsafe { _mm512_load_si512(products[step % 2].0[c].as_ptr().cast()) };
                    if IS_ABOVE {
                        let less = if N == 16 { x[c].fine_less[lane] } else { x[c].less[lane] };
                        dots = _mm512_add_epi32(dots, _mm512_set1_epi32(less >> above));
                    }
                    let dots = _mm512_mul_ps(_mm512_cvtepi32_ps(dots), _mm512_set1_ps(x[c].d[coarse]));
                    sums[c] = _mm512_fmadd_ps(dots, scale, sums[c]);
                    if !IS_ABOVE {
                        let of_x = if N == 16 { x[c].fine_sums[lane] } else { x[c].sums[lane] };
                        sums[c] = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(of_x), sums[c]);
                    }
                }
            }
        }
        panel::add_lanes(&mut sums);
        for (c, sum) in sums[0].iter().enumerate().take(t) {
            panel::store(*sum, &mut out.row(j + c)[i..i + R]);
        }
    }
}
