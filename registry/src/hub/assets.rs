//! The files of the pages: one stylesheet and one script. Their addresses contain a hash of their content, so that
//! browsers keep them for good.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use lode_model::digest::Digest;

use crate::http::{Failure, Path};

static STYLE: Asset = Asset {
    text: include_str!("../../templates/lode.css"),
    extension: ".css",
    content_type: HeaderValue::from_static("text/css; charset=utf-8"),
};
static SCRIPT: Asset = Asset {
    text: include_str!("../../templates/lode.js"),
    extension: ".js",
    content_type: HeaderValue::from_static("text/javascript; charset=utf-8"),
};

static STYLE_NAME: LazyLock<String> = LazyLock::new(|| STYLE.name());
static SCRIPT_NAME: LazyLock<String> = LazyLock::new(|| SCRIPT.name());

/// The folder of the files' addresses.
pub(crate) const FOLDER: &str = "/static/";

struct Asset {
    text: &'static str,
    extension: &'static str,
    content_type: HeaderValue,
}

impl Asset {
    fn name(&self) -> String {
        let digest = Digest::sha256(self.text.as_bytes());
        let hash: String = digest.as_str().chars().skip("sha256:".len()).take(12).collect();
        format!("lode.{hash}{}", self.extension)
    }
}

pub(super) fn style_url() -> String {
    format!("{FOLDER}{}", *STYLE_NAME)
}

pub(super) fn script_url() -> String {
    format!("{FOLDER}{}", *SCRIPT_NAME)
}

/// `GET /static/{file}`. A page of another version of this server may have another hash in the name: it gets this
/// version's file, which no browser keeps.
pub(crate) async fn get(Path(file): Path<String>) -> Result<Response, Failure> {
    let known = [(&STYLE, &*STYLE_NAME), (&SCRIPT, &*SCRIPT_NAME)].into_iter();
    let is_wanted = |asset: &Asset| file.starts_with("lode.") && file.ends_with(asset.extension);
    let (asset, name) = known.into_iter().find(|(asset, _)| is_wanted(asset)).ok_or(Failure::RouteUnknown)?;
    let cache = match file == *name {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let headers = [
        (header::CONTENT_TYPE, asset.content_type.clone()),
        (header::CACHE_CONTROL, HeaderValue::from_static(cache)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, asset.text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_stays_small() {
        assert!(SCRIPT.text.len() <= 15 * 1024);
        assert!(!SCRIPT.text.contains("innerHTML"), "results are parsed as a document that runs nothing");
    }

    #[tokio::test]
    async fn only_the_current_files_are_kept_for_good() {
        let cache = async |file: &str| {
            let response = get(Path(file.to_owned())).await.ok()?;
            Some(response.headers()[header::CACHE_CONTROL].to_str().unwrap().to_owned())
        };
        assert!(cache(&STYLE_NAME).await.unwrap().contains("immutable"));
        assert!(cache(&SCRIPT_NAME).await.unwrap().contains("immutable"));
        assert_eq!(cache("lode.0123.css").await.as_deref(), Some("no-cache"));
        for other in ["lode.png", "other.css", "../lode.css", "", "base.html"] {
            assert_eq!(cache(other).await, None, "{other}");
        }
    }
}
