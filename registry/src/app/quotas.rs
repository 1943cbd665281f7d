//! Quotas: how many bytes the distinct blobs of a namespace may have. A blob that several repositories of the
//! namespace share counts once. Checked before bytes are received, and again in the transaction that links
//! the blob.

use lode_model::reference::Repository;
use serde::Serialize;
use serde_json::json;

use super::Registry;
use crate::Error;
use crate::auth::{AccessTarget, Action, Caller, Target};
use crate::store::Tx;

/// The quota of a namespace, and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quota {
    pub namespace: String,
    /// Absent: no limit.
    pub limit_bytes: Option<u64>,
    /// Each blob counts once. This is compared with the limit.
    pub used_bytes: u64,
    /// Each blob counts once in each of its repositories.
    pub logical_bytes: u64,
    /// The blobs that no other namespace has.
    pub own_bytes: u64,
}

impl Registry {
    /// Returns an error if a namespace has no space for `more_bytes`. Blobs that it has already count, too,
    /// until their digest is known.
    pub(super) async fn check_space(&self, repository: &Repository, more_bytes: u64) -> Result<(), Error> {
        if !self.access_state().await?.has_quotas {
            return Ok(());
        }
        let namespace = namespace_of(repository);
        let Some(limit_bytes) = self.store().quota_find(namespace).await? else { return Ok(()) };
        let used_bytes = self.store().namespace_used(namespace).await?;
        if used_bytes.saturating_add(more_bytes) > limit_bytes || used_bytes >= limit_bytes {
            return Err(Error::QuotaExceeded { namespace: namespace.to_owned(), used_bytes, limit_bytes });
        }
        Ok(())
    }

    /// Returns an error if the blobs of a namespace exceed its quota in this transaction, which has linked
    /// one.
    pub(super) async fn check_quota(&self, tx: &mut Tx, repository: &Repository) -> Result<(), Error> {
        // The state is from the request's permission. Reading it again could wait for a connection while this
        // transaction holds one.
        if self.access.last_state().is_some_and(|state| !state.has_quotas) {
            return Ok(());
        }
        let namespace = namespace_of(repository);
        match tx.quota_lock(namespace).await? {
            Some((limit_bytes, used_bytes)) if used_bytes > limit_bytes => {
                Err(Error::QuotaExceeded { namespace: namespace.to_owned(), used_bytes, limit_bytes })
            }
            _ => Ok(()),
        }
    }

    /// The quota of a namespace and its use, for its owners, or all quotas.
    pub async fn quota_list(
        &self,
        caller: &Caller,
        namespace: Option<&Repository>,
    ) -> Result<Vec<Quota>, Error> {
        let quotas = match namespace {
            Some(name) => {
                let target = AccessTarget::namespace_of(name);
                if self.authorize(caller, Action::Own, Target::Settings(&target)).await.is_err() {
                    self.authorize(caller, Action::Inspect, Target::Server).await?;
                }
                vec![(name.as_str().to_owned(), self.store().quota_find(name.as_str()).await?)]
            }
            None => {
                self.authorize(caller, Action::Inspect, Target::Server).await?;
                let rows = self.store().quota_list().await?.into_iter();
                rows.map(|row| (row.namespace, Some(row.limit_bytes))).collect()
            }
        };
        let mut shown = Vec::with_capacity(quotas.len());
        for (namespace, limit_bytes) in quotas {
            let usage = self.store().namespace_usage(&namespace).await?;
            shown.push(Quota {
                namespace,
                limit_bytes,
                used_bytes: usage.used_bytes,
                logical_bytes: usage.logical_bytes,
                own_bytes: usage.own_bytes,
            });
        }
        Ok(shown)
    }

    /// Sets or removes the quota of a namespace. Content beyond a new one stays.
    pub async fn quota_put(
        &self,
        caller: &Caller,
        namespace: &Repository,
        limit_bytes: Option<u64>,
    ) -> Result<(), Error> {
        self.authorize(caller, Action::Administer, Target::Server).await?;
        self.check_writable()?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.quota_put(namespace_of(namespace), limit_bytes).await?;
        let detail = json!({ "limit_bytes": limit_bytes });
        self.audit(&mut tx, caller, "quota.set", namespace_of(namespace), detail).await?;
        tx.commit().await?;
        self.access.changed();
        Ok(())
    }
}

fn namespace_of(repository: &Repository) -> &str {
    repository.as_str().split('/').next().unwrap_or_default()
}
