//! Extracts the reasoning at the beginning of a response: from the opening tag, or from the start if the
//! prompt ends with that tag, to the closing tag. Whitespace around the tags is dropped (ollama
//! thinking/parser.go).

use serde::{Deserialize, Serialize};

use super::held_back::{MAX_BLANKS, partial_suffix_len, trailing_blanks};

/// The tags around reasoning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tags {
    pub open: String,
    pub close: String,
}

/// Extracts the reasoning from one response.
#[derive(Debug, Clone)]
pub(crate) struct ReasoningParser {
    tags: Tags,
    state: State,
    /// Text that may be part of a tag, and whitespace before it.
    pending_text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The opening tag may follow; with `is_open`, the prompt already has it.
    Before {
        is_open: bool,
    },
    /// After the opening tag, with only whitespace since.
    Opened,
    Inside,
    /// After the closing tag, with only whitespace since.
    Closed,
    Over,
}

/// The position of a response relative to its reasoning.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Phase<'a> {
    /// The opening tag may follow; `begun` is its part so far.
    Before {
        open: &'a str,
        begun: &'a str,
    },
    Inside,
    /// After the closing tag, with only whitespace since, which is dropped.
    AfterTag,
    Over,
}

/// Reasoning, and the text after it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SplitText {
    pub(crate) thinking: String,
    pub(crate) text: String,
}

impl ReasoningParser {
    /// `is_open`: the prompt ends with the opening tag.
    pub(super) fn new(tags: Tags, is_open: bool) -> ReasoningParser {
        ReasoningParser { tags, state: State::Before { is_open }, pending_text: String::new() }
    }

    pub(crate) fn phase(&self) -> Phase<'_> {
        match self.state {
            State::Before { is_open: false } => {
                Phase::Before { open: &self.tags.open, begun: self.pending_text.trim_start() }
            }
            State::Before { is_open: true } | State::Opened | State::Inside => Phase::Inside,
            State::Closed => Phase::AfterTag,
            State::Over => Phase::Over,
        }
    }

    pub(crate) fn push(&mut self, piece: &str) -> SplitText {
        let mut split = SplitText::default();
        self.pending_text.push_str(piece);
        while self.advance(&mut split) {}
        split
    }

    /// Returns the text that was held back, at the end of the response.
    pub(super) fn finish(&mut self) -> SplitText {
        let held = std::mem::take(&mut self.pending_text);
        match self.state {
            State::Before { is_open: true } => {
                SplitText { thinking: held.trim_start().to_owned(), ..SplitText::default() }
            }
            State::Inside => SplitText { thinking: held, ..SplitText::default() },
            State::Before { is_open: false } | State::Over => {
                SplitText { text: held, ..SplitText::default() }
            }
            State::Opened | State::Closed => SplitText::default(),
        }
    }

    /// Makes one step; returns false if more text is needed.
    fn advance(&mut self, split: &mut SplitText) -> bool {
        let rest = self.pending_text.trim_start();
        let blanks = self.pending_text.len() - rest.len();
        match self.state {
            State::Before { is_open } => {
                if blanks <= MAX_BLANKS {
                    if let Some(after) = rest.strip_prefix(&self.tags.open) {
                        self.pending_text = after.to_owned();
                        self.state = State::Opened;
                        return true;
                    }
                    if self.tags.open.starts_with(rest) {
                        return false;
                    }
                }
                self.state = if is_open { State::Opened } else { State::Over };
            }
            State::Opened | State::Closed => {
                self.pending_text.drain(..blanks);
                if self.pending_text.is_empty() {
                    return false;
                }
                self.state = if self.state == State::Opened { State::Inside } else { State::Over };
            }
            State::Inside => match self.pending_text.find(&self.tags.close) {
                Some(at) => {
                    let reasoning = &self.pending_text[..at];
                    split.thinking.push_str(&reasoning[..at - trailing_blanks(reasoning)]);
                    self.pending_text.drain(..at + self.tags.close.len());
                    self.state = State::Closed;
                }
                None => {
                    let shown =
                        self.pending_text.len() - partial_suffix_len(&self.pending_text, &self.tags.close);
                    let shown = shown - trailing_blanks(&self.pending_text[..shown]);
                    split.thinking.extend(self.pending_text.drain(..shown));
                    return false;
                }
            },
            State::Over => {
                split.text.push_str(&std::mem::take(&mut self.pending_text));
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(is_open: bool, pieces: &[&str]) -> (String, String) {
        let tags = Tags { open: "<think>".into(), close: "</think>".into() };
        let mut thinking = ReasoningParser::new(tags, is_open);
        let mut splits: Vec<SplitText> = pieces.iter().map(|piece| thinking.push(piece)).collect();
        splits.push(thinking.finish());
        splits.into_iter().fold(Default::default(), |(reasoning, text), split| {
            (reasoning + &split.thinking, text + &split.text)
        })
    }

    #[test]
    fn table() {
        let check = |is_open: bool, text: &str, reasoning: &str, rest: &str| {
            assert_eq!(read(is_open, &[text]), (reasoning.to_owned(), rest.to_owned()), "{text}");
        };
        check(false, "", "", "");
        check(false, " plain <think>no</think>", "", " plain <think>no</think>");
        check(false, "\n<think>\none\n\ntwo\n</think>\n\nanswer\n", "one\n\ntwo", "answer\n");
        check(false, "<think>\n\n</think>\n\nanswer", "", "answer");
        check(true, "one</think>two</think>", "one", "two</think>");
        check(true, "\n<think>again</think>x", "again", "x");
        check(true, "<thinker</think>", "<thinker", "");
        // Reasoning that does not end, or a response that ends within a tag.
        check(false, "<think>one </thi", "one </thi", "");
        check(false, " <thi", "", " <thi");
        check(true, "<thi", "<thi", "");
        check(false, "<think> ", "", "");
        check(true, "one</think> ", "one", "");
        let blanks = " ".repeat(MAX_BLANKS + 1);
        check(false, &format!("{blanks}<think>x</think>"), "", &format!("{blanks}<think>x</think>"));
    }

    #[test]
    fn reasoning_is_streamed() {
        let mut thinking = ReasoningParser::new(Tags { open: "<t>".into(), close: "</t>".into() }, false);
        let reasoning: Vec<String> =
            ["<t>a", "b ", "c<", "/", "d</t>e"].map(|piece| thinking.push(piece).thinking).into();
        assert_eq!(reasoning, ["a", "b", " c", "", "</d"]);
    }

    proptest! {
        #[test]
        fn pieces_give_the_same_result(
            parts in proptest::collection::vec(prop_oneof![
                Just("<think>"), Just("</think>"), Just("<thi"), Just("nk>"), Just("</"), Just(" "), Just("\n"), Just("ä"), Just("b")], 0..12),
            is_open: bool, cut in 1usize..4,
        ) {
            let text = parts.concat();
            let characters: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = characters.chunks(cut).map(|piece| piece.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (reasoning, rest) = read(is_open, &[&text]);
            prop_assert_eq!(read(is_open, &pieces), (reasoning.clone(), rest.clone()));
            // Only tags and the whitespace around them are removed.
            let solid = |text: &str| text.replace("<think>", "").replace("</think>", "").replace(char::is_whitespace, "").len();
            prop_assert_eq!(solid(&text), solid(&reasoning) + solid(&rest));
        }
    }
}
