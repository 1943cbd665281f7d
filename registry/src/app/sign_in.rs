//! Signing in: the account of a token, a password, a session, a key or an access token. Found accounts are
//! remembered until the version of access control changes.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use lode_client::{Secret, TOKEN_USER};
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use sha2::Sha256;
use uuid::Uuid;

use super::Registry;
use super::accounts::is_account_name;
use super::blobs::link_time;
use super::sign_in_cache::{CredentialKey, Holder, USE_INTERVAL};
use super::worker::WORKER_CREDENTIAL_PREFIX;
use crate::Error;
use crate::auth::throttle;
use crate::auth::token::{digest_of, is_token};
use crate::auth::{
    AccessToken, Account, Action, Caller, Credential, Identity, OllamaKey, RepositoryScope, Requested, Scope,
    Target,
};
use crate::error::chain;
use crate::network::network;
use crate::store::{AccountRow, TokenRow};
use crate::time::{millis, now_ms};

/// How long an access token is valid. It is checked when a request begins.
pub(crate) const ACCESS_TOKEN_TIME: Duration = Duration::from_secs(3600);
/// A session ends after this long without a request, and after this long in any case.
pub(super) const SESSION_IDLE_TIME: Duration = Duration::from_secs(12 * 3600);
pub(crate) const SESSION_TIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// How many repositories one access token may name.
const MAX_SCOPES: usize = 64;

const ACCESS_TOKEN_PREFIX: &str = "lode.";
const KEY_NAME: &str = "access-tokens";

/// Whether the expiry of a credential counts. It does not for the rest of an upload that its account has begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    Checked,
    Ignored,
}

impl Registry {
    /// The identity of a token: of an account, of a worker, of this process, or an access token. `None` if it
    /// is invalid, expired or revoked. `upload`: the upload that the request continues; its account may do so
    /// with an access token that has expired meanwhile.
    pub(crate) async fn sign_in_token(
        &self,
        text: &str,
        upload: Option<Uuid>,
    ) -> Result<Option<Identity>, Error> {
        if text.starts_with(ACCESS_TOKEN_PREFIX) {
            return self.sign_in_access_token(text, upload).await;
        }
        if text.starts_with(WORKER_CREDENTIAL_PREFIX) {
            let id = self.worker_of_credential(digest_of(text)).await?;
            return Ok(id.map(|id| Identity::Worker { id }));
        }
        if !is_token(text) {
            return Ok(None);
        }
        if self.internal_token.matches(text) {
            return Ok(Some(Identity::Internal));
        }
        let holder = self.credential_holder(CredentialKey::Token(digest_of(text)), Expiry::Checked).await?;
        Ok(holder.map(Identity::Account))
    }

    /// The identity of a browser's session.
    pub(crate) async fn sign_in_session(&self, cookie: &str) -> Result<Option<Identity>, Error> {
        let holder =
            self.credential_holder(CredentialKey::Session(digest_of(cookie)), Expiry::Checked).await?;
        Ok(holder.map(Identity::Account))
    }

    /// The identity of a key that has signed a request. `None` if no account has it.
    pub(crate) async fn sign_in_key(&self, key: OllamaKey) -> Result<Option<Identity>, Error> {
        let holder = self.credential_holder(CredentialKey::Key(key), Expiry::Checked).await?;
        Ok(holder.map(Identity::Account))
    }

    /// The identity of a name and a password, or of a name and a token in the password's place. `client` is
    /// where the request came from.
    pub(crate) async fn sign_in_basic(
        &self,
        client: &Caller,
        name: &str,
        password: &Secret,
        upload: Option<Uuid>,
    ) -> Result<Identity, Error> {
        let wrong = |is_token| Error::CredentialsInvalid { is_token };
        let is_secret = |text: &str| is_token(text) || text.starts_with(WORKER_CREDENTIAL_PREFIX);
        if is_secret(password.expose()) || name == TOKEN_USER {
            let found = match is_secret(password.expose()) {
                true => self.sign_in_token(password.expose(), upload).await?,
                false => None,
            };
            let is_other = match found {
                Some(Identity::Account(account)) if name != TOKEN_USER && account.name != name => true,
                Some(identity) => return Ok(identity),
                None => false,
            };
            self.audit_invalid_token(client);
            self.rate_limits().check_wrong_tokens(client)?;
            return Err(wrong(!is_other));
        }
        // Names that no account can have cost no hash, and are not stored.
        if !is_account_name(name) {
            return Err(wrong(false));
        }
        let address = client.origin.as_ref().and_then(|origin| origin.address);
        let address = address.map(|address| network(address).to_string()).unwrap_or_default();
        let key = self.password_key(name, password, &address).await?;
        match self.password_known(&key).await? {
            Some(known) => Ok(known),
            // Boxed: otherwise each request's future would have room for its transaction.
            None => Box::pin(self.sign_in_password(client, name, password, &address, key)).await,
        }
    }

    /// Compares a password with the account's hash.
    async fn sign_in_password(
        &self,
        client: &Caller,
        name: &str,
        password: &Secret,
        address: &str,
        key: Digest,
    ) -> Result<Identity, Error> {
        let subjects = throttle::subjects(name, address);
        let _turn = self.sign_ins.attempts.lock(subjects[0].0.clone()).await;
        // A parallel request may have been first.
        if let Some(known) = self.password_known(&key).await? {
            return Ok(known);
        }
        let attempt = (self.access_state().await?.version, key);
        if self.sign_ins.wrong_passwords.contains_key(&attempt) {
            return Err(Error::CredentialsInvalid { is_token: false });
        }
        let next_at = self.store().failures_next_at(&subjects.clone().map(|(subject, _)| subject)).await?;
        let next_at = next_at.max(self.sign_ins.failures.next_at(&subjects));
        if let wait @ 1.. = next_at - now_ms() {
            return Err(Error::Throttled { seconds: wait.cast_unsigned().div_ceil(1000) });
        }
        let row = self.store().account_find_by_name(name).await?.filter(|row| row.disabled_at.is_none());
        let hash = row.as_ref().and_then(|row| row.password.clone());
        let is_right = self.sign_ins.hashing.matches(hash, password.clone()).await?;
        let Some(row) = row.filter(|_| is_right) else {
            self.sign_in_failed(&subjects).await?;
            self.sign_ins.wrong_passwords.insert(attempt, ());
            tracing::info!(account = name, address, "sign-in failed");
            self.audit_sign_in(client, name, false);
            return Err(Error::CredentialsInvalid { is_token: false });
        };
        match self.config.read_only {
            true => self.sign_ins.failures.forget(&subjects[0].0),
            false => self.store().failures_delete(&subjects[0].0).await?,
        }
        let account = Arc::new(account_of(&row, Credential::Password, Scope::default()));
        self.audit_sign_in(&client.with_identity(Identity::Account(account.clone())), name, true);
        self.sign_ins.passwords.insert(attempt.1, (row.id, row.epoch));
        Ok(Identity::Account(account))
    }

    /// The account of a password that was right a short time ago, unless the account has changed since.
    async fn password_known(&self, key: &Digest) -> Result<Option<Identity>, Error> {
        let Some((id, epoch)) = self.sign_ins.passwords.get(key) else { return Ok(None) };
        let row = self.account_live(id).await?.filter(|row| row.epoch == epoch);
        let account =
            |row: Arc<AccountRow>| Arc::new(account_of(&row, Credential::Password, Scope::default()));
        Ok(row.map(account).map(Identity::Account))
    }

    /// Counts a failed attempt.
    async fn sign_in_failed(&self, subjects: &[(String, i64)]) -> Result<(), Error> {
        if self.config.read_only {
            self.sign_ins.failures.count(subjects, now_ms());
            return Ok(());
        }
        let (now, mut tx) = (now_ms(), self.store().begin().await?);
        for (subject, free) in subjects {
            let failures = tx.failure_count(subject, now, now - millis(throttle::FAILURE_RETENTION)).await?;
            tx.failure_delay(subject, now + millis(throttle::delay(failures, *free))).await?;
        }
        tx.commit().await
    }

    /// An access token for those of the scopes that the caller may use, and how long it is valid.
    pub(crate) async fn access_token_issue(
        &self,
        caller: &Caller,
        requested: &Requested,
    ) -> Result<(Secret, Duration), Error> {
        // An access token gives no other one: it would never end.
        if caller.account().is_some_and(|account| account.scope.requested.is_some()) {
            return Err(Error::CredentialsInvalid { is_token: true });
        }
        // It is as short-lived as this process, and no other replica gets it.
        if caller.is_internal() {
            return Ok((self.internal_token.clone(), ACCESS_TOKEN_TIME));
        }
        let repositories = self.scopes_grant(caller, &requested.repositories).await?;
        let granted = Requested { repositories, ..*requested };
        let token = self.access_token_sign(caller, granted, None, ACCESS_TOKEN_TIME).await?;
        Ok((token, ACCESS_TOKEN_TIME))
    }

    /// Those of the scopes that the caller may use.
    pub(crate) async fn scopes_grant(
        &self,
        caller: &Caller,
        requested: &[RepositoryScope],
    ) -> Result<Vec<RepositoryScope>, Error> {
        let mut scopes = Vec::new();
        for scope in requested.iter().take(MAX_SCOPES) {
            let mut granted = RepositoryScope { pull: false, push: false, delete: false, ..scope.clone() };
            for (is_requested, is_granted, action) in [
                (scope.pull, &mut granted.pull, Action::Pull),
                (scope.push, &mut granted.push, Action::Push),
                (scope.delete, &mut granted.delete, Action::Delete),
            ] {
                *is_granted = is_requested && self.may(caller, action, &scope.repository).await?;
            }
            if granted.pull || granted.push || granted.delete {
                scopes.push(granted);
            }
        }
        Ok(scopes)
    }

    pub(super) async fn access_token_sign(
        &self,
        caller: &Caller,
        granted: Requested,
        blob: Option<Digest>,
        valid: Duration,
    ) -> Result<Secret, Error> {
        let account = caller.account();
        let content = AccessToken {
            account: account.map(|account| account.id),
            credential: account.map(|account| account.credential),
            worker: if let Identity::Worker { id } = caller.identity { Some(id) } else { None },
            epoch: account.map_or(0, |account| account.epoch),
            scopes: granted.repositories,
            catalog: granted.catalog,
            mount: granted.mount,
            blob,
            expires: (now_ms() + millis(valid)) / 1000,
        };
        let content = serde_json::to_vec(&content).expect("ids, names and numbers serialise to JSON");
        let mac = self.access_token_mac(&content).await?.finalize().into_bytes();
        let text = format!(
            "{ACCESS_TOKEN_PREFIX}{}.{}",
            URL_SAFE_NO_PAD.encode(&content),
            URL_SAFE_NO_PAD.encode(mac)
        );
        Ok(Secret::new(text))
    }

    /// The content of an access token that this registry has signed. It may have expired.
    async fn access_token_open(&self, text: &str) -> Result<Option<Arc<AccessToken>>, Error> {
        let key = digest_of(text);
        if let Some(known) = self.sign_ins.access_tokens.get(&key) {
            return Ok(Some(known));
        }
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let parts = text.strip_prefix(ACCESS_TOKEN_PREFIX).and_then(|rest| rest.split_once('.'));
        let Some((Some(content), Some(mac))) = parts.map(|(content, mac)| (decode(content), decode(mac)))
        else {
            return Ok(None);
        };
        if self.access_token_mac(&content).await?.verify_slice(&mac).is_err() {
            return Ok(None);
        }
        let Ok(token) = serde_json::from_slice(&content).map(Arc::<AccessToken>::new) else {
            return Ok(None);
        };
        self.sign_ins.access_tokens.insert(key, token.clone());
        Ok(Some(token))
    }

    async fn sign_in_access_token(
        &self,
        text: &str,
        upload: Option<Uuid>,
    ) -> Result<Option<Identity>, Error> {
        let Some(token) = self.access_token_open(text).await?.filter(|token| token.blob.is_none()) else {
            return Ok(None);
        };
        let is_valid = token.expires > now_ms() / 1000;
        if is_valid && let Some(identity) = self.access_token_identity(&token, Expiry::Checked).await? {
            return Ok(Some(identity));
        }
        match (upload, token.account) {
            (Some(upload), Some(account)) if self.store().upload_account(upload).await? == Some(account) => {
                self.access_token_identity(&token, Expiry::Ignored).await
            }
            _ => Ok(None),
        }
    }

    async fn access_token_identity(
        &self,
        token: &AccessToken,
        expiry: Expiry,
    ) -> Result<Option<Identity>, Error> {
        if let Some(id) = token.worker {
            return Ok(self.worker_exists(id).await?.then_some(Identity::Worker { id }));
        }
        let (Some(id), Some(credential)) = (token.account, token.credential) else {
            return Ok(Some(Identity::Guest { scopes: token.scopes[..].into() }));
        };
        let account = match credential {
            Credential::Password => {
                let row = self.account_live(id).await?;
                row.map(|row| Arc::new(account_of(&row, credential, Scope::default())))
            }
            Credential::Token(token) => self.credential_holder(CredentialKey::TokenId(token), expiry).await?,
            Credential::Key(key) => self.credential_holder(CredentialKey::KeyId(key), expiry).await?,
            // A session gets no access tokens.
            Credential::Session(_) => None,
        };
        let is_same = |account: &Arc<Account>| account.id == id && account.epoch == token.epoch;
        let account = account.filter(is_same).map(|account| {
            let requested =
                Requested { repositories: token.scopes.clone(), catalog: token.catalog, mount: token.mount };
            let scope = Scope { requested: Some(requested), ..account.scope.clone() };
            Identity::Account(Arc::new(Account { scope, ..Account::clone(&account) }))
        });
        Ok(account)
    }

    /// A link to a blob that the caller may read, for clients that download without credentials: an access
    /// token for this blob alone. `None` for a caller that needs none.
    pub(crate) async fn blob_link(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
        size_bytes: u64,
    ) -> Result<Option<Secret>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        if caller.account().is_none() {
            return Ok(None);
        }
        let scope =
            RepositoryScope { repository: repository.clone(), pull: true, push: false, delete: false };
        let granted = Requested { repositories: vec![scope], ..Requested::default() };
        self.access_token_sign(caller, granted, Some(digest.clone()), link_time(size_bytes)).await.map(Some)
    }

    /// The identity and the repository of a link. `None` if it is invalid, expired, or for another blob.
    pub(crate) async fn blob_link_open(
        &self,
        link: &str,
        digest: &Digest,
    ) -> Result<Option<(Identity, Repository)>, Error> {
        let Some(token) = self.access_token_open(link).await? else { return Ok(None) };
        let is_valid = token.blob.as_ref() == Some(digest) && token.expires > now_ms() / 1000;
        let (true, [RepositoryScope { repository, .. }]) = (is_valid, &token.scopes[..]) else {
            return Ok(None);
        };
        let repository = repository.clone();
        Ok(self.access_token_identity(&token, Expiry::Checked).await?.map(|identity| (identity, repository)))
    }

    /// The account with this id, unless it is disabled.
    pub(super) async fn account_live(&self, id: Uuid) -> Result<Option<Arc<AccountRow>>, Error> {
        let key = (self.access_state().await?.version, id);
        if let Some(known) = self.sign_ins.accounts.get(&key) {
            return Ok(Some(known));
        }
        let Some(row) = self.store().account_find(id).await?.filter(|row| row.disabled_at.is_none()) else {
            return Ok(None);
        };
        let row = Arc::new(row);
        self.sign_ins.accounts.insert(key, row.clone());
        Ok(Some(row))
    }

    /// The account whose credential started work that continues without it. `None` if the account is disabled or
    /// the credential was revoked; the end of a session or of a token's time does not end the work.
    pub(super) async fn account_of_work(
        &self,
        id: Uuid,
        credential: Option<Credential>,
        scope: &Scope,
    ) -> Result<Option<Account>, Error> {
        let key = match credential {
            Some(Credential::Token(token)) => Some(CredentialKey::TokenId(token)),
            Some(Credential::Key(key)) => Some(CredentialKey::KeyId(key)),
            Some(Credential::Password | Credential::Session(_)) | None => None,
        };
        // Checking it is no use of the credential.
        if let Some(key) = key
            && self.holder_find(key).await?.is_none_or(|holder| holder.account.id != id)
        {
            return Ok(None);
        }
        let Some(row) = self.account_live(id).await? else { return Ok(None) };
        Ok(Some(account_of(&row, credential.unwrap_or(Credential::Password), scope.clone())))
    }

    /// The account of a credential, if both are valid.
    async fn credential_holder(
        &self,
        key: CredentialKey,
        expiry: Expiry,
    ) -> Result<Option<Arc<Account>>, Error> {
        let Some(holder) = self.holder_find(key).await? else { return Ok(None) };
        if expiry == Expiry::Checked && holder.expires_at.is_some_and(|expires_at| expires_at <= now_ms()) {
            return Ok(None);
        }
        self.note_use(holder.account.credential);
        Ok(Some(holder.account.clone()))
    }

    /// A credential that was not revoked and its account, from the database or from memory.
    async fn holder_find(&self, key: CredentialKey) -> Result<Option<Arc<Holder>>, Error> {
        let key = (self.access_state().await?.version, key);
        let known = self.sign_ins.holders.get(&key);
        if let Some(known) = known.filter(|known| known.known_until.is_none_or(|until| until > now_ms())) {
            return Ok(Some(known));
        }
        let Some(found) = self.credential_find(&key.1).await?.map(Arc::new) else { return Ok(None) };
        self.sign_ins.holders.insert(key, found.clone());
        Ok(Some(found))
    }

    async fn credential_find(&self, key: &CredentialKey) -> Result<Option<Holder>, Error> {
        let store = self.store();
        // 1. The credential, its account, and its limits.
        let (account, credential, scope, expires_at) = match key {
            CredentialKey::Token(_) | CredentialKey::TokenId(_) => {
                let row = match key {
                    CredentialKey::Token(secret) => store.token_find(secret).await?,
                    CredentialKey::TokenId(id) => store.token_find_by_id(*id).await?,
                    _ => None,
                };
                let Some(row) = row.filter(|row| row.revoked_at.is_none()) else { return Ok(None) };
                (row.account, Credential::Token(row.id), scope_of(&row)?, row.expires_at)
            }
            CredentialKey::Key(_) | CredentialKey::KeyId(_) => {
                let row = match key {
                    CredentialKey::Key(key) => store.ollama_key_find(&key.to_hex()).await?,
                    CredentialKey::KeyId(id) => store.ollama_key_find_by_id(*id).await?,
                    _ => None,
                };
                let Some(row) = row else { return Ok(None) };
                (row.account, Credential::Key(row.id), Scope::default(), None)
            }
            CredentialKey::Session(secret) => {
                let Some(row) = store.session_find(secret).await? else { return Ok(None) };
                let expires_at = (row.used_at.saturating_add(millis(SESSION_IDLE_TIME)))
                    .min(row.created_at.saturating_add(millis(SESSION_TIME)));
                (row.account, Credential::Session(row.id), Scope::default(), Some(expires_at))
            }
            CredentialKey::Worker(_) | CredentialKey::WorkerId(_) => return Ok(None),
        };
        // 2. Its account has to be valid, too.
        let Some(row) = self.account_live(account).await? else { return Ok(None) };
        let known_until = match credential {
            Credential::Session(_) => Some(now_ms() + millis(USE_INTERVAL)),
            _ => None,
        };
        let account = Arc::new(account_of(&row, credential, scope));
        Ok(Some(Holder { account, expires_at, known_until }))
    }

    /// Records the use of a credential, at most once a minute on each replica.
    fn note_use(&self, credential: Credential) {
        let (Credential::Token(id) | Credential::Key(id) | Credential::Session(id)) = credential else {
            return;
        };
        if self.config().read_only || self.sign_ins.used.contains_key(&id) {
            return;
        }
        self.sign_ins.used.insert(id, ());
        let this = self.clone();
        self.start(async move {
            let (store, now) = (this.store(), now_ms());
            let recorded = match credential {
                Credential::Token(id) => store.token_used(id, now).await,
                Credential::Key(id) => store.ollama_key_used(id, now).await,
                Credential::Session(id) => store.session_used(id, now).await,
                Credential::Password => Ok(()),
            };
            if let Err(error) = recorded {
                tracing::warn!(%credential, error = chain(&error), "failed to record the use of a credential");
            }
        });
    }

    /// Accepts a value, such as the nonce of a signature, until it expires. Returns false if it was used
    /// before, on any replica.
    pub(crate) async fn value_use(&self, value: &str, expires_at: i64) -> Result<bool, Error> {
        self.store().value_use(value, expires_at).await
    }

    /// Under which key the account of a password is remembered: a MAC, so that memory has no password. It covers
    /// the address: otherwise attempts from elsewhere would find the password here without waiting.
    async fn password_key(&self, name: &str, password: &Secret, address: &str) -> Result<Digest, Error> {
        let text = format!("password\n{name}\n{address}\n{}", password.expose());
        let mac = self.access_token_mac(text.as_bytes()).await?.finalize().into_bytes();
        Ok(Digest::sha256(&mac))
    }

    /// The MAC of nothing, with the key of signed access tokens.
    pub(super) async fn access_token_key(&self) -> Result<&Hmac<Sha256>, Error> {
        let load = || async {
            let key = self.server_key(KEY_NAME).await?;
            Ok(Hmac::new_from_slice(&key).expect("HMAC takes keys of any length"))
        };
        self.sign_ins.key.get_or_try_init(load).await
    }

    pub(super) async fn access_token_mac(&self, content: &[u8]) -> Result<Hmac<Sha256>, Error> {
        let mut mac = self.access_token_key().await?.clone();
        mac.update(content);
        Ok(mac)
    }
}

pub(super) fn account_of(row: &AccountRow, credential: Credential, scope: Scope) -> Account {
    Account {
        id: row.id,
        kind: row.kind,
        name: row.name.clone(),
        server_role: row.server_role,
        groups: row.groups.clone(),
        epoch: row.epoch,
        credential,
        scope,
    }
}

pub(super) fn scope_of(token: &TokenRow) -> Result<Scope, Error> {
    serde_json::from_str(&token.scope)
        .map_err(|_| Error::Corrupt { what: "scope of a token", value: token.scope.clone() })
}
