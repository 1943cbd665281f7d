//! Keys that all replicas share. The first replica that needs one creates it.

use super::{Engine, Store, query};
use crate::Error;
use crate::time::now_ms;

impl Store {
    /// Whether it is a server of its own, which other people may administer.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.0, Engine::Postgres(_))
    }

    /// Returns the key of that name, or stores `fresh` as the key if there is none.
    pub(crate) async fn server_key(&self, name: &str, fresh: &[u8]) -> Result<Vec<u8>, Error> {
        query!(self.write(), c => sqlx::query(
            "insert into server_keys (name, value, created_at) values ($1, $2, $3) on conflict (name) do nothing")
            .bind(name).bind(fresh).bind(now_ms()).execute(c).await.map(drop))?;
        let (value,): (Vec<u8>,) = query!(self.write(), c => sqlx::query_as("select value from server_keys where name = $1")
            .bind(name).fetch_one(c).await)?;
        Ok(value)
    }

    /// Replaces a key by the same one in another form, unless another replica has replaced it already.
    pub(crate) async fn server_key_replace(&self, name: &str, old: &[u8], new: &[u8]) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("update server_keys set value = $3 where name = $1 and value = $2")
            .bind(name).bind(old).bind(new).execute(c).await.map(drop))?;
        Ok(())
    }
}
