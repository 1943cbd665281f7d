//! The server under test: `lode serve` as a process, with a free port and a scratch folder.
//! A test starts a server, sends requests, stops or kills it, and restarts it on the same folder.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::oci::Registry;

/// The deadline for a process to do one thing, after which the test fails.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// The program under test: LODE_BIN, or the debug build.
#[must_use]
pub fn lode_bin() -> PathBuf {
    let path = std::env::var_os("LODE_BIN")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debug/lode"), PathBuf::from);
    assert!(path.is_file(), "no program at {}; run `cargo build` or set LODE_BIN", path.display());
    path
}

/// A command for the program, with its own home and without the caller's LODE_* variables.
#[must_use]
pub fn lode_command(home: &Path) -> Command {
    with_own_home(Command::new(lode_bin()), home)
}

/// A command that passes a listening socket to the program, as systemd does for a `.socket` unit.
#[allow(unsafe_code)]
fn socket_activated(socket: &TcpListener, home: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg("LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"").arg(lode_bin());
    let fd = socket.as_raw_fd();
    assert_ne!(fd, 3, "descriptor 3 of a test process is in use");
    // SAFETY: dup2 may be called between fork and exec. The copy stays open in the program.
    unsafe {
        command
            .pre_exec(move || if libc::dup2(fd, 3) == 3 { Ok(()) } else { Err(io::Error::last_os_error()) });
    }
    with_own_home(command, home)
}

fn with_own_home(mut command: Command, home: &Path) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LODE_") {
            command.env_remove(name);
        }
    }
    command
        .env_remove("HTTP_PROXY")
        .env_remove("HTTPS_PROXY")
        .env_remove("http_proxy")
        .env_remove("https_proxy");
    command.env("HOME", home).env("XDG_CONFIG_HOME", home.join(".config")).env_remove("XDG_STATE_HOME");
    command.stdin(Stdio::null());
    command
}

/// A scratch folder, which several servers may use one after another. It is deleted with the last clone.
#[derive(Clone)]
pub struct Folder {
    root: Arc<TempDir>,
    data: PathBuf,
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// A new folder, with the server's data folder at `data` in it.
    #[must_use]
    pub fn new() -> Self {
        let root = tempfile::Builder::new().prefix("lode-e2e-").tempdir().expect("a scratch folder");
        let data = root.path().join("data");
        Self { root: Arc::new(root), data }
    }

    /// A new folder with the server's data folder elsewhere, for instance on a tmpfs.
    #[must_use]
    pub fn with_data(data: PathBuf) -> Self {
        Self { data, ..Self::new() }
    }

    /// The scratch folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// The server's data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Starts a server without a worker and waits until it is ready.
    pub async fn serve(&self) -> Server {
        self.start(Options::default()).await
    }

    /// Starts a server and waits until it is ready.
    ///
    /// # Panics
    ///
    /// If the server exits or is not ready within [`TIMEOUT`]. The message contains its output.
    pub async fn start(&self, options: Options) -> Server {
        let mut server = self.spawn(&options);
        server.wait_for_address().await;
        if !options.without_waiting {
            server.wait_ready().await;
        }
        server
    }

    /// Starts a server without waiting.
    ///
    /// # Panics
    ///
    /// If the program does not start.
    #[must_use]
    pub fn spawn(&self, options: &Options) -> Server {
        let log = tempfile::Builder::new()
            .prefix("serve-")
            .suffix(".log")
            .tempfile_in(self.path())
            .expect("a log file");
        let (output, log) = log.keep().expect("a persistent log file");
        let mut command = match &options.socket {
            Some(socket) => socket_activated(socket, self.path()),
            None => lode_command(self.path()),
        };
        command
            .arg("serve")
            .args(["--listen", options.listen.as_deref().unwrap_or("127.0.0.1:0")])
            .arg("--data")
            .arg(&self.data);
        if !options.worker {
            command.arg("--no-worker");
        }
        command.args(&options.args).envs(options.env.iter().map(|(k, v)| (k, v)));
        command.current_dir(self.path()).stdout(output.try_clone().expect("a second handle")).stderr(output);
        command.process_group(0); // so that `drop` can also kill its runners
        let started = Instant::now();
        let child = command.spawn().expect("the program starts");
        Server {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            log,
            started,
            folder: self.clone(),
            ended: None,
        }
    }

    /// Starts a server that is expected to exit on its own, and returns its exit status and output.
    pub async fn start_refused(&self, options: Options) -> (ExitStatus, String) {
        let mut server = self.spawn(&options);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = server.try_wait() {
                return (status, server.output());
            }
            assert!(
                Instant::now() < deadline,
                "the server is running, but should have refused to start:\n{}",
                server.output()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The options of a server.
#[derive(Clone, Default)]
pub struct Options {
    args: Vec<String>,
    env: Vec<(String, String)>,
    listen: Option<String>,
    socket: Option<Arc<TcpListener>>,
    worker: bool,
    without_waiting: bool,
}

impl Options {
    /// No worker, and wait for readiness: the options for most registry tests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Enables the local worker.
    #[must_use]
    pub fn worker(mut self) -> Self {
        self.worker = true;
        self
    }

    /// Adds an argument of `lode serve`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the listening address, instead of a free port on 127.0.0.1.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Passes this listening socket to the server.
    #[must_use]
    pub fn socket(mut self, socket: &Arc<TcpListener>) -> Self {
        self.socket = Some(socket.clone());
        self
    }

    /// Makes [`Folder::start`] return as soon as the address is known.
    #[must_use]
    pub fn without_waiting(mut self) -> Self {
        self.without_waiting = true;
        self
    }
}

/// A running `lode serve`.
pub struct Server {
    child: Child,
    /// Its listening address.
    pub address: SocketAddr,
    /// The file with its standard output and standard error.
    pub log: PathBuf,
    /// When it was started.
    pub started: Instant,
    folder: Folder,
    ended: Option<ExitStatus>,
}

impl Server {
    /// Starts a server on a new folder, without a worker.
    pub async fn fresh() -> Self {
        Folder::new().start(Options::new()).await
    }

    /// Starts a server on a new folder, with its local worker.
    pub async fn fresh_with_worker() -> Self {
        Folder::new().start(Options::new().worker()).await
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A registry client for this server.
    #[must_use]
    pub fn registry(&self) -> Registry {
        Registry::new(self.url())
    }

    /// The folder that the server was started on.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The exit status, if the process has exited.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("the process can be waited for");
        }
        self.ended
    }

    /// Kills the server with SIGKILL and waits until it has ended.
    pub fn kill(mut self) {
        self.kill_now();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        signal(self.child.id(), libc::SIGTERM);
    }

    /// Waits until the process has ended.
    ///
    /// # Panics
    ///
    /// If the process has not ended after [`TIMEOUT`].
    pub async fn wait_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.try_wait() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server did not stop:\n{}", self.output());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the server gracefully and returns its exit status.
    pub async fn stop(mut self) -> ExitStatus {
        self.terminate();
        self.wait_end().await
    }

    /// Peak resident memory in bytes (VmHWM).
    #[must_use]
    pub fn peak_memory_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Current resident memory in bytes (VmRSS).
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("a status of the running process");
        let line =
            status.lines().find_map(|line| line.strip_prefix(key)).expect("a status names the resident set");
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number of KiB");
        kib * 1024
    }

    async fn wait_for_address(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let output = self.output();
            if let Some(address) = address_in(&output) {
                self.address = address;
                return;
            }
            if let Some(status) = self.try_wait() {
                panic!("the server exited with {status} before it listened:\n{}", self.output());
            }
            assert!(Instant::now() < deadline, "the server printed no address:\n{output}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the output contains `text`, and returns all output.
    ///
    /// # Panics
    ///
    /// If this takes longer than [`TIMEOUT`].
    pub async fn wait_output(&self, text: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let output = self.output();
            if output.contains(text) {
                return output;
            }
            assert!(Instant::now() < deadline, "the server did not write \"{text}\":\n{output}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until `/readyz` returns 200.
    pub async fn wait_ready(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        let registry = self.registry();
        let mut last = String::new();
        while Instant::now() < deadline {
            if let Some(status) = self.try_wait() {
                panic!("the server exited with {status} before it was ready:\n{}", self.output());
            }
            match registry.http.get(registry.at("/readyz")).send().await {
                Ok(response) if response.status() == 200 => return,
                Ok(response) => last = response.text().await.unwrap_or_default(),
                Err(e) => last = e.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the server was not ready: {last}\n{}", self.output());
    }

    fn kill_now(&mut self) {
        if self.try_wait().is_none() {
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_now();
        signal_group(self.child.id(), libc::SIGKILL);
        if std::thread::panicking() {
            crate::report::figure("output of the server of a failed test", &tail(&self.output(), 4000));
        }
    }
}

/// The last part of a text.
fn tail(text: &str, bytes: usize) -> String {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

/// The first complete `listening on http://IP:PORT` in a text that may still grow.
#[must_use]
pub fn address_in(text: &str) -> Option<SocketAddr> {
    text.split("listening on http").skip(1).find_map(|rest| {
        let rest = rest.strip_prefix('s').unwrap_or(rest).strip_prefix("://")?;
        // An address at the end of the text may be incomplete, so another character must follow.
        let end = rest.find(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c)))?;
        rest[..end]
            .trim_end_matches(['.', ':'])
            .parse::<SocketAddr>()
            .ok()
            .filter(|address| address.port() != 0)
    })
}

/// Sends a signal to a process. It is no error if the process has ended.
#[allow(unsafe_code)]
pub fn signal(pid: u32, number: i32) {
    // SAFETY: kill takes two integers and accesses no memory.
    unsafe { libc::kill(pid.cast_signed(), number) };
}

#[allow(unsafe_code)]
fn signal_group(pid: u32, number: i32) {
    // SAFETY: killpg takes two integers and accesses no memory. `process_group(0)` created the group, and its
    // id is the process id of the leader.
    unsafe { libc::killpg(pid.cast_signed(), number) };
}

/// A file for the standard output and standard error of a child process.
#[must_use]
pub fn output_file(path: &Path) -> (Stdio, Stdio) {
    let file = File::create(path).expect("an output file");
    (Stdio::from(file.try_clone().expect("a second handle")), Stdio::from(file))
}
