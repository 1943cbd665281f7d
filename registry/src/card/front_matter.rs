//! The YAML before a card's text. A value of an unexpected type loses that value, never the others.

use serde_json::Value;

/// The largest front matter that is read.
const MAX_BYTES: usize = 64 * 1024;
const MAX_DEPTH: usize = 16;
const MAX_NODES: usize = 20_000;
const MAX_ALIASES: usize = 16;
/// Longer lists are cut.
const MAX_ITEMS: usize = 64;
/// Longer texts are cut.
const MAX_CHARS: usize = 300;

/// The facts that a card states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrontMatter {
    pub(crate) title: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) library: Option<String>,
    pub(crate) languages: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) datasets: Vec<String>,
    pub(crate) base_models: Vec<String>,
}

/// The front matter of a card, without its delimiters, and the text after it.
pub(crate) fn split_front_matter(text: &str) -> (Option<&str>, &str) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some((first, rest)) = text.split_once('\n') else { return (None, text) };
    if first.trim_end() != "---" {
        return (None, text);
    }
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return (Some(&rest[..at]), &rest[at + line.len()..]);
        }
        at += line.len();
    }
    // Without a closing line, all of it is text.
    (None, text)
}

impl FrontMatter {
    /// Reads YAML. What is too large or malformed states nothing.
    pub(crate) fn parse(yaml: &str) -> FrontMatter {
        let Ok(value) = read(yaml) else { return FrontMatter::default() };
        let license = match text(&value["license"]) {
            // The licence of its own has a name.
            Some(license) if license == "other" => text(&value["license_name"]).or(Some(license)),
            license => license,
        };
        FrontMatter {
            title: text(&value["model_name"]).or_else(|| text(&value["title"])),
            license: license.or_else(|| texts(&value["license"]).into_iter().next()),
            task: text(&value["pipeline_tag"]),
            library: text(&value["library_name"]),
            languages: texts(&value["language"]),
            tags: texts(&value["tags"]),
            datasets: texts(&value["datasets"]),
            base_models: texts(&value["base_model"]),
        }
    }
}

/// How much of a card contains its front matter: a larger one is not read.
pub(crate) const FRONT_MATTER_BYTES: u64 = MAX_BYTES as u64 + 64;

/// The front matter of a card as JSON. `None` if it has none, or none that can be read.
pub(crate) fn front_matter_json(card: &str) -> Option<Value> {
    let yaml = split_front_matter(card).0?;
    read(yaml).ok().filter(Value::is_object)
}

/// Checks that the front matter of a card, if it has any, can be read. The error is for its author.
pub(crate) fn check_front_matter(card: &str) -> Result<(), String> {
    let Some(yaml) = split_front_matter(card).0 else { return Ok(()) };
    match read(yaml)? {
        Value::Object(_) | Value::Null => Ok(()),
        _ => {
            Err("the metadata before the text is no mapping: expected lines such as `license: mit`"
                .to_owned())
        }
    }
}

fn read(yaml: &str) -> Result<Value, String> {
    if yaml.len() > MAX_BYTES {
        return Err(format!("the metadata before the text has more than {MAX_BYTES} bytes"));
    }
    let budget = serde_saphyr::budget! {
        max_events: MAX_NODES,
        max_aliases: MAX_ALIASES,
        max_anchors: MAX_ALIASES,
        max_depth: MAX_DEPTH,
        max_documents: 1,
        max_nodes: MAX_NODES,
        max_total_scalar_bytes: MAX_BYTES,
        max_merge_keys: MAX_ALIASES,
    };
    let mut options = serde_saphyr::options! { budget: budget, with_snippet: false };
    options.alias_limits.max_total_replayed_events = MAX_NODES;
    serde_saphyr::from_str_with_options::<Value>(yaml, options).map_err(|error| wrong_yaml(&error))
}

/// Why a text is not valid YAML, with its line in the card, which has a line `---` before.
fn wrong_yaml(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let Some(at) = error.location() else {
        return format!("the metadata before the text is not valid YAML: {text}");
    };
    let place = format!(" at line {}, column {}", at.line(), at.column());
    let reason = text.strip_suffix(&place).unwrap_or(&text);
    format!("line {} of the card is not valid YAML: {reason}", at.line() + 1)
}

fn text(value: &Value) -> Option<String> {
    let plain: String = match value {
        Value::String(text) => text.trim().chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect(),
        Value::Number(number) => number.to_string(),
        // `language: no` is Norwegian.
        Value::Bool(value) => if *value { "yes" } else { "no" }.to_owned(),
        _ => return None,
    };
    Some(plain).filter(|text| !text.is_empty())
}

/// A text, or a list of texts.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().filter_map(text).take(MAX_ITEMS).collect(),
        value => text(value).into_iter().collect(),
    }
}
