//! Derives the format of a model's reasoning and tool calls from its template. The template renders a
//! conversation with known reasoning and calls; the text around them is the format that the model was trained
//! on. This works for Jinja and Go, without a list of families.

use lode_model::prompt_template::REASONING_END;
use serde_json::{Value, json};

use super::calls::{CallFormat, Shape, parse_calls};
use super::tagged::CallTags;
use super::thinking::Tags;
use crate::text::prompt::PromptTemplate;
use crate::text::template::Conversation;
use crate::text::think::Think;

const QUESTION: &str = "probe-question";
const THOUGHT: &str = "probe-thought";
const ANSWER: &str = "probe-answer";
const RESULT: &str = "probe-result";
/// The only argument.
const KEY: &str = "probe_argument";
const VALUE: &str = "probe-value";
/// Mistral's templates require nine letters and digits.
const IDS: [&str; 2] = ["probeid01", "probeid02"];
const NAMES: [&str; 2] = ["probe_first", "probe_second"];

/// The common markers, for templates that mention them but do not write them for earlier turns.
const HERMES: (&str, &str) = ("<tool_call>", "</tool_call>");
const THINK: (&str, &str) = ("<think>", REASONING_END);

/// Markers are short. A longer text is not a marker but was added by the template.
const MAX_MARK_BYTES: usize = 128;
/// Maximum number of markers per format: the reader searches for each of them at every token.
const MAX_MARKS: usize = 32;

/// The markers of reasoning and of tool calls.
pub(super) fn read(template: &PromptTemplate) -> (Option<Tags>, CallFormat) {
    let probe = Probe { template };
    let thinking = probe.thinking();
    let calls = if template.abilities().tools { probe.calls(thinking.as_ref()) } else { None };
    let calls = calls.unwrap_or_else(|| match template.mentions(HERMES.0) {
        true => CallFormat { open: HERMES.0.into(), closers: vec![HERMES.1.into()], ..CallFormat::default() },
        false => CallFormat::default(),
    });
    (thinking, calls)
}

struct Probe<'a> {
    template: &'a PromptTemplate,
}

impl Probe<'_> {
    fn write(&self, messages: &[Value], with_tools: bool, add_generation_prompt: bool) -> Option<String> {
        let tool = json!({"type": "function", "function": {
            "name": "probe_tool", "description": "probes",
            "parameters": {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]},
        }});
        let tools = [tool];
        let conversation = Conversation {
            messages,
            tools: with_tools.then_some(&tools),
            add_generation_prompt,
            think: Some(Think::On),
        };
        self.template.render(&conversation).ok()
    }

    /// The tags around reasoning.
    fn thinking(&self) -> Option<Tags> {
        self.written_thinking().or_else(|| {
            let usual = Tags { open: THINK.0.into(), close: THINK.1.into() };
            // Some templates remove the text up to the closing tag from earlier turns and never write the
            // opening tag.
            self.template.mentions(THINK.1).then_some(usual)
        })
    }

    fn written_thinking(&self) -> Option<Tags> {
        let question = json!({"role": "user", "content": QUESTION});
        let answer = json!({"role": "assistant", "content": ANSWER, "thinking": THOUGHT});
        let text = self.write(&[question.clone(), answer], false, false)?;
        let (before, after) = text.split_once(THOUGHT)?;
        let (close, _) = after.split_once(ANSWER)?;
        let begun = self.write(&[question], false, true)?;
        // Some prompts end with the opening tag.
        let open = match before.strip_prefix(begun.trim_end()).map(str::trim) {
            Some("") | None => last_tag(before),
            Some(open) => open,
        };
        let tags = Tags { open: open.to_owned(), close: close.trim().to_owned() };
        let is_mark = |mark: &str| !mark.is_empty() && mark.len() <= MAX_MARK_BYTES;
        (is_mark(&tags.open) && is_mark(&tags.close)).then_some(tags)
    }

    fn calls(&self, thinking: Option<&Tags>) -> Option<CallFormat> {
        let question = json!({"role": "user", "content": QUESTION});
        let begun = self.write(std::slice::from_ref(&question), true, true)?;
        // The position of the tools may depend on whether the user message has a response.
        let (_, begun) = begun.split_once(QUESTION)?;
        let turns = |count: usize, with_results: bool| {
            let calls = NAMES.iter().zip(IDS).take(count).map(|(name, id)| {
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": {KEY: VALUE}}})
            });
            let mut messages = vec![question.clone()];
            messages
                .push(json!({"role": "assistant", "content": "", "tool_calls": calls.collect::<Vec<_>>()}));
            if with_results {
                messages.extend(NAMES.iter().zip(IDS).take(count).map(|(name, id)| {
                    json!({"role": "tool", "content": RESULT, "tool_name": name, "tool_call_id": id})
                }));
            }
            let text = self.write(&messages, true, false).filter(|text| text.contains(NAMES[count - 1]))?;
            let (_, text) = text.split_once(QUESTION)?;
            Some(text[turn_start(text, begun)..].to_owned())
        };
        let one = turns(1, true).or_else(|| turns(1, false))?;
        // Not every template supports two calls in one message.
        let two = turns(2, true).or_else(|| turns(2, false));
        let first = WrittenCall::find(&one, 0, NAMES[0])?;
        let mut before = &one[..first.at];
        if let Some(tags) = thinking
            && let Some((_, behind)) = before.rsplit_once(&tags.close)
        {
            before = behind;
        }
        let before = before.trim();
        let mut format = CallFormat { open: before.to_owned(), shape: first.shape, ..CallFormat::default() };
        // Models may omit the whitespace between two markers, or the first marker.
        let mut second = before.rmatch_indices(['<', '[']).map(|(at, _)| at);
        if format.shape != Shape::Json
            && let Some(at) = second.find(|&at| before[..at].ends_with(char::is_whitespace))
        {
            format.open = before[..at].trim().to_owned();
            format.each = before[at..].to_owned();
        }
        let ends_turn = self.turn_end();
        let mut marks = Vec::new();
        if let Some(two) = &two
            && let Some(first) = WrittenCall::find(two, 0, NAMES[0])
            && let Some(second) = WrittenCall::find(two, first.end, NAMES[1])
        {
            let between = &two[first.end..second.at];
            let each = common_end(before, between.trim());
            if !each.is_empty() && each != before {
                format.open = before[..before.len() - each.len()].trim().to_owned();
                format.each = each.to_owned();
            }
            marks.extend(tags(&between[..between.trim_end().len() - each.len()]));
            marks.extend(tags(text_before_marker(&two[second.end..], ends_turn.as_deref())));
        }
        marks.extend(tags(text_before_marker(&one[first.end..], ends_turn.as_deref())));
        for mark in marks {
            let is_known = format.closers.contains(&mark) || mark == format.open || mark == format.each;
            if !is_known && mark != "," && mark != ";" && mark.len() <= MAX_MARK_BYTES {
                format.closers.push(mark);
            }
        }
        let is_bounded = format.marks().len() <= MAX_MARKS && format.closers.len() <= MAX_MARKS;
        (is_bounded && format.marks().iter().all(|mark| mark.len() <= MAX_MARK_BYTES)).then_some(format)
    }

    /// The end of a turn without tool calls.
    fn turn_end(&self) -> Option<String> {
        let turns = [("user", QUESTION), ("assistant", ANSWER), ("user", QUESTION)];
        let turns = turns.map(|(role, content)| json!({"role": role, "content": content}));
        let text = self.write(&turns, false, false)?;
        let (_, behind) = text.split_once(ANSWER)?;
        tags(behind).into_iter().next()
    }
}

/// The text before a marker; all of it if the marker is absent.
fn text_before_marker<'a>(text: &'a str, mark: Option<&str>) -> &'a str {
    mark.and_then(|mark| text.split_once(mark)).map_or("", |(before, _)| before)
}

/// A tool call in a template's output.
struct WrittenCall {
    /// The offset of its JSON, or of its name.
    at: usize,
    end: usize,
    shape: Shape,
}

impl WrittenCall {
    fn find(text: &str, from: usize, name: &str) -> Option<WrittenCall> {
        let named = from + text[from..].find(name)?;
        let before = text[from..named].match_indices(['{', '[']).map(|(at, _)| from + at);
        let mut in_json = before.filter_map(|at| {
            let (value, end) = json_at(text, at)?;
            let is_call = parse_calls(value)?.first()?.name == name;
            is_call.then_some(WrittenCall { at, end, shape: Shape::Json })
        });
        if let Some(written) = in_json.find(|written| written.end > named) {
            return Some(written);
        }
        let behind = named + name.len();
        if let Some(written) = WrittenCall::tagged(text, named, behind) {
            return Some(written);
        }
        let (start, (value, end)) = text[behind..]
            .match_indices('{')
            .find_map(|(at, _)| Some((behind + at, json_at(text, behind + at)?)))?;
        if value.get(KEY).and_then(Value::as_str) != Some(VALUE) {
            return None;
        }
        let between = text[behind..start].trim();
        let id = IDS.iter().find_map(|id| between.split_once(id));
        let (between, behind_id) =
            id.map_or((between, ""), |(before, behind)| (before.trim(), behind.trim()));
        let shape = Shape::Named { between: between.to_owned(), behind_id: behind_id.to_owned() };
        Some(WrittenCall { at: named, end, shape })
    }

    /// A call with its argument in tags.
    fn tagged(text: &str, named: usize, behind: usize) -> Option<WrittenCall> {
        let (before_key, rest) = text[behind..].split_once(KEY)?;
        let (key_end, rest) = rest.split_once(VALUE)?;
        let mut closing = tags(rest).into_iter();
        let (value_end, end) = (closing.next()?, closing.next()?);
        let begins_key = before_key.rfind(['<', '['])?;
        let (name_end, key) = before_key.split_at(begins_key);
        let tags = CallTags {
            name_end: name_end.trim().to_owned(),
            key: key.trim().to_owned(),
            key_end: tags(key_end),
            value_end,
            end,
        };
        let is_mark = |mark: &str| mark.starts_with(['<', '[']) && mark.len() <= MAX_MARK_BYTES;
        let are_marks = is_mark(&tags.value_end) && is_mark(&tags.end) && !tags.key_end.is_empty();
        let is_short = before_key.len() + key_end.len() <= MAX_MARK_BYTES;
        let end = text.len() - rest.len();
        let end = end + rest.find(&tags.value_end)? + tags.value_end.len();
        let end = end + text[end..].find(&tags.end)? + tags.end.len();
        (are_marks && is_short).then_some(WrittenCall { at: named, end, shape: Shape::Tagged(tags) })
    }
}

/// The JSON object or list at an offset, and its end.
fn json_at(text: &str, at: usize) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, at + values.byte_offset()))
}

/// The offset of a turn in `text`. `begun` is the same conversation with the beginning of another turn. A tag
/// with the same beginning in both is not split.
fn turn_start(text: &str, begun: &str) -> usize {
    let common = common_start(text, begun);
    match text[..common].rfind(['<', '[', '>', ']']) {
        Some(at) if text[at..].starts_with(['<', '[']) => at,
        _ => common,
    }
}

fn common_start(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// The common tags at the end of both texts.
fn common_end<'a>(a: &'a str, b: &str) -> &'a str {
    let len: usize =
        a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    let end = &a[a.len() - len..];
    // Do not split a tag.
    let starts = if len == a.len() { Some(0) } else { end.find(['<', '[']) };
    starts.map_or("", |at| end[at..].trim())
}

/// The last tag of a text, or its last line.
fn last_tag(text: &str) -> &str {
    let text = text.trim_end();
    let opens = match text.chars().last() {
        Some('>') => '<',
        Some(']') => '[',
        _ => '\n',
    };
    text.rfind(opens).map_or("", |at| text[at..].trim())
}

/// The tags and words of a text.
fn tags(text: &str) -> Vec<String> {
    let mut tags = Vec::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '<' => rest.find('>').map(|at| at + 1),
            '[' => rest.find(']').map(|at| at + 1),
            _ => rest.find(|c: char| c.is_whitespace() || c == '<' || c == '['),
        };
        let (tag, behind) = rest.split_at(end.unwrap_or(rest.len()));
        tags.push(tag.to_owned());
        rest = behind.trim_start();
    }
    tags
}
