//! `/{name}/-/tree/{reference}`: the files of a manifest; `-/blob/` shows the text of one, and `-/raw/` sends its bytes.

use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use lode_model::reference::Reference;

use super::overview::card_links;
use super::{Head, ManifestPage, Tab, show_one};
use crate::Registry;
use crate::app::{CardHtml, TreeFile};
use crate::auth::Caller;
use crate::card::{encode_path, has_colours};
use crate::http::links::header_value;
use crate::http::pages::redirect;
use crate::http::{Failure, Path};
use crate::hub::format::{bytes, short};
use crate::hub::page::{Shell, browse, render_browsed};

/// The most text of a file that a page shows.
const MAX_SHOWN_BYTES: u64 = 1024 * 1024;
/// Rendered Markdown is larger than its text; longer files are shown as text.
const MAX_RENDERED_BYTES: u64 = 256 * 1024;
/// The most files of a folder that a page lists.
const MAX_LISTED: usize = 2000;
/// The first bytes of a file tell whether it is a picture.
const MAGIC_BYTES: u64 = 16;

#[derive(Template)]
#[template(path = "tree.html")]
struct TreePage {
    shell: Shell,
    head: Head,
    /// The folder that is listed; empty: all files.
    folder: String,
    files: Vec<FileLine>,
    hidden: usize,
    size: String,
}

struct FileLine {
    path: String,
    url: String,
    size: String,
    digest: Option<String>,
    media_type: Option<String>,
    is_text: bool,
}

pub(crate) async fn tree(
    State(registry): State<Registry>,
    caller: Caller,
    Path((name, reference)): Path<(String, String)>,
) -> Response {
    list(&registry, &caller, (&name, &reference, "")).await
}

/// The files of a folder; the address of a file leads to its page.
pub(crate) async fn folder(
    State(registry): State<Registry>,
    caller: Caller,
    Path((name, reference, path)): Path<(String, String, String)>,
) -> Response {
    list(&registry, &caller, (&name, &reference, path.trim_matches('/'))).await
}

/// The page of the files below `path`.
async fn list(registry: &Registry, caller: &Caller, (name, reference, path): (&str, &str, &str)) -> Response {
    let page = async {
        let shown = show_one(registry, caller, (name, reference)).await?;
        let mut tree = registry.tree(caller, &shown.repository, &shown.model.manifest).await?;
        if tree.find(path).is_some() {
            let (repository, file) = (&shown.repository, encode_path(path));
            return Ok(redirect(&format!("/{repository}/-/blob/{}/{file}", shown.reference)));
        }
        if !path.is_empty() {
            let below =
                |file: &TreeFile| file.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
            tree.files.retain(below);
            if tree.files.is_empty() {
                return Err(Failure::PageUnknown);
            }
        }
        let total = tree.files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size_bytes));
        let unlisted = if path.is_empty() { tree.unlisted } else { 0 };
        let hidden = tree.files.len().saturating_sub(MAX_LISTED) + unlisted;
        let files = tree.files.iter().take(MAX_LISTED).map(|file| FileLine {
            url: encode_path(&file.path),
            size: bytes(file.size_bytes),
            digest: file.digest.as_ref().map(short),
            media_type: file.media_type.clone(),
            is_text: is_text(file),
            path: file.path.clone(),
        });
        Ok(render_browsed(&TreePage {
            shell: Shell::of(registry, caller).await?,
            head: shown.head(Tab::Files),
            folder: path.to_owned(),
            files: files.collect(),
            hidden,
            size: bytes(total),
        }))
    };
    browse(registry, caller, page).await
}

#[derive(Template)]
#[template(path = "file.html")]
struct FilePage {
    shell: Shell,
    head: Head,
    path: String,
    url: String,
    size: String,
    /// Sanitised HTML.
    html: Option<Arc<str>>,
    /// The text as HTML with colours.
    code: Option<Arc<str>>,
    /// The text, if it is shown without either.
    text: Option<Arc<str>>,
    /// Rendering the text takes longer than the request waits.
    is_late: bool,
    is_picture: bool,
    is_cut: bool,
    /// Whether the file has weights, whose tensors have a page.
    has_tensors: bool,
}

pub(crate) async fn blob(
    State(registry): State<Registry>,
    caller: Caller,
    Path((name, reference, path)): Path<(String, String, String)>,
) -> Response {
    let page = async {
        let (shown, file) = find(&registry, &caller, (&name, &reference, &path)).await?;
        let first = registry.tree_read(&caller, &shown.repository, &file, MAGIC_BYTES).await?;
        let is_picture = picture_type(&first).is_some();
        let (mut text, mut html, mut code, mut is_late) = (None, None, None, false);
        if !is_picture && is_text(&file) {
            let read = registry.tree_read(&caller, &shown.repository, &file, MAX_SHOWN_BYTES).await?;
            // A zero byte: whatever its name, it is not text.
            if !read.contains(&0) {
                let cut: Arc<str> = String::from_utf8_lossy(&read).into();
                let is_markdown = path.to_ascii_lowercase().ends_with(".md");
                if is_markdown && file.size_bytes <= MAX_RENDERED_BYTES {
                    let links = card_links(&shown.repository, &shown.reference.to_string());
                    let rendered = registry.markdown_render(cut.clone(), links).await?;
                    (html, is_late) = rendered_html(rendered);
                } else if has_colours(&path) {
                    (code, is_late) = rendered_html(registry.code_render(&path, cut.clone()).await?);
                }
                text = Some(cut).filter(|_| html.is_none() && code.is_none());
            }
        }
        Ok(render_browsed(&FilePage {
            shell: Shell::of(&registry, &caller).await?,
            head: shown.head(Tab::Files),
            url: encode_path(&path),
            size: bytes(file.size_bytes),
            html,
            code,
            text,
            is_late,
            is_picture,
            is_cut: file.size_bytes > MAX_SHOWN_BYTES,
            has_tensors: shown.model.summary.is_some() && has_weights(&path),
            path,
        }))
    };
    browse(&registry, &caller, page).await
}

/// Bytes of strangers on this origin: pictures by their content, everything else as a download. Nothing of it runs.
pub(crate) async fn raw(
    State(registry): State<Registry>,
    caller: Caller,
    method: Method,
    Path((name, reference, path)): Path<(String, String, String)>,
) -> Response {
    let page = async {
        let (shown, file) = find(&registry, &caller, (&name, &reference, &path)).await?;
        let first = registry.tree_read(&caller, &shown.repository, &file, MAGIC_BYTES).await?;
        let body = registry.tree_open(&caller, &shown.repository, &file, None).await?;
        let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name);
        let (kind, disposition) = match picture_type(&first) {
            Some(kind) => (kind, "inline"),
            None => ("application/octet-stream", "attachment"),
        };
        // A picture is a part of a page.
        if method == Method::GET && disposition == "attachment" {
            registry.count_pull(&caller, &shown.repository);
        }
        let disposition = format!("{disposition}; filename*=UTF-8''{}", encode_path(name));
        // What a digest names never changes; what a tag names may.
        let cache = match shown.reference {
            Reference::Digest(_) => "private, max-age=86400",
            Reference::Tag(_) => "private, no-cache",
        };
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
            (header::CONTENT_LENGTH, HeaderValue::from(file.size_bytes)),
            (header::CONTENT_DISPOSITION, header_value(&disposition)),
            (header::CACHE_CONTROL, HeaderValue::from_static(cache)),
            (header::VARY, HeaderValue::from_static("cookie, authorization")),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox")),
            (
                HeaderName::from_static("cross-origin-resource-policy"),
                HeaderValue::from_static("same-origin"),
            ),
        ];
        Ok((StatusCode::OK, headers, Body::from_stream(body)).into_response())
    };
    browse(&registry, &caller, page).await
}

async fn find(
    registry: &Registry,
    caller: &Caller,
    (name, reference, path): (&str, &str, &str),
) -> Result<(ManifestPage, TreeFile), Failure> {
    let shown = show_one(registry, caller, (name, reference)).await?;
    let tree = registry.tree(caller, &shown.repository, &shown.model.manifest).await?;
    let file = tree.find(path).cloned().ok_or(Failure::PageUnknown)?;
    Ok((shown, file))
}

/// The HTML, and whether it is late.
fn rendered_html(rendered: CardHtml) -> (Option<Arc<str>>, bool) {
    match rendered {
        CardHtml::Rendered(html) => (Some(html), false),
        CardHtml::Late => (None, true),
    }
}

/// Whether a file has tensors that their page lists, by its name.
fn has_weights(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    [".safetensors", ".gguf"].iter().any(|ending| path.ends_with(ending))
}

/// Whether a page shows the file as text, by its name.
fn is_text(file: &TreeFile) -> bool {
    const EXTENSIONS: [&str; 17] = [
        "txt",
        "md",
        "json",
        "jsonl",
        "yaml",
        "yml",
        "toml",
        "cfg",
        "ini",
        "py",
        "jinja",
        "jinja2",
        "j2",
        "csv",
        "xml",
        "sh",
        "gitattributes",
    ];
    const NAMES: [&str; 9] = [
        "license",
        "notice",
        "template",
        "system",
        "modelfile",
        "readme",
        "kitfile",
        "copying",
        "use_policy",
    ];
    let name = file.path.rsplit_once('/').map_or(file.path.as_str(), |(_, name)| name).to_ascii_lowercase();
    let plain = name.split_once('-').map_or(name.as_str(), |(begin, _)| begin);
    name.rsplit_once('.').is_some_and(|(_, extension)| EXTENSIONS.contains(&extension))
        || NAMES.contains(&plain)
}

/// The type of a picture, by its first bytes. SVG is none: it may contain scripts.
fn picture_type(first: &[u8]) -> Option<&'static str> {
    let is_riff = first.starts_with(b"RIFF") && first.get(8..12) == Some(b"WEBP");
    let is_avif = first.get(4..8) == Some(b"ftyp") && first.get(8..12) == Some(b"avif");
    match first {
        _ if first.starts_with(b"\x89PNG\r\n\x1a\n") => Some("image/png"),
        _ if first.starts_with(b"\xff\xd8\xff") => Some("image/jpeg"),
        _ if first.starts_with(b"GIF87a") || first.starts_with(b"GIF89a") => Some("image/gif"),
        _ if is_riff => Some("image/webp"),
        _ if is_avif => Some("image/avif"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pictures_are_shown_in_place() {
        assert_eq!(picture_type(b"\x89PNG\r\n\x1a\n0000"), Some("image/png"));
        assert_eq!(picture_type(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(picture_type(b"RIFF0000WEBPVP8 "), Some("image/webp"));
        assert_eq!(picture_type(b"\0\0\0\x20ftypavif"), Some("image/avif"));
        for other in
            [&b""[..], b"<svg xmlns", b"<html>", b"<?xml", b"GIF", b"RIFF0000WAVE", b"\0\0\0\x20ftypisom"]
        {
            assert_eq!(picture_type(other), None, "{other:?}");
        }
    }
}
