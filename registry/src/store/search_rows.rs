//! The rows of the search, which follow from tags, models, cards and counts of pulls. Each change of a repository's tags
//! or cards, each manifest that was read as a model, and each written count rewrites the rows of its repositories in the
//! same transaction. `jobs::refresh_search` finds rows that are missing or outdated: after an upgrade, if a replica of an
//! earlier version has moved a tag, or if a day with pulls is no longer recent.

use std::collections::{BTreeSet, HashSet};

use lode_model::digest::Digest;
use lode_model::media_type;
use lode_model::reference::Repository;
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::pulls::recent_pulls;
use super::words::{add_name_words, add_text_words, origin_word};
use super::{Engine, Store, Tx, digest_list, parse_stored, placeholders, query};
use crate::Error;

/// Of a repository with more tags, the search knows `latest` and those that were moved last.
const MAX_TAGS: i64 = 64;
/// The most kinds of models of a repository.
const MAX_KINDS: usize = 16;
/// The most words of a repository.
const MAX_WORDS: usize = 4000;
/// Which words a repository has. The job rewrites those of another form.
const WORD_FORM: i64 = 1;
/// How many repositories a transaction of the job rewrites.
const REPOSITORY_BATCH: usize = 32;

const COLUMNS: &str = "repository, position, id, tag, digest, updated_at, newest_at, created_at, indexed_at, format, architecture,
    quantization, license, task, parameters, size_bytes, context_length, bases, pulls, card, word_form";
const PLACES: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

#[derive(Clone, Debug, PartialEq, Eq, sqlx_macros::FromRow)]
struct SearchColumns {
    repository: String,
    position: i64,
    id: i64,
    tag: String,
    digest: String,
    updated_at: i64,
    newest_at: i64,
    created_at: i64,
    indexed_at: i64,
    format: Option<String>,
    architecture: Option<String>,
    quantization: Option<String>,
    license: Option<String>,
    task: Option<String>,
    parameters: i64,
    size_bytes: i64,
    context_length: i64,
    bases: Option<String>,
    pulls: i64,
    card: Option<String>,
    word_form: i64,
}

impl SearchColumns {
    /// Models come before other content, and content that was not read yet may be one.
    fn is_model(&self) -> bool {
        self.format.as_deref() != Some("")
    }
}

impl Store {
    /// Whether the rows of `n.name` are outdated, by a replica of an earlier version or by the end of a day.
    fn is_stale(&self) -> String {
        let name = self.in_default("n.name");
        let recent = recent_pulls("n.name");
        format!(
            "(coalesce((select max(t.updated_at) from tags t where t.repository = {name}), -1)
                 <> coalesce((select s.newest_at from search s where s.repository = n.name and s.position = 0), -1)
             or exists (select 1 from search s
                        where s.repository = n.name and s.position = 0 and (s.pulls <> {recent} or s.word_form <> {WORD_FORM}))
             or exists (select 1 from search s join models m on m.digest = s.digest
                        where s.repository = n.name and m.indexed_at <> s.indexed_at))"
        )
    }

    /// Repositories in which this manifest has a tag or is a card, at most `limit`.
    pub(super) async fn repositories_tagging(
        &self,
        digest: &Digest,
        limit: i64,
    ) -> Result<Vec<Repository>, Error> {
        let rows: Vec<(String,)> = query!(self.write(), c => sqlx::query_as(
            "select repository from tags where digest = $1
             union select repository from manifests where digest = $1 and artifact_type = $3
             order by repository limit $2")
            .bind(digest.as_str()).bind(limit).bind(media_type::LODE_CARD).fetch_all(c).await)?;
        rows.into_iter().map(|(name,)| parse_stored("repository", &name)).collect()
    }

    /// Rewrites the outdated rows of all repositories in which this manifest has a tag or is a card.
    pub(crate) async fn search_refresh_tagging(&self, digest: &Digest) -> Result<(), Error> {
        let mut after = String::new();
        loop {
            let text = AssertSqlSafe(format!(
                "select t.repository from tags t join models m on m.digest = t.digest
                 left join search s on s.repository = {} and s.digest = t.digest
                 where t.digest = $1 and t.repository > $2 and coalesce(s.indexed_at, -1) <> m.indexed_at
                 union select repository from manifests where digest = $1 and repository > $2 and artifact_type = $4
                 order by repository limit $3",
                self.in_bytes("t.repository")
            ));
            let rows: Vec<(String,)> = query!(self.write(), c => sqlx::query_as(text)
                .bind(digest.as_str()).bind(&after).bind(REPOSITORY_BATCH as i64).bind(media_type::LODE_CARD)
                .fetch_all(c).await)?;
            let Some((last,)) = rows.last() else { return Ok(()) };
            after.clone_from(last);
            let outdated: Result<Vec<Repository>, Error> =
                rows.into_iter().map(|(name,)| parse_stored("repository", &name)).collect();
            self.search_refresh_all(&outdated?).await?;
        }
    }

    /// Looks at the next `limit` repositories after `after`. Returns those whose rows are outdated, and the last one;
    /// `None` at the end.
    pub(crate) async fn search_stale(
        &self,
        after: &str,
        limit: i64,
    ) -> Result<(Vec<Repository>, Option<String>), Error> {
        let text = AssertSqlSafe(self.search_stale_text());
        let rows: Vec<(String, bool)> = query!(self.read(), c => sqlx::query_as(text)
            .bind(after).bind(limit).fetch_all(c).await)?;
        let last = rows.last().map(|(name, _)| name.clone());
        let stale = rows.into_iter().filter(|(_, is_stale)| *is_stale);
        let stale: Result<_, Error> = stale.map(|(name, _)| parse_stored("repository", &name)).collect();
        Ok((stale?, last))
    }

    /// Each part of the union is cut by itself: Postgres would read all of them for each batch.
    pub(super) fn search_stale_text(&self) -> String {
        let is_stale = self.is_stale();
        format!(
            "select n.name, {is_stale} as is_stale
             from (select * from (select name from repositories where name > $1 order by name limit $2) named
                   union
                   select * from (select distinct repository as name from search where repository > $1
                                  order by repository limit $2) listed
                   order by name limit $2) n
             order by n.name"
        )
    }

    /// Rewrites the rows of repositories, some in each transaction.
    pub(crate) async fn search_refresh_all(&self, repositories: &[Repository]) -> Result<(), Error> {
        for some in repositories.chunks(REPOSITORY_BATCH) {
            let mut tx = self.begin().await?;
            tx.repositories_lock(some).await?;
            for repository in some {
                tx.search_refresh(repository).await?;
            }
            tx.commit().await?;
        }
        Ok(())
    }
}

impl Tx {
    /// Rewrites the rows of a repository if they changed. The repository is locked.
    pub(super) async fn search_refresh(&mut self, repository: &Repository) -> Result<(), Error> {
        let text =
            AssertSqlSafe(format!("select {COLUMNS} from search where repository = $1 order by position"));
        let before: Vec<SearchColumns> = query!(self.conn(), c => sqlx::query_as(text)
            .bind(repository.as_str()).fetch_all(c).await)?;
        let recent = recent_pulls("$1");
        // A README among the files is the card; else the last attached card is, or the repository's.
        let card = "case when coalesce(m.card_words, '') = '' then coalesce(
                (select r.digest from referrers r join models c on c.digest = r.digest
                 where r.repository = $1 and r.subject = t.digest and r.artifact_type = $2
                 order by r.created_at desc, r.digest limit 1),
                (select digest from repository_cards where repository = $1)) end";
        let text = AssertSqlSafe(format!(
            "select t.repository, cast(0 as bigint) as position, cast(0 as bigint) as id, t.name as tag, t.digest, t.updated_at,
                    cast(0 as bigint) as newest_at, r.created_at, coalesce(m.indexed_at, 0) as indexed_at,
                    m.format, m.architecture, m.quantization, m.license, m.task, coalesce(m.parameters, -1) as parameters,
                    coalesce(m.size_bytes, -1) as size_bytes, coalesce(m.context_length, -1) as context_length, m.bases, {recent} as pulls,
                    {card} as card, cast({WORD_FORM} as bigint) as word_form
             from (select * from (select repository, name, digest, updated_at from tags
                                  where repository = $1 order by updated_at desc, name limit {MAX_TAGS}) newest
                   union select repository, name, digest, updated_at from tags
                   where repository = $1 and name = 'latest') t
             join repositories r on r.name = $1 left join models m on m.digest = t.digest
             order by case when t.name = 'latest' then 0 else 1 end, t.updated_at desc, t.name"
        ));
        let mut tagged: Vec<SearchColumns> = query!(self.conn(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(media_type::LODE_CARD).fetch_all(c).await)?;
        let newest_at = tagged.iter().map(|row| row.updated_at).max().unwrap_or_default();
        tagged.sort_by_key(|row| !row.is_model());
        let mut kinds = HashSet::new();
        tagged.retain(|row| kinds.insert((row.format.clone(), row.quantization.clone())));
        tagged.truncate(MAX_KINDS);
        let mut rows = tagged;
        let id = match before.first() {
            Some(row) => row.id,
            None if rows.is_empty() => return Ok(()),
            None => self.search_id().await?,
        };
        for (at, row) in rows.iter_mut().enumerate() {
            (row.position, row.id, row.newest_at) = (at as i64, id, newest_at);
        }
        if rows == before {
            return Ok(());
        }
        let sources = |rows: &[SearchColumns]| -> Vec<(String, i64, Option<String>, i64)> {
            let source =
                |row: &SearchColumns| (row.digest.clone(), row.indexed_at, row.card.clone(), row.word_form);
            rows.iter().map(source).collect()
        };
        if sources(&rows) != sources(&before) {
            self.search_words_replace(repository, id, &rows).await?;
            self.search_tags_replace(repository, rows.first()).await?;
        }
        query!(self.conn(), c => sqlx::query("delete from search where repository = $1")
            .bind(repository.as_str()).execute(c).await.map(drop))?;
        if rows.is_empty() {
            return Ok(());
        }
        let text = format!("insert into search ({COLUMNS}) values {}", placeholders(rows.len(), PLACES, 1));
        query!(self.conn(), c => {
            let mut query = sqlx::query(AssertSqlSafe(text));
            for row in rows {
                query = query.bind(row.repository).bind(row.position).bind(row.id).bind(row.tag).bind(row.digest)
                    .bind(row.updated_at).bind(row.newest_at).bind(row.created_at).bind(row.indexed_at)
                    .bind(row.format).bind(row.architecture).bind(row.quantization).bind(row.license).bind(row.task)
                    .bind(row.parameters).bind(row.size_bytes).bind(row.context_length).bind(row.bases).bind(row.pulls)
                    .bind(row.card).bind(row.word_form);
            }
            query.execute(c).await.map(drop)
        })?;
        Ok(())
    }

    /// A number for the words of a repository.
    async fn search_id(&mut self) -> Result<i64, Error> {
        let text = match self.0 {
            // The transaction is the only writer.
            Engine::Sqlite(_) => "select coalesce(max(id), 0) + 1 from search",
            Engine::Postgres(_) => "select nextval('search_words_ids')",
        };
        let (id,): (i64,) = query!(self.conn(), c => sqlx::query_as(text).fetch_one(c).await)?;
        Ok(id)
    }

    /// Replaces the tags of a repository by those of the model that represents it; without one it has none.
    async fn search_tags_replace(
        &mut self,
        repository: &Repository,
        first: Option<&SearchColumns>,
    ) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query("delete from search_tags where repository = $1")
            .bind(repository.as_str()).execute(c).await.map(drop))?;
        let Some(first) = first else { return Ok(()) };
        let row: Option<(Option<String>,)> = query!(self.conn(), c => sqlx::query_as(
            "select tags from models where digest = $1").bind(&first.digest).fetch_optional(c).await)?;
        let tags = row.and_then(|(tags,)| tags).unwrap_or_default();
        let tags = Value::from_iter(tags.lines()).to_string();
        query!(self.conn(), c => sqlx::query(
            "insert into search_tags (tag, repository) select value, $2 from json_each($1)")
            .bind(tags).bind(repository.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Replaces the words of a repository by those of its name, of these rows and of their origins; without rows it has none.
    async fn search_words_replace(
        &mut self,
        repository: &Repository,
        id: i64,
        rows: &[SearchColumns],
    ) -> Result<(), Error> {
        let (delete, insert) = match self.0 {
            Engine::Sqlite(_) => (
                "delete from search_words where rowid = $1",
                "insert into search_words (rowid, words) values ($1, $2)",
            ),
            Engine::Postgres(_) => (
                "delete from search_words where id = $1",
                "insert into search_words (id, words) values ($1, cast($2 as tsvector))",
            ),
        };
        query!(self.conn(), c => sqlx::query(delete).bind(id).execute(c).await.map(drop))?;
        let Some(first) = rows.first() else { return Ok(()) };
        let digests: Result<Vec<Digest>, Error> =
            rows.iter().map(|row| parse_stored("digest", &row.digest)).collect();
        let digests = digests?;
        // The card of the row that represents the repository.
        let texts: Vec<(Option<String>, Option<String>)> = query!(self.conn(), c => sqlx::query_as(
            "select words, case when digest = $2 then card_words end as card_words from models
             where digest in (select value from json_each($1)) order by digest")
            .bind(digest_list(&digests)).bind(&first.digest).fetch_all(c).await)?;
        let mut words = BTreeSet::new();
        add_name_words(&mut words, repository.as_str());
        for (text, _) in &texts {
            add_text_words(&mut words, text.as_deref().unwrap_or_default(), MAX_WORDS);
        }
        let own_card = texts.into_iter().find_map(|(_, card)| card).filter(|card| !card.is_empty());
        let card = match (own_card, &first.card) {
            (None, Some(card)) => self.card_words(repository, card).await?,
            (card, _) => card,
        };
        let card = card.iter().flat_map(|card| card.split_whitespace());
        words.extend(card.take(MAX_WORDS).map(str::to_owned));
        let bases = rows.iter().filter_map(|row| row.bases.as_deref());
        words.extend(bases.flat_map(str::lines).filter(|base| !base.is_empty()).map(origin_word));
        let words: Vec<String> = words.into_iter().collect();
        query!(self.conn(), c => sqlx::query(insert).bind(id).bind(words.join(" ")).execute(c).await.map(drop))?;
        Ok(())
    }

    /// The words of a card that is not one of a model's files.
    async fn card_words(&mut self, repository: &Repository, card: &str) -> Result<Option<String>, Error> {
        let row: Option<(Option<String>,)> = query!(self.conn(), c => sqlx::query_as(
            "select card_words from models where digest = $1
             union all select words from repository_cards where repository = $2 and digest = $1")
            .bind(card).bind(repository.as_str()).fetch_optional(c).await)?;
        Ok(row.and_then(|(words,)| words))
    }
}
