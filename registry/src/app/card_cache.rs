//! What this process remembers of rendered model cards, and how many it renders at a time.

use std::sync::Arc;

use moka::sync::Cache;
use tokio::sync::Semaphore;

/// How many cards are rendered at a time.
const MAX_CONCURRENT_CARDS: usize = 2;
/// The most memory of remembered cards.
const MAX_REMEMBERED_BYTES: u64 = 16 * 1024 * 1024;

/// Rendered cards, by the card's digest and the prefix of its links.
pub(super) struct Cards {
    pub(super) rendered: Cache<(String, String), Arc<str>>,
    pub(super) permits: Arc<Semaphore>,
}

impl Default for Cards {
    fn default() -> Cards {
        let weigh = |key: &(String, String), html: &Arc<str>| {
            u32::try_from(key.0.len() + key.1.len() + html.len() + 64).unwrap_or(u32::MAX)
        };
        Cards {
            rendered: Cache::builder().max_capacity(MAX_REMEMBERED_BYTES).weigher(weigh).build(),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_CARDS)),
        }
    }
}
