//! The history of tags. Each move and each deletion is recorded in its own transaction, under the lock of the
//! repository.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use sqlx::AssertSqlSafe;

use super::{RemovalCause, Store, Tx, parse_stored, placeholders, query};
use crate::Error;

/// How many moves of a repository are kept.
pub(crate) const MAX_MOVES: i64 = 1000;
/// How many moves one statement inserts: eight parameters each stay below the engines' limits.
const INSERT_ROWS: usize = 500;

/// A move of a tag to record.
#[derive(Clone, Debug)]
pub(super) struct NewTagMove<'a> {
    pub(super) tag: &'a str,
    /// `None`: the tag did not exist.
    pub(super) from: Option<&'a str>,
    /// `None`: the tag was deleted.
    pub(super) to: Option<&'a str>,
    pub(super) message: Option<&'a str>,
}

/// A recorded move of a tag.
#[derive(Clone, Debug)]
pub(crate) struct TagMoveRow {
    pub(crate) position: i64,
    pub(crate) tag: Tag,
    pub(crate) moved_at: i64,
    pub(crate) actor: String,
    pub(crate) from: Option<Digest>,
    pub(crate) to: Option<Digest>,
    /// Whether the repository still has the manifest from which the tag was moved.
    pub(crate) can_move_back: bool,
    pub(crate) message: Option<String>,
}

/// Which moves of a repository are listed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TagMoveFilter<'a> {
    pub(crate) tag: Option<&'a Tag>,
    /// Only this one.
    pub(crate) position: Option<i64>,
    /// Only those before this one.
    pub(crate) before: Option<i64>,
}

#[derive(sqlx_macros::FromRow)]
struct TagMoveColumns {
    position: i64,
    tag: String,
    moved_at: i64,
    actor: String,
    old_digest: Option<String>,
    new_digest: Option<String>,
    can_move_back: bool,
    message: Option<String>,
}

impl TryFrom<TagMoveColumns> for TagMoveRow {
    type Error = Error;

    fn try_from(row: TagMoveColumns) -> Result<TagMoveRow, Error> {
        let digest = |text: Option<String>| text.map(|text| parse_stored("digest", &text)).transpose();
        Ok(TagMoveRow {
            position: row.position,
            tag: parse_stored("tag", &row.tag)?,
            moved_at: row.moved_at,
            actor: row.actor,
            from: digest(row.old_digest)?,
            to: digest(row.new_digest)?,
            can_move_back: row.can_move_back,
            message: row.message,
        })
    }
}

impl Store {
    /// Moves of the tags of a repository, newest first, at most `limit`.
    pub(crate) async fn tag_moves(
        &self,
        repository: &Repository,
        filter: TagMoveFilter<'_>,
        limit: i64,
    ) -> Result<Vec<TagMoveRow>, Error> {
        let rows: Vec<TagMoveColumns> = query!(self.read(), c => sqlx::query_as(
            "select t.position, t.tag, t.moved_at, t.actor, t.old_digest, t.new_digest, t.message,
                    exists (select 1 from manifests m
                            where m.repository = t.repository and m.digest = t.old_digest) as can_move_back
             from tag_moves t
             where t.repository = $1 and (cast($2 as text) is null or t.tag = cast($2 as text))
               and (cast($3 as bigint) is null or t.position = cast($3 as bigint))
               and (cast($4 as bigint) is null or t.position < cast($4 as bigint))
             order by t.position desc limit cast($5 as bigint)")
            .bind(repository.as_str()).bind(filter.tag.map(Tag::as_str)).bind(filter.position).bind(filter.before)
            .bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(TagMoveRow::try_from).collect()
    }
}

impl Tx {
    /// Records moves of tags, in this order, and deletes the oldest ones beyond [`MAX_MOVES`]. The repository
    /// is locked.
    pub(super) async fn tag_moves_put(
        &mut self,
        repository: &str,
        moves: &[NewTagMove<'_>],
        actor: &str,
        at: i64,
    ) -> Result<(), Error> {
        if moves.is_empty() {
            return Ok(());
        }
        let mut position = self.tag_moves_last(repository).await?;
        for some in moves.chunks(INSERT_ROWS) {
            let text = format!(
                "insert into tag_moves
                     (repository, position, tag, moved_at, actor, old_digest, new_digest, message) values {}",
                placeholders(some.len(), "(?, cast(? as bigint), ?, cast(? as bigint), ?, ?, ?, ?)", 1)
            );
            query!(self.conn(), c => {
                let mut query = sqlx::query(AssertSqlSafe(text));
                for NewTagMove { tag, from, to, message } in some {
                    position += 1;
                    query = query.bind(repository).bind(position).bind(*tag).bind(at).bind(actor);
                    query = query.bind(*from).bind(*to).bind(*message);
                }
                query.execute(c).await.map(drop)
            })?;
        }
        self.tag_moves_cut(repository, position).await
    }

    /// The position of the last move; 0 if there is none.
    pub(super) async fn tag_moves_last(&mut self, repository: &str) -> Result<i64, Error> {
        let (last,): (i64,) = query!(self.conn(), c => sqlx::query_as(
            "select cast(coalesce(max(position), 0) as bigint) from tag_moves where repository = $1")
            .bind(repository).fetch_one(c).await)?;
        Ok(last)
    }

    /// Deletes the oldest moves beyond [`MAX_MOVES`]. `last`: the position of the last one.
    pub(super) async fn tag_moves_cut(&mut self, repository: &str, last: i64) -> Result<(), Error> {
        if last > MAX_MOVES {
            query!(self.conn(), c => sqlx::query("delete from tag_moves where repository = $1 and position <= $2")
                .bind(repository).bind(last - MAX_MOVES).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// Replaces the history of a tag by one move to its manifest. Returns the other manifests of the history that no other
    /// tag, history of a tag, or index names. `None` if the tag does not exist. The repository is locked.
    pub(crate) async fn tag_moves_squash(
        &mut self,
        repository: &Repository,
        tag: &Tag,
        message: Option<&str>,
        why: &RemovalCause,
    ) -> Result<Option<Vec<Digest>>, Error> {
        let head: Option<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "select digest from tags where repository = $1 and name = $2")
            .bind(repository.as_str()).bind(tag.as_str()).fetch_optional(c).await)?;
        let Some((head,)) = head else { return Ok(None) };
        let superseded: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "select m.digest from manifests m where m.repository = $1
               and m.digest in (select old_digest from tag_moves where repository = $1 and tag = $2
                                union select new_digest from tag_moves where repository = $1 and tag = $2)
               and not exists (select 1 from tags t where t.repository = $1 and t.digest = m.digest)
               and not exists (select 1 from tag_moves o join tags t on t.repository = o.repository and t.name = o.tag
                               where o.repository = $1 and o.tag <> $2 and m.digest in (o.old_digest, o.new_digest))
               and not exists (select 1 from manifest_blobs n
                               where n.repository = $1 and n.digest = m.digest and n.kind = 'child')")
            .bind(repository.as_str()).bind(tag.as_str()).fetch_all(c).await)?;
        // First, so that no position is used twice.
        let squashed = NewTagMove { tag: tag.as_str(), from: None, to: Some(&head), message };
        self.tag_moves_put(repository.as_str(), &[squashed], &why.actor, why.at).await?;
        let last = self.tag_moves_last(repository.as_str()).await?;
        query!(self.conn(), c => sqlx::query(
            "delete from tag_moves where repository = $1 and tag = $2 and position < $3")
            .bind(repository.as_str()).bind(tag.as_str()).bind(last).execute(c).await.map(drop))?;
        let superseded = superseded.into_iter().map(|(text,)| parse_stored("digest", &text));
        superseded.collect::<Result<_, Error>>().map(Some)
    }
}
