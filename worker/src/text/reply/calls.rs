//! Calls of tools, taken out of an answer. A call that cannot be read is text, with all that marks it: nothing is lost but the marks
//! of calls that were read, and blanks around them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::json::{self, Progress, Scanner};
use super::tagged::{self, Tagged, TaggedCall};
use super::{Call, MAX_BLANKS, ParameterKind, blanks_before, overlap};

/// A longer call is text.
const MAX_CALL_BYTES: usize = 4 << 20;
/// What may stand between a mark and the arguments: the name, and more marks.
const MAX_HEAD_BYTES: usize = 512;

/// The keys under which models write the name and the arguments of a call.
const NAME_KEYS: [&str; 3] = ["name", "tool_name", "function"];
const ARGUMENT_KEYS: [&str; 3] = ["arguments", "parameters", "args"];

/// Tools by their names.
type Known = BTreeMap<String, BTreeMap<String, ParameterKind>>;

/// How a model writes calls. The default is the bare JSON that Llama 3 writes: nothing marks it, so it has to begin the answer and name
/// a tool that the request has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFormat {
    /// What begins the calls of an answer; empty for bare JSON.
    pub(super) open: String,
    /// What begins each of them behind that; empty where nothing does, or `open` again.
    pub(super) each: String,
    pub(super) shape: Shape,
    /// What may follow a call and is no text.
    pub(super) closers: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Shape {
    /// An object with name and arguments, or a list of such.
    #[default]
    Json,
    /// A name, then the arguments as JSON; between the two stand one text and, behind an id, perhaps another.
    Named { between: String, behind_id: String },
    /// A name, then keys and values between tags.
    Tagged(Tagged),
}

impl CallFormat {
    /// All texts that the reader has to see.
    pub(super) fn marks(&self) -> Vec<&str> {
        let mut marks = vec![self.open.as_str(), &self.each];
        match &self.shape {
            Shape::Json => {}
            Shape::Named { between, behind_id } => marks.extend([between.as_str(), behind_id]),
            Shape::Tagged(tags) => marks.extend(tags.marks()),
        }
        marks
    }

    fn openers(&self) -> impl Iterator<Item = &str> {
        [self.open.as_str(), &self.each].into_iter().filter(|mark| !mark.is_empty())
    }
}

/// Takes the calls out of one answer.
#[derive(Debug)]
pub(super) struct Calls {
    format: CallFormat,
    /// The tools that the request has, with their parameters.
    known: Known,
    state: State,
    /// What is not settled yet.
    held: String,
}

#[derive(Debug)]
enum State {
    /// Bare JSON may begin the answer.
    Beginning,
    /// A mark may come.
    Text,
    /// A mark, or what bare JSON begins with, stands in `held`.
    Called(Body),
    /// Behind a call.
    Between,
    /// Nothing more can come.
    Over,
}

/// A call that is not complete yet.
#[derive(Debug)]
struct Body {
    /// Where it begins in `held`, behind its mark.
    at: usize,
    /// Nothing marks it, so it has to name a known tool.
    is_bare: bool,
    name: Option<String>,
    value: Option<Inside>,
}

#[derive(Debug)]
enum Inside {
    Json(JsonBody),
    /// Where its name begins in `held`.
    Tagged(usize, TaggedCall),
}

#[derive(Debug)]
struct JsonBody {
    /// Where it begins in `held`, and up to where it is scanned.
    at: usize,
    scanned: usize,
    scanner: Scanner,
}

/// What a body is so far.
enum Reading {
    More,
    Broken,
    /// Calls, and where they end in `held`.
    Calls(Vec<Call>, usize),
}

impl Calls {
    pub(super) fn new(format: CallFormat, known: Known) -> Calls {
        let state = if format.open.is_empty() { State::Beginning } else { State::Text };
        Calls { format, known, state, held: String::new() }
    }

    /// Text that is no part of a call, and the calls that are complete.
    pub(super) fn push(&mut self, piece: &str) -> (String, Vec<Call>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        self.held.push_str(piece);
        while self.advance(false, &mut text, &mut calls) {}
        (text, calls)
    }

    /// What was held back, at the end of the answer.
    pub(super) fn finish(&mut self) -> (String, Vec<Call>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        while self.advance(true, &mut text, &mut calls) {}
        text.push_str(&std::mem::take(&mut self.held));
        (text, calls)
    }

    /// Takes one step; false where more text is needed for the next. At the end there is no more.
    fn advance(&mut self, at_end: bool, text: &mut String, calls: &mut Vec<Call>) -> bool {
        match &mut self.state {
            State::Beginning => {
                let rest = self.held.trim_start();
                let blanks = self.held.len() - rest.len();
                if rest.is_empty() && blanks <= MAX_BLANKS {
                    return false;
                }
                let begins = blanks <= MAX_BLANKS && rest.starts_with(['{', '[']);
                self.state = if begins { State::Called(Body::bare(blanks)) } else { State::Over };
                true
            }
            State::Text => self.look_for_mark(text),
            State::Called(body) => {
                match body.read(&self.held, &self.format, &self.known) {
                    Reading::More if !at_end => return false,
                    Reading::More | Reading::Broken => {
                        // The mark is text, and what follows may hold another.
                        let given = body.at;
                        text.extend(self.held.drain(..given));
                        self.state = self.no_call();
                    }
                    Reading::Calls(read, end) => {
                        calls.extend(read);
                        self.held.drain(..end);
                        self.state = State::Between;
                    }
                }
                true
            }
            State::Between => self.behind_a_call(at_end),
            State::Over => {
                text.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }

    fn no_call(&self) -> State {
        if self.format.open.is_empty() { State::Over } else { State::Text }
    }

    fn look_for_mark(&mut self, text: &mut String) -> bool {
        let found = self.format.openers().filter_map(|mark| Some((self.held.find(mark)?, mark.len()))).min();
        let Some((at, len)) = found else {
            let partial = self.format.openers().map(|mark| overlap(&self.held, mark)).max().unwrap_or(0);
            let shown = self.held.len() - partial;
            let shown = shown - blanks_before(&self.held[..shown]);
            text.extend(self.held.drain(..shown));
            return false;
        };
        let blanks = blanks_before(&self.held[..at]);
        text.extend(self.held.drain(..at - blanks));
        self.state = State::Called(Body::marked(blanks + len));
        true
    }

    /// Another call, a mark that closes one, or text again.
    fn behind_a_call(&mut self, at_end: bool) -> bool {
        let blanks = self.held.len() - self.held.trim_start().len();
        self.held.drain(..blanks);
        if self.held.is_empty() {
            return false;
        }
        let marks = || self.format.openers().chain(self.format.closers.iter().map(String::as_str));
        let may_grow = |mark: &str| mark.len() > self.held.len() && mark.starts_with(&self.held);
        if !at_end && marks().any(may_grow) {
            return false;
        }
        let longest = marks().filter(|mark| self.held.starts_with(mark)).max_by_key(|mark| mark.len());
        if let Some(mark) = longest {
            let len = mark.len();
            if self.format.openers().any(|opener| opener == mark) {
                self.state = State::Called(Body::marked(len));
            } else {
                self.held.drain(..len);
            }
            return true;
        }
        // `{...}; {...}`, or the same without a word between.
        let rest = self.held.strip_prefix([';', ',']).unwrap_or(&self.held).trim_start();
        if rest.is_empty() && !at_end {
            return false;
        }
        self.state = match self.format.shape {
            Shape::Json if rest.starts_with(['{', '[']) => {
                State::Called(Body::bare(self.held.len() - rest.len()))
            }
            _ => self.no_call(),
        };
        true
    }
}

impl Body {
    fn marked(at: usize) -> Body {
        Body { at, is_bare: false, name: None, value: None }
    }

    fn bare(at: usize) -> Body {
        Body { is_bare: true, ..Body::marked(at) }
    }

    fn read(&mut self, held: &str, format: &CallFormat, known: &Known) -> Reading {
        let inside = match &mut self.value {
            Some(inside) => inside,
            None => match head(&held[self.at..], format) {
                Head::More => return Reading::More,
                Head::Broken => return Reading::Broken,
                Head::Tagged { len } => {
                    self.value.insert(Inside::Tagged(self.at + len, TaggedCall::default()))
                }
                Head::Read { name, len } => {
                    self.name = name;
                    let at = self.at + len;
                    self.value.insert(Inside::Json(JsonBody { at, scanned: at, scanner: Scanner::new() }))
                }
            },
        };
        let value = match (inside, &format.shape) {
            (Inside::Json(value), _) => value,
            (Inside::Tagged(at, call), Shape::Tagged(tags)) => {
                return match call.read(&held[*at..], tags) {
                    tagged::Reading::More if held.len() - self.at <= MAX_CALL_BYTES => Reading::More,
                    tagged::Reading::Complete(len) if *at + len - self.at <= MAX_CALL_BYTES => {
                        let (name, arguments) = std::mem::take(call).finish(known);
                        // A word between two marks may be meant as one.
                        if tags.name_end.is_empty() && !known.contains_key(&name) {
                            return Reading::Broken;
                        }
                        Reading::Calls(vec![Call { name, arguments }], *at + len)
                    }
                    _ => Reading::Broken,
                };
            }
            (Inside::Tagged(..), _) => return Reading::Broken,
        };
        let end = match value.scanner.read(&held[value.scanned..]) {
            Progress::Complete(len) => value.scanned + len,
            Progress::More => {
                value.scanned = held.len();
                return if held.len() - self.at > MAX_CALL_BYTES { Reading::Broken } else { Reading::More };
            }
            Progress::Broken => return Reading::Broken,
        };
        if end - self.at > MAX_CALL_BYTES {
            return Reading::Broken;
        }
        let value = json::parse(&held[value.at..end]);
        let calls = match (value, self.name.take()) {
            (Some(Value::Object(arguments)), Some(name)) => Some(vec![Call { name, arguments }]),
            (Some(value), None) => calls_of(value),
            _ => None,
        };
        match calls {
            Some(calls) if !self.is_bare || calls.iter().all(|call| known.contains_key(&call.name)) => {
                Reading::Calls(calls, end)
            }
            _ => Reading::Broken,
        }
    }
}

/// What stands before the JSON of a call.
enum Head {
    More,
    Broken,
    /// The name, where the JSON has none, and where the JSON begins.
    Read {
        name: Option<String>,
        len: usize,
    },
    /// Where the name of a call with tags begins.
    Tagged {
        len: usize,
    },
}

fn head(body: &str, format: &CallFormat) -> Head {
    let more = if body.len() > MAX_HEAD_BYTES { Head::Broken } else { Head::More };
    let mut rest = body.trim_start();
    if !format.each.is_empty() {
        match rest.strip_prefix(&format.each) {
            Some(after) => rest = after.trim_start(),
            None if format.each.starts_with(rest) => return more,
            None => {}
        }
    }
    if rest.is_empty() {
        return more;
    }
    let before = body.len() - rest.len();
    let (name, len) = match &format.shape {
        _ if rest.starts_with(['{', '[']) => (None, before),
        Shape::Json => return Head::Broken,
        // Its own mark, or a name at once.
        Shape::Tagged(_) if rest.starts_with('<') => return Head::Broken,
        Shape::Tagged(_) if before <= MAX_HEAD_BYTES => return Head::Tagged { len: before },
        Shape::Tagged(_) => return Head::Broken,
        Shape::Named { between, behind_id } => match rest.find('{') {
            None => return more,
            Some(at) => match name_in(&rest[..at], between, behind_id) {
                None => return Head::Broken,
                name => (name, before + at),
            },
        },
    };
    if len > MAX_HEAD_BYTES { Head::Broken } else { Head::Read { name, len } }
}

fn name_in(head: &str, between: &str, behind_id: &str) -> Option<String> {
    let head = head.trim_end().strip_suffix(behind_id)?;
    let name = match head.split_once(between) {
        _ if behind_id.is_empty() => head.strip_suffix(between)?,
        Some((name, _id)) => name,
        None => head,
    };
    let name = name.trim();
    (!name.is_empty() && !name.contains(char::is_whitespace)).then(|| name.to_owned())
}

/// One call, or a list of nothing but calls.
pub(super) fn calls_of(value: Value) -> Option<Vec<Call>> {
    match value {
        Value::Array(values) if values.is_empty() => None,
        Value::Array(values) => values.into_iter().map(call_of).collect(),
        value => Some(vec![call_of(value)?]),
    }
}

fn call_of(value: Value) -> Option<Call> {
    let Value::Object(mut object) = value else { return None };
    // As OpenAI writes them.
    if object.get("function").is_some_and(Value::is_object) {
        return call_of(object.remove("function")?);
    }
    let name = NAME_KEYS.iter().find_map(|key| object.get(*key)?.as_str()).filter(|name| !name.is_empty())?;
    let name = name.to_owned();
    let arguments = match ARGUMENT_KEYS.iter().find_map(|key| object.remove(*key)) {
        Some(Value::Object(arguments)) => arguments,
        Some(Value::String(text)) => match json::parse(&text)? {
            Value::Object(arguments) => arguments,
            _ => return None,
        },
        None | Some(Value::Null) => Map::new(),
        Some(_) => return None,
    };
    Some(Call { name, arguments })
}
