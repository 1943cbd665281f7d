//! Model cards: Markdown with facts in YAML before it. The facts are read leniently, and the text becomes HTML that
//! can do nothing: a card is written by a stranger. Pure.

mod code;
mod front_matter;
mod highlight;
mod html_limits;
mod inserts;
mod links;
mod math;
mod render;
#[cfg(test)]
mod tests;

pub(crate) use code::{has_colours, render_code};
pub(crate) use front_matter::{
    FRONT_MATTER_BYTES, FrontMatter, check_front_matter, front_matter_json, split_front_matter,
};
pub(crate) use links::{CardLinks, encode_path};
pub(crate) use render::{render_card, summary_line};

/// The largest card that is read. The rest of a longer one is not shown.
pub(crate) const MAX_CARD_BYTES: u64 = 1024 * 1024;
