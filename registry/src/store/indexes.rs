//! Indexes that only make queries faster. They are built when the database is opened, outside the migrations.
//! On Postgres they are built concurrently, so that replicas of the previous version can write while a large
//! table is indexed.

use sqlx::Connection;

use super::{Engine, Store, postgres, query};
use crate::Error;

struct Index {
    name: &'static str,
    table: &'static str,
    /// Columns and condition.
    on: &'static str,
}

const INDEXES: &[Index] = &[
    Index {
        name: "blobs_unlinked_by_time",
        table: "blobs",
        on: "(unlinked_at, digest) where unlinked_at is not null",
    },
    Index {
        name: "manifests_unreferenced_by_time",
        table: "manifests",
        on: "(unreferenced_at, repository, digest) where unreferenced_at is not null",
    },
    Index {
        name: "links_unreferenced_by_time",
        table: "links",
        on: "(unreferenced_at, repository, digest) where unreferenced_at is not null",
    },
    Index { name: "removals_by_time", table: "removals", on: "(removed_at, id)" },
    Index { name: "removals_by_repository", table: "removals", on: "(repository, id)" },
    Index { name: "removal_blobs_by_time", table: "removal_blobs", on: "(undo_until, digest, removal)" },
    Index {
        name: "webhook_deliveries_by_target",
        table: "webhook_deliveries",
        on: "(target, next_at, id) where given_up_at is null",
    },
    Index {
        name: "webhook_deliveries_by_creation",
        table: "webhook_deliveries",
        on: "(created_at, id) where given_up_at is null",
    },
    Index { name: "mirror_checks_by_time", table: "mirror_checks", on: "(checked_at)" },
    Index {
        name: "referrers_by_type",
        table: "referrers",
        on: "(repository, subject, artifact_type, created_at desc, digest)",
    },
    Index { name: "uploads_by_key", table: "uploads", on: "(store_key)" },
    Index { name: "models_without_facts", table: "models", on: "(digest) where facts is null" },
    Index { name: "models_without_tags", table: "models", on: "(digest) where tags is null" },
    Index {
        name: "models_without_listed_bases",
        table: "models",
        on: "(digest) where bases is not null and bases_listed = 0",
    },
    Index { name: "tags_by_time", table: "tags", on: "(repository, updated_at desc, name)" },
    Index { name: "tags_by_manifest", table: "tags", on: "(digest, repository)" },
    Index {
        name: "search_first_by_size",
        table: "search",
        on: "(size_bytes desc, repository) where position = 0",
    },
    Index {
        name: "search_first_by_parameters",
        table: "search",
        on: "(parameters desc, repository) where position = 0",
    },
    Index { name: "search_by_format_name", table: "search", on: "(lower(format), position)" },
    Index { name: "search_by_quantization_name", table: "search", on: "(lower(quantization), position)" },
    Index { name: "search_by_architecture_name", table: "search", on: "(lower(architecture), position)" },
    Index { name: "search_by_license_name", table: "search", on: "(lower(license), position)" },
    Index { name: "search_by_task_name", table: "search", on: "(lower(task), position)" },
    // Has all columns of conditions and counts, so that most rows are judged without reading the table.
    Index {
        name: "search_facts_by_update",
        table: "search",
        on: "(updated_at desc, repository, position, id, format, quantization, architecture, license, task, parameters,
              size_bytes, context_length)",
    },
    // The same for the kinds of a repository.
    Index {
        name: "search_facts_by_id",
        table: "search",
        on: "(id, position, repository, format, quantization, architecture, license, task, parameters, size_bytes,
              context_length)",
    },
    // Has the value, too, because lists look up one or two for each row.
    Index { name: "visibilities_by_target", table: "visibilities", on: "(target, visibility)" },
    Index { name: "search_by_pulls", table: "search", on: "(pulls desc, repository, position)" },
    Index { name: "workers_by_address", table: "workers", on: "(advertise)" },
];

/// The name of the lock of the replica that builds.
const BUILD_LOCK: &str = "indexes";

impl Store {
    /// Builds missing indexes, unless another replica is doing so.
    pub(super) async fn build_indexes(&self) -> Result<(), Error> {
        if self.missing_indexes().await?.is_empty() {
            return Ok(());
        }
        let Some(_turn) = self.replica_lock_try(BUILD_LOCK).await? else {
            tracing::info!("another replica is building database indexes");
            return Ok(());
        };
        let missing = self.missing_indexes().await?;
        match &self.0 {
            Engine::Sqlite(pools) => {
                for Index { name, table, on } in missing {
                    let text = format!("create index if not exists {name} on {table} {on}");
                    sqlx::query(sqlx::AssertSqlSafe(text)).execute(&pools.write).await?;
                }
            }
            Engine::Postgres(pool) => {
                // A new database lacks all of them, so one connection serves all.
                let mut connection = postgres::connect_unlimited(pool).await?;
                for Index { name, table, on } in missing {
                    postgres::build_index(&mut connection, name, table, on).await?;
                }
                connection.close().await?;
            }
        }
        Ok(())
    }

    async fn missing_indexes(&self) -> Result<Vec<&'static Index>, Error> {
        // An index whose build was interrupted exists on Postgres, but is invalid: queries do not use it.
        let text = match self.0 {
            Engine::Sqlite(_) => "select name from sqlite_master where type = 'index'",
            Engine::Postgres(_) => {
                "select cast(c.relname as text) from pg_index i join pg_class c on c.oid = i.indexrelid
                 join pg_namespace n on n.oid = c.relnamespace
                 where n.nspname = current_schema() and i.indisvalid"
            }
        };
        let rows: Vec<(String,)> = query!(self.write(), c => sqlx::query_as(text).fetch_all(c).await)?;
        Ok(INDEXES.iter().filter(|index| !rows.iter().any(|(name,)| name == index.name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::postgres::PgPool;

    use super::*;

    #[tokio::test]
    async fn every_index_is_built_on_both_engines() {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = format!("sqlite:{}", folder.path().join("x.db").display()).parse().unwrap();
        for url in [Some(sqlite), crate::store::postgres_for_test().await].into_iter().flatten() {
            let store = Store::open(Some(&url), folder.path()).await.unwrap();
            assert!(store.missing_indexes().await.unwrap().is_empty());
        }
    }

    /// A replica of the previous version can write, in its open transaction and in new ones.
    #[tokio::test]
    async fn a_replica_of_the_previous_version_writes_during_an_upgrade() {
        let Some(url) = crate::store::postgres_for_test().await else { return };
        let folder = tempfile::tempdir().unwrap();
        let old = PgPool::connect(url.as_str()).await.unwrap();
        sqlx_macros::migrate!("../migrations/postgres").run_to(7, &old).await.unwrap();
        let insert = "insert into blobs (digest, size_bytes, store_key, created_at, released_at) values ($1, 1, $1, 1, 1)";
        let mut open = old.begin().await.unwrap();
        sqlx::query(insert).bind("a").execute(&mut *open).await.unwrap();
        // Not empty, so that the index is built concurrently.
        sqlx::query(insert).bind("b").execute(&old).await.unwrap();

        let mut upgrade = Box::pin(Store::open(Some(&url), folder.path()));
        let waiting = async {
            // The build waits for the open transaction.
            let query = "select exists (select 1 from pg_stat_activity
                 where query like 'create index concurrently blobs_unlinked_by_time%' and wait_event_type = 'Lock')";
            while !sqlx::query_scalar::<_, bool>(query).fetch_one(&old).await.unwrap() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            _ = &mut upgrade => panic!("the build did not wait for the open transaction"),
            () = waiting => {}
        }
        let write = async { sqlx::query(insert).bind("c").execute(&old).await.unwrap() };
        tokio::time::timeout(Duration::from_secs(30), write).await.expect("the previous version writes");
        open.commit().await.unwrap();
        let store = upgrade.await.unwrap();
        assert!(store.missing_indexes().await.unwrap().is_empty());
    }
}
