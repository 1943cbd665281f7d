//! Creates the object storage clients from the settings: S3 and compatible storages, Google's, Azure's.
//! Missing settings come from the variables of each provider's own tools.

use std::sync::Arc;
use std::time::Duration;

use lode_client::Secret;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::MultipartStore;
use object_store::signer::Signer;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use crate::config::{EXPECTED_ENDPOINT, Switch, is_endpoint};
use crate::{Config, OpenError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Read timeout of all requests, except those that send parts.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Read timeout of requests that send parts: the largest have gigabytes.
const PART_TIMEOUT: Duration = Duration::from_secs(300);
/// Limits of retries, which are low because a client is waiting.
const RETRIES: usize = 4;
const RETRY_TIMEOUT: Duration = Duration::from_secs(15);

/// A storage as object_store's traits.
pub(super) struct StorageClients {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) multipart: Arc<dyn MultipartStore>,
    pub(super) signer: Option<Arc<dyn Signer>>,
    /// S3 or a compatible storage.
    pub(super) is_s3: bool,
}

pub(super) fn open(url: &Url, config: &Config) -> Result<StorageClients, OpenError> {
    let bucket = url.host_str().unwrap_or_default();
    if bucket.is_empty() && matches!(url.scheme(), "s3" | "gs" | "az" | "azure") {
        return Err(refused(format!("expected {}://BUCKET/PREFIX", url.scheme())));
    }
    match url.scheme() {
        "s3" => {
            let (store, parts) = (s3(bucket, config, READ_TIMEOUT)?, s3(bucket, config, PART_TIMEOUT)?);
            Ok(storage_clients(Arc::new(store), Arc::new(parts), true))
        }
        "gs" => {
            let (store, parts) =
                (google(bucket, config, READ_TIMEOUT)?, google(bucket, config, PART_TIMEOUT)?);
            Ok(storage_clients(Arc::new(store), Arc::new(parts), false))
        }
        "az" | "azure" => {
            let (store, parts) = (azure(bucket, config, READ_TIMEOUT)?, azure(bucket, config, PART_TIMEOUT)?);
            Ok(storage_clients(Arc::new(store), Arc::new(parts), false))
        }
        #[cfg(test)]
        "memory" => Ok(super::testing::test_clients(bucket)),
        other => Err(refused(format!("expected file:, s3:, gs: or az:, got {other}:"))),
    }
}

fn storage_clients<S: ObjectStore + MultipartStore + Signer>(
    store: Arc<S>,
    parts: Arc<S>,
    is_s3: bool,
) -> StorageClients {
    StorageClients { store: store.clone(), multipart: parts, signer: Some(store), is_s3 }
}

fn s3(bucket: &str, config: &Config, timeout: Duration) -> Result<object_store::aws::AmazonS3, OpenError> {
    // Path style by default: every S3 storage supports it, and many self-hosted ones support nothing else.
    let virtual_hosted = config.storage_path_style == Switch::Off;
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_virtual_hosted_style_request(virtual_hosted)
        .with_retry(retry())
        .with_client_options(client(timeout));
    if let Some(endpoint) = &config.storage_endpoint {
        builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/'));
    }
    // The builder accepts any text of AWS_ENDPOINT_URL, and its first request panics.
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    if endpoint.is_some_and(|endpoint| !endpoint.parse().is_ok_and(|url| is_endpoint(&url))) {
        return Err(refused(format!("AWS_ENDPOINT_URL: {EXPECTED_ENDPOINT}")));
    }
    if let Some(region) = &config.storage_region {
        builder = builder.with_region(region);
    }
    if let Some(id) = &config.storage_access_key_id {
        builder = builder.with_access_key_id(id.expose());
    }
    if let Some(secret) = &config.storage_secret_access_key {
        builder = builder.with_secret_access_key(secret.expose());
    }
    builder.build().map_err(unusable)
}

fn google(
    bucket: &str,
    config: &Config,
    timeout: Duration,
) -> Result<object_store::gcp::GoogleCloudStorage, OpenError> {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_retry(retry())
        .with_client_options(client(timeout));
    if let Some(endpoint) = &config.storage_endpoint {
        builder = builder.with_base_url(endpoint.as_str().trim_end_matches('/'));
    }
    builder.build().map_err(unusable)
}

fn azure(
    container: &str,
    config: &Config,
    timeout: Duration,
) -> Result<object_store::azure::MicrosoftAzure, OpenError> {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_retry(retry())
        .with_client_options(client(timeout));
    if let Some(endpoint) = &config.storage_endpoint {
        builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/').to_owned());
    }
    if let Some(account) = &config.storage_access_key_id {
        builder = builder.with_account(account.expose());
    }
    if let Some(key) = config.storage_secret_access_key.as_ref().map(Secret::expose) {
        builder = builder.with_access_key(key);
    }
    builder.build().map_err(unusable)
}

/// No timeout for a whole request, which may have any number of bytes at any speed; only connecting and
/// reading have one.
fn client(timeout: Duration) -> ClientOptions {
    ClientOptions::new()
        // If the operator configures an http endpoint, allow it.
        .with_allow_http(true)
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(timeout)
}

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: RETRIES,
        retry_timeout: RETRY_TIMEOUT,
    }
}

fn unusable(error: object_store::Error) -> OpenError {
    refused(crate::error::chain(&error))
}

fn refused(reason: String) -> OpenError {
    OpenError::Config { setting: "storage", reason }
}
