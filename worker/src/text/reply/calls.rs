//! Extracts tool calls from a response. A call that cannot be parsed remains text, including its markers.
//! Only the markers of parsed calls and the whitespace around them are removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::held_back::{MAX_BLANKS, PendingText, partial_suffix_len, trailing_blanks};
use super::json::{self, Progress, Scanner};
use super::parts::Call;
use super::tagged::{self, CallTags, TaggedCall};
use super::tools::ParameterKind;

/// A longer call remains text.
const MAX_CALL_BYTES: usize = 4 << 20;
/// Maximum length between a marker and the arguments, for the name and more markers.
const MAX_HEAD_BYTES: usize = 512;

/// The keys under which models write the name and the arguments of a call.
const NAME_KEYS: [&str; 3] = ["name", "tool_name", "function"];
const ARGUMENT_KEYS: [&str; 3] = ["arguments", "parameters", "args"];

/// Tools by their names.
type Known = BTreeMap<String, BTreeMap<String, ParameterKind>>;

/// The format of a model's tool calls. The default is the bare JSON of Llama 3. It has no markers, so it has
/// to be at the beginning of the response and name a tool of the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFormat {
    /// The marker before the calls of a response; empty for bare JSON.
    pub(super) open: String,
    /// The marker before each call, after `open`; empty if there is none, or if `open` is repeated.
    pub(super) each: String,
    pub(super) shape: Shape,
    /// Markers that may follow a call.
    pub(super) closers: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Shape {
    /// An object with name and arguments, or a list of such objects.
    #[default]
    Json,
    /// A name, then the arguments as JSON. `between` separates the two; if an id follows, `behind_id` comes
    /// after it.
    Named { between: String, behind_id: String },
    /// A name, then keys and values in tags.
    Tagged(CallTags),
}

impl CallFormat {
    /// All markers, which the reader has to see as text.
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

/// Extracts the calls from one response.
#[derive(Debug)]
pub(super) struct CallParser {
    format: CallFormat,
    /// The tools of the request, with their parameters.
    known: Known,
    state: State,
    /// Text that may be part of a call.
    pending_text: PendingText,
}

#[derive(Debug)]
enum State {
    /// The response may begin with bare JSON.
    Beginning,
    /// A marker may follow.
    Text,
    /// `held` has a marker or the beginning of bare JSON.
    Called(Body),
    /// After a call.
    Between,
    /// No more calls are possible.
    NoMoreCalls,
}

/// An incomplete call.
#[derive(Debug)]
struct Body {
    /// Its offset in `held`, after its marker.
    at: usize,
    /// It has no marker, so it has to name a known tool.
    is_bare: bool,
    name: Option<String>,
    value: Option<CallValue>,
}

#[derive(Debug)]
enum CallValue {
    Json(JsonBody),
    /// The offset of its name in `held`.
    Tagged(usize, TaggedCall),
}

#[derive(Debug)]
struct JsonBody {
    /// Its offset in `held`, and the end of the scanned part.
    at: usize,
    scanned: usize,
    scanner: Scanner,
}

/// The state of a body so far.
enum Reading {
    More,
    Broken,
    /// Complete calls, and their end in `held`.
    Calls(Vec<Call>, usize),
}

impl CallParser {
    pub(super) fn new(format: CallFormat, known: Known) -> CallParser {
        let state = if format.open.is_empty() { State::Beginning } else { State::Text };
        CallParser { format, known, state, pending_text: PendingText::default() }
    }

    /// Adds text. Returns the text outside of calls, and the complete calls.
    pub(super) fn push(&mut self, piece: &str) -> (String, Vec<Call>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        self.pending_text.push_str(piece);
        while self.step_once(false, &mut text, &mut calls) {}
        (text, calls)
    }

    /// Returns the text that was held back, at the end of the response.
    pub(super) fn finish(&mut self) -> (String, Vec<Call>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        while self.step_once(true, &mut text, &mut calls) {}
        self.pending_text.move_to(&mut text, self.pending_text.len());
        (text, calls)
    }

    /// Makes one step; returns false if more text is needed. With `at_end` there is no more text.
    fn step_once(&mut self, at_end: bool, text: &mut String, calls: &mut Vec<Call>) -> bool {
        match &mut self.state {
            State::Beginning => {
                let rest = self.pending_text.trim_start();
                let blanks = self.pending_text.len() - rest.len();
                if rest.is_empty() && blanks <= MAX_BLANKS {
                    return false;
                }
                let begins = blanks <= MAX_BLANKS && rest.starts_with(['{', '[']);
                self.state = if begins { State::Called(Body::bare(blanks)) } else { State::NoMoreCalls };
                true
            }
            State::Text => self.look_for_mark(text),
            State::Called(body) => {
                match body.read(&self.pending_text, &self.format, &self.known) {
                    Reading::More if !at_end => return false,
                    Reading::More | Reading::Broken => {
                        // The marker is text; the text after it may contain another one.
                        let given = body.at;
                        self.pending_text.move_to(text, given);
                        self.state = self.state_without_call();
                    }
                    Reading::Calls(read, end) => {
                        calls.extend(read);
                        self.pending_text.skip(end);
                        self.state = State::Between;
                    }
                }
                true
            }
            State::Between => self.read_after_call(at_end),
            State::NoMoreCalls => {
                self.pending_text.move_to(text, self.pending_text.len());
                false
            }
        }
    }

    fn state_without_call(&self) -> State {
        if self.format.open.is_empty() { State::NoMoreCalls } else { State::Text }
    }

    fn look_for_mark(&mut self, text: &mut String) -> bool {
        // One search for all markers: one that never appears must not cost a search to the end for each that does.
        let mark_at = |at| {
            let rest = &self.pending_text[at..];
            let len = self.format.openers().filter(|mark| rest.starts_with(mark)).map(str::len).min()?;
            Some((at, len))
        };
        let found = self.pending_text.char_indices().find_map(|(at, _)| mark_at(at));
        let Some((at, len)) = found else {
            let partial = self
                .format
                .openers()
                .map(|mark| partial_suffix_len(&self.pending_text, mark))
                .max()
                .unwrap_or(0);
            let shown = self.pending_text.len() - partial;
            let shown = shown - trailing_blanks(&self.pending_text[..shown]);
            self.pending_text.move_to(text, shown);
            return false;
        };
        let blanks = trailing_blanks(&self.pending_text[..at]);
        self.pending_text.move_to(text, at - blanks);
        self.state = State::Called(Body::marked(blanks + len));
        true
    }

    /// Expects another call, a closing marker, or text.
    fn read_after_call(&mut self, at_end: bool) -> bool {
        let blanks = self.pending_text.len() - self.pending_text.trim_start().len();
        self.pending_text.skip(blanks);
        if self.pending_text.is_empty() {
            return false;
        }
        let marks = || self.format.openers().chain(self.format.closers.iter().map(String::as_str));
        let may_grow =
            |mark: &str| mark.len() > self.pending_text.len() && mark.starts_with(&*self.pending_text);
        if !at_end && marks().any(may_grow) {
            return false;
        }
        let longest =
            marks().filter(|mark| self.pending_text.starts_with(mark)).max_by_key(|mark| mark.len());
        if let Some(mark) = longest {
            let len = mark.len();
            if self.format.openers().any(|opener| opener == mark) {
                self.state = State::Called(Body::marked(len));
            } else {
                self.pending_text.skip(len);
            }
            return true;
        }
        // `{...}; {...}`, or without a separator.
        let rest = self.pending_text.strip_prefix([';', ',']).unwrap_or(&self.pending_text).trim_start();
        if rest.is_empty() && !at_end {
            return false;
        }
        self.state = match self.format.shape {
            Shape::Json if rest.starts_with(['{', '[']) => {
                State::Called(Body::bare(self.pending_text.len() - rest.len()))
            }
            _ => self.state_without_call(),
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
                    self.value.insert(CallValue::Tagged(self.at + len, TaggedCall::default()))
                }
                Head::Read { name, len } => {
                    self.name = name;
                    let at = self.at + len;
                    self.value.insert(CallValue::Json(JsonBody { at, scanned: at, scanner: Scanner::new() }))
                }
            },
        };
        let value = match (inside, &format.shape) {
            (CallValue::Json(value), _) => value,
            (CallValue::Tagged(at, call), Shape::Tagged(tags)) => {
                return match call.read(&held[*at..], tags) {
                    tagged::Reading::More if held.len() - self.at <= MAX_CALL_BYTES => Reading::More,
                    tagged::Reading::Complete(len) if *at + len - self.at <= MAX_CALL_BYTES => {
                        let (name, arguments) = std::mem::take(call).finish(known);
                        // A single word between two markers may be text.
                        if tags.name_end.is_empty() && !known.contains_key(&name) {
                            return Reading::Broken;
                        }
                        Reading::Calls(vec![Call { name, arguments }], *at + len)
                    }
                    _ => Reading::Broken,
                };
            }
            (CallValue::Tagged(..), _) => return Reading::Broken,
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
            (Some(value), None) => parse_calls(value),
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

/// The part of a call before its JSON.
enum Head {
    More,
    Broken,
    /// The name, if it is outside of the JSON, and the offset of the JSON.
    Read {
        name: Option<String>,
        len: usize,
    },
    /// The offset of the name of a tagged call.
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
        // A name has to follow directly.
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

/// One call, or a list of calls.
pub(super) fn parse_calls(value: Value) -> Option<Vec<Call>> {
    match value {
        Value::Array(values) if values.is_empty() => None,
        Value::Array(values) => values.into_iter().map(parse_call).collect(),
        value => Some(vec![parse_call(value)?]),
    }
}

fn parse_call(value: Value) -> Option<Call> {
    let Value::Object(mut object) = value else { return None };
    // OpenAI's format.
    if object.get("function").is_some_and(Value::is_object) {
        return parse_call(object.remove("function")?);
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
