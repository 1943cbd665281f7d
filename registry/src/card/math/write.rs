//! Writes the parser's events as MathML of a few elements and attributes, without links, styles and colours. What is
//! not balanced, or has too few arguments, is no formula.

use std::fmt::Write;

use pulldown_latex::event::{
    ArrayColumn, ColumnAlignment, Content, DelimiterSize, DelimiterType, Dimension, DimensionUnit,
    EnvironmentFlow, Event, Font, Grouping, ScriptPosition, ScriptType, StateChange, Style, Visual,
};

use super::fonts::styled;
use crate::card::highlight::escape;

/// Elements may be nested this deeply.
const MAX_DEPTH: usize = 100;
/// The widest space. A formula stays at its place on the page.
const MAX_SPACE_EM: f32 = 10.0;
/// The stroke through the character before it.
const NEGATION: char = '\u{338}';
/// A row with a line above it.
const RULE: &str = " class=\"math-rule\">";
const NO_BREAK_SPACE: char = '\u{a0}';

/// An element that is open.
enum Open {
    Group {
        close: Close,
        /// The outer font and style.
        outer: State,
    },
    /// It has this many children left.
    Arguments { left: u8, tag: &'static str, is_above_below: bool, outer: State },
}

enum Close {
    /// `mrow`, with a delimiter at its end.
    Row(Option<char>),
    Table(Table),
}

struct Table {
    columns: Columns,
    /// Where the attributes of the current row begin in the HTML.
    row: usize,
    column: usize,
    /// The delimiter after it.
    delimiter: Option<char>,
}

/// How the columns of a table are aligned.
enum Columns {
    All(ColumnAlignment),
    /// Right and left in turn, as equations around their signs.
    Equations,
    Array(Box<[ArrayColumn]>),
}

#[derive(Clone, Copy, Default)]
struct State {
    font: Option<Font>,
    style: Option<Style>,
}

pub(super) struct Writer {
    html: String,
    open: Vec<Open>,
    state: State,
    is_display: bool,
    /// An operator after it has two operands.
    is_after_operand: bool,
    /// The next character is negated.
    is_negated: bool,
    /// The limits of the next operator may be at its right.
    has_movable_limits: bool,
    max_bytes: usize,
}

impl Writer {
    pub(super) fn new(is_display: bool, max_bytes: usize) -> Writer {
        let begin = match is_display {
            // A wide formula scrolls, by keyboard too.
            true => "<span class=\"math\" tabindex=\"0\"><math display=\"block\"><mrow>",
            false => "<math><mrow>",
        };
        Writer {
            html: begin.to_owned(),
            open: Vec::new(),
            state: State::default(),
            is_display,
            is_after_operand: false,
            is_negated: false,
            has_movable_limits: false,
            max_bytes,
        }
    }

    pub(super) fn finish(mut self) -> Option<String> {
        if !self.open.is_empty() {
            return None;
        }
        self.html.push_str(if self.is_display { "</mrow></math></span>" } else { "</mrow></math>" });
        Some(self.html)
    }

    /// `None` if it cannot be shown.
    pub(super) fn write(&mut self, event: Event<'_>) -> Option<()> {
        // A stroke through more than one character cannot be shown.
        if self.is_negated && !matches!(event, Event::Content(_) | Event::StateChange(_)) {
            return None;
        }
        match event {
            Event::Content(content) => {
                self.content(content);
                self.child_end();
            }
            Event::Begin(grouping) => self.begin(grouping),
            Event::End => {
                self.end()?;
                self.child_end();
            }
            Event::Visual(visual) => self.visual(visual),
            Event::Script { ty, position } => self.script(ty, position),
            Event::Space { width, height, depth } => {
                self.space(width, height, depth);
                self.child_end();
            }
            Event::StateChange(StateChange::Font(font)) => self.state.font = font,
            Event::StateChange(StateChange::Style(style)) => self.state.style = Some(style),
            Event::StateChange(StateChange::Color(_)) => {}
            Event::EnvironmentFlow(flow) => self.flow(flow)?,
        }
        (self.open.len() <= MAX_DEPTH && self.html.len() <= self.max_bytes).then_some(())
    }

    /// Begins an element with the attributes of the style; the caller adds others and `>`.
    fn tag(&mut self, tag: &str) {
        self.html.push('<');
        self.html.push_str(tag);
        self.html.push_str(match self.state.style {
            None => "",
            Some(Style::Display) => " displaystyle=\"true\" scriptlevel=\"0\"",
            Some(Style::Text) => " displaystyle=\"false\" scriptlevel=\"0\"",
            Some(Style::Script) => " displaystyle=\"false\" scriptlevel=\"1\"",
            Some(Style::ScriptScript) => " displaystyle=\"false\" scriptlevel=\"2\"",
        });
    }

    /// An element with text.
    fn leaf(&mut self, tag: &'static str, attributes: &str, text: &str) {
        self.tag(tag);
        self.html.push_str(attributes);
        self.html.push('>');
        escape(text, &mut self.html);
        if std::mem::take(&mut self.is_negated) {
            self.html.push(NEGATION);
        }
        self.html.push_str("</");
        self.html.push_str(tag);
        self.html.push('>');
    }

    /// Closes the elements whose last child has been written.
    fn child_end(&mut self) {
        while let Some(Open::Arguments { left, tag, outer, .. }) = self.open.last_mut() {
            *left = left.saturating_sub(1);
            if *left > 0 {
                return;
            }
            self.html.push_str("</");
            self.html.push_str(tag);
            self.html.push('>');
            self.state = *outer;
            self.open.pop();
            self.is_after_operand = true;
        }
    }

    /// Whether the next element is above or below another.
    fn is_accent(&self) -> bool {
        matches!(self.open.last(), Some(Open::Arguments { left: 1, is_above_below: true, .. }))
    }

    fn content(&mut self, content: Content<'_>) {
        let mut is_operand = true;
        let limits = match std::mem::take(&mut self.has_movable_limits) {
            true => " movablelimits=\"true\"",
            false => " movablelimits=\"false\"",
        };
        match content {
            Content::Text(text) => self.text(text),
            Content::Number(number) => {
                let font = self.state.font;
                let digits: String = number.chars().map(|c| font.map_or(c, |font| styled(font, c))).collect();
                self.leaf("mn", "", &digits);
            }
            Content::Function(name) => {
                is_operand = false;
                // The parser has the text between the braces as it is.
                let name = name.replace("\\,", "\u{2009}").replace(['\\', '{', '}'], "");
                let attributes = format!(" form=\"prefix\" lspace=\"0\" rspace=\"0.1667em\"{limits}");
                self.leaf("mo", &attributes, &name);
            }
            Content::Ordinary { content, stretchy } => self.ordinary(content, stretchy),
            Content::LargeOp { content, small } => {
                is_operand = false;
                let size = if small { " largeop=\"false\"" } else { "" };
                self.leaf("mo", &format!("{size}{limits}"), content.encode_utf8(&mut [0; 4]));
            }
            Content::BinaryOp { content, .. } => {
                let form = if self.is_after_operand { "" } else { " form=\"prefix\"" };
                is_operand = false;
                self.leaf("mo", form, content.encode_utf8(&mut [0; 4]));
            }
            Content::Relation { content, .. } => {
                is_operand = false;
                let mut buffer = [0; 8];
                let relation = content.encode_utf8_to_buf(&mut buffer);
                let relation = String::from_utf8_lossy(relation).into_owned();
                self.leaf("mo", "", &relation);
            }
            Content::Delimiter { content, size, ty } => {
                is_operand = ty == DelimiterType::Close;
                let size = match size {
                    None if ty == DelimiterType::Fence => " symmetric=\"true\" stretchy=\"true\"",
                    None => " stretchy=\"false\"",
                    Some(DelimiterSize::Big) => " symmetric=\"true\" minsize=\"1.2em\" maxsize=\"1.2em\"",
                    Some(DelimiterSize::BIG) => " symmetric=\"true\" minsize=\"1.8em\" maxsize=\"1.8em\"",
                    Some(DelimiterSize::Bigg) => " symmetric=\"true\" minsize=\"2.4em\" maxsize=\"2.4em\"",
                    Some(DelimiterSize::BIGG) => " symmetric=\"true\" minsize=\"3em\" maxsize=\"3em\"",
                };
                self.leaf("mo", size, content.encode_utf8(&mut [0; 4]));
            }
            Content::Punctuation(content) => {
                is_operand = false;
                self.leaf("mo", "", content.encode_utf8(&mut [0; 4]));
            }
        }
        self.is_after_operand = is_operand;
    }

    fn text(&mut self, text: &str) {
        // The parser's text for `~`.
        let text = if text == "&nbsp;" { " " } else { text };
        let begin = text.len() - text.trim_start().len();
        let mut shown = String::with_capacity(text.len());
        // Browsers drop blanks at both ends.
        shown.extend((begin > 0).then_some(NO_BREAK_SPACE));
        shown.push_str(text.trim());
        shown.extend(
            (text.trim_end().len() < text.len() && !text.trim().is_empty()).then_some(NO_BREAK_SPACE),
        );
        if let Some(font) = self.state.font {
            shown = shown.chars().map(|c| styled(font, c)).collect();
        }
        self.leaf("mtext", "", &shown);
    }

    fn ordinary(&mut self, content: char, stretchy: bool) {
        let buffer = &mut [0; 4];
        if stretchy || (self.is_accent() && !content.is_alphanumeric()) {
            let attribute = if stretchy { " stretchy=\"true\"" } else { " stretchy=\"false\"" };
            return self.leaf("mo", attribute, content.encode_utf8(buffer));
        }
        // A single letter is italic otherwise. Greek capitals are not, in TeX.
        let is_upright = match self.state.font {
            None => content.is_uppercase() && !content.is_ascii(),
            Some(font) => font == Font::UpRight,
        };
        let shown = self.state.font.map_or(content, |font| styled(font, content));
        let attribute = if is_upright { " mathvariant=\"normal\"" } else { "" };
        self.leaf("mi", attribute, shown.encode_utf8(buffer));
    }

    fn begin(&mut self, grouping: Grouping) {
        self.is_after_operand = false;
        let (columns, open, delimiter) = match grouping {
            Grouping::Normal => return self.begin_row(None, None),
            Grouping::LeftRight(open, close) => return self.begin_row(open, close),
            Grouping::Array(columns) => (Columns::Array(columns), None, None),
            Grouping::Matrix { alignment } | Grouping::SubArray { alignment } => {
                (Columns::All(alignment), None, None)
            }
            Grouping::Cases { left: true } => (Columns::All(ColumnAlignment::Left), Some('{'), None),
            Grouping::Cases { left: false } => (Columns::All(ColumnAlignment::Left), None, Some('}')),
            Grouping::Align { .. }
            | Grouping::Aligned
            | Grouping::Alignat { .. }
            | Grouping::Alignedat { .. }
            | Grouping::Split => (Columns::Equations, None, None),
            Grouping::Equation { .. } | Grouping::Gather { .. } | Grouping::Gathered | Grouping::Multline => {
                (Columns::All(ColumnAlignment::Center), None, None)
            }
        };
        let is_display = matches!(columns, Columns::Equations);
        let outer = self.begin_element("mrow", "");
        self.fence(open);
        self.html.push_str(if is_display { "<mtable displaystyle=\"true\">" } else { "<mtable>" });
        self.state = State::default();
        self.html.push_str("<mtr");
        let mut table = Table { columns, row: self.html.len(), column: 0, delimiter };
        self.html.push('>');
        self.begin_cell(&mut table);
        self.open.push(Open::Group { close: Close::Table(table), outer });
    }

    /// Begins an element that has the current style, so that those within it need no style; returns the outer state.
    fn begin_element(&mut self, tag: &'static str, attributes: &str) -> State {
        self.tag(tag);
        self.html.push_str(attributes);
        self.html.push('>');
        let inner = State { font: self.state.font, style: None };
        std::mem::replace(&mut self.state, inner)
    }

    fn begin_row(&mut self, open: Option<char>, close: Option<char>) {
        let outer = self.begin_element("mrow", "");
        self.fence(open);
        self.open.push(Open::Group { close: Close::Row(close), outer });
    }

    fn begin_arguments(&mut self, tag: &'static str, attributes: &str, left: u8, is_above_below: bool) {
        let outer = self.begin_element(tag, attributes);
        self.open.push(Open::Arguments { left, tag, is_above_below, outer });
    }

    fn begin_cell(&mut self, table: &mut Table) {
        self.html.push_str(table.class().unwrap_or("<mtd>"));
        table.column += 1;
        self.state = State::default();
        self.is_after_operand = false;
    }

    fn fence(&mut self, delimiter: Option<char>) {
        if let Some(delimiter) = delimiter {
            self.html.push_str("<mo symmetric=\"true\" stretchy=\"true\">");
            escape(delimiter.encode_utf8(&mut [0; 4]), &mut self.html);
            self.html.push_str("</mo>");
        }
    }

    fn end(&mut self) -> Option<()> {
        let Some(Open::Group { close, outer }) = self.open.pop() else { return None };
        let delimiter = match close {
            Close::Row(delimiter) => delimiter,
            Close::Table(table) => {
                self.html.push_str("</mtd></mtr></mtable>");
                table.delimiter
            }
        };
        self.fence(delimiter);
        self.html.push_str("</mrow>");
        self.state = outer;
        self.is_after_operand = true;
        Some(())
    }

    fn visual(&mut self, visual: Visual) {
        self.is_after_operand = false;
        match visual {
            Visual::SquareRoot => self.begin_arguments("msqrt", "", 1, false),
            Visual::Root => self.begin_arguments("mroot", "", 2, false),
            Visual::Fraction(None) => self.begin_arguments("mfrac", "", 2, false),
            Visual::Fraction(Some(line)) => {
                let line = format!(" linethickness=\"{}em\"", em(line).min(1.0));
                self.begin_arguments("mfrac", &line, 2, false);
            }
            Visual::Negation => self.is_negated = true,
        }
    }

    fn script(&mut self, ty: ScriptType, position: ScriptPosition) {
        let is_above_below = position != ScriptPosition::Right;
        let (tag, left) = match (ty, is_above_below) {
            (ScriptType::Subscript, false) => ("msub", 2),
            (ScriptType::Superscript, false) => ("msup", 2),
            (ScriptType::SubSuperscript, false) => ("msubsup", 3),
            (ScriptType::Subscript, true) => ("munder", 2),
            (ScriptType::Superscript, true) => ("mover", 2),
            (ScriptType::SubSuperscript, true) => ("munderover", 3),
        };
        self.begin_arguments(tag, "", left, is_above_below);
        // Browsers move them to the right of the operator where there is little height.
        self.has_movable_limits = position == ScriptPosition::Movable;
    }

    fn space(&mut self, width: Option<Dimension>, height: Option<Dimension>, depth: Option<Dimension>) {
        self.tag("mspace");
        for (name, dimension) in [("width", width), ("height", height), ("depth", depth)] {
            if let Some(dimension) = dimension {
                // Writing to a string does not fail.
                let _infallible = write!(self.html, " {name}=\"{}em\"", em(dimension));
            }
        }
        self.html.push_str("></mspace>");
    }

    fn flow(&mut self, flow: EnvironmentFlow) -> Option<()> {
        let Some(Open::Group { close: Close::Table(mut table), outer }) = self.open.pop() else {
            return None;
        };
        match flow {
            EnvironmentFlow::Alignment => self.html.push_str("</mtd>"),
            EnvironmentFlow::NewLine { horizontal_lines, .. } => {
                self.html.push_str("</mtd></mtr><mtr");
                table.row = self.html.len();
                table.column = 0;
                self.html.push_str(if horizontal_lines.is_empty() { ">" } else { RULE });
            }
            EnvironmentFlow::StartLines { lines } => {
                // The first row has begun, and is empty.
                if !lines.is_empty() {
                    self.html.truncate(table.row);
                    table.column = 0;
                    self.html.push_str(RULE);
                    self.begin_cell(&mut table);
                }
                self.open.push(Open::Group { close: Close::Table(table), outer });
                return Some(());
            }
        }
        self.begin_cell(&mut table);
        self.open.push(Open::Group { close: Close::Table(table), outer });
        Some(())
    }
}

impl Table {
    /// The beginning of the next cell, if it has a class.
    fn class(&self) -> Option<&'static str> {
        let aligned = |alignment: ColumnAlignment| match alignment {
            ColumnAlignment::Left => Some("<mtd class=\"math-left\">"),
            ColumnAlignment::Center => None,
            ColumnAlignment::Right => Some("<mtd class=\"math-right\">"),
        };
        match &self.columns {
            Columns::All(alignment) => aligned(*alignment),
            Columns::Equations if self.column.is_multiple_of(2) => aligned(ColumnAlignment::Right),
            Columns::Equations => aligned(ColumnAlignment::Left),
            Columns::Array(columns) => {
                let mut has_line = false;
                let mut cells = columns.iter().filter_map(|column| match column {
                    ArrayColumn::Separator(_) => {
                        has_line = true;
                        None
                    }
                    ArrayColumn::Column(alignment) => Some((*alignment, std::mem::take(&mut has_line))),
                });
                match cells.nth(self.column)? {
                    (ColumnAlignment::Left, true) => Some("<mtd class=\"math-left math-line\">"),
                    (ColumnAlignment::Center, true) => Some("<mtd class=\"math-line\">"),
                    (ColumnAlignment::Right, true) => Some("<mtd class=\"math-right math-line\">"),
                    (alignment, false) => aligned(alignment),
                }
            }
        }
    }
}

/// A length, at most that of the widest space. None is negative: a formula does not overlap the text around it.
fn em(dimension: Dimension) -> f32 {
    let unit = match dimension.unit {
        DimensionUnit::Em => 1.0,
        DimensionUnit::Mu => 1.0 / 18.0,
        DimensionUnit::Ex => 0.43,
        DimensionUnit::Pt | DimensionUnit::Bp | DimensionUnit::Dd => 0.1,
        DimensionUnit::Pc | DimensionUnit::Cc => 1.2,
        DimensionUnit::In => 7.2,
        DimensionUnit::Cm => 2.85,
        DimensionUnit::Mm => 0.285,
        DimensionUnit::Sp => 0.0,
    };
    let length = dimension.value * unit;
    // What is not a number is not above 0 either.
    let length = if length > 0.0 { length.min(MAX_SPACE_EM) } else { 0.0 };
    (length * 1000.0).round() / 1000.0
}
