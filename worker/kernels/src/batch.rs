//! The tokens of a step and their places in the paged cache. The engine fills a [`Batch`]; the kernels read
//! it.

/// Tokens per page of the cache.
pub const PAGE_LEN: usize = 32;

/// The tokens of a step: rows grouped by sequence.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token id of each row.
    pub tokens: Vec<u32>,
    /// Position of each row; consecutive within a span.
    pub positions: Vec<u32>,
    /// The sequences of the step; together they cover all rows in order.
    pub spans: Vec<Span>,
    /// Page ids of all spans. Token t of a sequence is in slot `t % PAGE_LEN` of the sequence's page `t /
    /// PAGE_LEN`.
    pub pages: Vec<u32>,
    /// Rows whose logits are requested, ascending.
    pub logits: Vec<u32>,
    /// Rows whose final hidden state is requested, ascending.
    pub hidden: Vec<u32>,
}

/// The rows of one sequence in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub first_row: usize,
    pub rows: usize,
    /// Number of tokens in the cache, which is the position of the first row.
    pub start: usize,
    /// Index of the first page id in [`Batch::pages`]. There are enough pages for `start + rows` tokens.
    pub first_page: usize,
}

impl Batch {
    /// The page and slot of each row.
    pub fn row_slots(&self) -> impl Iterator<Item = (u32, usize)> {
        self.spans.iter().flat_map(|span| {
            (span.start..span.start + span.rows)
                .map(|t| (self.pages[span.first_page + t / PAGE_LEN], t % PAGE_LEN))
        })
    }
}
