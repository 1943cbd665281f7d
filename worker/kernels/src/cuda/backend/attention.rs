//! Attention: what each row sees, and how the work is distributed over blocks.

use super::super::args::Attend;
use super::super::driver::Driver;
use super::super::memory::{Buffer, Reserved};
use super::super::program::attention_sections;
use super::{Cache, Cuda, Step};
use crate::error::DeviceError;
use crate::kernels::{Attention, CacheShape};

/// With as many blocks, sections are not distributed: an A100 or H100 has 108 or 132 multiprocessors, and each runs
/// several blocks of four warps. Not measured.
const ENOUGH_BLOCKS: u32 = 1024;
/// The most memory for the results of sections: 32 heads of 128 values of one sequence have 65 KiB per 1,024 tokens.
pub const MAX_PARTIAL_BYTES: u64 = 32 << 20;

/// The first page and the range of visible tokens of each row.
pub(super) struct Visible<D: Driver> {
    window: Option<usize>,
    causal: bool,
    /// The step for which it was computed.
    step: u64,
    ranges: Reserved<D>,
    /// The most sections of a row.
    sections: u32,
}

impl<D: Driver> Cuda<D> {
    /// The address of what the rows of a step see, and the most sections of a row.
    fn visible(&mut self, step: &Step, how: &Attention) -> Result<(u64, u32), DeviceError> {
        let same = |v: &Visible<D>| v.window == how.window && v.causal == how.causal;
        let index = self.visible.iter().position(same).unwrap_or(self.visible.len());
        if index == self.visible.len() {
            let (window, causal) = (how.window, how.causal);
            self.visible.push(Visible { window, causal, step: 0, ranges: Reserved::default(), sections: 0 });
        }
        let visible = &mut self.visible[index];
        if visible.step == step.number
            && let Some(memory) = visible.ranges.get()
        {
            return Ok((memory.at().0, visible.sections));
        }
        visible.sections = 0;
        let mut ranges: Vec<u32> = Vec::with_capacity(3 * step.rows);
        for span in &step.spans {
            for position in span.start..span.start + span.rows {
                let keys = how.visible(position, span.start + span.rows);
                visible.sections = visible.sections.max(attention_sections(&keys));
                ranges.extend([span.first_page as u32, keys.start as u32, keys.end as u32]);
            }
        }
        let bytes: &[u8] = bytemuck::cast_slice(&ranges);
        let memory = visible.ranges.at_least(&self.queue.driver, "a batch", bytes.len() as u64)?;
        memory.write(0, bytes)?;
        visible.step = step.number;
        Ok((memory.at().0, visible.sections))
    }

    /// Attention, with a block for each head and row. If they are few and the context is long, each section of the
    /// context has a block of its own, and a second kernel merges them; the results have the same bits.
    pub(super) fn attend(
        &mut self,
        step: &Step,
        q: &Buffer<D>,
        how: &Attention,
        (cache, layer): (&Cache<D>, usize),
        out: &mut Buffer<D>,
    ) -> Result<(), DeviceError> {
        let (rows, sections) = self.visible(step, how)?;
        let (driver, q) = (&self.queue.driver, q.view());
        let out = out.resize(driver, step.rows, q.cols as usize)?;
        let CacheShape { n_kv_heads, head_dim, .. } = cache.shape;
        let heads = q.cols / head_dim as u32;
        let bytes = u64::from(heads * q.rows) * u64::from(sections) * 4 * (head_dim as u64 + 2);
        let is_split = sections > 1 && heads * q.rows < ENOUGH_BLOCKS && bytes <= MAX_PARTIAL_BYTES;
        let partials = match is_split {
            true => self.partials.at_least(driver, "partial results of attention", bytes)?.at().0,
            false => 0,
        };
        let args = Attend {
            q: q.at,
            out: out.at,
            cache: cache.layer(layer),
            pages: step.pages,
            rows,
            partials,
            sections,
            row_bytes: cache.row_bytes as u32,
            q_stride: q.stride,
            out_stride: out.stride,
            heads,
            kv_heads: n_kv_heads as u32,
            head_dim: head_dim as u32,
            scale: how.scale,
            cap: how.cap.unwrap_or(0.0),
            reserved: 0,
        };
        if !is_split {
            return self.queue.over_cache(cache.format, cache.attention, [heads, q.rows, 1], 128, &args);
        }
        self.queue.over_cache(cache.format, cache.attention, [heads, q.rows, sections], 128, &args)?;
        self.queue.over_cache(cache.format, "merge_sections", [heads, q.rows, 1], 128, &args)
    }
}
