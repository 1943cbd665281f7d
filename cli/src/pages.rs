//! Listings of a server that come in pages.

use lode_client::{Error, Registry};
use serde_json::Value;

/// Requests all pages of the listing at `path`, and returns the entries of its list `list`.
pub(crate) async fn fetch_all(registry: &Registry, path: &str, list: &str) -> Result<Vec<Value>, Error> {
    let (mut all, mut pages) = (Vec::new(), registry.json_pages(path));
    while let Some(mut page) = pages.next::<Value>().await? {
        if let Some(Value::Array(entries)) = page.get_mut(list).map(Value::take) {
            all.extend(entries);
        }
    }
    Ok(all)
}

/// Whether the error of a request to `/lode/v1` may mean that the server is not Lode, or an older version.
pub(crate) fn is_unsupported(error: &Error) -> bool {
    error.is_not_found() || matches!(error, Error::Protocol { .. })
}
