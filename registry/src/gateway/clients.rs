//! Counts the inference requests in progress per client, and limits them (`max_per_client`).
//! The count is per process. A client is an address as trusted proxies report it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::GatewayError;
use crate::network::network;

/// Requests in progress by client. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Clients {
    in_progress: Arc<Mutex<HashMap<IpAddr, usize>>>,
    /// 0 means no limit.
    max_requests: usize,
}

/// A request in progress, until it is dropped.
pub(super) struct InProgress {
    clients: Clients,
    client: IpAddr,
}

impl Clients {
    pub(super) fn new(max_requests: usize) -> Clients {
        Clients { max_requests, ..Clients::default() }
    }

    /// Counts a request, unless its client has too many. A request without an address comes from this
    /// process.
    pub(super) fn admit(&self, client: Option<IpAddr>) -> Result<Option<InProgress>, GatewayError> {
        let Some(address) = client.filter(|_| self.max_requests > 0) else { return Ok(None) };
        let client = network(address);
        let mut in_progress = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        let count = in_progress.entry(client).or_default();
        if *count >= self.max_requests {
            return Err(GatewayError::ClientLimitReached { client: address, limit: self.max_requests });
        }
        *count += 1;
        Ok(Some(InProgress { clients: self.clone(), client }))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut in_progress = self.clients.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = in_progress.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                in_progress.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_client() {
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let clients = Clients::new(2);
        let first = clients.admit(address("192.0.2.1")).unwrap();
        let _second = clients.admit(address("::ffff:192.0.2.1")).unwrap();
        let error = clients.admit(address("192.0.2.1")).err().unwrap();
        assert!(error.to_string().contains("client 192.0.2.1"), "{error}");
        assert!(clients.admit(address("192.0.2.2")).is_ok());
        drop(first);
        let _third = clients.admit(address("192.0.2.1")).unwrap();
        let _v6 = [1, 2].map(|host| clients.admit(address(&format!("2001:db8::{host}"))).unwrap());
        assert!(clients.admit(address("2001:db8::3")).is_err());
        assert!(clients.admit(address("2001:db8:0:1::3")).is_ok());
        assert!(clients.admit(None).unwrap().is_none());
        assert_eq!(clients.in_progress.lock().unwrap().len(), 2, "clients without requests are forgotten");
        assert!(Clients::new(0).admit(address("192.0.2.1")).unwrap().is_none());
    }
}
