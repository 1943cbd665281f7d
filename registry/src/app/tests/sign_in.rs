//! Access tokens that expire while they are in use.

use lode_client::Secret;

use super::*;
use crate::app::AccountChange;
use crate::auth::{RepositoryScope, Requested};

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
    let granted = Requested { repositories: vec![scope], catalog: false };
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
