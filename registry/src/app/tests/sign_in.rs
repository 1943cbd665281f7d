//! Access tokens and links that expire, also while they are in use, and sessions that begin while their account
//! changes.

use lode_client::Secret;

use super::*;
use crate::app::AccountChange;
use crate::auth::{AccountKind, RepositoryScope, Requested};
use crate::store::{AccountRow, AccountUpdate, SessionRow};
use crate::time::now_ms;

const PASSWORD: &str = "a long password";

#[tokio::test]
async fn an_upload_outlives_its_access_token() {
    let set = |config: &mut Config| config.admin_password = Some(Secret::new(PASSWORD));
    let fixture = Fixture::start(None, None, &set, WriteLimit::default()).await;
    let registry = &fixture.registry;
    let password = Secret::new(PASSWORD);
    let identity = registry.sign_in_basic(&CALLER, "admin", &password, None).await.unwrap();
    let admin = CALLER.with_identity(identity);
    let repository: Repository = "team/app".parse().unwrap();
    let own = registry.upload_create(&admin, &repository, None).await.unwrap().id;
    let other = registry.upload_create(&Caller::INTERNAL, &repository, None).await.unwrap().id;
    let scope = RepositoryScope { repository: repository.clone(), pull: true, push: true, delete: false };
    let granted = Requested { repositories: vec![scope], ..Requested::default() };
    let expired = registry.access_token_sign(&admin, granted, None, Duration::ZERO).await.unwrap();
    let signed_in = async |upload: Option<Uuid>| {
        registry
            .sign_in_token(expired.expose(), upload)
            .await
            .unwrap()
            .map(|identity| admin.with_identity(identity))
    };
    assert!(signed_in(None).await.is_none());
    assert!(signed_in(Some(Uuid::new_v4())).await.is_none());
    assert!(signed_in(Some(other)).await.is_none(), "another account's upload");
    let caller = signed_in(Some(own)).await.expect("its own upload vouches for it");
    assert_eq!(registry.upload_status(&caller, &repository, own).await.unwrap().offset, 0);
    // The token still has its limits, and ends with its account's credentials.
    let elsewhere: Repository = "team/other".parse().unwrap();
    assert!(matches!(registry.upload_create(&caller, &elsewhere, None).await, Err(Error::InsufficientScope)));
    let change =
        AccountChange { password: Some(Secret::new("another password")), ..AccountChange::default() };
    registry.account_update(&admin, "admin", change).await.unwrap();
    assert!(signed_in(Some(own)).await.is_none());
}

/// A session that begins while the account's password changes, on another replica.
#[tokio::test]
async fn no_session_survives_a_change_of_the_password() {
    each_engine(async |f: Fixture| {
        let store = f.registry.store();
        let row = AccountRow {
            id: Uuid::now_v7(),
            kind: AccountKind::User,
            name: "alice".to_owned(),
            password: None,
            server_role: None,
            epoch: 0,
            created_at: 1,
            disabled_at: None,
            groups: Vec::new(),
        };
        let mut tx = store.begin().await.unwrap();
        assert!(tx.account_insert(&row).await.unwrap());
        tx.commit().await.unwrap();
        let session = |id: Uuid| SessionRow {
            id,
            account: row.id,
            address: String::new(),
            agent: String::new(),
            provider: None,
            created_at: now_ms(),
            used_at: now_ms(),
            fresh_at: 0,
        };
        let begin = async |id: Uuid| {
            let mut tx = store.begin().await.unwrap();
            let began = tx.session_insert(&session(id), &Digest::sha256(id.as_bytes()), 0).await.unwrap();
            tx.commit().await.unwrap();
            began
        };
        assert!(begin(Uuid::now_v7()).await);
        // 1. A change that has raised the epoch, deleted the sessions, and not ended yet.
        let mut change = store.begin().await.unwrap();
        assert!(change.account_update(row.id, &AccountUpdate::default()).await.unwrap());
        change.sessions_delete(row.id, None).await.unwrap();
        // 2. A session of the old password waits for it, and does not begin.
        let late = Uuid::now_v7();
        let mut late = std::pin::pin!(begin(late));
        assert!(
            tokio::time::timeout(Duration::from_millis(300), &mut late).await.is_err(),
            "it did not wait"
        );
        change.commit().await.unwrap();
        assert!(!late.await);
        assert_eq!(store.session_list(row.id).await.unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn a_link_to_a_blob_ends_with_its_time_and_its_credential() {
    let set = |config: &mut Config| config.admin_password = Some(Secret::new(PASSWORD));
    let fixture = Fixture::start(None, None, &set, WriteLimit::default()).await;
    let registry = &fixture.registry;
    let password = Secret::new(PASSWORD);
    let identity = registry.sign_in_basic(&CALLER, "admin", &password, None).await.unwrap();
    let admin = CALLER.with_identity(identity);
    let (digest, other) = (Digest::sha256(b"x"), Digest::sha256(b"y"));
    let granted = || {
        let repository = "team/app".parse().unwrap();
        let scope = RepositoryScope { repository, pull: true, push: false, delete: false };
        Requested { repositories: vec![scope], ..Requested::default() }
    };
    let link = async |seconds: u64| {
        let valid = Duration::from_secs(seconds);
        registry.access_token_sign(&admin, granted(), Some(digest.clone()), valid).await.unwrap()
    };
    let opens = async |link: &Secret, digest: &Digest| {
        registry.blob_link_open(link.expose(), digest).await.unwrap().is_some()
    };
    let (valid, expired) = (link(60).await, link(0).await);
    assert!(opens(&valid, &digest).await && !opens(&valid, &other).await);
    assert!(!opens(&expired, &digest).await);
    // It is no access token, and an access token is no link.
    assert!(registry.sign_in_token(valid.expose(), None).await.unwrap().is_none());
    let token = registry.access_token_sign(&admin, granted(), None, Duration::from_secs(60)).await.unwrap();
    assert!(!opens(&token, &digest).await);
    // It ends with the account's credentials.
    let change =
        AccountChange { password: Some(Secret::new("another password")), ..AccountChange::default() };
    registry.account_update(&admin, "admin", change).await.unwrap();
    assert!(!opens(&valid, &digest).await);
}
