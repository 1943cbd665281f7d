//! Listings of a server that come in pages.

use lode_client::{Error, Registry};
use serde_json::Value;

/// Requests all pages of the listing at `path`, and returns the entries of its list `list`.
pub(crate) async fn fetch_all(registry: &Registry, path: &str, list: &str) -> Result<Vec<Value>, Error> {
    let [all] = fetch_lists(registry, path, [list]).await?;
    Ok(all)
}

/// Like [`fetch_all`], for pages with several lists.
pub(crate) async fn fetch_lists<const N: usize>(
    registry: &Registry,
    path: &str,
    lists: [&str; N],
) -> Result<[Vec<Value>; N], Error> {
    let (mut all, mut pages) = ([const { Vec::new() }; N], registry.json_pages(path));
    while let Some(mut page) = pages.next::<Value>().await? {
        for (list, found) in lists.iter().zip(&mut all) {
            if let Some(Value::Array(entries)) = page.get_mut(*list).map(Value::take) {
                found.extend(entries);
            }
        }
    }
    Ok(all)
}

/// Whether the error of a request to `/lode/v1` may mean that the server is not Lode, or an older version.
pub(crate) fn is_unsupported(error: &Error) -> bool {
    error.is_not_found() || matches!(error, Error::Protocol { .. })
}
