//! The urgency of a request: the header `Priority` of RFC 9218.

use std::fmt;

use http::{HeaderMap, HeaderName};

/// How urgent a request is, from the parameter `u` of its header `Priority`: 0 is the most urgent, 7 the least, 3 the
/// default. A client can only lower the urgency of its requests: 0 to 2 count as 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency(u8);

impl Urgency {
    pub const HEADER: HeaderName = HeaderName::from_static("priority");
    /// For work that may wait while there are other requests.
    pub const LEAST: Urgency = Urgency(7);

    /// The urgency that the headers state. What is not as the RFC defines it is ignored.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Urgency {
        let lines = headers.get_all(&Self::HEADER).iter().filter_map(|line| line.to_str().ok());
        let members =
            lines.flat_map(|line| line.split(',')).filter_map(|member| member.trim().split_once('='));
        let mut urgencies = members.filter(|(key, _)| *key == "u").filter_map(|(_, value)| {
            // Parameters of the value have no meaning.
            let value = value.split(';').next().unwrap_or_default().trim_end();
            value.parse::<u8>().ok().filter(|urgency| *urgency <= Self::LEAST.0)
        });
        // Of members with the same key, the last one counts.
        let last = urgencies.next_back();
        last.map_or(Urgency::default(), |urgency| Urgency(urgency).max(Urgency::default()))
    }
}

impl Default for Urgency {
    fn default() -> Urgency {
        Urgency(3)
    }
}

/// The value of the header.
impl fmt::Display for Urgency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u={}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read() {
        let check = |lines: &[&str], expect: u8| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(Urgency::HEADER, line.parse().unwrap());
            }
            assert_eq!(Urgency::of(&headers), Urgency(expect), "{lines:?}");
        };
        check(&[], 3);
        check(&["u=5"], 5);
        check(&["i, u=7"], 7);
        check(&["u=6;x=1 , i"], 6);
        check(&["u=4", "u=5"], 5);
        // More urgent than others is not possible.
        check(&["u=0"], 3);
        for malformed in
            ["u", "u=8", "u=-1", "u=\"5\"", "u = 5", "U=5", "=", "", "u=5.0", "x=5", "u=99999999999"]
        {
            check(&[malformed], 3);
        }
        let mut headers = HeaderMap::new();
        headers.insert(Urgency::HEADER, Urgency::LEAST.to_string().parse().unwrap());
        assert_eq!(Urgency::of(&headers), Urgency::LEAST);
    }
}
