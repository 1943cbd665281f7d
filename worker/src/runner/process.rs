//! The worker's handle on a runner process: start, watch, stop. A runner that dies fails only the requests in
//! progress.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::{oneshot, watch};

use super::client::Client;
use crate::child_env;

/// How long to wait for a runner to open its socket.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(5);
/// How long a runner may take to exit before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Sockets are at `lode-runner-*/s`, in folders that only their owner may enter.
const FOLDER_PREFIX: &str = "lode-runner-";
const SOCKET: &str = "s";

/// Why a runner did not start.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The log has the program's path.
    #[error("failed to start a runner")]
    Spawn(#[source] io::Error),
    #[error("cannot create a folder for the runner's socket")]
    Socket(#[source] io::Error),
    #[error("the runner exited before it was ready")]
    Ended,
    #[error("the runner was not ready after {} seconds", READY_TIMEOUT.as_secs())]
    NotReady,
}

/// Starts runners. The scheduler's tests start theirs in process.
pub trait Launch: Send + Sync + 'static {
    /// Starts a new runner without a model and waits until it responds.
    fn launch(&self) -> BoxFuture<'static, Result<Runner, ProcessError>>;
}

/// Starts runners as processes: `PROGRAM runner --socket PATH`.
#[derive(Debug, Clone)]
pub struct Program {
    pub path: PathBuf,
    /// Environment variables for them, in addition to the inherited ones.
    pub env: Vec<(String, String)>,
}

/// A running runner; dropping it stops it.
pub struct Runner {
    client: Client,
    ended: watch::Receiver<bool>,
    control: Arc<dyn Control>,
}

/// The process behind a socket.
pub trait Control: Send + Sync + 'static {
    /// Asks it to exit. Called at least once, from `stop` or from drop.
    fn close(&self);
    /// Kills it.
    fn kill(&self);
    /// The memory that it uses now, without the files that it maps.
    fn anonymous_bytes(&self) -> u64;
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Runner {
    /// `ended` turns true when the process has ended.
    pub fn new(client: Client, ended: watch::Receiver<bool>, control: Arc<dyn Control>) -> Runner {
        Runner { client, ended, control }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn is_alive(&self) -> bool {
        !*self.ended.borrow()
    }

    /// Returns a function that measures the memory that the runner uses, without the files that it maps.
    pub fn anonymous_bytes(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let control = self.control.clone();
        move || control.anonymous_bytes()
    }

    /// Resolves when the runner has ended, for whatever reason.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            // An error means that the watcher has ended, and so has the runner.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// Asks the runner to exit, kills it if it does not, and returns when it has ended and its memory is
    /// free.
    pub async fn stop(&self) {
        self.control.close();
        if tokio::time::timeout(STOP_TIMEOUT, self.ended()).await.is_err() {
            self.control.kill();
            self.ended().await;
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.control.close();
        self.control.kill();
    }
}

struct Process {
    /// The runner exits when this closes, so it also exits when this process dies.
    stdin: Mutex<Option<ChildStdin>>,
    pid: u32,
    pidfd: rustix::fd::OwnedFd,
}

impl Control for Process {
    fn close(&self) {
        self.stdin.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    }

    fn kill(&self) {
        // Fails only if the process has already ended.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn anonymous_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        parse_anonymous(&status)
    }
}

/// `RssAnon` of a process's status, in bytes.
fn parse_anonymous(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

impl Launch for Program {
    fn launch(&self) -> BoxFuture<'static, Result<Runner, ProcessError>> {
        let program = self.clone();
        Box::pin(async move {
            let folder = tokio::task::spawn_blocking(socket_folder).await.map_err(|_| ProcessError::Ended)?;
            let folder = folder.map_err(ProcessError::Socket)?;
            let socket = folder.0.join(SOCKET);
            let (ended_sender, ended) = watch::channel(false);
            let (spawned_sender, spawned) = oneshot::channel();
            let child_socket = socket.clone();
            // The thread that starts a runner waits for its end: the kernel's parent-death signal is tied to
            // that thread.
            std::thread::Builder::new()
                .name("runner".into())
                .spawn(move || {
                    spawn_and_wait(&program, &child_socket, spawned_sender);
                    drop(folder);
                    let _ = ended_sender.send(true);
                })
                .map_err(ProcessError::Socket)?;
            let process = spawned.await.map_err(|_| ProcessError::Ended)??;
            let runner = Runner::new(Client::new(socket), ended, Arc::new(process));
            wait_until_ready(&runner).await?;
            Ok(runner)
        })
    }
}

/// Starts the child, sends its handle to `spawned`, and waits for its end.
fn spawn_and_wait(program: &Program, socket: &Path, spawned: oneshot::Sender<Result<Process, ProcessError>>) {
    let failed = |source| {
        tracing::error!(program = %program.path.display(), error = %source, "failed to start a runner");
        ProcessError::Spawn(source)
    };
    let child = Command::new(&program.path)
        .env_clear()
        .envs(child_env::inherited())
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .arg("runner")
        .arg("--socket")
        .arg(socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            let _ = spawned.send(Err(failed(error)));
            return;
        }
    };
    let pidfd = rustix::process::Pid::from_raw(child.id() as i32)
        .ok_or_else(|| io::Error::other("no process id"))
        .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
    match pidfd {
        Ok(pidfd) => {
            // If the receiver was dropped, the pipe closes here and the child exits.
            let _ =
                spawned.send(Ok(Process { stdin: Mutex::new(child.stdin.take()), pid: child.id(), pidfd }));
        }
        Err(error) => {
            let _ = child.kill();
            let _ = spawned.send(Err(failed(error)));
        }
    }
    // `wait` does not close the child's standard input, because it was taken out above.
    match child.wait() {
        Ok(status) if status.success() => tracing::debug!(pid = child.id(), "runner exited"),
        Ok(status) => tracing::warn!(pid = child.id(), %status, "runner exited"),
        Err(error) => tracing::error!(pid = child.id(), %error, "failed to wait for runner"),
    }
}

async fn wait_until_ready(runner: &Runner) -> Result<(), ProcessError> {
    let ready = async {
        while runner.client.status().await.is_err() {
            tokio::time::sleep(READY_POLL).await;
        }
    };
    tokio::select! {
        _ = runner.ended() => Err(ProcessError::Ended),
        ready = tokio::time::timeout(READY_TIMEOUT, ready) => ready.map_err(|_| ProcessError::NotReady),
    }
}

/// Creates a folder that only this user may enter, with a path short enough for a socket address. It is
/// removed when dropped.
fn socket_folder() -> io::Result<SocketFolder> {
    let base = std::env::temp_dir();
    // A socket address has at most 108 bytes.
    let base = if base.as_os_str().len() > 64 { PathBuf::from("/tmp") } else { base };
    remove_stale_folders(&base);
    let id = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    let folder = base.join(format!("{FOLDER_PREFIX}{id:016x}"));
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(SocketFolder(folder))
}

/// Removes the folders of killed workers: those whose socket refuses connections.
fn remove_stale_folders(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(FOLDER_PREFIX));
        let is_old = || {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > READY_TIMEOUT))
        };
        if is_ours && is_old() {
            let socket = std::os::unix::net::UnixStream::connect(entry.path().join(SOCKET));
            let stale_kinds = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
            if socket.is_err_and(|error| stale_kinds.contains(&error.kind())) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

struct SocketFolder(PathBuf);

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::write_program;

    /// A program that runs `body` and writes its process id into the same folder.
    fn script(folder: &Path, body: &str) -> Program {
        let path = folder.join("program");
        let pid = folder.join("pid");
        write_program(&path, &format!("echo $$ > {}\n{body}", pid.display()));
        Program { path, env: vec![("LODE_TEST_GIVEN".into(), "this".into())] }
    }

    #[test]
    fn anonymous_memory() {
        assert_eq!(parse_anonymous("VmRSS:\t 9 kB\nRssAnon:\t    1024 kB\nRssFile: 3 kB\n"), 1 << 20);
        assert_eq!(parse_anonymous(""), 0);
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(parse_anonymous(&own) > 0);
    }

    #[tokio::test]
    async fn start_failures_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let error = Program { path: "/no/such/program".into(), env: Vec::new() }.launch().await.unwrap_err();
        assert!(matches!(error, ProcessError::Spawn(_)), "{error}");
        let error = script(folder.path(), "exit 3").launch().await.unwrap_err();
        assert!(matches!(error, ProcessError::Ended), "{error}");
    }

    #[tokio::test]
    async fn a_runner_has_the_environment_that_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let given = folder.path().join("given");
        let program = script(folder.path(), &format!("echo $LODE_TEST_GIVEN > {}", given.display()));
        program.launch().await.unwrap_err();
        assert_eq!(std::fs::read_to_string(given).unwrap(), "this\n");
    }

    #[tokio::test]
    async fn an_abandoned_runner_exits() {
        let folder = tempfile::tempdir().unwrap();
        // Opens no socket, and exits when its standard input closes.
        let launch = script(folder.path(), "exec cat > /dev/null").launch();
        let pid_file = folder.path().join("pid");
        let started = async {
            while !std::fs::read_to_string(&pid_file).is_ok_and(|pid| pid.ends_with('\n')) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            result = launch => panic!("{result:?}"),
            () = started => {}
        }
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        let process = PathBuf::from(format!("/proc/{}", pid.trim()));
        let gone = async {
            while process.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), gone).await.expect("it ends");
    }
}
