//! The links and pictures of a card. Relative ones lead to files of the same manifest; nothing is loaded from other
//! hosts.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters that a path may contain unescaped.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'+')
    .remove(b'@');
/// What the ids of a card begin with, so that they are none of the page's.
pub(super) const ID_PREFIX: &str = "user-content-";

/// Where the relative links of a card lead.
#[derive(Clone, Debug)]
pub(crate) struct CardLinks {
    /// Of the pages of files, with a slash at the end.
    pub(crate) pages: String,
    /// Of the files' bytes, with a slash at the end.
    pub(crate) bytes: String,
}

impl CardLinks {
    /// The address of a link, or `None` if it is dropped.
    pub(super) fn link(&self, url: &str) -> Option<String> {
        let url = url.trim();
        if let Some(fragment) = url.strip_prefix('#') {
            return Some(format!("#{ID_PREFIX}{}", fragment.strip_prefix(ID_PREFIX).unwrap_or(fragment)));
        }
        if !is_absolute(url) {
            return resolve(url).map(|path| format!("{}{path}", self.pages));
        }
        let folded = url.to_ascii_lowercase();
        match ["http://", "https://", "mailto:"].iter().any(|begin| folded.starts_with(begin)) {
            true => Some(url.to_owned()),
            // Without a scheme it would have the page's.
            false => url.starts_with("//").then(|| format!("https:{url}")),
        }
    }

    /// The address of a picture, or `None` if it is of another host.
    pub(super) fn picture(&self, url: &str) -> Option<String> {
        let url = url.trim();
        match is_absolute(url) {
            true => None,
            false => resolve(url).map(|path| format!("{}{path}", self.bytes)),
        }
    }
}

/// The path of a file, escaped for an address.
pub(crate) fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// Whether a URL names a scheme or a host.
pub(super) fn is_absolute(url: &str) -> bool {
    // Browsers ignore tabs and line ends, and read `\` as `/`.
    let plain: String = url.chars().filter(|c| !c.is_control()).collect::<String>().replace('\\', "/");
    let scheme_end = plain.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    let has_scheme = plain.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme_end.is_some_and(|at| plain[at..].starts_with(':'));
    has_scheme || plain.trim_start().starts_with("//")
}

/// The path of a relative URL within the manifest's files, without its query and fragment.
fn resolve(url: &str) -> Option<String> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let path = percent_decode_str(path).decode_utf8().ok()?;
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part if part.chars().any(|c| c == '\\' || c.is_control()) => return None,
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| encode_path(&parts.join("/")))
}
