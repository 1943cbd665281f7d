//! Opens a registry and starts its background work.

use crate::app::{AccountError, Limits, NewAccount, open_idle};
use crate::auth::{AccountKind, Caller, ServerRole};
use crate::backup::remove_backup_marker;
use crate::config::{check_webhooks, secret};
use crate::{Config, Error, OpenError, Registry, jobs, metrics};

/// Opens the registry of `config`: locks the data folder, migrates the database and starts the jobs.
pub async fn open(config: Config) -> Result<Registry, OpenError> {
    open_limited(config, Limits::default()).await
}

/// Opens a registry with limits other than the defaults, for tests.
pub(crate) async fn open_limited(config: Config, limits: Limits) -> Result<Registry, OpenError> {
    check_webhooks(&config.webhook)?;
    let registry = open_idle(config, limits).await?;
    registry.start(metrics::upkeep());
    registry.start_worker_upkeep();
    registry.start_audit_log();
    registry.start_rate_upkeep();
    check_keys(&registry).await?;
    create_admin(&registry).await?;
    // It also reports this server to the other replicas.
    registry.start_measuring();
    registry.store().jobs_recover().await?;
    jobs::start_runner(&registry);
    if !registry.config().read_only {
        registry.store().index_recover().await?;
        registry.start_sign_in_upkeep();
        registry.start_providers();
        registry.start_counting_pulls();
        remove_backup_marker(&registry.config().data)?;
        jobs::start(&registry)?;
    }
    Ok(registry)
}

/// Checks that the keys in the database can be read.
async fn check_keys(registry: &Registry) -> Result<(), OpenError> {
    match registry.check_keys().await {
        Err(Error::Vault(error)) => {
            Err(OpenError::Config { setting: "secret_key", reason: error.to_string() })
        }
        checked => Ok(checked?),
    }
}

/// Creates the administrator `admin`, if the settings have its password and there is no account.
async fn create_admin(registry: &Registry) -> Result<(), OpenError> {
    // This query also caches the result, which some checks read later without a query.
    let is_open = registry.is_open().await?;
    if !is_open {
        return Ok(());
    }
    let config = registry.config();
    let password = secret("admin_password", &config.admin_password, &config.admin_password_file)?;
    let Some(password) = password else { return Ok(()) };
    let new = NewAccount {
        kind: AccountKind::User,
        name: "admin".to_owned(),
        password: Some(password),
        server_role: Some(ServerRole::Admin),
    };
    match registry.account_create(&Caller::INTERNAL, new).await {
        Ok(_) => {
            tracing::info!("created the administrator `admin`; existing repositories are internal now");
            Ok(())
        }
        // Another replica was first.
        Err(AccountError::NameTaken { .. }) => Ok(()),
        Err(AccountError::Registry(error)) => Err(error.into()),
        Err(error) => Err(OpenError::Config { setting: "admin_password", reason: error.to_string() }),
    }
}
