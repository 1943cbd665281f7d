//! Counts the inference requests in progress per client, and limits them (`max_per_client`).
//! The count is per process. A client is an account, or an address as trusted proxies report it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use lode_client::Urgency;

use super::error::GatewayError;
use crate::auth::Caller;
use crate::network::network;

/// The client whose requests are counted together: an account, or an address if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestClient {
    /// The account's id, or the network of the address.
    pub(super) key: String,
    /// Its name in messages.
    name: String,
    /// The urgency of this request.
    pub(super) urgency: Urgency,
}

impl RequestClient {
    /// `None` for a request without an address, which comes from this process.
    pub(crate) fn of(caller: &Caller, address: Option<IpAddr>, urgency: Urgency) -> Option<RequestClient> {
        let (key, name) = match caller.account() {
            Some(account) => (account.id.to_string(), caller.actor()),
            None => address.map(|address| (network(address).to_string(), address.to_string()))?,
        };
        Some(RequestClient { key, name, urgency })
    }
}

/// Requests in progress by client. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Clients {
    /// By the key of the client.
    in_progress: Arc<Mutex<HashMap<String, usize>>>,
    /// 0 means no limit.
    max_requests: usize,
}

/// A request in progress, until it is dropped.
pub(super) struct InProgress {
    clients: Clients,
    key: String,
}

impl Clients {
    pub(super) fn new(max_requests: usize) -> Clients {
        Clients { max_requests, ..Clients::default() }
    }

    /// Counts a request, unless its client has too many.
    pub(super) fn admit(&self, client: Option<&RequestClient>) -> Result<Option<InProgress>, GatewayError> {
        let Some(RequestClient { key, name, .. }) = client.filter(|_| self.max_requests > 0) else {
            return Ok(None);
        };
        let mut in_progress = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        let count = in_progress.entry(key.clone()).or_default();
        if *count >= self.max_requests {
            return Err(GatewayError::ClientLimitReached { client: name.clone(), limit: self.max_requests });
        }
        *count += 1;
        Ok(Some(InProgress { clients: self.clone(), key: key.clone() }))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut in_progress = self.clients.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = in_progress.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                in_progress.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_client() {
        let of = |text: &str| RequestClient::of(&Caller::ANONYMOUS, text.parse().ok(), Urgency::default());
        let clients = Clients::new(2);
        let admit = |text: &str| clients.admit(of(text).as_ref());
        let first = admit("192.0.2.1").unwrap();
        let _second = admit("::ffff:192.0.2.1").unwrap();
        let error = admit("192.0.2.1").err().unwrap();
        assert!(error.to_string().contains("client 192.0.2.1"), "{error}");
        assert!(admit("192.0.2.2").is_ok());
        drop(first);
        let _third = admit("192.0.2.1").unwrap();
        let _v6 = [1, 2].map(|host| admit(&format!("2001:db8::{host}")).unwrap());
        assert!(admit("2001:db8::3").is_err());
        assert!(admit("2001:db8:0:1::3").is_ok());
        assert!(clients.admit(None).unwrap().is_none());
        assert_eq!(clients.in_progress.lock().unwrap().len(), 2, "clients without requests are forgotten");
        assert!(Clients::new(0).admit(of("192.0.2.1").as_ref()).unwrap().is_none());
    }
}
