//! The program as a client: runs `lode list`, `lode create` and other commands against a server under test.
//! Standard output, standard error and the exit code are captured separately, because scripts rely on all
//! three.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::server::{Server, TIMEOUT, lode_command};

/// The result of a finished command.
#[derive(Debug, Clone)]
pub struct CommandOutput {
    /// The exit code, or -1 if a signal ended the process.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CommandOutput {
    /// Fails the test unless the command succeeded.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        assert_eq!(self.code, 0, "exit code {}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr);
        self
    }

    /// Fails the test unless the command failed with exit code 1 and an `error:` that contains all of
    /// `naming`.
    #[track_caller]
    pub fn expect_failure(&self, naming: &[&str]) {
        assert_eq!(self.code, 1, "exit code {}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr);
        assert!(self.stderr.contains("error:"), "no `error:` in {}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        for word in naming {
            assert!(self.stderr.contains(word), "the error does not contain `{word}`: {}", self.stderr);
        }
    }

    /// Fails the test unless the command failed with exit code 1 and exactly this error.
    #[track_caller]
    pub fn expect_error(&self, text: &str) {
        assert_eq!((self.code, self.stderr.as_str()), (1, format!("error: {text}\n").as_str()));
    }

    /// Standard output as JSON.
    ///
    /// # Panics
    ///
    /// If it is not JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.stdout))
    }
}

/// Runs commands against one server.
pub struct Lode {
    host: String,
    home: PathBuf,
    env: Vec<(String, String)>,
}

impl Server {
    /// The program as a client of this server.
    #[must_use]
    pub fn lode(&self) -> Lode {
        Lode { host: self.url(), home: self.folder().path().to_owned(), env: Vec::new() }
    }

    /// The program as a client of this server, with a home of its own and so with other credentials.
    #[must_use]
    pub fn lode_of(&self, person: &str) -> Lode {
        let home = self.folder().path().join(person);
        std::fs::create_dir_all(&home).expect("a folder");
        Lode { home, ..self.lode() }
    }
}

impl Lode {
    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The file in which commands save credentials.
    #[must_use]
    pub fn credentials_file(&self) -> PathBuf {
        self.home.join(".config/lode/credentials.json")
    }

    /// The command with these arguments, not yet started.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = lode_command(&self.home);
        command.args(args).env("LODE_HOST", &self.host).envs(self.env.iter().map(|(k, v)| (k, v)));
        command.current_dir(&self.home).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command and waits for it.
    pub async fn run(&self, args: &[&str]) -> CommandOutput {
        run_to_end(self.command(args), Vec::new()).await
    }

    /// Runs a command with this standard input and waits for it.
    pub async fn run_with_input(&self, args: &[&str], input: &[u8]) -> CommandOutput {
        let mut command = self.command(args);
        command.stdin(Stdio::piped());
        run_to_end(command, input.to_vec()).await
    }

    /// Imports a checkpoint.
    pub async fn create(&self, name: &str, path: &Path, more: &[&str]) -> CommandOutput {
        let path = path.to_str().expect("a UTF-8 path");
        self.run(&[&["create", name, path], more].concat()).await
    }
}

/// Runs a command outside the async threads and waits for it. Fails the test if the command does not end in
/// time.
pub async fn run_to_end(mut command: Command, input: Vec<u8>) -> CommandOutput {
    let shown = format!("{command:?}");
    let work = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?} starts: {e}"));
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(&input); // a command that fails early does not read its input
        }
        let output = child.wait_with_output().expect("the command can be waited for");
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    });
    let started = Instant::now();
    match tokio::time::timeout(TIMEOUT * 2, work).await {
        Ok(finished) => finished.expect("the command ran"),
        Err(_) => panic!("{shown} is still running after {:?}", started.elapsed()),
    }
}

/// Runs another program, waits for it, and fails the test unless it succeeds.
#[track_caller]
pub fn run_successfully(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?} starts: {e}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Runs another program, waits for it, and fails the test unless it failed. Returns its output.
#[track_caller]
pub fn run_to_failure(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?} starts: {e}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success(), "{command:?} succeeded\n{stdout}\n{stderr}");
    format!("{stdout}\n{stderr}")
}

/// Runs another program that has to fail, and fails the test unless its output contains exactly this line. The time
/// at the start of a line of a log does not count.
#[track_caller]
pub fn run_refused(command: &mut Command, line: &str) {
    let text = run_to_failure(command);
    assert!(
        text.lines().any(|found| without_time(found) == line),
        "{command:?}: no line `{line}` in:\n{text}"
    );
}

fn without_time(line: &str) -> &str {
    line.strip_prefix("time=").and_then(|rest| rest.split_once(' ')).map_or(line, |(_, rest)| rest)
}

/// Polls `attempt` until it returns a value, without blocking the test's other tasks.
pub async fn wait_for<T, R>(what: &str, mut attempt: impl FnMut() -> R) -> T
where
    R: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Polls `holds` until it returns true.
pub async fn wait_until<R>(what: &str, mut holds: impl FnMut() -> R)
where
    R: Future<Output = bool>,
{
    wait_for(what, || {
        let attempt = holds();
        async { attempt.await.then_some(()) }
    })
    .await;
}
