//! A card's Markdown as HTML: comrak renders it, with the HTML that it contains, and ammonia keeps what can do
//! nothing.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use ammonia::{Builder, UrlRelative};
use comrak::adapters::{HeadingAdapter, HeadingMeta};
use comrak::arena_tree::NodeEdge;
use comrak::nodes::{AstNode, NodeCodeBlock, NodeLink, NodeMath, NodeValue, Sourcepos};
use comrak::options::Plugins;
use comrak::{Anchorizer, Arena, Options, format_html_with_plugins, parse_document};

use super::highlight::{Highlighter, Language};
use super::html_limits::{MAX_ATTRIBUTES, MAX_DEPTH, depth_of, most_attributes};
use super::inserts::Inserts;
use super::links::{CardLinks, ID_PREFIX, is_absolute};
use super::math::Formulas;
use super::split_front_matter;

/// Elements beyond ammonia's usual ones.
const MORE_TAGS: [&str; 5] = ["input", "picture", "section", "source", "figcaption"];
/// The most characters of a description.
const MAX_SUMMARY_CHARS: usize = 240;
/// How much of a card is searched for its first paragraph.
const SUMMARY_BYTES: usize = 16 * 1024;

/// The card as HTML, without its front matter. It is expensive: run it off the async threads. `None` if `is_late`
/// returns true before it is complete: some malformed HTML takes time in proportion to the square of its length.
pub(crate) fn render_card(text: &str, links: &CardLinks, is_late: &dyn Fn() -> bool) -> Option<String> {
    let (_, body) = split_front_matter(text);
    let arena = Arena::new();
    let options = options();
    let root = parse_document(&arena, body, &options);
    let inserts = Arc::new(replace_nodes(root, body));
    let mut html = String::new();
    // Writing to a string does not fail.
    let headings = Headings { anchorizer: Mutex::default(), inserts: inserts.clone() };
    let mut plugins = Plugins::default();
    plugins.render.heading_adapter = Some(&headings);
    let _infallible = format_html_with_plugins(root, &options, &mut html, &plugins);
    // The sanitiser takes time in proportion to the depth for each element, and to the attributes of a tag for each of
    // them.
    let problem = if depth_of(&html) > MAX_DEPTH {
        Some("Its elements are nested too deeply to be shown.")
    } else if most_attributes(&html) > MAX_ATTRIBUTES {
        Some("One of its elements has too many attributes to be shown.")
    } else {
        None
    };
    if let Some(problem) = problem {
        let text = ammonia::clean_text(body);
        return Some(format!("<p>{problem} This is its text:</p><pre tabindex=\"0\">{text}</pre>"));
    }
    let reader = TimedReader { rest: html.as_bytes(), is_late };
    let cleaned = sanitiser(links.clone(), inserts.clone()).clean_from_reader(reader).ok()?;
    Some(inserts.fill(&cleaned.to_string()))
}

/// Passes HTML to the sanitiser, which reads a few KiB at a time. Fails when the time is over.
struct TimedReader<'a> {
    rest: &'a [u8],
    is_late: &'a dyn Fn() -> bool,
}

impl io::Read for TimedReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match (self.is_late)() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => self.rest.read(buf),
        }
    }
}

/// Replaces the parts of a card that are shown in another way than Markdown has: headings, pictures, formulas and code.
fn replace_nodes<'a>(root: &'a AstNode<'a>, body: &str) -> Inserts {
    let mut inserts = Inserts::new(body);
    let (mut formulas, mut highlighter) = (Formulas::default(), Highlighter::default());
    let mut pictures = 0_usize;
    for edge in root.traverse() {
        let node = match edge {
            NodeEdge::Start(node) => node,
            NodeEdge::End(node) => {
                pictures -= usize::from(matches!(node.data.borrow().value, NodeValue::Image(_)));
                continue;
            }
        };
        let mut data = node.data.borrow_mut();
        let replaced = match &mut data.value {
            // The page's own heading is the first one.
            NodeValue::Heading(heading) => {
                heading.level = (heading.level + 1).min(6);
                None
            }
            // Pictures of other hosts become links: a page must not report its readers to them.
            NodeValue::Image(link) if is_absolute(&link.url) => {
                let link = NodeLink { url: link.url.clone(), title: link.title.clone() };
                Some(NodeValue::Link(Box::new(link)))
            }
            NodeValue::Image(_) => {
                pictures += 1;
                None
            }
            // The description of a picture is an attribute.
            NodeValue::Math(math) if pictures > 0 => Some(NodeValue::Text(math_source(math).into())),
            NodeValue::Math(math) => {
                let placed = formulas.render(&math.literal, math.display_math);
                let placed = placed.and_then(|html| inserts.add(html));
                Some(NodeValue::Text(placed.unwrap_or_else(|| math_source(math)).into()))
            }
            NodeValue::CodeBlock(block) => code_block(block, (&mut formulas, &mut highlighter), &mut inserts),
            _ => None,
        };
        if let Some(value) = replaced {
            data.value = value;
        }
    }
    inserts
}

/// A formula as its author wrote it.
fn math_source(math: &NodeMath) -> String {
    let (open, close) = match (math.dollar_math, math.display_math) {
        (true, true) => ("$$", "$$"),
        (true, false) => ("$", "$"),
        (false, _) => ("$`", "`$"),
    };
    format!("{open}{}{close}", math.literal)
}

/// Gives a block of code its colours; returns what takes the place of a block of math.
fn code_block(
    block: &mut NodeCodeBlock,
    (formulas, highlighter): (&mut Formulas, &mut Highlighter),
    inserts: &mut Inserts,
) -> Option<NodeValue> {
    let name = block.info.split([' ', '\t', ',', '{']).next().unwrap_or_default();
    if name == "math" {
        let html = formulas.render(&block.literal, true)?;
        return inserts.add(format!("<p>{html}</p>\n")).map(NodeValue::Raw);
    }
    let html = highlighter.highlight(Language::from_name(name)?, &block.literal)?;
    block.literal = inserts.add(html)?;
    None
}

/// The first paragraph of a card as one line of plain text.
pub(crate) fn summary_line(text: &str) -> Option<String> {
    let (_, body) = split_front_matter(text);
    let mut end = body.len().min(SUMMARY_BYTES);
    while !body.is_char_boundary(end) {
        end -= 1;
    }
    let arena = Arena::new();
    let root = parse_document(&arena, &body[..end], &options());
    for node in root.children() {
        if !matches!(node.data.borrow().value, NodeValue::Paragraph) {
            continue;
        }
        let mut line = String::new();
        for below in node.descendants() {
            match &below.data.borrow().value {
                // The text of pictures and badges is no description.
                NodeValue::Image(_) => break,
                NodeValue::Text(text) => line.push_str(text),
                NodeValue::Code(code) => line.push_str(&code.literal),
                NodeValue::Math(math) => line.push_str(&math.literal),
                NodeValue::SoftBreak | NodeValue::LineBreak => line.push(' '),
                _ => {}
            }
        }
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.chars().filter(|c| c.is_alphabetic()).count() >= 8 {
            return Some(cut(&line));
        }
    }
    None
}

fn cut(line: &str) -> String {
    if line.chars().count() <= MAX_SUMMARY_CHARS {
        return line.to_owned();
    }
    let cut: String = line.chars().take(MAX_SUMMARY_CHARS).collect();
    let end = cut.rfind(' ').unwrap_or(cut.len());
    format!("{} …", &cut[..end])
}

fn options() -> Options<'static> {
    let mut options = Options::default();
    options.extension.strikethrough = true;
    options.extension.table = true;
    options.extension.autolink = true;
    options.extension.tasklist = true;
    options.extension.footnotes = true;
    options.extension.alerts = true;
    // Not TeX's own `\(` and `\[`, which are escaped brackets in Markdown.
    options.extension.math_dollars = true;
    options.extension.math_code = true;
    options.render.r#unsafe = true;
    options
}

/// Headings with ids that the card's own links name, without comrak's empty links. ammonia adds the prefix of all ids.
struct Headings {
    anchorizer: Mutex<Anchorizer>,
    inserts: Arc<Inserts>,
}

impl HeadingAdapter for Headings {
    fn enter(&self, output: &mut dyn fmt::Write, heading: &HeadingMeta, _: Option<Sourcepos>) -> fmt::Result {
        let content = self.inserts.strip(&heading.content);
        let id = self.anchorizer.lock().unwrap_or_else(PoisonError::into_inner).anchorize(&content);
        // Ids consist of letters, digits, `-` and `_`.
        write!(output, "<h{} id=\"{id}\">", heading.level)
    }

    fn exit(&self, output: &mut dyn fmt::Write, heading: &HeadingMeta) -> fmt::Result {
        writeln!(output, "</h{}>", heading.level)
    }
}

fn sanitiser(links: CardLinks, inserts: Arc<Inserts>) -> Builder<'static> {
    let mut builder = Builder::default();
    builder
        .add_tags(MORE_TAGS)
        // A label or a button of a card could pretend to be the page's.
        .rm_tags(["map", "area"])
        .add_tag_attributes("input", ["type", "checked", "disabled"])
        .set_tag_attribute_value("input", "disabled", "")
        .set_tag_attribute_value("input", "type", "checkbox")
        .set_tag_attribute_value("input", "aria-label", "Task")
        // Long lines and wide tables scroll, by keyboard too.
        .set_tag_attribute_value("pre", "tabindex", "0")
        .set_tag_attribute_value("table", "tabindex", "0")
        .add_tag_attributes("a", ["id"])
        .add_tag_attributes("img", ["width", "height", "loading"])
        .add_tag_attributes("source", ["srcset", "media"])
        .add_generic_attributes(["align", "id"])
        .id_prefix(Some(ID_PREFIX))
        .url_schemes(HashSet::from(["http", "https", "mailto"]))
        .url_relative(UrlRelative::PassThrough)
        .link_rel(Some("nofollow noopener noreferrer"))
        .add_allowed_classes("div", ALERTS)
        .add_allowed_classes("p", ["markdown-alert-title"])
        .attribute_filter(move |element, attribute, value| match (element, attribute) {
            _ if inserts.is_in(value) => None,
            ("a", "href") => links.link(value).map(Cow::Owned),
            ("img", "src") => links.picture(value).map(Cow::Owned),
            // One address, without sizes.
            ("source", "srcset") if value.contains([' ', ',']) => None,
            ("source", "srcset") => links.picture(value).map(Cow::Owned),
            // Addresses that only quote where something comes from.
            (_, "cite") => None,
            _ => Some(Cow::Borrowed(value)),
        });
    builder
}

const ALERTS: [&str; 6] = [
    "markdown-alert",
    "markdown-alert-note",
    "markdown-alert-tip",
    "markdown-alert-important",
    "markdown-alert-warning",
    "markdown-alert-caution",
];
