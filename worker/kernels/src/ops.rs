//! The operations on rows, as a table of functions per instruction set. A table is available only after its
//! instructions were detected on this processor, so calls through it are safe.
#![allow(unsafe_code)] // Calling a function without its instruction set is unsafe.

use super::columns::Columns;
use super::dot_bf16::Rounded;
use super::dot_blocks::Block;
use super::dtype::{Dtype, Float};
use super::rope::Pairing;
use super::rows::Rows;
use super::weight::Weight;
use super::window::Window;
use super::{
    decode, dot_blocks, dot_rows, geglu, gelu, layer_norm, mix_rows, rms_norm, rope, soft_cap, softmax,
    swiglu,
};

/// The columns for products with rows of any format: as floats and, for the formats that need it, packed.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) numbers: &'a [f32],
    pub(super) packed: &'a Packed,
}

/// Columns in the forms that some formats need.
#[derive(Default)]
pub(super) struct Packed {
    /// For [`dot_blocks`].
    pub(super) blocks: Columns<Block>,
    /// For BF16 rows, if the instruction level rounds their columns.
    pub(super) rounded: Columns<Rounded>,
}

/// Rounds the columns of a tile to BF16.
type Round = unsafe fn(&[f32], usize, &mut [Rounded]);
/// Multiplies BF16 rows by rounded columns.
type DotBf16 = unsafe fn(&Rows<'_>, &Columns<Rounded>, &mut Window<'_>);

/// One version of each operation. The folder of the same name has the contract.
pub struct Ops {
    /// The instruction level, as `LODE_CPU` names it.
    pub name: &'static str,
    decode_row: unsafe fn(&Rows<'_>, usize, &mut [f32]),
    encode_row: unsafe fn(Dtype, &[f32], &mut [u8]),
    dot_rows: unsafe fn(&Rows<'_>, &[f32], &mut Window<'_>, &mut Vec<f32>),
    pack: unsafe fn(&[f32], usize, &mut [Block]),
    dot_blocks: unsafe fn(&Rows<'_>, &Columns<Block>, &mut Window<'_>, &mut Vec<f32>),
    /// `None`: BF16 rows are multiplied with floats.
    bf16: Option<(Round, DotBf16)>,
    mix_rows: unsafe fn(&Rows<'_>, &[f32], &mut [f32], &mut Vec<f32>),
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    rotate: unsafe fn(&mut [f32], &[f32], &[f32], Pairing),
    softmax: unsafe fn(&mut [f32], f32),
    swiglu: unsafe fn(&mut [f32], &[f32]),
    geglu: unsafe fn(&mut [f32], &[f32]),
    gelu: unsafe fn(&mut [f32]),
    soft_cap: unsafe fn(&mut [f32], f32, f32),
}

/// The value of `LODE_CPU` for the best instruction level of the processor.
pub const BEST_LEVEL: &str = "auto";

/// This processor or this build has no such instruction level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction level `{level}` is not available on this processor: use {BEST_LEVEL}, {available}")]
pub struct UnavailableLevel {
    level: String,
    /// The names of all available levels.
    available: String,
}

/// The scalar version, which is the specification.
static SCALAR: Ops = Ops {
    name: "scalar",
    decode_row: decode::scalar,
    encode_row: decode::encode_scalar,
    dot_rows: dot_rows::scalar,
    pack: dot_blocks::pack_scalar,
    dot_blocks: dot_blocks::scalar,
    bf16: None,
    mix_rows: mix_rows::scalar,
    rms_norm: rms_norm::scalar,
    rotate: rope::scalar,
    softmax: softmax::scalar,
    swiglu: swiglu::scalar,
    geglu: geglu::scalar,
    gelu: gelu::scalar,
    soft_cap: soft_cap::scalar,
};

/// AVX2 with FMA and F16C: all x86-64 servers since 2013.
#[cfg(target_arch = "x86_64")]
static AVX2: Ops = Ops {
    name: "avx2",
    decode_row: decode::avx2::decode_row,
    encode_row: decode::avx2::encode_row,
    dot_rows: dot_rows::avx2::dot_rows,
    pack: dot_blocks::avx2::pack,
    dot_blocks: dot_blocks::avx2::dot_blocks,
    bf16: None,
    mix_rows: mix_rows::avx2::mix_rows,
    rms_norm: rms_norm::avx2::rms_norm,
    rotate: rope::avx2::rotate,
    softmax: softmax::avx2::softmax,
    swiglu: swiglu::avx2::swiglu,
    geglu: geglu::avx2::geglu,
    gelu: gelu::avx2::gelu,
    soft_cap: soft_cap::avx2::soft_cap,
};

/// AVX-512 for products, which are nearly all of the work, and AVX2 for the rest.
#[cfg(target_arch = "x86_64")]
static AVX512: Ops = Ops { name: "avx512", dot_rows: dot_rows::avx512::dot_rows, ..AVX2 };

/// The same with VNNI for products of packed codes: all x86-64 servers since 2019 or 2022.
#[cfg(target_arch = "x86_64")]
static VNNI: Ops = Ops { name: "avx512-vnni", dot_blocks: dot_blocks::avx512::dot_blocks, ..AVX512 };

/// The same with BF16 for products of BF16 rows: all x86-64 servers since 2022 or 2023.
#[cfg(target_arch = "x86_64")]
static BF16: Ops = Ops {
    name: "avx512-bf16",
    bf16: Some((super::dot_bf16::avx512::round, super::dot_bf16::avx512::dot_bf16)),
    ..VNNI
};

/// The same with AMX for products of packed codes with many columns: servers from 2023 on, all with AVX-512 BF16.
#[cfg(target_arch = "x86_64")]
static AMX: Ops = Ops { name: "amx", dot_blocks: dot_blocks::amx::dot_blocks, ..BF16 };

/// NEON, which every aarch64 processor has.
#[cfg(target_arch = "aarch64")]
static NEON: Ops = Ops {
    name: "neon",
    decode_row: decode::neon::decode_row,
    encode_row: decode::neon::encode_row,
    dot_rows: dot_rows::neon::dot_rows,
    pack: dot_blocks::pack_scalar,
    dot_blocks: dot_blocks::neon::dot_blocks,
    bf16: None,
    mix_rows: mix_rows::neon::mix_rows,
    rms_norm: rms_norm::neon::rms_norm,
    rotate: rope::neon::rotate,
    softmax: softmax::neon::softmax,
    swiglu: swiglu::neon::swiglu,
    geglu: geglu::neon::geglu,
    gelu: gelu::neon::gelu,
    soft_cap: soft_cap::neon::soft_cap,
};

/// The same with dot-product instructions: all aarch64 servers since 2018.
#[cfg(target_arch = "aarch64")]
static DOTPROD: Ops = Ops { name: "dotprod", dot_blocks: dot_blocks::neon::dot_blocks_at_once, ..NEON };

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Ops {
    pub fn scalar() -> &'static Self {
        &SCALAR
    }

    /// All tables that this processor can run, the best one last.
    pub fn all() -> Vec<&'static Self> {
        let mut all = vec![&SCALAR];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            all.push(&AVX2);
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
            {
                all.push(&AVX512);
                if is_x86_feature_detected!("avx512vnni") {
                    all.push(&VNNI);
                    if is_x86_feature_detected!("avx512bf16") {
                        all.push(&BF16);
                        if dot_blocks::amx::is_available() {
                            all.push(&AMX);
                        }
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            all.push(&NEON);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                all.push(&DOTPROD);
            }
        }
        all
    }

    /// The best table for this processor.
    pub fn best() -> &'static Self {
        Self::all().pop().unwrap_or(&SCALAR)
    }

    /// The table of an instruction level, or the best one for [`BEST_LEVEL`].
    pub fn of_level(level: &str) -> Result<&'static Self, UnavailableLevel> {
        if level == BEST_LEVEL {
            return Ok(Self::best());
        }
        let all = Self::all();
        all.iter().copied().find(|ops| ops.name == level).ok_or_else(|| UnavailableLevel {
            level: level.to_owned(),
            available: all.iter().map(|ops| ops.name).collect::<Vec<_>>().join(", "),
        })
    }

    pub fn decode_row(&self, rows: &Rows<'_>, row: usize, to: &mut [f32]) {
        // SAFETY: the instructions of this table were detected on this processor. The same holds below.
        unsafe { (self.decode_row)(rows, row, to) }
    }

    pub fn encode_row(&self, dtype: Dtype, from: &[f32], to: &mut [u8]) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.encode_row)(dtype, from, to) }
    }

    pub fn dot_rows(&self, rows: &Rows<'_>, x: &[f32], out: &mut Window<'_>, scratch: &mut Vec<f32>) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.dot_rows)(rows, x, out, scratch) }
    }

    pub(super) fn pack(&self, x: &[f32], cols: usize, tile: &mut [Block]) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.pack)(x, cols, tile) }
    }

    /// Whether columns are rounded to BF16 for rows of this format.
    pub fn rounds_columns(&self, dtype: Dtype) -> bool {
        self.bf16.is_some() && dtype == Dtype::Float(Float::BF16)
    }

    /// Rounds the columns of a tile, if [`rounds_columns`](Self::rounds_columns) is true for some format.
    pub(super) fn round(&self, x: &[f32], cols: usize, tile: &mut [Rounded]) {
        if let Some((round, _)) = self.bf16 {
            // SAFETY: as for `decode_row`.
            unsafe { round(x, cols, tile) }
        }
    }

    /// Packs columns of `cols` values for rows of a format, on one thread.
    pub(super) fn pack_columns(&self, x: &[f32], cols: usize, dtype: Dtype) -> Packed {
        let mut packed = Packed::default();
        if dot_blocks::uses_integers(dtype) {
            packed.blocks.pack(x, cols, |x, tile| self.pack(x, cols, tile));
        }
        if self.rounds_columns(dtype) {
            packed.rounded.pack(x, cols, |x, tile| self.round(x, cols, tile));
        }
        packed
    }

    /// Multiplies rows by columns, in the way that suits the format.
    pub(super) fn product(
        &self,
        rows: &Rows<'_>,
        x: Input<'_>,
        out: &mut Window<'_>,
        scratch: &mut Vec<f32>,
    ) {
        let dtype = rows.dtype();
        match self.bf16 {
            // SAFETY: as for `decode_row`.
            _ if dot_blocks::uses_integers(dtype) => unsafe {
                (self.dot_blocks)(rows, &x.packed.blocks, out, scratch);
            },
            // SAFETY: as for `decode_row`.
            Some((_, dot)) if self.rounds_columns(dtype) => unsafe { dot(rows, &x.packed.rounded, out) },
            _ => self.dot_rows(rows, x.numbers, out, scratch),
        }
    }

    /// Multiplies `x[m, cols]` by the transpose of `weight[rows, cols]` to a new `[m, rows]`, on one thread.
    /// For small products on the host, and for tests.
    pub fn matmul(&self, weight: &Weight, x: &[f32]) -> Vec<f32> {
        let (rows, n) = (Rows::of(weight), weight.rows());
        let mut out = vec![f32::NAN; x.len() / weight.cols() * n];
        let packed = self.pack_columns(x, weight.cols(), weight.dtype());
        let x = Input { numbers: x, packed: &packed };
        self.product(&rows, x, &mut Window::new(&mut out, n, 0, n), &mut Vec::new());
        out
    }

    pub fn mix_rows(&self, rows: &Rows<'_>, weights: &[f32], out: &mut [f32], scratch: &mut Vec<f32>) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.mix_rows)(rows, weights, out, scratch) }
    }

    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.rms_norm)(x, weight, eps, out) }
    }

    pub fn rotate(&self, head: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.rotate)(head, cos, sin, pairing) }
    }

    pub fn softmax(&self, x: &mut [f32], scale: f32) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.softmax)(x, scale) }
    }

    pub fn swiglu(&self, gate: &mut [f32], up: &[f32]) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.swiglu)(gate, up) }
    }
    pub fn geglu(&self, gate: &mut [f32], up: &[f32]) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.geglu)(gate, up) }
    }

    pub fn gelu(&self, x: &mut [f32]) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.gelu)(x) }
    }

    pub fn layer_norm(&self, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        layer_norm::scalar(x, weight, bias, eps, out);
    }

    pub fn soft_cap(&self, x: &mut [f32], scale: f32, cap: f32) {
        // SAFETY: as for `decode_row`.
        unsafe { (self.soft_cap)(x, scale, cap) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;

    #[test]
    fn levels_are_selected_by_name() {
        for ops in Ops::all() {
            assert_eq!(Ops::of_level(ops.name).map(|found| found.name), Ok(ops.name));
        }
        assert_eq!(Ops::of_level(BEST_LEVEL).map(|found| found.name), Ok(Ops::best().name));
        let error = Ops::of_level("sse9").map(|ops| ops.name).unwrap_err().to_string();
        assert!(error.contains("`sse9`") && Ops::all().iter().all(|ops| error.contains(ops.name)), "{error}");
    }

    /// Each test of an operation runs every table of `Ops::all`.
    #[test]
    fn missing_instruction_sets_are_reported() {
        #[cfg(target_arch = "x86_64")]
        let tables = [&AVX2, &AVX512, &VNNI, &BF16, &AMX];
        #[cfg(target_arch = "aarch64")]
        let tables = [&NEON, &DOTPROD];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let tables: [&Ops; 0] = [];
        let available = Ops::all();
        let is_missing = |table: &&&Ops| available.iter().all(|other| other.name != table.name);
        let missing: Vec<&str> = tables.iter().filter(is_missing).map(|table| table.name).collect();
        if !missing.is_empty() {
            let reason = format!("this processor lacks {}", missing.join(", "));
            report::skip_optional(&report::current_test(), &reason);
        }
    }
}
