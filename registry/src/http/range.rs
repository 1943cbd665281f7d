//! `Range` of a blob read and `Content-Range` of an upload chunk: two grammars, both parsed only here.
//! The blob and upload handlers call it.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, header};
use uuid::Uuid;

use super::Failure;

/// How many separate ranges one response may have.
pub(crate) const MAX_RANGES: usize = 64;

/// The requested part of the content, once the size is known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestedRange {
    Whole,
    Part(Range<u64>),
    /// Two or more ranges, in order, that neither overlap nor touch.
    Parts(Vec<Range<u64>>),
    Unsatisfiable,
}

/// Resolves the `Range` header of a request for `size` bytes whose entity tag is `etag`.
///
/// A header that is not a list of byte ranges is ignored, as RFC 9110 requires. Ranges outside the content
/// are left out of a list.
pub(crate) fn requested_range(headers: &HeaderMap, etag: &str, size: u64) -> RequestedRange {
    let mut values = headers.get_all(header::RANGE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return RequestedRange::Whole };
    if headers.get(header::IF_RANGE).is_some_and(|condition| condition != etag) {
        return RequestedRange::Whole;
    }
    value.to_str().ok().and_then(|text| resolve(text, size)).unwrap_or(RequestedRange::Whole)
}

fn resolve(text: &str, size: u64) -> Option<RequestedRange> {
    let (unit, list) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let specs = list.split(',').map(str::trim).filter(|spec| !spec.is_empty());
    let mut ranges = specs.map(|spec| resolve_one(spec, size)).collect::<Option<Vec<Range<u64>>>>()?;
    if ranges.is_empty() {
        return None;
    }
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, merged| {
        let joins = next.start <= merged.end;
        if joins {
            merged.end = merged.end.max(next.end);
        }
        joins
    });
    Some(match ranges.as_slice() {
        [] => RequestedRange::Unsatisfiable,
        [one] => RequestedRange::Part(one.clone()),
        _ => RequestedRange::Parts(ranges),
    })
}

/// One range of a list, end excluded; its start is not before its end if it is outside the content.
fn resolve_one(spec: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = spec.split_once('-')?;
    Some(match (first, last) {
        ("", last) => size.saturating_sub(number(last)?)..size,
        (first, "") => number(first)?..size,
        (first, last) => number(first)?..number(last)?.saturating_add(1).min(size),
    })
}

/// The framing of a `multipart/byteranges` body (RFC 9110, section 14.6): the bytes before each part, and
/// after the last.
pub(crate) struct Multipart {
    pub(crate) content_type: String,
    /// Of the whole body.
    pub(crate) content_length: u64,
    /// Each part with the delimiter and header lines before it.
    pub(crate) parts: Vec<(Bytes, Range<u64>)>,
    pub(crate) end: Bytes,
}

impl Multipart {
    pub(crate) fn new(ranges: Vec<Range<u64>>, content_type: &str, size: u64) -> Multipart {
        // Random, so that a client cannot craft content that contains it.
        let boundary = Uuid::new_v4().simple().to_string();
        let mut before = "";
        let head = |range: Range<u64>| {
            let (first, last) = (range.start, range.end - 1);
            let head = format!(
                "{before}--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: bytes {first}-{last}/{size}\r\n\r\n"
            );
            before = "\r\n";
            (Bytes::from(head), range)
        };
        let parts: Vec<(Bytes, Range<u64>)> = ranges.into_iter().map(head).collect();
        let end = Bytes::from(format!("\r\n--{boundary}--\r\n"));
        let content_length =
            parts.iter().map(|(head, range)| head.len() as u64 + range.end - range.start).sum::<u64>();
        Multipart {
            content_type: format!("multipart/byteranges; boundary={boundary}"),
            content_length: content_length + end.len() as u64,
            parts,
            end,
        }
    }
}

/// Decimal digits only; a number beyond u64 becomes its maximum.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// The inclusive `first-last` of a chunk, if the client sent one. This protocol has no unit before it.
pub(crate) fn chunk(headers: &HeaderMap) -> Result<Option<(u64, u64)>, Failure> {
    let Some(value) = headers.get(header::CONTENT_RANGE) else { return Ok(None) };
    let invalid = || Failure::ContentRange { value: String::from_utf8_lossy(value.as_bytes()).into_owned() };
    let text = value.to_str().map_err(|_| invalid())?;
    let (first, last) = text.split_once('-').ok_or_else(invalid)?;
    Ok(Some((number(first).ok_or_else(invalid)?, number(last).ok_or_else(invalid)?)))
}

/// The declared length of a body, if it has one.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_resolve() {
        use RequestedRange::{Part, Parts, Unsatisfiable, Whole};
        let cases = [
            ("bytes=0-4", Part(0..5)),
            ("bytes=5-", Part(5..10)),
            ("bytes=-3", Part(7..10)),
            ("bytes=-30", Part(0..10)),
            ("bytes=8-99", Part(8..10)),
            ("bytes=9-9", Part(9..10)),
            ("Bytes=0-0", Part(0..1)),
            ("bytes=0-99999999999999999999999", Part(0..10)),
            ("bytes=10-", Unsatisfiable),
            ("bytes=10-12", Unsatisfiable),
            ("bytes=99999999999999999999999-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=5-0", Unsatisfiable),
            ("items=0-4", Whole),
            ("bytes=0-1,3-4", Parts(vec![0..2, 3..5])),
            ("bytes= 3-4 ,, -1,\t0-0,", Parts(vec![0..1, 3..5, 9..10])),
            ("bytes=5-6,0-1,1-3,4-4", Part(0..7)),
            ("bytes=0-9,2-3", Part(0..10)),
            ("bytes=20-,1-1", Part(1..2)),
            ("bytes=20-,-0", Unsatisfiable),
            ("bytes=0-1,x", Whole),
            ("bytes=0-1,3", Whole),
            ("bytes=,", Whole),
            ("bytes=a-b", Whole),
            ("bytes=-", Whole),
            ("bytes", Whole),
            ("bytes=+1-2", Whole),
            ("", Whole),
        ];
        for (value, expect) in cases {
            let headers = HeaderMap::from_iter([(header::RANGE, value.parse().unwrap())]);
            assert_eq!(requested_range(&headers, "\"x\"", 10), expect, "{value}");
        }
    }

    #[test]
    fn a_range_with_a_failed_if_range_is_ignored() {
        let mut headers = HeaderMap::from_iter([(header::RANGE, "bytes=0-1".parse().unwrap())]);
        headers.insert(header::IF_RANGE, "\"other\"".parse().unwrap());
        assert_eq!(requested_range(&headers, "\"mine\"", 10), RequestedRange::Whole);
        headers.insert(header::IF_RANGE, "\"mine\"".parse().unwrap());
        assert_eq!(requested_range(&headers, "\"mine\"", 10), RequestedRange::Part(0..2));
    }

    #[test]
    fn empty_has_no_range() {
        let headers = HeaderMap::from_iter([(header::RANGE, "bytes=0-".parse().unwrap())]);
        assert_eq!(requested_range(&headers, "", 0), RequestedRange::Unsatisfiable);
    }

    #[test]
    fn chunks_parse() {
        let parse = |value: &str| {
            chunk(&HeaderMap::from_iter([(header::CONTENT_RANGE, value.parse().unwrap())])).ok().flatten()
        };
        assert_eq!(parse("0-9"), Some((0, 9)));
        assert_eq!(parse("9-0"), Some((9, 0)));
        for bad in ["", "bytes 0-9/10", "0-", "-9", "a-b", "0-9/10", "0-9-1", " 0-9x"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(chunk(&HeaderMap::new()).unwrap(), None);
    }
}
