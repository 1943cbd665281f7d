//! Metrics of transactions that wait for a connection. Queries outside transactions are measured as a whole: acquiring
//! their connection in the `query!` macro would make the future of every query larger.

use std::sync::LazyLock;

use crate::metrics::PoolWait;

/// Names of the pools in metrics.
pub(super) const READ_POOL: &str = "read";
pub(super) const WRITE_POOL: &str = "write";
pub(super) const POSTGRES_POOL: &str = "all";

pub(super) static SQLITE_WAIT: LazyLock<PoolWait> = LazyLock::new(|| PoolWait::new(WRITE_POOL));
pub(super) static POSTGRES_WAIT: LazyLock<PoolWait> = LazyLock::new(|| PoolWait::new(POSTGRES_POOL));
