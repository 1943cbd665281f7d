//! Tables for people. On a terminal a table leaves out its optional columns until it fits, and then cuts the texts
//! of its last column; in a pipe, and with `--wide`, it has all columns and texts.

use std::borrow::Cow;

use crate::{error::Outcome, ui};

/// Spaces between two columns.
const GAP: usize = 2;
/// The least width to which texts are cut.
const MIN_CUT: usize = 12;
/// Ends a text that is cut.
const DOTS: &str = "...";

/// Rows of text under a line of titles. Each column is as wide as its widest cell; the last one is not padded.
pub(crate) struct Table<'a> {
    head: &'a [&'a str],
    rows: &'a [Vec<String>],
    optional: &'a [&'a str],
    cuts_last: bool,
    wide: bool,
}

impl<'a> Table<'a> {
    pub(crate) fn new(head: &'a [&'a str], rows: &'a [Vec<String>]) -> Table<'a> {
        Table { head, rows, optional: &[], cuts_last: false, wide: false }
    }

    /// The columns that may be left out, the least important first.
    #[must_use]
    pub(crate) fn optional(mut self, titles: &'a [&'a str]) -> Table<'a> {
        self.optional = titles;
        self
    }

    /// The last column has texts to read, which may be cut.
    #[must_use]
    pub(crate) fn cut_last(mut self) -> Table<'a> {
        self.cuts_last = true;
        self
    }

    /// Keeps all columns on a terminal, too.
    #[must_use]
    pub(crate) fn wide(mut self, wide: bool) -> Table<'a> {
        self.wide = wide;
        self
    }

    pub(crate) fn print(self) -> Outcome {
        let limit = if self.wide { None } else { ui::terminal_width() };
        self.lines(limit).into_iter().try_for_each(ui::print_line)
    }

    fn lines(&self, limit: Option<usize>) -> Vec<String> {
        let mut rows: Vec<Vec<Cow<'_, str>>> =
            self.rows.iter().map(|row| row.iter().map(|cell| ui::escape_control(cell)).collect()).collect();
        let mut widths: Vec<usize> = self.head.iter().map(|title| title.chars().count()).collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut shown: Vec<usize> = (0..self.head.len()).collect();
        let mut optional = self.optional.iter();
        while limit.is_some_and(|limit| total_width(&shown, &widths) > limit) {
            let Some(title) = optional.next() else { break };
            shown.retain(|column| self.head[*column] != *title);
        }
        if let (Some(limit), Some(&last), true) = (limit, shown.last(), self.cuts_last) {
            let over = total_width(&shown, &widths).saturating_sub(limit);
            let most = widths[last].saturating_sub(over).max(MIN_CUT);
            for cell in rows.iter_mut().filter_map(|row| row.get_mut(last)) {
                cut(cell, most);
            }
        }
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells =
                shown.iter().map(|column| format!("{:<width$}", cell(*column), width = widths[*column]));
            cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
        };
        let head = line(&|column| self.head[column].to_owned());
        let body = rows.iter().map(|row| {
            line(&|column| row.get(column).map_or_else(String::new, |cell| cell.clone().into_owned()))
        });
        std::iter::once(head).chain(body).collect()
    }
}

/// Cuts a text that has more than `most` characters.
fn cut(text: &mut Cow<'_, str>, most: usize) {
    if text.chars().count() > most {
        let kept = text.chars().take(most.saturating_sub(DOTS.len()));
        *text = Cow::Owned(kept.chain(DOTS.chars()).collect());
    }
}

fn total_width(columns: &[usize], widths: &[usize]) -> usize {
    let cells: usize = columns.iter().map(|column| widths[*column]).sum();
    cells + GAP * columns.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_leave_out_optional_columns_until_they_fit() {
        let rows = [
            vec![
                "team/mini:latest".to_owned(),
                "0123456789ab".to_owned(),
                "8.7 MB".to_owned(),
                "ready".to_owned(),
            ],
            vec!["x".to_owned(), "b".to_owned(), "1 B".to_owned(), "a\nb".to_owned()],
        ];
        let head = ["NAME", "DIGEST", "SIZE", "STATUS"];
        let table = Table::new(&head, &rows).optional(&["DIGEST", "STATUS"]);
        let check =
            |limit: Option<usize>, expect: &[&str]| assert_eq!(table.lines(limit), expect, "{limit:?}");
        let all = [
            "NAME              DIGEST        SIZE    STATUS",
            "team/mini:latest  0123456789ab  8.7 MB  ready",
            "x                 b             1 B     a\\nb",
        ];
        check(None, &all);
        check(Some(46), &all);
        let narrow = [
            "NAME              SIZE    STATUS",
            "team/mini:latest  8.7 MB  ready",
            "x                 1 B     a\\nb",
        ];
        check(Some(45), &narrow);
        check(Some(32), &narrow);
        let least = ["NAME              SIZE", "team/mini:latest  8.7 MB", "x                 1 B"];
        check(Some(31), &least);
        // Required columns stay.
        check(Some(5), &least);
    }

    #[test]
    fn texts_of_the_last_column_are_cut_until_they_fit() {
        let rows = [
            vec!["019a".to_owned(), "the storage \u{fc}ber there is full".to_owned()],
            vec!["019b".to_owned(), "short".to_owned()],
        ];
        let table = Table::new(&["ID", "PROBLEM"], &rows).cut_last();
        assert_eq!(
            table.lines(Some(26)),
            ["ID    PROBLEM", "019a  the storage \u{fc}ber ...", "019b  short"]
        );
        assert_eq!(table.lines(Some(5))[1], "019a  the stora...");
        for limit in [None, Some(38)] {
            assert_eq!(table.lines(limit)[1], "019a  the storage \u{fc}ber there is full");
        }
    }
}
