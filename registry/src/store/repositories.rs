//! What repositories contain, for listings: repositories, tags and manifests with sizes and times.

use std::collections::BTreeMap;

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::pulls::{PullTotals, recent_pulls};
use super::{ListFilter, Store, digest_list, parse_stored, query, size};
use crate::Error;

/// The total size of the blobs of the manifest `m`; for an index, of its manifests together. Each blob counts
/// once; manifests and absent blobs do not count.
const CONTENT_BYTES: &str = "(select cast(coalesce(sum(b.size_bytes), 0) as bigint) from (
        select own.digest from manifest_blobs own
        where own.repository = m.repository and own.manifest = m.digest and own.kind = 'blob'
        union
        select below.digest from manifest_blobs child
        join manifest_blobs below on below.repository = child.repository and below.manifest = child.digest
             and below.kind = 'blob'
        where child.repository = m.repository and child.manifest = m.digest and child.kind = 'child') content
    join blobs b on b.digest = content.digest)";

/// Follows every name.
pub(super) const AFTER_NAMES: &str = "~";

/// A repository, and the totals of its content.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryRow {
    pub(crate) repository: Repository,
    pub(crate) tags: u64,
    pub(crate) manifests: u64,
    /// The total size of the blobs that are visible in it, manifests included.
    pub(crate) size_bytes: u64,
    pub(crate) pulls: PullTotals,
    /// When its last manifest was pushed or its last tag was moved; else when it was created.
    pub(crate) modified_at: i64,
}

/// A manifest as listings show it.
#[derive(Clone, Debug)]
pub(crate) struct ContentRow {
    pub(crate) digest: Digest,
    pub(crate) media_type: String,
    pub(crate) artifact_type: Option<String>,
    /// The format of its model, empty if it is not a model, absent if it is not indexed yet.
    pub(crate) format: Option<String>,
    pub(crate) size_bytes: u64,
}

/// A tag, and the manifest to which it points.
#[derive(Clone, Debug)]
pub(crate) struct TagRow {
    pub(crate) tag: Tag,
    pub(crate) modified_at: i64,
    pub(crate) actor: Option<String>,
    pub(crate) content: ContentRow,
}

/// A manifest, with or without tags.
#[derive(Clone, Debug)]
pub(crate) struct ListedManifestRow {
    pub(crate) created_at: i64,
    pub(crate) subject: Option<Digest>,
    pub(crate) tags: Vec<Tag>,
    pub(crate) content: ContentRow,
}

#[derive(sqlx_macros::FromRow)]
struct RepositoryColumns {
    name: String,
    created_at: i64,
    tags: i64,
    manifests: i64,
    size_bytes: i64,
    pulls: i64,
    recent_pulls: i64,
    tagged_at: Option<i64>,
    pushed_at: Option<i64>,
}

#[derive(sqlx_macros::FromRow)]
struct ContentColumns {
    digest: String,
    media_type: String,
    artifact_type: Option<String>,
    format: Option<String>,
    size_bytes: i64,
}

#[derive(sqlx_macros::FromRow)]
struct TagColumns {
    name: String,
    updated_at: i64,
    actor: Option<String>,
    #[sqlx(flatten)]
    content: ContentColumns,
}

#[derive(sqlx_macros::FromRow)]
struct ManifestColumns {
    created_at: i64,
    subject: Option<String>,
    #[sqlx(flatten)]
    content: ContentColumns,
}

impl ContentColumns {
    fn decode(self) -> Result<ContentRow, Error> {
        Ok(ContentRow {
            digest: parse_stored("digest", &self.digest)?,
            media_type: self.media_type,
            artifact_type: self.artifact_type,
            format: self.format,
            size_bytes: size(self.size_bytes)?,
        })
    }
}

/// The range of the names below a repository: the first one, and what follows the last one. Empty: all names.
pub(super) fn names_below(prefix: &str) -> (String, String) {
    match prefix {
        "" => (String::new(), AFTER_NAMES.to_owned()),
        // `0` follows `/`.
        prefix => (format!("{prefix}/"), format!("{prefix}0")),
    }
}

impl Store {
    /// Repositories after `after` (exclusive), at most `limit`, with their totals. `prefix`: only this
    /// repository and those below it; empty for all.
    pub(crate) async fn repository_page(
        &self,
        filter: &ListFilter,
        prefix: &str,
        after: &str,
        limit: i64,
    ) -> Result<Vec<RepositoryRow>, Error> {
        let text = AssertSqlSafe(self.repository_page_text());
        let (first, end) = names_below(prefix);
        let (all, visibility, subjects, targets) = filter.parameters();
        let rows: Vec<RepositoryColumns> = query!(self.read(), c => sqlx::query_as(text)
            .bind(after).bind(prefix).bind(first).bind(end).bind(limit)
            .bind(all).bind(visibility).bind(subjects).bind(targets).fetch_all(c).await)?;
        rows.into_iter()
            .map(|row| {
                let changes = [row.tagged_at, row.pushed_at].into_iter().flatten();
                Ok(RepositoryRow {
                    repository: parse_stored("repository", &row.name)?,
                    tags: size(row.tags)?,
                    manifests: size(row.manifests)?,
                    size_bytes: size(row.size_bytes)?,
                    pulls: PullTotals::decode(row.recent_pulls, row.pulls)?,
                    modified_at: changes.max().unwrap_or(row.created_at),
                })
            })
            .collect()
    }

    /// The page is cut before any total is computed, and read in the order of names: `union all` in between would make
    /// Postgres read all names.
    pub(super) fn repository_page_text(&self) -> String {
        let listed = self.is_listed("n.name", 6);
        let name = self.in_default("r.name");
        let recent = recent_pulls("r.name");
        format!(
            "select r.name, r.created_at, r.pulls, {recent} as recent_pulls,
                    (select count(*) from tags t where t.repository = {name}) as tags,
                    (select count(*) from manifests m where m.repository = {name}) as manifests,
                    (select cast(coalesce(sum(b.size_bytes), 0) as bigint) from links l
                     join blobs b on b.digest = l.digest where l.repository = {name}) as size_bytes,
                    (select max(t.updated_at) from tags t where t.repository = {name}) as tagged_at,
                    (select max(m.created_at) from manifests m where m.repository = {name}) as pushed_at
             from (select * from (select n.name, n.created_at, n.pulls from repositories n
                                  where n.name = $2 and n.name > $1 and {listed}) own
                   union all
                   select * from (select n.name, n.created_at, n.pulls from repositories n
                                  where n.name > $1 and n.name >= $3 and n.name < $4 and {listed}
                                  order by n.name limit cast($5 as bigint)) below
                   order by name limit cast($5 as bigint)) r
             order by r.name"
        )
    }

    /// Tags after `after` (exclusive), at most `limit`, with their manifests.
    pub(crate) async fn tag_details(
        &self,
        repository: &Repository,
        after: &str,
        limit: i64,
    ) -> Result<Vec<TagRow>, Error> {
        let text = AssertSqlSafe(format!(
            "select t.name, t.updated_at, t.actor, m.digest, m.media_type, m.artifact_type, model.format,
                    {CONTENT_BYTES} as size_bytes
             from tags t join manifests m on m.repository = t.repository and m.digest = t.digest
             left join models model on model.digest = t.digest
             where t.repository = $1 and t.name > $2 order by t.name limit $3"
        ));
        let rows: Vec<TagColumns> = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter()
            .map(|row| {
                Ok(TagRow {
                    tag: parse_stored("tag", &row.name)?,
                    modified_at: row.updated_at,
                    actor: row.actor,
                    content: row.content.decode()?,
                })
            })
            .collect()
    }

    /// Manifests after the digest `after` (exclusive), at most `limit`, with their tags.
    pub(crate) async fn manifest_page(
        &self,
        repository: &Repository,
        after: &str,
        limit: i64,
    ) -> Result<Vec<ListedManifestRow>, Error> {
        let text = AssertSqlSafe(format!(
            "select m.created_at, m.digest, m.media_type, m.artifact_type, model.format, about.subject,
                    {CONTENT_BYTES} as size_bytes
             from manifests m left join models model on model.digest = m.digest
             left join referrers about on about.repository = m.repository and about.digest = m.digest
             where m.repository = $1 and m.digest > $2 order by m.digest limit $3"
        ));
        let rows: Vec<ManifestColumns> = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).bind(after).bind(limit).fetch_all(c).await)?;
        let mut rows: Vec<ListedManifestRow> = rows
            .into_iter()
            .map(|row| {
                Ok(ListedManifestRow {
                    created_at: row.created_at,
                    subject: row.subject.map(|text| parse_stored("digest", &text)).transpose()?,
                    tags: Vec::new(),
                    content: row.content.decode()?,
                })
            })
            .collect::<Result<_, Error>>()?;
        let mut tags = self.tags_of(repository, rows.iter().map(|row| &row.content.digest)).await?;
        for row in &mut rows {
            row.tags = tags.remove(&row.content.digest).unwrap_or_default();
        }
        Ok(rows)
    }

    /// The tags that point to these manifests, in byte order.
    async fn tags_of(
        &self,
        repository: &Repository,
        digests: impl IntoIterator<Item = &Digest>,
    ) -> Result<BTreeMap<Digest, Vec<Tag>>, Error> {
        let digests = digest_list(digests);
        let rows: Vec<(String, String)> = query!(self.read(), c => sqlx::query_as(
            "select digest, name from tags
             where repository = $1 and digest in (select value from json_each($2)) order by name")
            .bind(repository.as_str()).bind(digests).fetch_all(c).await)?;
        let mut tags: BTreeMap<Digest, Vec<Tag>> = BTreeMap::new();
        for (digest, name) in rows {
            tags.entry(parse_stored("digest", &digest)?).or_default().push(parse_stored("tag", &name)?);
        }
        Ok(tags)
    }
}
