//! Moves a repository to another name, and copies one. Rows that another table references are inserted under the new name
//! first, then the others follow them, and the old rows are deleted last: foreign keys hold after each statement.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::access::visibility;
use super::{Tx, long_statement, parse_stored, query, size};
use crate::Error;
use crate::auth::{AccessTarget, Visibility};

/// The columns of tables with rows that are inserted again under the new name. A test compares them with the schema.
const LINKS: &str = "digest, leased_until, unreferenced_at";
const MANIFESTS: &str = "digest, media_type, artifact_type, bytes, created_at, unreferenced_at, untagged_at";
const REFERENCES: &str = "manifest, digest, kind, required";
const TAGS: &str = "name, digest, updated_at, actor";
const REFERRERS: &str = "subject, digest, media_type, size_bytes, artifact_type, annotations, created_at";
const TAG_MOVES: &str = "tag, moved_at, actor, old_digest, new_digest, message";
const CARDS: &str = "digest, text, words, updated_at";

/// Tables whose rows only get the new name. None of these rows exists under it: the new name has no manifests.
const RENAMED: [&str; 5] = ["manifest_blobs", "tags", "referrers", "removals", "index_queue"];
/// Tables whose rows are deleted with the old name.
const DELETED: [&str; 3] = ["mirror_checks", "manifests", "links"];

/// A link that both names have is kept for as long as either would have been.
const MERGE_LINKS: &str = "on conflict (repository, digest) do update set
     leased_until = case when links.leased_until < excluded.leased_until
         then excluded.leased_until else links.leased_until end,
     unreferenced_at = case when links.unreferenced_at is null or excluded.unreferenced_at is null then null
         when links.unreferenced_at < excluded.unreferenced_at then excluded.unreferenced_at
         else links.unreferenced_at end";
/// Content of the repository `$1` that one of its manifests names, or that is a manifest.
const IS_NAMED: &str = "and (exists (select 1 from manifest_blobs n
         where n.repository = links.repository and n.digest = links.digest)
     or exists (select 1 from manifests m where m.repository = links.repository and m.digest = links.digest))";
const REPLACE_CARD: &str = "on conflict (repository) do update set
     digest = excluded.digest, text = excluded.text, words = excluded.words, updated_at = excluded.updated_at";

/// A manifest to which a tag points.
pub(crate) struct TaggedManifest {
    pub(crate) digest: Digest,
    pub(crate) media_type: String,
    pub(crate) size_bytes: u64,
}

/// Inserts rows of the repository `$1` under the name `$2`.
fn insert_again(table: &str, columns: &str, rest: &str) -> String {
    format!(
        "insert into {table} (repository, {columns})
         select cast($2 as text), {columns} from {table} where repository = $1 {rest}"
    )
}

impl Tx {
    /// Creates the repository `to` if there is none, and locks it and `from`: other transactions can neither change them nor
    /// create links in them. In a transaction of [`super::Store::begin_long`].
    pub(crate) async fn lock_for_move(&mut self, from: &Repository, to: &Repository) -> Result<(), Error> {
        self.blobs_keep(from).await?;
        self.repository_lock_shared(to).await?;
        if self.locks_rows() {
            query!(self.conn(), c => sqlx::query(
                "select name from repositories where name in ($1, $2) order by name for update")
                .bind(from.as_str()).bind(to.as_str()).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// The same for a copy: links can still be created.
    pub(crate) async fn lock_for_copy(&mut self, from: &Repository, to: &Repository) -> Result<(), Error> {
        self.blobs_keep(from).await?;
        self.repository_lock_shared(to).await?;
        self.repositories_lock([from, to]).await
    }

    /// Keeps the collection from the blobs of a repository.
    async fn blobs_keep(&mut self, repository: &Repository) -> Result<(), Error> {
        if self.locks_rows() {
            long_statement!(self.conn(), c => sqlx::query(
                "select digest from blobs where digest in (select digest from links where repository = $1)
                 order by digest for key share")
                .bind(repository.as_str()).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    pub(crate) async fn has_manifests(&mut self, repository: &Repository) -> Result<bool, Error> {
        let (exists,): (bool,) = query!(self.conn(), c => sqlx::query_as(
            "select exists (select 1 from manifests where repository = $1)")
            .bind(repository.as_str()).fetch_one(c).await)?;
        Ok(exists)
    }

    /// Moves everything that the repository `from` has to `to`, except its open uploads. What `to` has, such as the
    /// history of its tags, is kept. Both are locked, and `to` has no manifests.
    pub(crate) async fn repository_move(&mut self, from: &Repository, to: &Repository) -> Result<(), Error> {
        let mut statements = vec![
            "update repositories set created_at = (select o.created_at from repositories o where o.name = $1),
                 pulls = pulls + (select o.pulls from repositories o where o.name = $1) where name = $2"
                .to_owned(),
            insert_again("links", LINKS, MERGE_LINKS),
            insert_again("manifests", MANIFESTS, ""),
            insert_again("repository_cards", CARDS, REPLACE_CARD),
            insert_again(
                "pull_counts",
                "day, pulls",
                "on conflict (repository, day) do update set pulls = pull_counts.pulls + excluded.pulls",
            ),
            // What an uploader has under both names is deleted under the old one.
            "update xorbs set repository = $2 where repository = $1 and not exists (select 1 from xorbs o
                 where o.repository = $2 and o.account = xorbs.account and o.hash = xorbs.hash)"
                .to_owned(),
            "update xet_spaces set repository = $2 where repository = $1 and not exists (select 1 from xet_spaces o
                 where o.repository = $2 and o.account = xet_spaces.account)"
                .to_owned(),
        ];
        let rename = |table: &str| format!("update {table} set repository = $2 where repository = $1");
        statements.extend(RENAMED.map(rename));
        for text in statements {
            self.between(text, from, to).await?;
        }
        self.tag_moves_copy(from, to).await?;
        // The rest is deleted by cascade.
        let delete = |table: &str| format!("delete from {table} where repository = $1");
        let statements =
            DELETED.map(delete).into_iter().chain(["delete from repositories where name = $1".to_owned()]);
        for text in statements {
            long_statement!(self.conn(), c => sqlx::query(AssertSqlSafe(text))
                .bind(from.as_str()).execute(c).await.map(drop))?;
        }
        self.search_refresh(from).await?;
        self.search_refresh(to).await
    }

    /// Copies the manifests, tags, history of tags and card of the repository `from` to `to`. Both are locked, and `to` has
    /// no manifests.
    pub(crate) async fn repository_copy(&mut self, from: &Repository, to: &Repository) -> Result<(), Error> {
        for text in [
            insert_again("links", LINKS, &format!("{IS_NAMED} {MERGE_LINKS}")),
            insert_again("manifests", MANIFESTS, ""),
            insert_again("manifest_blobs", REFERENCES, ""),
            insert_again("tags", TAGS, ""),
            insert_again("referrers", REFERRERS, ""),
            insert_again("repository_cards", CARDS, REPLACE_CARD),
        ] {
            self.between(text, from, to).await?;
        }
        self.tag_moves_copy(from, to).await?;
        self.search_refresh(to).await
    }

    /// The tags of a repository, and their manifests.
    pub(crate) async fn tagged_manifests(
        &mut self,
        repository: &Repository,
    ) -> Result<Vec<(Tag, TaggedManifest)>, Error> {
        let rows: Vec<(String, String, String, i64)> = query!(self.conn(), c => sqlx::query_as(
            "select t.name, m.digest, m.media_type, cast(length(m.bytes) as bigint)
             from tags t join manifests m on m.repository = t.repository and m.digest = t.digest
             where t.repository = $1 order by t.name")
            .bind(repository.as_str()).fetch_all(c).await)?;
        let decode = |(tag, digest, media_type, size_bytes): (String, String, String, i64)| {
            let digest = parse_stored("digest", &digest)?;
            Ok((
                parse_stored("tag", &tag)?,
                TaggedManifest { digest, media_type, size_bytes: size(size_bytes)? },
            ))
        };
        rows.into_iter().map(decode).collect()
    }

    async fn between(&mut self, text: String, from: &Repository, to: &Repository) -> Result<(), Error> {
        long_statement!(self.conn(), c => sqlx::query(AssertSqlSafe(text))
            .bind(from.as_str()).bind(to.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Adds the history of the tags of `from` to that of `to`, of which the newest are kept.
    async fn tag_moves_copy(&mut self, from: &Repository, to: &Repository) -> Result<(), Error> {
        let last = self.tag_moves_last(to.as_str()).await?;
        let text = format!(
            "insert into tag_moves (repository, position, {TAG_MOVES})
             select cast($2 as text), position + cast($3 as bigint), {TAG_MOVES} from tag_moves where repository = $1"
        );
        query!(self.conn(), c => sqlx::query(AssertSqlSafe(text))
            .bind(from.as_str()).bind(to.as_str()).bind(last).execute(c).await.map(drop))?;
        let last = self.tag_moves_last(to.as_str()).await?;
        self.tag_moves_cut(to.as_str(), last).await
    }

    async fn visibilities_of(
        &mut self,
        repository: &Repository,
    ) -> Result<(Option<Visibility>, Visibility), Error> {
        let namespace = AccessTarget::namespace_of(repository).to_string();
        let (own, inherited): (Option<i64>, Option<i64>) = query!(self.conn(), c => sqlx::query_as(
            "select (select visibility from visibilities where target = $1),
                    (select visibility from visibilities where target = $2)")
            .bind(repository.as_str()).bind(namespace).fetch_one(c).await)?;
        let own = own.map(visibility).transpose()?;
        Ok((own, inherited.map(visibility).transpose()?.unwrap_or_default()))
    }

    /// Moves the grants, the patterns of protected tags and the visibility of the repository `from` to `to`. Grants and
    /// patterns of `to` are kept, and the higher role counts. Returns the number of patterns of `to`. After
    /// [`Self::access_changed`].
    pub(crate) async fn access_move(&mut self, from: &Repository, to: &Repository) -> Result<usize, Error> {
        let (own, inherited) = self.visibilities_of(from).await?;
        let (_, other) = self.visibilities_of(to).await?;
        for text in [
            "insert into grants (target, subject, role, granted_at)
             select cast($2 as text), subject, role, granted_at from grants where target = $1
             on conflict (target, subject) do update set
                 role = case when grants.role < excluded.role then excluded.role else grants.role end",
            "insert into tag_rules (target, pattern)
             select cast($2 as text), pattern from tag_rules where target = $1
             on conflict (target, pattern) do nothing",
            "delete from visibilities where target in ($1, $2)",
        ] {
            self.between(text.to_owned(), from, to).await?;
        }
        for text in ["delete from grants where target = $1", "delete from tag_rules where target = $1"] {
            query!(self.conn(), c => sqlx::query(text).bind(from.as_str()).execute(c).await.map(drop))?;
        }
        // The same accounts can read it without a role as before.
        let effective = own.unwrap_or(inherited);
        let target = AccessTarget::Repository(to.clone());
        if own.is_some() || effective != other {
            self.visibility_put(&target, Some(effective)).await?;
        }
        Ok(self.tag_rules_of(&target).await?.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::store::{Engine, Store};

    /// Tables with a column `repository` of which a move needs no statement: open uploads keep the old name, and the rows
    /// of the search follow from others.
    const NOT_MOVED: [&str; 3] = ["uploads", "search", "search_tags"];

    /// A new table or column is not forgotten.
    #[tokio::test]
    async fn every_column_of_a_repository_is_moved() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(None, folder.path()).await.unwrap();
        let Engine::Sqlite(read) = store.read() else { panic!("SQLite") };
        let rows: Vec<(String, String)> = sqlx::query_as(
            "select m.name, c.name from sqlite_master m join pragma_table_info(m.name) c where m.type = 'table'",
        )
        .fetch_all(read)
        .await
        .unwrap();
        let mut tables: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (table, column) in rows {
            tables.entry(table).or_default().insert(column);
        }
        tables.retain(|_, columns| columns.remove("repository"));
        for (table, columns) in [
            ("links", LINKS),
            ("manifests", MANIFESTS),
            ("manifest_blobs", REFERENCES),
            ("tags", TAGS),
            ("referrers", REFERRERS),
            ("repository_cards", CARDS),
            ("pull_counts", "day, pulls"),
            ("tag_moves", &format!("position, {TAG_MOVES}")),
        ] {
            let listed: BTreeSet<String> = columns.split(',').map(|name| name.trim().to_owned()).collect();
            assert_eq!(tables[table], listed, "{table}");
        }
        let by_name = ["repository_cards", "pull_counts", "tag_moves", "xorbs", "xet_spaces"];
        let known: BTreeSet<&str> =
            [&RENAMED[..], &DELETED, &NOT_MOVED, &by_name].concat().into_iter().collect();
        assert_eq!(tables.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
    }
}
