//! The line editor of a chat: keys, history and multi-line input, by rustyline.

use std::{
    fs::{DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustyline::{
    Behavior, CompletionType, Config, Context,
    completion::Completer,
    error::{ReadlineError, Signal},
    highlight::Highlighter,
    hint::Hinter,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::{commands, names};
use crate::{
    connect,
    error::{Failure, Outcome},
    ui,
};

const PROMPT: &str = ">>> ";
/// Entries that the history file keeps.
const MAX_HISTORY: usize = 2000;

/// What the user typed.
pub(super) enum Input {
    /// A message or a command, of one or several lines.
    Text(String),
    /// Ctrl-C: the text was discarded.
    Interrupted,
    /// Ctrl-D without a text, or the end of the input.
    End,
}

pub(super) struct Editor {
    lines: rustyline::Editor<Helper, FileHistory>,
    /// `None` if there is no place for a history.
    history: Option<PathBuf>,
    pub(super) keeps_history: bool,
}

impl Editor {
    pub(super) fn open() -> Outcome<Editor> {
        // The editor writes to the terminal, even if standard output is a pipe.
        let behavior = if ui::stdout_is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder()
            .behavior(behavior)
            .completion_type(CompletionType::List)
            .max_history_size(MAX_HISTORY)
            .map_err(failure)?
            .build();
        let mut lines = rustyline::Editor::with_config(config).map_err(failure)?;
        lines.set_helper(Some(Helper));
        let mut editor = Editor { lines, history: None, keeps_history: true };
        if let Some(folder) = connect::state_folder() {
            let path = folder.join("history");
            match editor.load_history(&path) {
                Ok(()) => editor.history = Some(path),
                Err(error) => ui::print_message(format!(
                    "notice: {} cannot be used; the history ends with this chat: {error}",
                    path.display()
                )),
            }
        }
        Ok(editor)
    }

    fn load_history(&mut self, path: &Path) -> rustyline::Result<()> {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        // rustyline replaces a file that is missing, but appends to an existing one under a lock.
        OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        self.lines.load_history(path)
    }

    /// Reads a message or a command. Blocks until the user sends it.
    pub(super) fn read(&mut self) -> Outcome<Input> {
        match self.lines.readline(PROMPT) {
            Ok(text) => {
                self.remember(&text);
                Ok(Input::Text(text))
            }
            Err(ReadlineError::Interrupted | ReadlineError::Signal(Signal::Interrupt)) => {
                Ok(Input::Interrupted)
            }
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(error) => Err(failure(error)),
        }
    }

    fn remember(&mut self, text: &str) {
        if !self.keeps_history || text.trim().is_empty() {
            return;
        }
        let added = self.lines.add_history_entry(text);
        // Other chats append to the same file.
        if let (Ok(true), Some(path)) = (added, &self.history)
            && let Err(error) = self.lines.append_history(path)
        {
            ui::print_message(format!("notice: cannot write {}: {error}", path.display()));
            self.history = None;
        }
    }
}

fn failure(error: ReadlineError) -> Failure {
    match error {
        ReadlineError::Io(error) => error.into(),
        error => io::Error::other(error).into(),
    }
}

/// The behaviour of the editor that is specific to the chat.
struct Helper;

impl rustyline::Helper for Helper {}
impl Highlighter for Helper {}
impl Hinter for Helper {
    type Hint = String;
}

/// Enter inserts a line break while quotes are open.
impl Validator for Helper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match commands::has_open_quotes(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

/// Tab completes the words of a command.
impl Completer for Helper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(names::complete(&line[..position]))
    }
}
