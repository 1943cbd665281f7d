//! HTML of the server that takes the place of parts of a card after the card's own HTML has been cleaned: the classes and
//! elements in it remain forbidden to the card.

use lode_model::digest::Digest;

/// How much of the digest a marker has.
const MARKER_CHARS: usize = 32;
const INDEX_DIGITS: usize = 6;
/// What fits into the digits of an index.
const MAX_INSERTS: usize = 1_000_000;

/// Pieces of HTML, and the markers that hold their places.
pub(super) struct Inserts {
    marker: String,
    html: Vec<String>,
}

impl Inserts {
    /// The markers depend on the whole text by a digest, so that no text contains its own markers.
    pub(super) fn new(text: &str) -> Inserts {
        let digest = Digest::sha256(text.as_bytes());
        let hex: String = digest.as_str().chars().skip("sha256:".len()).take(MARKER_CHARS).collect();
        Inserts { marker: format!("insert{hex}"), html: Vec::new() }
    }

    /// Keeps HTML; returns the letters and digits that hold its place. `None` if there are too many.
    pub(super) fn add(&mut self, html: String) -> Option<String> {
        let index = self.html.len();
        if index == MAX_INSERTS {
            return None;
        }
        self.html.push(html);
        Some(format!("{}{index:0INDEX_DIGITS$}", self.marker))
    }

    /// Whether an attribute has a marker: HTML that a card leaves open can enclose one. Such an attribute is dropped.
    pub(super) fn is_in(&self, value: &str) -> bool {
        value.contains(&self.marker)
    }

    /// The text without markers.
    pub(super) fn strip(&self, text: &str) -> String {
        let mut parts = text.split(&self.marker);
        let mut stripped = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            stripped.push_str(part.get(INDEX_DIGITS..).unwrap_or_default());
        }
        stripped
    }

    /// Puts each piece at its place in the text of cleaned HTML.
    pub(super) fn fill(&self, cleaned: &str) -> String {
        let mut parts = cleaned.split(&self.marker);
        let mut html = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (index, rest) = part.split_at_checked(INDEX_DIGITS).unwrap_or((part, ""));
            let piece = index.parse().ok().and_then(|index: usize| self.html.get(index));
            html.push_str(piece.map_or("", String::as_str));
            html.push_str(rest);
        }
        html
    }
}
