//! Stop texts: finds the first of several in text that arrives in pieces, and never releases a part of one.
//! Pieces are whole characters (see the detokenizer); a stop text may span any number of them.

/// Limits on the stop texts of a request.
pub const MAX_STOPS: usize = 64;
pub const MAX_STOP_BYTES: usize = 4096;

/// Holds text back while it may be the beginning of a stop text.
#[derive(Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    /// Bytes of text pushed before `held` began.
    released: usize,
    /// The index of the stop text that was found.
    stopped: Option<usize>,
}

/// The result of one piece of text.
#[derive(Debug, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that can be returned to the client.
    pub text: String,
    /// The offset of the stop text, in bytes of all text pushed so far.
    pub stopped_at: Option<usize>,
}

impl StopMatcher {
    /// Empty stop texts are ignored.
    pub fn new(stops: Vec<String>) -> StopMatcher {
        StopMatcher {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            ..StopMatcher::default()
        }
    }

    /// Adds a piece; after a stop text was found, all text is dropped.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped_at: None };
        }
        self.held.push_str(piece);
        let found = self.stops.iter().enumerate();
        let found = found.filter_map(|(index, stop)| Some((self.held.find(stop.as_str())?, index))).min();
        if let Some((at, index)) = found {
            self.stopped = Some(index);
            let text = self.held[..at].to_owned();
            let stopped_at = Some(self.released + at);
            self.held.clear();
            return StopOutcome { text, stopped_at };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let text: String = self.held.drain(..self.held.len() - keep).collect();
        self.released += text.len();
        StopOutcome { text, stopped_at: None }
    }

    /// The stop text that was found.
    pub fn matched(&self) -> Option<&str> {
        self.stops.get(self.stopped?).map(String::as_str)
    }

    /// Returns the text that was held back, when the response ends for another reason.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The length of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = (stop.len() - 1).min(text.len());
    (1..=longest)
        .rev()
        .find(|&len| text.as_bytes()[text.len() - len..] == stop.as_bytes()[..len])
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(stops: &[&str], pieces: &[&str], shown: &[&str], stopped_at: Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(ToString::to_string).collect());
        let mut texts = Vec::new();
        let mut found = None;
        for piece in pieces {
            let released = matcher.push(piece);
            texts.push(released.text);
            found = found.or(released.stopped_at);
        }
        texts.push(matcher.finish());
        assert_eq!(texts, shown, "{stops:?} in {pieces:?}");
        assert_eq!(found, stopped_at, "{stops:?} in {pieces:?}");
        assert_eq!(matcher.matched().is_some(), stopped_at.is_some());
    }

    #[test]
    fn the_first_stop_text_is_named() {
        let mut matcher = StopMatcher::new(["", "later", "now"].map(str::to_owned).to_vec());
        assert_eq!(matcher.push("not now, later").stopped_at, Some(4));
        assert_eq!(matcher.matched(), Some("now"));
    }

    #[test]
    fn table() {
        check(&[], &["a", "b"], &["a", "b", ""], None);
        check(&["", "b"], &["abc", "d"], &["a", "", ""], Some(1));
        check(&["\n\n"], &["one\n", "\ntwo"], &["one", "", ""], Some(3));
        check(&["\n\n"], &["one\n", "two"], &["one", "\ntwo", ""], None);
        check(&["User:"], &["hi U", "se", "r", ": x"], &["hi ", "", "", "", ""], Some(3));
        check(&["User:"], &["hi U", "se"], &["hi ", "", "Use"], None);
        check(&["aab"], &["aa", "a", "b"], &["", "a", "", ""], Some(1));
        check(&["cd", "bc"], &["abcd"], &["a", ""], Some(1));
        check(&["\u{20AC}x"], &["1\u{20AC}", "y"], &["1", "\u{20AC}y", ""], None);
    }

    proptest! {
        #[test]
        fn pieces_give_the_same_result(text in "[ab]{0,24}", stop in "[ab]{1,4}", other in "[ab]{1,3}", cut in 1usize..5) {
            let mut matcher = StopMatcher::new(vec![stop.clone(), other.clone()]);
            let mut shown = String::new();
            let mut found = None;
            for piece in text.as_bytes().chunks(cut) {
                let released = matcher.push(std::str::from_utf8(piece).unwrap());
                shown.push_str(&released.text);
                found = found.or(released.stopped_at);
                if found.is_some() {
                    break;
                }
            }
            shown.push_str(&matcher.finish());
            let whole = [&stop, &other].iter().filter_map(|stop| text.find(stop.as_str())).min();
            // A longer stop text that began earlier may be completed only by a later piece, so the shorter
            // one is found first.
            prop_assert_eq!(found.is_some(), whole.is_some());
            if let Some(at) = found {
                prop_assert_eq!(&text[..at], shown);
                prop_assert!(at >= whole.unwrap_or(0));
            } else {
                prop_assert_eq!(text, shown);
            }
        }
    }
}
