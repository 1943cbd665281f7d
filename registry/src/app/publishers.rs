//! Trusted publishers: a CI job signs in as a robot with the token that its CI service has signed for it, and
//! gets a token that is valid for an hour. No secret is stored at the service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::accounts::{AccountError, namespace, subject};
use super::audit::cut;
use super::publisher_claims::{Pins, PublisherKind, WORKFLOW_FOLDER, recorded};
use super::sign_in::account_of;
use super::sign_in_errors::{MAX_CONDITIONS, MAX_PUBLISHERS, MAX_VALUE_LEN, Mismatches, PublisherError};
use super::tokens::{NewToken, token_row};
use super::{Page, Registry, TokenInfo};
use crate::Error;
use crate::auth::jwt::{Claims, LEEWAY_SECONDS, unverified_issuer};
use crate::auth::token::digest_of;
use crate::auth::{Access, AccessTarget, AccountKind, Action, Caller, Credential, Identity, Scope, Target};
use crate::config::check_issuer;
use crate::error::chain;
use crate::issuer::IssuerError;
use crate::store::{AccountRow, PublisherRow};
use crate::time::{as_rfc3339, as_rfc3339_option, now_ms};

/// How long a job's token is valid here: long enough to push a large model, as at Hugging Face.
const TOKEN_TIME: Duration = Duration::from_secs(60 * 60);
/// How long the value of a used token is kept after its expiry, beyond the leeway.
const REPLAY_SECONDS: i64 = 5;

/// The description of a publisher to create.
#[derive(Clone, Debug)]
pub struct NewPublisher {
    /// The robot as which the job signs in.
    pub robot: String,
    pub kind: PublisherKind,
    /// The issuer of the tokens, exactly as they name it. Default: the service's public one.
    pub issuer: Option<String>,
    /// Claims and their values. GitHub: `repository` and `workflow` (the name of its file); GitLab:
    /// `project_path` and `config_file`; all others are exact.
    pub conditions: BTreeMap<String, String>,
}

/// A publisher as listings show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Publisher {
    pub id: Uuid,
    pub kind: PublisherKind,
    pub issuer: String,
    pub conditions: BTreeMap<String, String>,
    /// Claims that have to stay what they were at the first use.
    pub pins: BTreeMap<String, String>,
    // Milliseconds since 1970, like all times here; RFC 3339 in JSON.
    #[serde(serialize_with = "as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    #[serde(serialize_with = "as_rfc3339_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub used_at: Option<i64>,
    /// Some claims of the last use.
    pub last_claims: Option<Value>,
}

impl Registry {
    /// Registers a publisher of a robot, for the owners of its namespace.
    pub async fn publisher_create(
        &self,
        caller: &Caller,
        new: NewPublisher,
    ) -> Result<Publisher, AccountError> {
        self.check_recent(caller).await?;
        let robot = self.robot_of(caller, Some(&new.robot)).await?;
        self.check_writable()?;
        let NewPublisher { kind, issuer, mut conditions, .. } = new;
        if kind == PublisherKind::Gitlab {
            conditions.entry("config_file".to_owned()).or_insert_with(|| ".gitlab-ci.yml".to_owned());
        }
        if kind == PublisherKind::Github
            && let Some(file) = conditions.get_mut("workflow")
            && let Some(name) = file.strip_prefix(WORKFLOW_FOLDER)
        {
            *file = name.to_owned();
        }
        if let Some(name) = kind.required().iter().find(|name| !conditions.contains_key(**name)) {
            return Err(PublisherError::ConditionMissing { name }.into());
        }
        let has_length = |text: &String| (1..=MAX_VALUE_LEN).contains(&text.len());
        if !(1..=MAX_CONDITIONS).contains(&conditions.len())
            || !conditions.iter().all(|(name, value)| has_length(name) && has_length(value))
        {
            return Err(PublisherError::Conditions.into());
        }
        for (name, value) in &conditions {
            kind.check_condition(name, value).map_err(|expected| PublisherError::Condition {
                name: name.clone(),
                value: value.clone(),
                expected,
            })?;
        }
        let issuer = match issuer {
            Some(issuer) => issuer,
            None => kind.default_issuer().ok_or(PublisherError::IssuerMissing)?.to_owned(),
        };
        let url = check_issuer(&issuer)
            .map_err(|reason| PublisherError::Issuer { issuer: issuer.clone(), reason })?;
        // Without the conditions of its kind, a publisher could match the jobs of every project of the service.
        if let Some(known) = PublisherKind::of_issuer(&url).filter(|known| *known != kind) {
            return Err(PublisherError::IssuerOfKind { issuer, kind: known }.into());
        }
        let known = self.store().publisher_list(robot.id, None, MAX_PUBLISHERS).await?;
        if known.len() as i64 >= MAX_PUBLISHERS {
            return Err(PublisherError::TooMany.into());
        }
        // Ids that are known now need no first use.
        let pins = kind
            .pinned()
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), conditions.get(*name)?.clone())))
            .collect();
        let row = PublisherRow {
            id: Uuid::now_v7(),
            account: robot.id,
            kind: kind.as_str().to_owned(),
            issuer,
            conditions,
            pins,
            created_at: now_ms(),
            used_at: None,
            claims: None,
        };
        let mut tx = self.store().begin().await?;
        tx.publisher_insert(&row).await?;
        let detail = json!({ "id": row.id, "issuer": row.issuer, "conditions": row.conditions });
        self.audit(&mut tx, caller, "publisher.create", subject(&robot), detail).await?;
        tx.commit().await?;
        tracing::info!(account = robot.name, publisher = %row.id, "publisher created");
        Publisher::try_from(row).map_err(AccountError::from)
    }

    /// The publishers of a robot, oldest first: at most `n` of those that are newer than `after`.
    pub(crate) async fn publisher_page(
        &self,
        caller: &Caller,
        robot: Option<&str>,
        after: Option<Uuid>,
        n: u32,
    ) -> Result<Page<Publisher>, AccountError> {
        let robot = self.robot_of(caller, robot).await?;
        let rows = self.store().publisher_list(robot.id, after, i64::from(n) + 1).await?;
        Ok(Page::cut(rows.into_iter().map(Publisher::try_from).collect::<Result<_, _>>()?, n))
    }

    /// Deletes a publisher of a robot, and revokes its tokens.
    pub async fn publisher_delete(
        &self,
        caller: &Caller,
        robot: Option<&str>,
        id: Uuid,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        let robot = self.robot_of(caller, robot).await?;
        self.check_writable()?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        if !tx.publisher_delete(robot.id, id, now_ms()).await? {
            return Err(PublisherError::Unknown { id }.into());
        }
        self.audit(&mut tx, caller, "publisher.delete", subject(&robot), json!({ "id": id })).await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(account = robot.name, publisher = %id, "publisher deleted");
        Ok(())
    }

    pub(super) async fn robot_of(
        &self,
        caller: &Caller,
        robot: Option<&str>,
    ) -> Result<AccountRow, AccountError> {
        if let Some(space) = robot.and_then(|name| namespace(name.split_once('+')?.0)) {
            self.authorize(caller, Action::Own, Target::Settings(&space)).await?;
        }
        let row = self.credential_owner(caller, robot).await?;
        match row.kind {
            AccountKind::Robot => Ok(row),
            AccountKind::User => Err(PublisherError::NotARobot { name: row.name }.into()),
        }
    }

    /// Exchanges the token of a CI job for one of a robot. `resource`: the robot, or the namespace or the
    /// repository to which the token is limited.
    pub(crate) async fn publisher_sign_in(
        &self,
        client: &Caller,
        token: &str,
        resource: Option<&str>,
    ) -> Result<(TokenInfo, Secret), AccountError> {
        self.check_writable()?;
        let issuer = match unverified_issuer(token) {
            Ok(issuer) => issuer,
            Err(error) => {
                self.rate_limits().check_wrong_tokens(client)?;
                return Err(PublisherError::Token { reason: error.to_string() }.into());
            }
        };
        let signed_in = self.publisher_exchange(client, &issuer, token, resource).await;
        if let Err(AccountError::Publisher(error)) = &signed_in {
            self.rate_limits().check_wrong_tokens(client)?;
            tracing::info!(issuer = cut(&issuer), error = cut(&chain(error)), "a CI job was refused");
            self.audit_publish_refused(client, &issuer, error);
        }
        signed_in
    }

    async fn publisher_exchange(
        &self,
        client: &Caller,
        issuer: &str,
        token: &str,
        resource: Option<&str>,
    ) -> Result<(TokenInfo, Secret), AccountError> {
        // 1. Only issuers of publishers are asked for their keys.
        if !self.store().issuer_has_publisher(issuer).await? {
            return Err(PublisherError::NoPublisher { issuer: cut(issuer).to_owned() }.into());
        }
        let claims = self.publisher_claims(issuer, token).await?;
        // 2. The publisher.
        let resource = resource.map(parse_resource).transpose()?;
        let found = self.publisher_find(issuer, &claims, resource.as_ref()).await?;
        // 3. Each token counts once. Its signature is left out: one of ECDSA has other valid forms.
        let signed = token.rsplit_once('.').map_or(token, |(signed, _)| signed);
        let id = match claims.text("jti") {
            Some(id) => id.to_owned(),
            None => Digest::sha256(signed.as_bytes()).to_string(),
        };
        let id = Digest::sha256(format!("{issuer}\n{id}").as_bytes());
        let expires = claims.seconds("exp").unwrap_or_default();
        let forget_at = expires.saturating_add(LEEWAY_SECONDS + REPLAY_SECONDS).saturating_mul(1000);
        if !self.value_use(&format!("publisher {id}"), forget_at).await? {
            return Err(PublisherError::Replayed.into());
        }
        // 4. The robot's token. At the first use, another job may have stored the ids meanwhile.
        if let Some(created) = self.publisher_token(client, found, &claims, resource.as_ref()).await? {
            return Ok(created);
        }
        let found = self.publisher_find(issuer, &claims, resource.as_ref()).await?;
        let created = self.publisher_token(client, found, &claims, resource.as_ref()).await?;
        created.ok_or_else(|| PublisherError::NoMatch(Mismatches::default()).into())
    }

    /// Creates the token of a job. Returns `None` if the publisher has changed meanwhile.
    async fn publisher_token(
        &self,
        client: &Caller,
        found: FoundPublisher,
        claims: &Claims,
        resource: Option<&Resource>,
    ) -> Result<Option<(TokenInfo, Secret)>, AccountError> {
        let FoundPublisher { publisher, pins, robot } = found;
        let targets = match resource {
            Some(Resource::Target(target)) => vec![target.clone()],
            _ => Vec::new(),
        };
        let scope = Scope { access: Access::Write, targets, requested: None };
        let project = ["repository", "project_path", "sub"].iter().find_map(|name| claims.text(name));
        let name: String =
            format!("{} {}", publisher.kind, project.unwrap_or_default()).chars().take(100).collect();
        let (mut row, secret) = token_row(&robot, NewToken { name, scope, valid: Some(TOKEN_TIME) })?;
        row.publisher = Some(publisher.id);
        let recorded = recorded(claims);
        let caller = account_of(&robot, Credential::Token(row.id), Scope::default());
        let caller = client.with_identity(Identity::Account(caller.into()));
        let mut tx = self.store().begin().await?;
        if !tx.publisher_used(&publisher, &pins, &recorded.to_string(), now_ms()).await? {
            return Ok(None);
        }
        tx.token_insert(&row, &digest_of(secret.expose())).await?;
        let detail = json!({ "publisher": publisher.id, "token": row.id, "claims": recorded });
        self.audit(&mut tx, &caller, "publisher.sign_in", subject(&robot), detail).await?;
        tx.commit().await?;
        tracing::info!(account = robot.name, publisher = %publisher.id, token = %row.id, "a CI job has signed in");
        Ok(Some((row.try_into()?, secret)))
    }

    /// The claims of a job's token that is for this server, and for no other.
    async fn publisher_claims(&self, issuer: &str, token: &str) -> Result<Claims, PublisherError> {
        let base = self.config.public_url.as_ref().ok_or(PublisherError::NoPublicUrl)?;
        let base = base.as_str().trim_end_matches('/');
        let audiences = [base.to_owned(), format!("{base}/"), format!("{base}/hf")];
        let verified = self.issuers.get(issuer).verify(token, &audiences).await;
        let claims = match verified {
            Ok(verified) => verified.claims,
            Err(IssuerError::Token(error)) => {
                return Err(PublisherError::Token { reason: error.to_string() });
            }
            Err(error) => {
                tracing::warn!(issuer, error = chain(&error), "an issuer of a publisher cannot be used");
                return Err(PublisherError::Unavailable { source: Box::new(error) });
            }
        };
        match claims.audiences().len() {
            1 => Ok(claims),
            _ => {
                Err(PublisherError::Token { reason: "it is for several audiences, expected one".to_owned() })
            }
        }
    }

    /// The publisher that matches a job.
    async fn publisher_find(
        &self,
        issuer: &str,
        claims: &Claims,
        resource: Option<&Resource>,
    ) -> Result<FoundPublisher, AccountError> {
        let (mut matching, mut mismatches, mut is_elsewhere) = (Vec::new(), Mismatches::default(), false);
        for publisher in self.store().publishers_of_issuer(issuer).await? {
            let matched = publisher.matches(claims)?;
            if matched == Err(None) {
                continue;
            }
            let Some(robot) = self.account_live(publisher.account).await? else { continue };
            if !resource.is_none_or(|resource| resource.is_of(&robot.name)) {
                is_elsewhere = true;
                continue;
            }
            match matched {
                Ok(pins) => matching.push(FoundPublisher { publisher, pins, robot }),
                Err(mismatch) => mismatches.0.extend(mismatch),
            }
        }
        let robots: BTreeSet<&str> = matching.iter().map(|found| &found.robot.name[..]).collect();
        let namespaces: BTreeSet<&str> = robots.iter().filter_map(|robot| robot.split('+').next()).collect();
        match namespaces.first() {
            Some(_) if namespaces.len() > 1 => return Err(PublisherError::ResourceMissing.into()),
            Some(namespace) if robots.len() > 1 => {
                return Err(PublisherError::RobotMissing { namespace: (*namespace).to_owned() }.into());
            }
            _ => {}
        }
        match (matching.into_iter().next(), resource) {
            (Some(found), _) => Ok(found),
            (None, Some(resource)) if is_elsewhere && mismatches.0.is_empty() => {
                let resource = cut(resource.as_str()).to_owned();
                Err(PublisherError::ResourceMismatch { resource }.into())
            }
            (None, _) => Err(PublisherError::NoMatch(mismatches).into()),
        }
    }
}

/// A publisher that matches a job.
struct FoundPublisher {
    publisher: PublisherRow,
    /// Its pins after this use.
    pins: Pins,
    robot: Arc<AccountRow>,
}

/// What a job asks for.
enum Resource {
    Robot(String),
    Target(AccessTarget),
}

impl Resource {
    fn as_str(&self) -> &str {
        match self {
            Resource::Robot(name) => name,
            Resource::Target(AccessTarget::Namespace(name) | AccessTarget::Repository(name)) => name.as_str(),
        }
    }

    fn is_of(&self, robot: &str) -> bool {
        let own = robot.split('+').next();
        match self {
            Resource::Robot(name) => name == robot,
            Resource::Target(AccessTarget::Namespace(name)) => Some(name.as_str()) == own,
            Resource::Target(AccessTarget::Repository(name)) => name.as_str().split('/').next() == own,
        }
    }
}

fn parse_resource(text: &str) -> Result<Resource, PublisherError> {
    let wrong = || PublisherError::Resource { resource: text.chars().take(100).collect() };
    if text.contains('+') {
        return Ok(Resource::Robot(text.to_owned()));
    }
    let repository: Repository = text.parse().map_err(|_| wrong())?;
    Ok(Resource::Target(match text.contains('/') {
        true => AccessTarget::Repository(repository),
        false => namespace(text).ok_or_else(wrong)?,
    }))
}

impl TryFrom<PublisherRow> for Publisher {
    type Error = Error;

    fn try_from(row: PublisherRow) -> Result<Publisher, Error> {
        Ok(Publisher {
            id: row.id,
            kind: PublisherKind::parse(&row.kind)?,
            issuer: row.issuer,
            conditions: row.conditions,
            pins: row.pins,
            created_at: row.created_at,
            used_at: row.used_at,
            last_claims: row.claims.and_then(|text| serde_json::from_str(&text).ok()),
        })
    }
}
