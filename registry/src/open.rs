//! Opens a registry and starts its background work.

use crate::app::{Limits, open_idle};
use crate::backup::remove_backup_marker;
use crate::config::check_webhooks;
use crate::{Config, OpenError, Registry, jobs, metrics};

/// Opens the registry of `config`: locks the data folder, migrates the database and starts the jobs.
pub async fn open(config: Config) -> Result<Registry, OpenError> {
    open_limited(config, Limits::default()).await
}

/// Opens a registry with other limits than the usual ones.
pub(crate) async fn open_limited(config: Config, limits: Limits) -> Result<Registry, OpenError> {
    check_webhooks(&config.webhook)?;
    let registry = open_idle(config, limits).await?;
    registry.start(metrics::upkeep());
    registry.start_worker_upkeep();
    registry.store().jobs_recover().await?;
    jobs::start_runner(&registry);
    if !registry.config().read_only {
        registry.store().index_recover().await?;
        remove_backup_marker(&registry.config().data)?;
        jobs::start(&registry)?;
    }
    Ok(registry)
}
