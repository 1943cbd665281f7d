//! A pseudo-terminal with a program in it: types keys, and reads the screen as a person would see it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::server::TIMEOUT;

/// The prompt of `lode run`.
const PROMPT: &str = ">>>";
/// What a line editor sends before each prompt: the terminal marks pasted text from now on.
const PASTE_MARKS_ON: &[u8] = b"\x1b[?2004h";

/// Keys that send more than a character.
pub mod keys {
    /// Enter.
    pub const ENTER: &str = "\r";
    /// Cursor up: the previous entry of the history.
    pub const UP: &str = "\x1b[A";
    /// Cursor left.
    pub const LEFT: &str = "\x1b[D";
    /// Completion.
    pub const TAB: &str = "\t";
    /// Interrupt.
    pub const CTRL_C: &str = "\x03";
    /// Deletes the line that is being edited.
    pub const CTRL_U: &str = "\x15";
    /// End of the input.
    pub const CTRL_D: &str = "\x04";
    /// What a terminal sends before pasted text.
    pub const PASTE_START: &str = "\x1b[200~";
    /// What a terminal sends after pasted text.
    pub const PASTE_END: &str = "\x1b[201~";
}

/// A program on its own terminal. It is killed when this is dropped.
pub struct Terminal {
    child: Child,
    keyboard: File,
    output: Arc<Mutex<Output>>,
    /// How many prompts the test has waited for.
    prompts: usize,
}

struct Output {
    screen: vt100::Parser,
    bytes: Vec<u8>,
}

impl Terminal {
    /// Starts the program on a terminal of this size.
    #[must_use]
    pub fn start(mut command: Command, rows: u16, columns: u16) -> Self {
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        Self::start_with_all_streams(command, rows, columns)
    }

    /// Starts the program on a terminal whose user wants no styles.
    #[must_use]
    pub fn start_plain(mut command: Command, rows: u16, columns: u16) -> Self {
        command.env("TERM", "xterm-256color").env("NO_COLOR", "1");
        Self::start_with_all_streams(command, rows, columns)
    }

    /// Starts the program on a terminal that knows no escape codes.
    #[must_use]
    pub fn start_dumb(mut command: Command, rows: u16, columns: u16) -> Self {
        command.env("TERM", "dumb").env_remove("NO_COLOR");
        Self::start_with_all_streams(command, rows, columns)
    }

    fn start_with_all_streams(mut command: Command, rows: u16, columns: u16) -> Self {
        let (ours, theirs) = open_terminal(rows, columns).expect("a pseudo-terminal");
        let handle = || theirs.try_clone().expect("a handle of the terminal");
        command.stdin(handle()).stdout(handle()).stderr(handle());
        Self::spawn(command, ours, rows, columns)
    }

    /// Starts the program with a terminal as its standard input only.
    #[must_use]
    pub fn start_with_input(mut command: Command, rows: u16, columns: u16) -> Self {
        let (ours, theirs) = open_terminal(rows, columns).expect("a pseudo-terminal");
        command.stdin(theirs);
        Self::spawn(command, ours, rows, columns)
    }

    fn spawn(mut command: Command, ours: OwnedFd, rows: u16, columns: u16) -> Self {
        control_terminal(&mut command);
        let child = command.spawn().expect("the program starts");
        drop(command); // with our handles of the program's side: reading ends when the program does
        let keyboard = File::from(ours);
        let output = Arc::new(Mutex::new(Output {
            screen: vt100::Parser::new(cells(rows), cells(columns), 0),
            bytes: Vec::new(),
        }));
        let (mut reader, sink) = (keyboard.try_clone().expect("a second handle"), output.clone());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails when the program has ended.
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                let mut output = sink.lock().expect("the output");
                output.screen.process(&buffer[..length]);
                output.bytes.extend_from_slice(&buffer[..length]);
            }
        });
        Self { child, keyboard, output, prompts: 0 }
    }

    /// Presses keys.
    ///
    /// # Panics
    ///
    /// If the terminal is closed.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("an open terminal");
    }

    /// Types a line, sends it and waits for the next prompt. Returns the screen.
    pub async fn enter(&mut self, line: &str) -> String {
        self.press(line);
        self.press(keys::ENTER);
        self.prompt().await
    }

    /// Waits for the next prompt of the line editor. Returns the screen.
    pub async fn prompt(&mut self) -> String {
        self.prompts += 1;
        let prompts = self.prompts;
        self.wait("a prompt", |output| {
            let shown = output.bytes.windows(PASTE_MARKS_ON.len()).filter(|part| *part == PASTE_MARKS_ON);
            shown.count() >= prompts && output.cursor_line() == PROMPT
        })
        .await
    }

    /// Waits until the screen contains a text. Returns the screen.
    pub async fn text(&self, text: &str) -> String {
        self.wait(text, |output| output.screen.screen().contents().contains(text)).await
    }

    /// Waits until the program has written a text, which may have left the screen since.
    pub async fn written(&self, text: &str) {
        let text = text.as_bytes();
        self.wait(&String::from_utf8_lossy(text), |output| {
            output.bytes.windows(text.len()).any(|part| part == text)
        })
        .await;
    }

    /// Waits until the cursor's line is this one.
    pub async fn line(&self, line: &str) -> String {
        self.wait(line, |output| output.cursor_line() == line).await
    }

    async fn wait(&self, what: &str, holds: impl Fn(&Output) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let seen = {
                let output = self.output();
                let seen = output.screen.screen().contents();
                if holds(&output) {
                    return seen;
                }
                seen
            };
            assert!(Instant::now() < deadline, "the terminal did not show `{what}`:\n{seen}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Changes the size of the terminal, as a window does.
    ///
    /// # Panics
    ///
    /// If the terminal is closed.
    #[allow(unsafe_code)]
    pub fn resize(&mut self, rows: u16, columns: u16) {
        use std::os::fd::AsRawFd;
        self.output().screen.screen_mut().set_size(cells(rows), cells(columns));
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: TIOCSWINSZ reads one `winsize`, which lives during the call.
        let result = unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// Everything that the program wrote, with its escape codes.
    #[must_use]
    pub fn bytes(&self) -> String {
        String::from_utf8_lossy(&self.output().bytes).into_owned()
    }

    /// Waits until the program has ended.
    ///
    /// # Panics
    ///
    /// If it runs longer than [`TIMEOUT`].
    pub async fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().expect("the program can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "the program is still running:\n{}", self.bytes());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().expect("the output")
    }
}

impl Output {
    fn cursor_line(&self) -> String {
        let screen = self.screen.screen();
        let (row, _) = screen.cursor_position();
        let (_, columns) = screen.size();
        screen.rows(0, columns.get()).nth(row.into()).unwrap_or_default().trim_end().to_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            crate::report::figure("terminal of a failed test", &self.bytes());
        }
    }
}

fn cells(number: u16) -> NonZero<u16> {
    NonZero::new(number).expect("a terminal has rows and columns")
}

/// A new terminal: our side, and the program's.
#[allow(unsafe_code)]
fn open_terminal(rows: u16, columns: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: openpty writes two descriptors and reads one `winsize`; its name and settings may be null.
    let result = unsafe {
        libc::openpty(&raw mut ours, &raw mut theirs, std::ptr::null_mut(), std::ptr::null(), &raw const size)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: openpty has opened both, and nothing else has them.
    let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    Ok((close_on_exec(ours)?, close_on_exec(theirs)?))
}

/// Another test may start a program at the same time, which must not keep the terminal open.
#[allow(unsafe_code)]
fn close_on_exec(fd: OwnedFd) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    // SAFETY: F_SETFD takes an integer and accesses no memory.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } {
        0 => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the terminal on standard input the one that sends the program its signals.
#[allow(unsafe_code)]
fn control_terminal(command: &mut Command) {
    // SAFETY: setsid and ioctl may be called between fork and exec, and access no memory here.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() == -1 || libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}
