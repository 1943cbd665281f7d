//! Signing in at an OpenID Connect provider (authorization code with PKCE). The state of an unfinished
//! sign-in is in a signed cookie, so that any replica can finish it and abandoned ones leave no record.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac;
use lode_client::Secret;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use url::Url;
use uuid::Uuid;

use super::Registry;
use super::accounts::{AccountError, namespace, subject};
use super::id_token::{SIGN_ON_TIME, account_name, check_id_token, find_claim, groups_of, is_recent};
use super::sessions::random_text;
use super::sign_in::SESSION_TIME;
use super::sign_in_errors::SignOnError;
use crate::Error;
use crate::auth::jwt::{Claims, JwtError};
use crate::auth::{AccountKind, Caller, Credential, Identity, ServerRole};
use crate::config::OidcProvider;
use crate::error::chain;
use crate::issuer::{Issuer, IssuerError};
use crate::store::{AccountRow, AccountUpdate, IdentityRow, Tx};
use crate::time::{millis, now_ms};

/// Separates the MAC of these cookies from others.
const PURPOSE: &str = "single sign-on\n";
const MAX_SUBJECT_LEN: usize = 255;
/// How many groups a record of the audit log has.
const MAX_RECORDED_GROUPS: usize = 20;

/// The providers that a person can choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderInfo {
    pub(crate) name: String,
    pub(crate) title: String,
}

/// The parameters of the provider's redirect. Not printed: the code is a secret.
#[derive(Clone, Copy, Default)]
pub(crate) struct OidcCallback<'a> {
    pub(crate) code: &'a str,
    pub(crate) state: &'a str,
    pub(crate) issuer: Option<&'a str>,
    pub(crate) error: Option<&'a str>,
}

/// A sign-in that has begun: where the browser goes, and the value of its cookie until it comes back.
pub(crate) struct OidcRedirect {
    pub(crate) url: Url,
    pub(crate) cookie: Secret,
}

/// A finished sign-in: the cookie of the new session, if there is one, and the next page.
pub(crate) struct OidcSignIn {
    pub(crate) session: Option<Secret>,
    pub(crate) next: String,
}

/// Why a person goes to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SignOnGoal {
    SignIn,
    /// To prove to be the same person still: a session at the provider is not enough.
    SignInAgain,
    /// To connect the caller's account with the identity.
    Connect,
}

/// What is remembered in the browser's cookie.
#[derive(Serialize, Deserialize)]
struct Pending {
    provider: String,
    goal: SignOnGoal,
    state: String,
    nonce: String,
    verifier: String,
    next: String,
    /// The account that gets this identity. Absent: the account of the identity is signed in.
    account: Option<Uuid>,
    /// Milliseconds since 1970.
    expires: i64,
}

impl Registry {
    pub(crate) fn providers(&self) -> Vec<ProviderInfo> {
        let info = |provider: &OidcProvider| ProviderInfo {
            name: provider.name.clone(),
            title: provider.title().to_owned(),
        };
        self.config.oidc.iter().map(info).collect()
    }

    /// Asks each provider for its metadata, so that the log says at the start which of them cannot be used.
    pub(crate) fn start_providers(&self) {
        for provider in self.config.oidc.clone() {
            let this = self.clone();
            self.start(async move {
                if let Err(error) = this.issuers.get(&provider.issuer).metadata().await {
                    tracing::warn!(
                        provider = provider.name,
                        error = chain(&error),
                        "a sign-in provider cannot be used yet; each sign-in tries it again"
                    );
                }
            });
        }
    }

    /// Begins a sign-in. `base`: this server's address for the browser. `next`: the page to show afterwards.
    pub(crate) async fn sign_on_begin(
        &self,
        caller: &Caller,
        provider: &str,
        base: &str,
        next: &str,
        goal: SignOnGoal,
    ) -> Result<OidcRedirect, AccountError> {
        let (provider, issuer) = self.provider(provider)?;
        self.check_writable()?;
        if self.is_open().await? {
            return Err(AccountError::FirstAccount);
        }
        let account = match goal {
            SignOnGoal::Connect => {
                self.check_recent(caller).await?;
                Some(caller.account().ok_or(Error::Unauthorized)?.id)
            }
            SignOnGoal::SignIn | SignOnGoal::SignInAgain => None,
        };
        let metadata = issuer.metadata().await.map_err(|error| sign_on_error(provider, error))?;
        let mut url = metadata.authorization_endpoint.clone().ok_or_else(|| {
            let reason = "it has no authorization_endpoint".to_owned();
            SignOnError::Invalid { title: provider.title().to_owned(), reason }
        })?;
        let pending = Pending {
            provider: provider.name.clone(),
            goal,
            state: random_text::<24>()?,
            nonce: random_text::<24>()?,
            verifier: random_text::<32>()?,
            next: next.to_owned(),
            account,
            expires: now_ms() + millis(SIGN_ON_TIME),
        };
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(pending.verifier.as_bytes()));
        url.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &provider.client_id),
            ("redirect_uri", &redirect_uri(base, provider)),
            ("scope", &provider.scopes.join(" ")),
            ("state", &pending.state),
            ("nonce", &pending.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        // With a maximum age, providers have to report when the person has signed in there (`auth_time`).
        let max_age = if goal == SignOnGoal::SignInAgain { 0 } else { SESSION_TIME.as_secs() };
        url.query_pairs_mut().append_pair("max_age", &max_age.to_string());
        if goal == SignOnGoal::SignInAgain {
            url.query_pairs_mut().append_pair("prompt", "login");
        }
        Ok(OidcRedirect { url, cookie: self.pending_seal(&pending).await? })
    }

    /// Finishes a sign-in when the browser comes back. `cookie`: from the start of the sign-in.
    pub(crate) async fn sign_on_finish(
        &self,
        client: &Caller,
        provider: &str,
        base: &str,
        cookie: &str,
        callback: OidcCallback<'_>,
    ) -> Result<OidcSignIn, AccountError> {
        let (provider, issuer) = self.provider(provider)?;
        self.check_writable()?;
        // 1. The redirect belongs to a sign-in of this browser, and counts once.
        let pending = self.pending_open(cookie).await?.ok_or(SignOnError::Expired)?;
        let is_ours = pending.provider == provider.name && pending.state == callback.state;
        if !is_ours
            || pending.expires <= now_ms()
            || pending.account.is_some_and(|id| caller_id(client) != Some(id))
            || !self.value_use(&format!("sign-on {}", pending.state), pending.expires).await?
        {
            return Err(SignOnError::Expired.into());
        }
        // 2. Who it is.
        let (claims, identity) =
            match self.sign_on_identity(provider, &issuer, base, &pending, callback).await {
                Ok(found) => found,
                Err(error) => {
                    self.audit_sign_on_refused(client, &provider.name, &error);
                    return Err(error.into());
                }
            };
        // 3. Its account.
        let signed_in = match pending.account {
            Some(account) => self.identity_connect(client, provider, account, &identity).await.map(|()| None),
            None => self.sign_on_account(client, provider, &claims, &identity).await.map(Some),
        };
        if let Err(AccountError::SignOn(error)) = &signed_in {
            self.audit_sign_on_refused(client, &provider.name, error);
        }
        let session = match signed_in? {
            Some(row) => {
                let fresh_at = fresh_at(pending.goal, &claims);
                Some(self.session_create(client, &row, Some(&provider.name), fresh_at).await?)
            }
            None => None,
        };
        Ok(OidcSignIn { session, next: pending.next })
    }

    /// The claims and the identity of the person who comes back from the provider.
    async fn sign_on_identity(
        &self,
        provider: &OidcProvider,
        issuer: &Issuer,
        base: &str,
        pending: &Pending,
        callback: OidcCallback<'_>,
    ) -> Result<(Claims, IdentityRow), SignOnError> {
        let title = || provider.title().to_owned();
        let invalid = |error: JwtError| SignOnError::Invalid { title: title(), reason: error.to_string() };
        let failed = |error: IssuerError| sign_on_error(provider, error);
        // 1. The redirect. Another provider's redirect could carry its code to this one (RFC 9207).
        let metadata = issuer.metadata().await.map_err(failed)?;
        let must_name = metadata.authorization_response_iss_parameter_supported;
        if callback.issuer.map_or(must_name, |named| named != provider.issuer) {
            return Err(SignOnError::Invalid {
                title: title(),
                reason: "another issuer has responded".into(),
            });
        }
        if let Some(error) = callback.error {
            let reason = error.chars().filter(|c| !c.is_control()).take(100).collect();
            return Err(SignOnError::Refused { title: title(), reason });
        }
        // 2. The ID token.
        let verifier = Secret::new(pending.verifier.clone());
        let tokens = issuer
            .exchange(provider, callback.code, &verifier, &redirect_uri(base, provider))
            .await
            .map_err(failed)?;
        let audiences = std::slice::from_ref(&provider.client_id);
        let token = issuer.verify(tokens.id_token.expose(), audiences).await.map_err(failed)?;
        check_id_token(&token, provider, &pending.nonce, &tokens.access_token).map_err(invalid)?;
        if pending.goal == SignOnGoal::SignInAgain && !is_recent(&token.claims) {
            let reason = "it did not ask for a new sign-in".to_owned();
            return Err(SignOnError::Invalid { title: title(), reason });
        }
        let mut claims = token.claims;
        let subject = claims.required("sub").map_err(invalid)?.to_owned();
        if subject.len() > MAX_SUBJECT_LEN {
            return Err(invalid(JwtError::Missing { name: "sub" }));
        }
        // 3. Claims that only the provider's other address has.
        let has_groups =
            provider.groups_claim.as_ref().is_none_or(|claim| find_claim(&claims, claim).is_some());
        if (!has_groups || claims.text(&provider.name_claim).is_none())
            && let Some(more) = issuer.userinfo(&tokens.access_token).await.map_err(failed)?
        {
            if more.text("sub") != Some(&subject) {
                let (name, expected) = ("sub", subject);
                let got = more.text("sub").unwrap_or_default().to_owned();
                return Err(invalid(JwtError::Claim { name, expected, got }));
            }
            for (name, value) in more.0 {
                claims.0.entry(name).or_insert(value);
            }
        }
        let now = now_ms();
        let identity = IdentityRow {
            issuer: provider.issuer.clone(),
            subject,
            account: Uuid::nil(),
            provider: provider.name.clone(),
            created_at: now,
            used_at: now,
        };
        Ok((claims, identity))
    }

    /// The account of an identity, with the groups that the provider says. A new one is created if the
    /// settings allow it.
    async fn sign_on_account(
        &self,
        client: &Caller,
        provider: &OidcProvider,
        claims: &Claims,
        identity: &IdentityRow,
    ) -> Result<AccountRow, AccountError> {
        let title = || provider.title().to_owned();
        let groups = groups_of(provider, claims);
        let is_member = |group: &String| groups.contains(group);
        if !provider.required_group.as_ref().is_none_or(is_member) {
            return Err(SignOnError::NotInGroup { title: title() }.into());
        }
        let is_admin = provider.admin_group.as_ref().map(is_member);
        let server = client.with_identity(Identity::Internal);
        // 1. What is known, read before the transaction: it must not wait for a second connection.
        let known = match self.store().identity_find(&identity.issuer, &identity.subject).await? {
            Some(known) => Some(self.store().account_find(known.account).await?),
            None => None,
        };
        let provider_groups = self.store().provider_groups(&provider.name).await?;
        // 2. The account.
        let mut tx = self.store().begin().await?;
        let row = match known {
            Some(found) => found.filter(|row| row.disabled_at.is_none()).ok_or(SignOnError::Disabled)?,
            None if !provider.create_accounts || !tx.has_accounts().await? => {
                return Err(SignOnError::NoAccount { title: title() }.into());
            }
            None => self.sign_on_create(&mut tx, &server, provider, claims, identity).await?,
        };
        // 3. Its groups and its role on the server, from the claims of this sign-in.
        let changes: Vec<(Uuid, String)> = provider_groups
            .into_iter()
            .filter(|(group, claim)| groups.contains(claim) != row.groups.contains(group))
            .collect();
        let role = match (is_admin, row.server_role) {
            (Some(true), _) => Some(ServerRole::Admin),
            (Some(false), Some(ServerRole::Admin)) => None,
            (_, role) => role,
        };
        if !changes.is_empty() || role != row.server_role {
            tx.access_changed().await?;
        }
        for (group, claim) in &changes {
            tx.group_member_put(*group, row.id, groups.contains(claim)).await?;
        }
        if role != row.server_role {
            let update = AccountUpdate { server_role: Some(role), ..AccountUpdate::default() };
            tx.account_update(row.id, &update).await?;
            if !tx.has_admin().await? {
                return Err(AccountError::LastAdmin);
            }
        }
        tx.identity_used(identity, now_ms()).await?;
        let changes: Vec<&String> = changes.iter().map(|(_, claim)| claim).collect();
        let shown: Vec<&String> = groups.iter().take(MAX_RECORDED_GROUPS).collect();
        let detail = json!({
            "provider": provider.name, "groups": shown, "changed_groups": changes, "server_role": role,
        });
        self.audit(&mut tx, &server, "account.sign_in", subject(&row), detail).await?;
        tx.commit().await?;
        self.access.changed();
        self.store().account_find(row.id).await?.ok_or_else(|| SignOnError::Disabled.into())
    }

    /// Creates the account of a new identity. The person chooses the name at the provider, so it gives no role on
    /// what is in the namespace of that name already.
    async fn sign_on_create(
        &self,
        tx: &mut Tx,
        server: &Caller,
        provider: &OidcProvider,
        claims: &Claims,
        identity: &IdentityRow,
    ) -> Result<AccountRow, AccountError> {
        let name = account_name(provider, claims)?;
        let row = AccountRow {
            id: Uuid::now_v7(),
            kind: AccountKind::User,
            name: name.clone(),
            password: None,
            server_role: None,
            epoch: 0,
            created_at: now_ms(),
            disabled_at: None,
            groups: Vec::new(),
        };
        let own = match tx.namespace_is_used(&name).await? {
            true => None,
            false => namespace(&name),
        };
        if own.is_none() {
            tracing::warn!(
                account = name,
                "the namespace of a new account is in use; an administrator may grant a role on it"
            );
        }
        let detail = json!({
            "provider": provider.name, "subject": identity.subject, "owns_namespace": own.is_some(),
        });
        match self.account_store(tx, server, &row, own, detail).await {
            Err(AccountError::NameTaken { name }) => {
                return Err(SignOnError::NameTaken { title: provider.title().to_owned(), name }.into());
            }
            stored => stored?,
        }
        if !tx.identity_insert(&IdentityRow { account: row.id, ..identity.clone() }).await? {
            // The same person signs in twice at once.
            return Err(SignOnError::Expired.into());
        }
        Ok(row)
    }

    /// The name and the address of a provider's own sign-out (OpenID Connect RP-Initiated Logout 1.0), if it
    /// has one.
    pub(crate) async fn sign_out_page(&self, provider: &str, base: &str) -> Option<(String, Url)> {
        let (provider, issuer) = self.provider(provider).ok()?;
        let mut url = issuer.metadata().await.ok()?.end_session_endpoint.clone()?;
        url.query_pairs_mut()
            .append_pair("client_id", &provider.client_id)
            .append_pair("post_logout_redirect_uri", &format!("{base}/login"));
        Some((provider.title().to_owned(), url))
    }

    fn provider(&self, name: &str) -> Result<(&OidcProvider, std::sync::Arc<Issuer>), SignOnError> {
        let found = self.config.oidc.iter().find(|provider| provider.name == name);
        let provider = found.ok_or_else(|| SignOnError::ProviderUnknown { name: name.to_owned() })?;
        Ok((provider, self.issuers.get(&provider.issuer)))
    }

    async fn pending_seal(&self, pending: &Pending) -> Result<Secret, Error> {
        let content = serde_json::to_string(pending).expect("texts and numbers serialise to JSON");
        let mac = self.access_token_mac(format!("{PURPOSE}{content}").as_bytes()).await?;
        let (content, mac) =
            (URL_SAFE_NO_PAD.encode(content), URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()));
        Ok(Secret::new(format!("{content}.{mac}")))
    }

    async fn pending_open(&self, cookie: &str) -> Result<Option<Pending>, Error> {
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let parts = cookie.split_once('.').map(|(content, mac)| (decode(content), decode(mac)));
        let Some((Some(content), Some(mac))) = parts else { return Ok(None) };
        let signed = [PURPOSE.as_bytes(), &content].concat();
        match self.access_token_mac(&signed).await?.verify_slice(&mac) {
            Ok(()) => Ok(serde_json::from_slice(&content).ok()),
            Err(_) => Ok(None),
        }
    }
}

fn caller_id(caller: &Caller) -> Option<Uuid> {
    let account = caller.account()?;
    matches!(account.credential, Credential::Session(_)).then_some(account.id)
}

fn redirect_uri(base: &str, provider: &OidcProvider) -> String {
    format!("{base}/login/{}/callback", provider.name)
}

fn sign_on_error(provider: &OidcProvider, error: IssuerError) -> SignOnError {
    let title = provider.title().to_owned();
    match error {
        IssuerError::Refused { reason, .. } => SignOnError::Refused { title, reason },
        IssuerError::Token(error) => SignOnError::Invalid { title, reason: error.to_string() },
        error => {
            tracing::warn!(provider = provider.name, error = chain(&error), "a sign-in provider failed");
            SignOnError::Unavailable { title, source: Box::new(error) }
        }
    }
}

/// When the person has proved to the provider who it is; 0 if that is not known. A provider that does not say when
/// is believed if it was asked for a new sign-in, because some never say it.
fn fresh_at(goal: SignOnGoal, claims: &Claims) -> i64 {
    match (claims.seconds("auth_time"), goal) {
        (Some(at), _) => at.saturating_mul(1000).min(now_ms()),
        (None, SignOnGoal::SignInAgain) => now_ms(),
        (None, _) => 0,
    }
}
