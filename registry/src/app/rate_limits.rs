//! Limits on the rate of requests, in the memory of each replica. A client is an account, or a network without
//! credentials.

use std::net::IpAddr;
use std::num::NonZeroU32;

use governor::clock::{Clock, DefaultClock};
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use uuid::Uuid;

use crate::auth::{Caller, Identity};
use crate::network::network;
use crate::{Config, Error};

/// Wrong tokens and signatures from one network, in a minute. More get 429 instead of 401.
const WRONG_TOKENS: u32 = 120;

type Limiter<K> = RateLimiter<K, HashMapStateStore<K>, DefaultClock>;

/// The limits of this replica.
pub(crate) struct RateLimits {
    networks: Option<Limiter<IpAddr>>,
    accounts: Option<Limiter<Uuid>>,
    wrong_tokens: Limiter<IpAddr>,
}

impl RateLimits {
    pub(super) fn new(config: &Config) -> RateLimits {
        let limit = |a_minute: u32| NonZeroU32::new(a_minute).map(Quota::per_minute);
        RateLimits {
            networks: limit(config.requests_per_minute).map(RateLimiter::hashmap),
            accounts: limit(config.account_requests_per_minute).map(RateLimiter::hashmap),
            wrong_tokens: RateLimiter::hashmap(Quota::per_minute(
                NonZeroU32::new(WRONG_TOKENS).unwrap_or(NonZeroU32::MIN),
            )),
        }
    }

    /// Returns an error if the caller sends too many requests. This server's own workers are not limited.
    pub(crate) fn check(&self, caller: &Caller) -> Result<(), Error> {
        match &caller.identity {
            Identity::Internal | Identity::Worker { .. } => Ok(()),
            Identity::Account(account) => check(self.accounts.as_ref(), &account.id),
            Identity::Anonymous | Identity::Guest { .. } => match network_of(caller) {
                Some(network) => check(self.networks.as_ref(), &network),
                None => Ok(()),
            },
        }
    }

    /// Counts a wrong token. Returns an error if its network has sent too many.
    pub(crate) fn check_wrong_tokens(&self, client: &Caller) -> Result<(), Error> {
        match network_of(client) {
            Some(network) => check(Some(&self.wrong_tokens), &network),
            None => Ok(()),
        }
    }

    /// Drops the counts of idle clients.
    pub(super) fn forget_idle(&self) {
        let RateLimits { networks, accounts, wrong_tokens } = self;
        networks.iter().chain([wrong_tokens]).for_each(|limiter| {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        });
        if let Some(accounts) = accounts {
            accounts.retain_recent();
            accounts.shrink_to_fit();
        }
    }
}

/// The network of a request, if it arrived over a connection.
pub(super) fn network_of(caller: &Caller) -> Option<IpAddr> {
    caller.origin.as_ref()?.address.map(network)
}

fn check<K: Clone + Eq + std::hash::Hash>(limiter: Option<&Limiter<K>>, key: &K) -> Result<(), Error> {
    let Some(limiter) = limiter else { return Ok(()) };
    limiter.check_key(key).map_err(|limit| {
        let wait = limit.wait_time_from(limiter.clock().now());
        Error::TooManyRequests { seconds: wait.as_secs() + 1 }
    })
}
