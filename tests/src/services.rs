//! A server's database and blob store: each of {SQLite, Postgres} x {folder, S3}, new for every test.
//! LODE_TEST_POSTGRES and LODE_TEST_S3 (with the AWS_* variables) name the services, which `tests/run`
//! starts.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::command::run_successfully;
use crate::report;
use crate::server::Options;

/// An empty database and an empty blob store.
#[derive(Clone, Debug)]
pub struct Backends {
    /// The kinds, for instance `sqlite + folder`.
    pub name: &'static str,
    /// URL of a new schema on the Postgres server, or `None` for SQLite in the data folder.
    pub database: Option<String>,
    /// URL of a new prefix in the bucket, or `None` for the data folder.
    pub storage: Option<String>,
}

impl Backends {
    /// SQLite and the data folder, the default of `lode serve`.
    #[must_use]
    pub fn embedded() -> Self {
        Self { name: "sqlite + folder", database: None, storage: None }
    }

    /// Postgres and S3, which replicas can share. A missing service is reported as a skip.
    #[must_use]
    pub fn shared(test: &str) -> Option<Self> {
        Some(Self {
            name: "postgres + s3",
            database: Some(postgres_schema(test)?),
            storage: Some(s3_prefix(test)?),
        })
    }

    /// All four combinations, or those whose services are available.
    #[must_use]
    pub fn all(test: &str) -> Vec<Self> {
        let postgres = |name, storage| {
            postgres_schema(test).map(|database| Self { name, database: Some(database), storage })
        };
        let mut all = vec![Self::embedded()];
        all.extend(postgres("postgres + folder", None));
        if let Some(storage) = s3_prefix(test) {
            all.push(Self { name: "sqlite + s3", database: None, storage: Some(storage) });
            all.extend(s3_prefix(test).and_then(|storage| postgres("postgres + s3", Some(storage))));
        }
        all
    }
}

impl Options {
    /// Uses this database and blob store.
    #[must_use]
    pub fn with_backends(mut self, backing: &Backends) -> Self {
        for (flag, url) in [("--database", &backing.database), ("--storage", &backing.storage)] {
            if let Some(url) = url {
                self = self.arg(flag).arg(url);
            }
        }
        self
    }
}

/// Runs one statement on the test's Postgres server.
pub fn psql(url: &str, statement: &str) -> String {
    let mut command = Command::new("psql");
    run_successfully(command.args([
        "--no-psqlrc",
        "--quiet",
        "-At",
        "-v",
        "ON_ERROR_STOP=1",
        url,
        "-c",
        statement,
    ]))
}

/// The URL of a new schema on the test's Postgres server. A missing server is reported as a skip.
#[must_use]
pub fn postgres_schema(test: &str) -> Option<String> {
    let Ok(server) = std::env::var("LODE_TEST_POSTGRES") else {
        report::skip(test, "LODE_TEST_POSTGRES is not set");
        return None;
    };
    if !Path::new("/usr/bin/psql").is_file() {
        report::skip(test, "psql is not installed");
        return None;
    }
    let schema = format!("e2e_{:016x}", rand::random::<u64>());
    psql(&server, &format!("create schema {schema}"));
    let separator = if server.contains('?') { '&' } else { '?' };
    Some(format!("{server}{separator}options=-c%20search_path%3D{schema}"))
}

/// The URL of a new prefix in the test's bucket. A missing bucket is reported as a skip.
#[must_use]
pub fn s3_prefix(test: &str) -> Option<String> {
    match std::env::var("LODE_TEST_S3") {
        Ok(bucket) => Some(format!("{}/e2e-{:016x}", bucket.trim_end_matches('/'), rand::random::<u64>())),
        Err(_) => {
            report::skip(test, "LODE_TEST_S3 is not set");
            None
        }
    }
}

/// The listening address of the S3 server.
///
/// # Panics
///
/// If AWS_ENDPOINT_URL is not `http://IP:PORT`.
#[must_use]
pub fn s3_address() -> SocketAddr {
    let endpoint = std::env::var("AWS_ENDPOINT_URL").expect("AWS_ENDPOINT_URL names the S3 server");
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
    address.parse().unwrap_or_else(|e| panic!("{endpoint} is not http://IP:PORT: {e}"))
}

/// The listening address of the Postgres server in a URL.
///
/// # Panics
///
/// If the URL has no `@IP:PORT/`.
#[must_use]
pub fn postgres_address(url: &str) -> SocketAddr {
    let host = authority(url);
    host.parse().unwrap_or_else(|e| panic!("{url} names no IP:PORT: {e}"))
}

/// The URL of the same database through a proxy.
#[must_use]
pub fn postgres_through(url: &str, proxy: SocketAddr) -> String {
    url.replacen(authority(url), &proxy.to_string(), 1)
}

fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['/', '?']).next().unwrap_or(rest);
    rest.rsplit('@').next().unwrap_or(rest)
}
