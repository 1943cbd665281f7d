//! The retry policy: delays double, are randomised, and respect the server's `Retry-After`.

use std::{fmt, sync::Arc, time::Duration};

use http::HeaderMap;

use crate::Error;

/// A download of fewer bytes is no progress: it counts as stalled after the idle timeout, and as failed if the
/// connection breaks.
pub(crate) const MIN_PROGRESS_BYTES: u64 = 16 << 10;

/// Of a short transfer, this share of the missing bytes is progress.
const PROGRESS_SHARE: u64 = 16;

/// The number of attempts of a request and the delays between them.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Number of attempts, including the first.
    pub attempts: u32,
    /// Delay before the second attempt; doubles from there.
    pub base: Duration,
    /// Maximum delay, whatever the server requests.
    pub cap: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy { attempts: 6, base: Duration::from_millis(200), cap: Duration::from_secs(20) }
    }
}

impl RetryPolicy {
    /// A single attempt.
    pub fn none() -> Self {
        RetryPolicy { attempts: 1, ..RetryPolicy::default() }
    }

    /// The delay after the `failed`-th attempt (from 1): random between half and all of the doubled delay, so
    /// that clients that were interrupted together do not retry together.
    pub(crate) fn delay(&self, failed: u32, retry_after: Option<Duration>) -> Duration {
        let doubled = self.base.saturating_mul(1u32 << failed.saturating_sub(1).min(16)).min(self.cap);
        let spread = doubled.mul_f64(rand::random_range(0.5..=1.0));
        spread.max(retry_after.unwrap_or_default()).min(self.cap.max(spread))
    }
}

/// A wait of at least this long is reported.
const MIN_REPORTED: Duration = Duration::from_secs(1);

/// Receives the error of an attempt that will be repeated, and the delay until then, unless the user hardly notices
/// either. Called from many tasks at the same time.
#[derive(Clone)]
pub struct RetryNotice(Arc<Report>);

type Report = dyn Fn(&Error, Duration) + Send + Sync;

impl RetryNotice {
    pub fn new(report: impl Fn(&Error, Duration) + Send + Sync + 'static) -> RetryNotice {
        RetryNotice(Arc::new(report))
    }

    pub(crate) fn report(&self, error: &Error, delay: Duration) {
        let took_long = match error {
            Error::Stalled { .. } => true,
            Error::Connect { source, .. }
            | Error::Redirect { source, .. }
            | Error::Transport { source, .. } => source.is_timeout(),
            _ => false,
        };
        if took_long || delay >= MIN_REPORTED {
            (self.0)(error, delay);
        }
    }
}

impl fmt::Debug for RetryNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryNotice").finish_non_exhaustive()
    }
}

/// The number of consecutive failures of a transfer after `error`. Progress starts a new count, unless it was
/// too slow: since the previous failure, `received` of the `missing` bytes arrived. A server that closes the
/// connection after each byte makes no progress.
pub(crate) fn failures_after(failed: u32, received: u64, missing: u64, error: &Error) -> u32 {
    let progress = (missing / PROGRESS_SHARE).clamp(1, MIN_PROGRESS_BYTES);
    if received >= progress && !matches!(error, Error::Stalled { .. }) { 1 } else { failed + 1 }
}

/// Parses `Retry-After` in seconds. The date form is rare in registries and is ignored.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_and_stay_under_the_cap() {
        let policy =
            RetryPolicy { attempts: 9, base: Duration::from_millis(100), cap: Duration::from_millis(1000) };
        for (failed, most) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (40, 1000)] {
            let delay = policy.delay(failed, None).as_millis();
            assert!(delay <= most && delay >= most / 2, "{failed}: {delay}");
        }
    }

    #[test]
    fn the_server_may_ask_for_more_up_to_the_cap() {
        let policy =
            RetryPolicy { attempts: 3, base: Duration::from_millis(10), cap: Duration::from_secs(2) };
        assert_eq!(policy.delay(1, Some(Duration::from_secs(1))), Duration::from_secs(1));
        assert_eq!(policy.delay(1, Some(Duration::from_secs(3600))), Duration::from_secs(2));
    }
}
