//! What a replica remembers of credentials, by the version of access control.

use std::sync::Arc;
use std::time::Duration;

use hmac::Hmac;
use lode_model::digest::Digest;
use moka::sync::Cache;
use sha2::Sha256;
use uuid::Uuid;

use crate::auth::password::Passwords;
use crate::auth::{AccessToken, Account, OllamaKey, throttle};
use crate::blobs::Locks;
use crate::store::AccountRow;

/// How many accounts of credentials are remembered.
const MAX_KNOWN: u64 = 100_000;
/// How many bytes of access tokens are remembered.
const MAX_ACCESS_TOKEN_BYTES: u64 = 16 << 20;
/// How long the right password of an account is remembered, because Basic sends it with each request.
const PASSWORD_TIME: Duration = Duration::from_secs(60);
/// An attempt that repeats a wrong password within this time is not counted: containerd sends each attempt twice.
const REPEAT_TIME: Duration = Duration::from_secs(10);
/// The use of a credential is recorded at most this often. A session is read again as often.
pub(super) const USE_INTERVAL: Duration = Duration::from_secs(60);

/// What this replica remembers of credentials.
pub(super) struct SignIns {
    /// By version and credential.
    pub(super) holders: Cache<(i64, CredentialKey), Arc<Holder>>,
    /// The ids of workers, by version and credential.
    pub(super) workers: Cache<(i64, CredentialKey), Uuid>,
    /// By version and id.
    pub(super) accounts: Cache<(i64, Uuid), Arc<AccountRow>>,
    /// Access tokens with a valid MAC, by digest.
    pub(super) access_tokens: Cache<Digest, Arc<AccessToken>>,
    /// By the MAC of a name, its right password and an address: the account, and its epoch at the time.
    pub(super) passwords: Cache<Digest, (Uuid, i64)>,
    /// By version, and the MAC of a name, a wrong password and an address.
    pub(super) wrong_passwords: Cache<(i64, Digest), ()>,
    /// Credentials whose use was recorded recently.
    pub(super) used: Cache<Uuid, ()>,
    pub(super) hashing: Passwords,
    /// Failed attempts at a server that does not write them to the database.
    pub(super) failures: throttle::Counters,
    /// One attempt at a time for an account and an address.
    pub(super) attempts: Locks<String>,
    /// The key of signed access tokens, loaded on first use.
    pub(super) key: tokio::sync::OnceCell<Hmac<Sha256>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum CredentialKey {
    Token(Digest),
    TokenId(Uuid),
    Key(OllamaKey),
    KeyId(Uuid),
    Session(Digest),
    Worker(Digest),
    WorkerId(Uuid),
}

/// The account of a valid credential.
pub(super) struct Holder {
    pub(super) account: Arc<Account>,
    pub(super) expires_at: Option<i64>,
    /// When it is read again, whatever the version.
    pub(super) known_until: Option<i64>,
}

impl Default for SignIns {
    fn default() -> SignIns {
        SignIns {
            holders: Cache::new(MAX_KNOWN),
            workers: Cache::new(MAX_KNOWN),
            accounts: Cache::new(MAX_KNOWN),
            access_tokens: Cache::builder()
                .max_capacity(MAX_ACCESS_TOKEN_BYTES)
                .weigher(|_, token: &Arc<AccessToken>| u32::try_from(token.size_bytes()).unwrap_or(u32::MAX))
                .build(),
            passwords: Cache::builder().max_capacity(MAX_KNOWN).time_to_live(PASSWORD_TIME).build(),
            wrong_passwords: Cache::builder().max_capacity(MAX_KNOWN).time_to_live(REPEAT_TIME).build(),
            used: Cache::builder().max_capacity(MAX_KNOWN).time_to_live(USE_INTERVAL).build(),
            hashing: Passwords::default(),
            failures: throttle::Counters::default(),
            attempts: Locks::default(),
            key: tokio::sync::OnceCell::new(),
        }
    }
}
