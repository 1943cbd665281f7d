//! Limits of HTML that the sanitiser would take long for: how deeply elements are nested, and how many attributes a tag
//! has. The scans know no comments and no raw text, so a card can evade them; the deadline of the sanitiser remains.

/// Elements may be nested this deeply.
pub(super) const MAX_DEPTH: usize = 200;
/// The most attributes of a tag. The parser compares each one with all before it.
pub(super) const MAX_ATTRIBUTES: usize = 64;
/// Elements without an end, or that the next one of their kind ends.
const NOT_NESTED: [&str; 22] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr", "p", "li", "td", "th", "tr", "dt", "dd", "option",
];

/// How deeply elements are nested, or would be if a parser were as simple as this one.
pub(super) fn depth_of(html: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for part in html.split('<').skip(1) {
        let (is_end, part) = part.strip_prefix('/').map_or((false, part), |rest| (true, rest));
        let name: String = part.chars().take_while(char::is_ascii_alphanumeric).take(16).collect();
        if name.is_empty() || NOT_NESTED.contains(&&name.to_ascii_lowercase()[..]) {
            continue;
        }
        depth = if is_end { depth.saturating_sub(1) } else { depth + 1 };
        deepest = deepest.max(depth);
    }
    deepest
}

/// How many attributes the tag with the most attributes has. Equal names count, too.
pub(super) fn most_attributes(html: &str) -> usize {
    let (mut rest, mut most) = (html, 0);
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let tag = rest.strip_prefix('/').unwrap_or(rest);
        if !tag.starts_with(|c: char| c.is_ascii_alphabetic()) {
            continue;
        }
        let (mut state, mut count, mut length) = (TagState::Name, 0, tag.len());
        for (at, byte) in tag.bytes().enumerate() {
            let Some((next, begins_attribute)) = state.next(byte) else {
                length = at;
                break;
            };
            (state, count) = (next, count + usize::from(begins_attribute));
        }
        most = most.max(count);
        rest = &tag[length..];
    }
    most
}

/// The states in which HTML's tokenizer reads a tag.
#[derive(Clone, Copy)]
enum TagState {
    Name,
    BetweenAttributes,
    AttributeName,
    AfterAttributeName,
    BeforeValue,
    Value,
    QuotedValue(u8),
}

impl TagState {
    /// The state after a byte, and whether an attribute begins with it. `None` if the tag ends.
    fn next(self, byte: u8) -> Option<(TagState, bool)> {
        use TagState::*;
        let is_blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c');
        let next = match (self, byte) {
            (QuotedValue(quote), byte) if byte == quote => BetweenAttributes,
            (QuotedValue(_), _) => self,
            (_, b'>') => return None,
            (BeforeValue, b'"' | b'\'') => QuotedValue(byte),
            (BeforeValue, _) if is_blank => self,
            (BeforeValue, _) => Value,
            (Value, _) if is_blank => BetweenAttributes,
            (Value, _) => self,
            (_, b'/') => BetweenAttributes,
            (AttributeName | AfterAttributeName, b'=') => BeforeValue,
            (AttributeName | AfterAttributeName, _) if is_blank => AfterAttributeName,
            (Name | BetweenAttributes, _) if is_blank => BetweenAttributes,
            (Name | AttributeName, _) => self,
            (BetweenAttributes | AfterAttributeName, _) => return Some((AttributeName, true)),
        };
        Some((next, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_counted_as_the_parser_does() {
        for (html, expect) in [
            ("", 0),
            ("a < b c d", 0),
            ("<p>", 0),
            ("<p", 0),
            ("<p a b=c d='e f' g = \"h i\" j/>", 5),
            ("<p a/b/c>", 3),
            ("<p a=\"\"b=''c>", 3),
            ("<p a=>b c", 1),
            ("<p a=/b/c>", 1),
            ("<p a='>' b>", 2),
            ("<img alt=\"many words > in <one> value\">", 1),
            ("<p a><p b c></p d e f>", 3),
            ("<p = =x>", 1),
            ("<\u{e9} a b c>", 0),
            ("<p\na\tb\x0cc\rd>", 4),
        ] {
            assert_eq!(most_attributes(html), expect, "{html}");
        }
    }
}
