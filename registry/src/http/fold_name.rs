//! Repository names contain slashes, but a route parameter is one segment, so this request map escapes them
//! before routing. It reads the path from the right, where the fixed tails are, so that a repository may be
//! called `team/blobs/uploads`.

use axum::extract::Request;
use bytes::Bytes;
use http::Uri;
use http::uri::PathAndQuery;

use super::session_cookie::is_repository_page;

/// Rewrites the path of a request so that its repository name is one segment.
pub(crate) fn fold_name(mut request: Request) -> Request {
    let uri = request.uri();
    let Some(mut rewritten) = fold_path(uri.path()) else { return request };
    if let Some(query) = uri.query() {
        rewritten.push('?');
        rewritten.push_str(query);
    }
    // A valid path stays valid when slashes are escaped.
    if let Ok(rewritten) = PathAndQuery::from_maybe_shared(Bytes::from(rewritten)) {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.path_and_query = Some(rewritten);
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    }
    request
}

/// The path with the slashes of its repository name escaped; None if there is nothing to escape.
fn fold_path(path: &str) -> Option<String> {
    if let Some(rest) = path.strip_prefix("/hf/") {
        return fold_hub_path(rest);
    }
    const PREFIXES: [&str; 8] = [
        "/v2/",
        "/lode/v1/models/",
        "/lode/v1/tensors/",
        "/lode/v1/diff/",
        "/lode/v1/lineage/",
        "/lode/v1/files/",
        "/lode/v1/card/",
        "/lode/v1/repositories/",
    ];
    let Some(prefix) = PREFIXES.into_iter().find(|prefix| path.starts_with(prefix)) else {
        return fold_page(path);
    };
    let rest = &path[prefix.len()..];
    let name_len = if prefix == "/v2/" { name_len_v2(rest)? } else { rest.rfind('/')? };
    let (name, tail) = rest.split_at(name_len);
    name.contains('/').then(|| format!("{prefix}{}{tail}", name.replace('/', "%2F")))
}

/// The same for a path after `/hf/`, which ends in a file's path: the name ends before the part that names the
/// operation. Most names have two parts, so that this is tried first.
fn fold_hub_path(path: &str) -> Option<String> {
    const OPERATIONS: [&str; 17] = [
        "revision",
        "tree",
        "paths-info",
        "refs",
        "commits",
        "auth-check",
        "preupload",
        "commit",
        "branch",
        "tag",
        "settings",
        "discussions",
        "xet-write-token",
        "xet-read-token",
        "super-squash",
        "duplicate",
        // Not served, and not a part of a name either.
        "lfs-files",
    ];
    if let Some(rest) = path.strip_prefix("api/xet/") {
        return fold_xet_path(rest);
    }
    let (prefix, rest, operations): (&str, &str, &[&str]) = match path.strip_prefix("api/models/") {
        Some(rest) => ("/hf/api/models/", rest, &OPERATIONS),
        None if path.starts_with("api/") || path.starts_with("oauth/") => return None,
        None => ("/hf/", path, &["resolve", "info", "commit", "tree", "blob"]),
    };
    let parts: Vec<&str> = rest.split('/').collect();
    let is_operation = |at: &usize| parts.get(*at).is_some_and(|part| operations.contains(part));
    let end = [2, 1].into_iter().chain(3..parts.len()).find(is_operation).unwrap_or(parts.len());
    if end < 2 {
        return None;
    }
    let tail: String = parts[end..].iter().flat_map(|part| ["/", part]).collect();
    Some(format!("{prefix}{}{tail}", parts[..end].join("%2F")))
}

/// The same for a path after `/hf/api/xet/`: the name follows an id, and the tail of Xet's API begins with
/// its version.
fn fold_xet_path(path: &str) -> Option<String> {
    let (space, rest) = path.split_once('/')?;
    let (name, tail) = rest.split_at(rest.rfind("/v1/")?);
    name.contains('/').then(|| format!("/hf/api/xet/{space}/{}{tail}", name.replace('/', "%2F")))
}

/// The same for a page about a repository: its name ends before the first `/-/`, because no part of a name is `-`.
fn fold_page(path: &str) -> Option<String> {
    if !is_repository_page(path) {
        return None;
    }
    let rest = path.strip_prefix('/')?;
    let (name, tail) = rest.split_at(rest.find("/-/").unwrap_or(rest.len()));
    name.contains('/').then(|| format!("/{}{tail}", name.replace('/', "%2F")))
}

/// The length of the repository's name in the path after `/v2/`.
fn name_len_v2(rest: &str) -> Option<usize> {
    let mut slashes = rest.rmatch_indices('/').map(|(at, _)| at);
    let last = slashes.next()?;
    let second = slashes.next()?;
    let third = slashes.next();
    let tail_of = |from: usize| &rest[from..];
    if tail_of(second) == "/tags/list" || tail_of(second) == "/blobs/uploads" {
        return Some(second);
    }
    if let Some(third) = third
        && &rest[third..last] == "/blobs/uploads"
    {
        return Some(third);
    }
    matches!(&rest[second..last], "/manifests" | "/blobs" | "/referrers").then_some(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_right() {
        let cases = [
            ("/v2/", None),
            ("/v2/_catalog", None),
            ("/v2/one/manifests/latest", None),
            ("/v2/a/b/manifests/latest", Some("/v2/a%2Fb/manifests/latest")),
            ("/v2/a/b/c/tags/list", Some("/v2/a%2Fb%2Fc/tags/list")),
            ("/v2/a/b/blobs/uploads/", Some("/v2/a%2Fb/blobs/uploads/")),
            ("/v2/a/b/blobs/uploads", Some("/v2/a%2Fb/blobs/uploads")),
            ("/v2/a/b/blobs/uploads/0-1-2", Some("/v2/a%2Fb/blobs/uploads/0-1-2")),
            ("/v2/a/blobs/b/blobs/sha256:aa", Some("/v2/a%2Fblobs%2Fb/blobs/sha256:aa")),
            ("/v2/team/blobs/blobs/sha256:aa", Some("/v2/team%2Fblobs/blobs/sha256:aa")),
            ("/v2/a/blobs/uploads/blobs/uploads/", Some("/v2/a%2Fblobs%2Fuploads/blobs/uploads/")),
            ("/v2/a/blobs/uploads/manifests/x", Some("/v2/a%2Fblobs%2Fuploads/manifests/x")),
            ("/v2/a/b/referrers/sha256%3Aaa", Some("/v2/a%2Fb/referrers/sha256%3Aaa")),
            ("/v2/a/manifests/tags/list", Some("/v2/a%2Fmanifests/tags/list")),
            ("/v2/a/b/c", None),
            ("/lode/v1/models", None),
            ("/lode/v1/models/a/b/latest", Some("/lode/v1/models/a%2Fb/latest")),
            ("/lode/v1/tensors/a/latest", None),
            ("/lode/v1/diff/a/b/latest", Some("/lode/v1/diff/a%2Fb/latest")),
            ("/lode/v1/files/a/b/latest", Some("/lode/v1/files/a%2Fb/latest")),
            ("/lode/v1/card/a/b/latest", Some("/lode/v1/card/a%2Fb/latest")),
            ("/lode/v1/repositories", None),
            ("/lode/v1/repositories/a/tags", None),
            ("/lode/v1/repositories/a/b/tags", Some("/lode/v1/repositories/a%2Fb/tags")),
            ("/lode/v1/repositories/a/tags/manifests", Some("/lode/v1/repositories/a%2Ftags/manifests")),
            ("/api/tags/list", None),
            ("/hf/api/models", None),
            ("/hf/api/models/gpt2", None),
            ("/hf/api/models/gpt2/revision/main", None),
            ("/hf/api/models/a/b", Some("/hf/api/models/a%2Fb")),
            ("/hf/api/models/a/b/c", Some("/hf/api/models/a%2Fb%2Fc")),
            (
                "/hf/api/models/a/b/revision/refs%2Fpr%2F1",
                Some("/hf/api/models/a%2Fb/revision/refs%2Fpr%2F1"),
            ),
            ("/hf/api/models/a/b/tree/main/x/tree/y", Some("/hf/api/models/a%2Fb/tree/main/x/tree/y")),
            ("/hf/api/models/a/b/c/refs", Some("/hf/api/models/a%2Fb%2Fc/refs")),
            ("/hf/api/models/a/tree/tree/main", Some("/hf/api/models/a%2Ftree/tree/main")),
            ("/hf/a/b/resolve/main/x/y", Some("/hf/a%2Fb/resolve/main/x/y")),
            ("/hf/a/resolve/main/x/y", None),
            ("/hf/a/b/c/resolve/main/x", Some("/hf/a%2Fb%2Fc/resolve/main/x")),
            ("/hf/a/b/tree/main", Some("/hf/a%2Fb/tree/main")),
            ("/hf/a/b/blob/main/x/tree/y", Some("/hf/a%2Fb/blob/main/x/tree/y")),
            ("/hf/api/models/a/b/preupload/main", Some("/hf/api/models/a%2Fb/preupload/main")),
            ("/hf/api/models/a/commit/commit/main", Some("/hf/api/models/a%2Fcommit/commit/main")),
            ("/hf/a/b.git/info/lfs/objects/batch", Some("/hf/a%2Fb.git/info/lfs/objects/batch")),
            ("/hf/b.git/info/lfs/objects/batch", None),
            ("/hf/api/repos/create", None),
            ("/hf/api/lfs/00/1/2", None),
            ("/hf/api/xet/0-1/a/v1/shards", None),
            ("/hf/api/xet/0-1/a/b/v1/shards", Some("/hf/api/xet/0-1/a%2Fb/v1/shards")),
            ("/hf/api/xet/0-1/a/v1/v1/xorbs/default/0", Some("/hf/api/xet/0-1/a%2Fv1/v1/xorbs/default/0")),
            ("/hf/api/xet/0-1/a/b/v2/shards", None),
            ("/hf/api/xet/0-1", None),
            ("/hf/api/whoami-v2", None),
            ("/hf/oauth/token", None),
            ("/mini", None),
            ("/mini/-/tags", None),
            ("/team/mini", Some("/team%2Fmini")),
            ("/a/b/c/-/tags", Some("/a%2Fb%2Fc/-/tags")),
            ("/a/b/-/blob/v1/x/-/y", Some("/a%2Fb/-/blob/v1/x/-/y")),
            ("/a/v2/b", Some("/a%2Fv2%2Fb")),
            ("/models/x", Some("/models%2Fx")),
            ("/login/corp", None),
            ("/-/account/tokens", None),
            ("/static/x/y", None),
        ];
        for (path, expect) in cases {
            assert_eq!(fold_path(path).as_deref(), expect, "{path}");
        }
    }

    #[test]
    fn the_query_stays() {
        let request = Request::get("/v2/a/b/blobs/uploads/?digest=sha256%3Aaa&x=a/b")
            .body(axum::body::Body::empty())
            .unwrap();
        assert_eq!(fold_name(request).uri(), "/v2/a%2Fb/blobs/uploads/?digest=sha256%3Aaa&x=a/b");
    }
}
