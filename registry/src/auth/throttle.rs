//! Slows down the guessing of passwords. The first failures cause no delay; each further one doubles the
//! delay before the next attempt. Failures are counted for an account from an address, and for an address with
//! all accounts: an attacker delays only sign-ins from the same address, and no account is ever locked. The
//! counters are in the database, so replicas count together; a read-only server counts in its memory.

use std::time::Duration;

use moka::sync::Cache;

use crate::time::millis;

/// Failures of an account from one address without a delay.
const FREE_FAILURES: i64 = 5;
/// An address may fail this many times more often than one account from it.
const ADDRESS_FACTOR: i64 = 10;
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);
/// Without a further failure, earlier ones are forgotten after this long.
pub(crate) const FAILURE_RETENTION: Duration = Duration::from_secs(2 * 15 * 60);

/// The subjects whose failures count for an attempt, each with its number of free failures.
pub(crate) fn subjects(account: &str, address: &str) -> [(String, i64); 2] {
    [
        (format!("{account} {address}"), FREE_FAILURES),
        (format!("* {address}"), FREE_FAILURES * ADDRESS_FACTOR),
    ]
}

/// How long to wait after this many failures.
pub(crate) fn delay(failures: i64, free: i64) -> Duration {
    match failures - free {
        ..=0 => Duration::ZERO,
        more => FIRST_DELAY.saturating_mul(1 << (more - 1).min(16)).min(MAX_DELAY),
    }
}

/// How many counters a read-only server has.
const MAX_COUNTERS: u64 = 100_000;

/// The counters of a server that does not write to the database.
pub(crate) struct Counters(Cache<String, Counter>);

#[derive(Clone, Copy)]
struct Counter {
    failures: i64,
    /// Milliseconds since 1970.
    next_at: i64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters(Cache::builder().max_capacity(MAX_COUNTERS).time_to_live(FAILURE_RETENTION).build())
    }
}

impl Counters {
    /// When the next attempt may be made.
    pub(crate) fn next_at(&self, subjects: &[(String, i64)]) -> i64 {
        let next_at = |(subject, _): &(String, i64)| self.0.get(subject).map(|counter| counter.next_at);
        subjects.iter().filter_map(next_at).max().unwrap_or_default()
    }

    /// Counts a failed attempt.
    pub(crate) fn count(&self, subjects: &[(String, i64)], now: i64) {
        for (subject, free) in subjects {
            self.0.entry(subject.clone()).and_upsert_with(|known| {
                let failures = known.map_or(0, |known| known.value().failures).saturating_add(1);
                Counter { failures, next_at: now.saturating_add(millis(delay(failures, *free))) }
            });
        }
    }

    pub(crate) fn forget(&self, subject: &str) {
        self.0.invalidate(subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit() {
        let seconds = |failures: i64| delay(failures, FREE_FAILURES).as_secs();
        assert_eq!([0, 1, 5, 6, 7, 8, 9, 15, 16, 1000].map(seconds), [0, 0, 0, 1, 2, 4, 8, 512, 900, 900]);
        assert_eq!(delay(i64::MAX, 0), MAX_DELAY);
    }

    #[test]
    fn an_account_and_its_address_are_counted_apart() {
        let [(pair, few), (address, many)] = subjects("alice", "192.0.2.1");
        assert_eq!((&pair[..], few, &address[..], many), ("alice 192.0.2.1", 5, "* 192.0.2.1", 50));
    }

    #[test]
    fn a_server_that_does_not_write_counts_in_memory() {
        let (counters, subjects) = (Counters::default(), subjects("alice", "192.0.2.1"));
        (0..5).for_each(|_| counters.count(&subjects, 1000));
        assert_eq!(counters.next_at(&subjects), 1000, "no delay yet");
        counters.count(&subjects, 1000);
        assert_eq!(counters.next_at(&subjects), 2000);
        let other = super::subjects("bob", "192.0.2.1");
        assert_eq!(counters.next_at(&other), 1000, "the address has more attempts");
        (0..45).for_each(|_| counters.count(&other, 1000));
        assert_eq!(counters.next_at(&super::subjects("carol", "192.0.2.1")), 2000, "and not any number");
        assert_eq!(counters.next_at(&super::subjects("alice", "192.0.2.2")), 0);
        counters.forget(&subjects[0].0);
        assert_eq!(counters.next_at(&subjects[..1]), 0);
    }
}
