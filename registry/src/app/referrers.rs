//! Referrers: the manifests of a repository whose subject is a given digest, whether or not the subject
//! exists.

use std::collections::BTreeMap;

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Page, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{ReferrerQuery, ReferrerRow, parse_stored};

/// The most bytes of annotations in one page. Clients reject an index beyond 4 MiB, and a single manifest may
/// have annotations of nearly that size.
const PAGE_ANNOTATION_BYTES: usize = 2 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referrer {
    pub media_type: String,
    pub size_bytes: u64,
    pub digest: Digest,
    pub artifact_type: Option<String>,
    pub annotations: BTreeMap<String, String>,
}

impl Registry {
    /// Referrers of `subject` in digest order after `after`, at most `limit`.
    pub async fn referrers(
        &self,
        caller: &Caller,
        repository: &Repository,
        subject: &Digest,
        artifact_type: Option<&str>,
        after: Option<&Digest>,
        limit: u32,
    ) -> Result<Page<Referrer>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let query = ReferrerQuery { subject, artifact_type, after, limit: limit.saturating_add(1) };
        let rows = self.store.referrer_list(repository, query).await?;
        let fits = page_len(rows.iter().map(|row| row.annotations.as_ref().map_or(0, String::len)));
        let items = rows.into_iter().map(Referrer::try_from).collect::<Result<_, _>>()?;
        Ok(Page::cut(items, limit.min(fits)))
    }
}

/// How many rows fit into one page by the size of their annotations: at least one.
fn page_len(annotation_bytes: impl Iterator<Item = usize>) -> u32 {
    let mut total = 0;
    let fits = annotation_bytes.take_while(|bytes| {
        total += bytes;
        total <= PAGE_ANNOTATION_BYTES
    });
    u32::try_from(fits.count()).unwrap_or(u32::MAX).max(1)
}

impl TryFrom<ReferrerRow> for Referrer {
    type Error = Error;

    fn try_from(row: ReferrerRow) -> Result<Self, Error> {
        let annotations = match &row.annotations {
            None => BTreeMap::new(),
            Some(json) => serde_json::from_str(json)
                .map_err(|_| Error::Corrupt { what: "annotations", value: row.digest.clone() })?,
        };
        Ok(Referrer {
            digest: parse_stored("digest", &row.digest)?,
            size_bytes: u64::try_from(row.size_bytes).unwrap_or_default(),
            media_type: row.media_type,
            artifact_type: row.artifact_type,
            annotations,
        })
    }
}
