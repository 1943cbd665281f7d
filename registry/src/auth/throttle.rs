//! Slows down the guessing of passwords. The first failures cause no delay; each further one doubles the
//! delay before the next attempt. Failures are counted for an account from an address, and for an address with
//! all accounts: an attacker delays only sign-ins from the same address, and no account is ever locked. The
//! counters are in the database, so replicas count together.

use std::time::Duration;

/// Failures of an account from one address without a delay.
const FREE_FAILURES: i64 = 5;
/// An address may fail this many times more often than one account from it.
const ADDRESS_FACTOR: i64 = 10;
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);
/// Without a further failure, earlier ones are forgotten after this long.
pub(crate) const MEMORY: Duration = Duration::from_secs(2 * 15 * 60);

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
}
