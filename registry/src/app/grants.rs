//! Grants of roles, and visibility.

use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::accounts::AccountError;
use super::{Page, Registry};
use crate::Error;
use crate::auth::{AccessTarget, Action, Caller, Role, Target, Visibility};
use crate::store::GrantRow;

/// A role of an account or a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Grant {
    pub target: AccessTarget,
    /// The name of the account or group.
    pub subject: String,
    pub is_group: bool,
    pub role: Role,
}

/// Who may read a target without a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TargetVisibility {
    pub target: AccessTarget,
    pub visibility: Visibility,
}

/// One page of the roles and visibilities, together in the order of their targets.
pub(crate) struct RightsPage {
    pub(crate) grants: Vec<Grant>,
    pub(crate) visibilities: Vec<TargetVisibility>,
    /// The target and the subject's id of the last one, if another page follows. A visibility has no subject, and comes
    /// before the roles on its target.
    pub(crate) next: Option<(String, String)>,
}

enum Right {
    Visibility(TargetVisibility),
    Grant(Grant),
}

impl Registry {
    /// Grants a role to an account or a group. `everyone` and `anyone` may get the role read, which is a
    /// visibility.
    pub async fn grant_put(
        &self,
        caller: &Caller,
        target: &AccessTarget,
        subject: &str,
        role: Role,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        if let Some(visibility) = visibility_of(subject) {
            return match role {
                Role::Read => self.visibility_put(caller, target, Some(visibility)).await,
                _ => Err(AccountError::OnlyRead { subject: subject.to_owned() }),
            };
        }
        self.authorize(caller, Action::Own, Target::Settings(target)).await?;
        self.check_writable()?;
        let subject_id = self.subject_id(caller, subject).await?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.grant_put(target, subject_id, role).await?;
        let detail = json!({ "subject": subject, "role": role });
        self.audit(&mut tx, caller, "grant.set", target.to_string(), detail).await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(%target, subject, role = role.as_str(), "role granted");
        Ok(())
    }

    /// Removes the role of an account or a group.
    pub async fn grant_delete(
        &self,
        caller: &Caller,
        target: &AccessTarget,
        subject: &str,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        if visibility_of(subject).is_some() {
            return self.visibility_put(caller, target, Some(Visibility::Private)).await;
        }
        self.authorize(caller, Action::Own, Target::Settings(target)).await?;
        self.check_writable()?;
        let subject_id = self.subject_id(caller, subject).await?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        if !tx.grant_delete(target, subject_id).await? {
            let (subject, target) = (subject.to_owned(), target.to_string());
            return Err(AccountError::GrantUnknown { subject, target });
        }
        self.audit(&mut tx, caller, "grant.remove", target.to_string(), json!({ "subject": subject }))
            .await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(%target, subject, "role removed");
        Ok(())
    }

    /// The grants on one target with its visibility and that of its namespace, for its owners, or all of them: at most
    /// `n` after a target and a subject's id.
    pub(crate) async fn rights_page(
        &self,
        caller: &Caller,
        target: Option<&AccessTarget>,
        after: (&str, &str),
        n: u32,
    ) -> Result<RightsPage, Error> {
        self.authorize_rights(caller, target).await?;
        let limit = i64::from(n) + 1;
        let visibilities = match target {
            Some(target) => self.store().visibilities_of(target).await?,
            None => self.store().visibility_list(after.0, limit).await?,
        };
        let mut rights: Vec<((String, String), Right)> = Vec::new();
        for (target, visibility) in visibilities {
            let position = (target.to_string(), String::new());
            if position.0[..] > *after.0 {
                rights.push((position, Right::Visibility(TargetVisibility { target, visibility })));
            }
        }
        for row in self.store().grant_list(target, after, limit).await? {
            let GrantRow { target, subject_id, subject, is_group, role } = row;
            let position = (target.to_string(), subject_id.to_string());
            rights.push((position, Right::Grant(Grant { target, subject, is_group, role })));
        }
        rights.sort_by(|(one, _), (other, _)| one.cmp(other));
        let Page { items, more } = Page::cut(rights, n);
        let mut page = RightsPage {
            grants: Vec::new(),
            visibilities: Vec::new(),
            next: items.last().filter(|_| more).map(|(position, _)| position.clone()),
        };
        for (_, right) in items {
            match right {
                Right::Visibility(visibility) => page.visibilities.push(visibility),
                Right::Grant(grant) => page.grants.push(grant),
            }
        }
        Ok(page)
    }

    /// The roles of a robot, by target, at most `n`, for those who manage its credentials.
    pub(crate) async fn robot_grants(
        &self,
        caller: &Caller,
        robot: &str,
        n: u32,
    ) -> Result<Page<Grant>, AccountError> {
        let row = self.robot_of(caller, Some(robot)).await?;
        let rows = self.store().grants_of(row.id, i64::from(n) + 1).await?;
        let grant = |(target, role)| Grant { target, subject: row.name.clone(), is_group: false, role };
        Ok(Page::cut(rows.into_iter().map(grant).collect(), n))
    }

    /// The visibility of a target and of its namespace, for its owners. Those that were never set are private.
    pub(crate) async fn visibilities_of(
        &self,
        caller: &Caller,
        target: &AccessTarget,
    ) -> Result<Vec<TargetVisibility>, Error> {
        self.authorize_rights(caller, Some(target)).await?;
        let rows = self.store().visibilities_of(target).await?;
        Ok(rows.into_iter().map(|(target, visibility)| TargetVisibility { target, visibility }).collect())
    }

    /// Returns an error unless the caller owns the target, or may see the rights on all.
    async fn authorize_rights(&self, caller: &Caller, target: Option<&AccessTarget>) -> Result<(), Error> {
        match target {
            Some(target) => self.authorize_owner(caller, target).await,
            None => self.authorize(caller, Action::Inspect, Target::Server).await,
        }
    }

    /// Sets who may read a namespace or a repository without a role. `None`: a repository has that of its namespace.
    pub async fn visibility_put(
        &self,
        caller: &Caller,
        target: &AccessTarget,
        visibility: Option<Visibility>,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        self.authorize(caller, Action::Own, Target::Settings(target)).await?;
        self.check_writable()?;
        if visibility.is_none() && matches!(target, AccessTarget::Namespace(_)) {
            return Err(AccountError::NothingInherited { target: target.clone() });
        }
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.visibility_put(target, visibility).await?;
        let detail = json!({ "visibility": visibility.map_or("inherited", Visibility::as_str) });
        self.audit(&mut tx, caller, "visibility.set", target.to_string(), detail).await?;
        tx.commit().await?;
        self.access.changed();
        let name = visibility.map_or("inherited", Visibility::as_str);
        tracing::info!(%target, visibility = name, "visibility set");
        Ok(())
    }
}

/// The visibility that is a grant to this subject.
pub(crate) fn visibility_of(subject: &str) -> Option<Visibility> {
    match subject {
        "everyone" => Some(Visibility::Internal),
        "anyone" => Some(Visibility::Public),
        _ => None,
    }
}
