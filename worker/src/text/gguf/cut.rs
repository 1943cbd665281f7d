//! Finds special tokens in a text. The longest token is matched first, anywhere in the text, then shorter
//! ones in the rest. Where tokens overlap, the result differs from matching from left to right.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use lode_model::gguf::Metadata;

use super::tokens::{Kind, Tokens};

pub(super) enum Fragment<'a> {
    Text(&'a str),
    Id(u32),
}

#[derive(Default)]
struct Node {
    next: BTreeMap<u8, usize>,
    /// The token that ends here.
    token: Option<u32>,
}

/// The special tokens of a vocabulary, as a trie of their bytes.
pub(super) struct SpecialTokenSplitter {
    nodes: Vec<Node>,
    rules: BTreeMap<u32, Rule>,
}

struct Rule {
    /// Whether the token is matched even if special tokens are read as plain text.
    always: bool,
    /// Whether it includes whitespace before it.
    strips_left: bool,
    /// Whether it includes whitespace after it.
    strips_right: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Match {
    len: Reverse<usize>,
    id: u32,
    start: usize,
}

impl SpecialTokenSplitter {
    pub(super) fn new(tokens: &Tokens, metadata: &Metadata) -> SpecialTokenSplitter {
        let strips = WhitespaceRules::of(metadata);
        let mut cutter = SpecialTokenSplitter { nodes: vec![Node::default()], rules: BTreeMap::new() };
        for (id, text) in tokens.iter() {
            let kind = tokens.kind(id);
            if text.is_empty() || !matches!(kind, Kind::Control | Kind::UserDefined | Kind::Unknown) {
                continue;
            }
            let mut at = 0;
            for byte in text.bytes() {
                let free = cutter.nodes.len();
                let next = *cutter.nodes[at].next.entry(byte).or_insert(free);
                if next == free {
                    cutter.nodes.push(Node::default());
                }
                at = next;
            }
            cutter.nodes[at].token = Some(id);
            let rule = Rule {
                always: kind == Kind::UserDefined,
                strips_left: strips.left == Some(text),
                strips_right: strips.right && !["<unk>", "<s>", "<|endoftext|>"].contains(&text),
            };
            cutter.rules.insert(id, rule);
        }
        cutter
    }

    /// Splits the text at special tokens, in order.
    pub(super) fn split_at_special<'a>(&self, text: &'a str, parse: bool) -> Vec<Fragment<'a>> {
        let mut matches = self.matches(text.as_bytes(), parse);
        matches.sort_unstable();
        // Maps the start of each matched range to its end and its token.
        let mut taken: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
        for Match { len: Reverse(len), id, start } in matches {
            let end = start + len;
            let before = taken.range(..end).next_back().map_or(0, |(_, (end, _))| *end);
            if before > start {
                continue;
            }
            let after = taken.range(end..).next().map_or(text.len(), |(start, _)| *start);
            let (mut start, mut end) = (start, end);
            let is_space = |at: usize| matches!(text.as_bytes()[at], b' ' | b'\t'..=b'\r');
            if self.rules[&id].strips_left {
                while start > before && is_space(start - 1) {
                    start -= 1;
                }
            }
            if self.rules[&id].strips_right {
                while end < after && is_space(end) {
                    end += 1;
                }
            }
            taken.insert(start, (end, id));
        }
        let mut fragments = Vec::with_capacity(taken.len() * 2 + 1);
        let mut at = 0;
        for (start, (end, id)) in taken {
            if at < start {
                fragments.push(Fragment::Text(&text[at..start]));
            }
            fragments.push(Fragment::Id(id));
            at = end;
        }
        if at < text.len() {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }

    fn matches(&self, text: &[u8], parse: bool) -> Vec<Match> {
        let mut matches = Vec::new();
        for start in 0..text.len() {
            let mut node = &self.nodes[0];
            for (len, byte) in (1..).zip(&text[start..]) {
                let Some(next) = node.next.get(byte) else { break };
                node = &self.nodes[*next];
                if let Some(id) = node.token.filter(|id| parse || self.rules[id].always) {
                    matches.push(Match { len: Reverse(len), id, start });
                }
            }
        }
        matches
    }
}

/// Which tokens include the whitespace around them. GGUF files do not specify this, so it depends on the
/// model's name, as in llama.cpp.
struct WhitespaceRules {
    left: Option<&'static str>,
    right: bool,
}

impl WhitespaceRules {
    fn of(metadata: &Metadata) -> WhitespaceRules {
        let name = metadata.str("general.name").unwrap_or_default().to_lowercase();
        let pre = metadata.str("tokenizer.ggml.pre").unwrap_or_default();
        let architecture = metadata.architecture().unwrap_or_default();
        let jina = ["jina-v2-de", "jina-v2-es", "jina-v2-code"].iter().any(|part| pre.contains(part));
        if jina || ["nomic-bert-moe", "jina-bert-v3"].iter().any(|part| architecture.contains(part)) {
            WhitespaceRules { left: Some("<mask>"), right: false }
        } else if name.contains("phi-3") || name.contains("phi3") {
            WhitespaceRules { left: None, right: true }
        } else if name.contains("modern-bert") {
            WhitespaceRules { left: Some("[MASK]"), right: false }
        } else {
            WhitespaceRules { left: None, right: false }
        }
    }
}
