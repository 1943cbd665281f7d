//! Quotas: how many bytes the distinct blobs of a namespace may have. A blob that several repositories of the
//! namespace share counts once. Checked before bytes are received, together with those of uploads in progress,
//! and again in the transaction that links the blob.

use std::collections::BTreeMap;

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::accounts::AccountError;
use super::staging::staging;
use super::{Page, Registry};
use crate::Error;
use crate::auth::{AccessTarget, Action, Caller, Target};
use crate::store::{NamespaceUsage, QuotaRow, Tx};

/// The quota of a namespace, and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Quota {
    pub namespace: String,
    /// Absent: no limit.
    pub limit_bytes: Option<u64>,
    /// Each blob counts once. This is compared with the limit.
    pub used_bytes: u64,
    /// Each blob counts once in each of its repositories.
    pub logical_bytes: u64,
    /// The blobs that no other namespace has. Only for auditors and administrators of the server: others could
    /// learn from it which content exists elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_bytes: Option<u64>,
}

/// The quota of a namespace when a request began, and the bytes that counted against it.
#[derive(Clone, Debug)]
pub(super) struct QuotaSpace {
    namespace: String,
    used_bytes: u64,
    limit_bytes: u64,
}

impl QuotaSpace {
    /// Returns an error if there is no space for `more_bytes`.
    pub(super) fn check(&self, more_bytes: u64) -> Result<(), Error> {
        if self.used_bytes.saturating_add(more_bytes) <= self.limit_bytes {
            return Ok(());
        }
        let QuotaSpace { namespace, used_bytes, limit_bytes } = self.clone();
        Err(Error::QuotaExceeded { namespace, used_bytes, limit_bytes })
    }
}

impl Quota {
    /// `usages`: those of the namespaces that have blobs.
    fn new(
        namespace: String,
        limit_bytes: Option<u64>,
        usages: &BTreeMap<String, NamespaceUsage>,
        is_inspector: bool,
    ) -> Quota {
        let usage = usages.get(&namespace).copied().unwrap_or_default();
        Quota {
            namespace,
            limit_bytes,
            used_bytes: usage.used_bytes,
            logical_bytes: usage.logical_bytes,
            own_bytes: is_inspector.then_some(usage.own_bytes),
        }
    }
}

impl Registry {
    /// Returns an error if a namespace has no space for `more_bytes` beyond its blobs and its uploads in
    /// progress. Bytes of blobs that it has already count, too, until their digest is known. `None` without a
    /// quota.
    pub(super) async fn check_space(
        &self,
        caller: &Caller,
        repository: &Repository,
        more_bytes: u64,
    ) -> Result<Option<QuotaSpace>, Error> {
        if !self.access_state().await?.has_quotas {
            return Ok(None);
        }
        // An account may stage as many bytes as its own namespace may have.
        let (namespace, counted) = match caller.account().filter(|_| *repository == staging(caller)) {
            Some(account) => (account.name.split('+').next().unwrap_or_default(), repository.as_str()),
            None => (namespace_of(repository), namespace_of(repository)),
        };
        let found = self.store().quota_use(namespace, counted).await?;
        let Some((limit_bytes, used_bytes)) = found else { return Ok(None) };
        let space = QuotaSpace { namespace: counted.to_owned(), used_bytes, limit_bytes };
        space.check(more_bytes)?;
        Ok(Some(space))
    }

    /// Links a blob in the transaction that locks the blob's row. Returns an error if the blob is new to the
    /// namespace and exceeds its quota.
    pub(super) async fn link_within_quota(
        &self,
        tx: &mut Tx,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<(), Error> {
        // The state is from the request's permission. Reading it again could wait for a connection while this
        // transaction holds one.
        let has_quotas = self.access.last_state().is_none_or(|state| state.has_quotas);
        let namespace = namespace_of(repository);
        let is_counted = has_quotas && tx.link_uses_quota(namespace, digest).await?;
        tx.link(repository, digest, self.lease_ms()).await?;
        if !is_counted {
            return Ok(());
        }
        match tx.quota_add(namespace, digest).await? {
            Some((limit_bytes, used_bytes)) if used_bytes > limit_bytes => {
                Err(Error::QuotaExceeded { namespace: namespace.to_owned(), used_bytes, limit_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if a repository that this transaction has filled with content exceeds the quota of its namespace.
    pub(super) async fn check_quota_of(&self, tx: &mut Tx, repository: &Repository) -> Result<(), Error> {
        let namespace = namespace_of(repository);
        match tx.quota_read(namespace).await? {
            Some((limit_bytes, used_bytes)) if used_bytes > limit_bytes => {
                Err(Error::QuotaExceeded { namespace: namespace.to_owned(), used_bytes, limit_bytes })
            }
            _ => Ok(()),
        }
    }

    /// The quota of a namespace and its use, for its owners.
    pub async fn quota_find(&self, caller: &Caller, namespace: &Repository) -> Result<Quota, Error> {
        let is_inspector = match self.check(caller, Action::Inspect, Target::Server).await {
            Ok(()) => true,
            Err(error) if error.is_refusal() => {
                let target = AccessTarget::namespace_of(namespace);
                self.authorize(caller, Action::Own, Target::Settings(&target)).await?;
                false
            }
            Err(error) => return Err(error),
        };
        let limit = self.store().quota_find(namespace.as_str()).await?;
        let usages = self.store().namespace_usages(&[namespace.as_str()]).await?;
        Ok(Quota::new(namespace.as_str().to_owned(), limit, &usages, is_inspector))
    }

    /// The quotas of namespaces whose names begin with `prefix`, by name, after `after`, at most `n`.
    pub(crate) async fn quota_page(
        &self,
        caller: &Caller,
        prefix: &str,
        after: &str,
        n: u32,
    ) -> Result<Page<Quota>, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let rows = self.store().quota_list(prefix, after, i64::from(n) + 1).await?.into_iter();
        let Page { items, more } = Page::cut(rows.collect(), n);
        let names: Vec<&str> = items.iter().map(|row| &row.namespace[..]).collect();
        let usages = self.store().namespace_usages(&names).await?;
        let quota = |row: QuotaRow| Quota::new(row.namespace, Some(row.limit_bytes), &usages, true);
        Ok(Page { items: items.into_iter().map(quota).collect(), more })
    }

    /// Sets or removes the quota of a namespace. Content beyond a new one stays.
    pub async fn quota_put(
        &self,
        caller: &Caller,
        namespace: &Repository,
        limit_bytes: Option<u64>,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
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

pub(super) fn namespace_of(repository: &Repository) -> &str {
    repository.as_str().split('/').next().unwrap_or_default()
}
