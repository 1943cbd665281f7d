//! The identities at sign-in providers that a person has connected with an account.

use serde_json::json;
use uuid::Uuid;

use super::Registry;
use super::accounts::AccountError;
use super::sign_in_errors::SignOnError;
use crate::Error;
use crate::auth::{Caller, ServerRole};
use crate::config::OidcProvider;
use crate::store::{AccountUpdate, IdentityRow};

/// An identity as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityInfo {
    pub(crate) issuer: String,
    pub(crate) subject: String,
    /// The provider's name for people.
    pub(crate) title: String,
    /// Milliseconds since 1970.
    pub(crate) used_at: i64,
}

impl Registry {
    /// The identities of the caller's account.
    pub(crate) async fn identity_list(&self, caller: &Caller) -> Result<Vec<IdentityInfo>, Error> {
        let account = caller.account().ok_or(Error::Unauthorized)?;
        let title = |name: String| match self.config.oidc.iter().find(|provider| provider.name == name) {
            Some(provider) => provider.title().to_owned(),
            None => name,
        };
        let rows = self.store().identity_list(account.id).await?;
        let info = |IdentityRow { issuer, subject, provider, used_at, .. }| IdentityInfo {
            issuer,
            subject,
            title: title(provider),
            used_at,
        };
        Ok(rows.into_iter().map(info).collect())
    }

    /// Removes an identity from the caller's account, and what its provider has decided: memberships and the role
    /// of administrator. Refused if it is the only way to sign in.
    pub(crate) async fn identity_remove(
        &self,
        caller: &Caller,
        issuer: &str,
        subject: &str,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        let account = caller.account().ok_or(Error::Unauthorized)?;
        self.check_writable()?;
        // 1. What the provider has decided. Without the identity, nothing would ever change it.
        let row = self.account_row(caller, &account.name).await?;
        let known = self.store().identity_find(issuer, subject).await?;
        let provider = known.filter(|known| known.account == account.id).map(|known| known.provider);
        let Some(provider) = provider else { return Ok(()) };
        let groups = self.store().provider_groups(&provider).await?;
        let settings = self.config.oidc.iter().find(|known| known.name == provider);
        let decides_admins = settings.is_some_and(|settings| settings.admin_group.is_some());
        // 2. Remove both. The lock of `access_changed` makes two removals follow each other.
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.identity_delete(account.id, issuer, subject).await?;
        if !tx.can_sign_in(account.id).await? {
            return Err(SignOnError::LastIdentity.into());
        }
        for (group, _) in groups.iter().filter(|(group, _)| row.groups.contains(group)) {
            tx.group_member_put(*group, row.id, false).await?;
        }
        if decides_admins && row.server_role == Some(ServerRole::Admin) {
            let update = AccountUpdate { server_role: Some(None), ..AccountUpdate::default() };
            tx.account_update(row.id, &update).await?;
            if !tx.has_admin().await? {
                return Err(AccountError::LastAdmin);
            }
        }
        let detail = json!({ "issuer": issuer, "subject": subject });
        self.audit(&mut tx, caller, "identity.remove", caller.actor(), detail).await?;
        tx.commit().await?;
        self.access.changed();
        Ok(())
    }

    /// Adds an identity to the caller's account.
    pub(super) async fn identity_connect(
        &self,
        caller: &Caller,
        provider: &OidcProvider,
        account: Uuid,
        identity: &IdentityRow,
    ) -> Result<(), AccountError> {
        let known = self.store().identity_find(&identity.issuer, &identity.subject).await?;
        if known.as_ref().is_some_and(|known| known.account == account) {
            return Ok(());
        }
        let mut tx = self.store().begin().await?;
        if !tx.identity_insert(&IdentityRow { account, ..identity.clone() }).await? {
            return Err(SignOnError::IdentityTaken { title: provider.title().to_owned() }.into());
        }
        let detail = json!({ "provider": provider.name, "subject": identity.subject });
        self.audit(&mut tx, caller, "identity.add", caller.actor(), detail).await?;
        tx.commit().await?;
        Ok(())
    }
}
