//! The link with which a new server is set up.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lode_client::Secret;

/// How long the link is valid.
const SETUP_TIME: Duration = Duration::from_secs(3600);

/// The link of this process, while it waits for its first account.
#[derive(Default)]
pub(super) struct SetupLink(Mutex<Option<Link>>);

struct Link {
    token: Secret,
    until: Instant,
}

impl SetupLink {
    /// Starts to wait.
    pub(super) fn begin(&self, token: Secret) {
        self.set(Some(Link { token, until: Instant::now() + SETUP_TIME }));
    }

    pub(super) fn end(&self) {
        self.set(None);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether this is the token of a valid link.
    pub(super) fn accepts(&self, token: &str) -> bool {
        let link = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        link.as_ref().is_some_and(|link| link.until > Instant::now() && link.token.matches(token))
    }

    fn set(&self, link: Option<Link>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = link;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_valid_for_an_hour() {
        let (link, now) = (SetupLink::default(), Instant::now());
        link.begin(Secret::new("token"));
        let until = link.0.lock().unwrap().as_ref().unwrap().until;
        assert!(until > now + Duration::from_secs(3590) && until <= Instant::now() + SETUP_TIME);
        assert!(link.accepts("token") && !link.accepts("toke") && !link.accepts(""));
        // The server stays in setup mode, and prints a new link at its next start.
        link.set(Some(Link { token: Secret::new("token"), until: Instant::now() }));
        assert!(link.is_waiting() && !link.accepts("token"));
        link.end();
        assert!(!link.is_waiting() && !link.accepts("token"));
    }
}
