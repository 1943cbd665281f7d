//! Real clients, which `tests/run` installs: docker and ollama with their own daemons, and others that are one
//! program. Each writes to scratch folders only. A missing client is reported as a skip.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::command::{run_refused, run_successfully};
use crate::report;
use crate::server::{Folder, TIMEOUT, output_file, signal};

/// Finds a program: the path in `variable`, or one of the usual `places`. A missing program is reported as a
/// skip.
#[must_use]
pub fn find_program(test: &str, variable: &str, places: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let found = named.into_iter().chain(places.iter().map(PathBuf::from)).find(|path| path.is_file());
    if found.is_none() {
        report::skip(test, &format!("no {} (set {variable})", places.first().copied().unwrap_or("program")));
    }
    found
}

/// Debian's skopeo.
#[must_use]
pub fn skopeo(test: &str) -> Option<PathBuf> {
    find_program(test, "LODE_SKOPEO", &["/usr/bin/skopeo"])
}

/// Debian's nginx.
#[must_use]
pub fn nginx(test: &str) -> Option<PathBuf> {
    find_program(test, "LODE_NGINX", &["/usr/sbin/nginx"])
}

/// The oras that `tests/run` builds from its Go module.
#[must_use]
pub fn oras(test: &str) -> Option<PathBuf> {
    find_program(test, "LODE_ORAS", &["/usr/local/bin/oras", "/usr/bin/oras"])
}

/// The cosign that `tests/run` builds from its Go module.
#[must_use]
pub fn cosign(test: &str) -> Option<PathBuf> {
    find_program(test, "LODE_COSIGN", &["/usr/local/bin/cosign", "/usr/bin/cosign"])
}

/// A Python with the packages of `tests/clients/python`, which `tests/run` installs.
#[must_use]
pub fn python(test: &str) -> Option<PathBuf> {
    find_program(test, "LODE_PYTHON", &["/usr/local/lib/lode-tests/bin/python"])
}

/// A Python with litellm, LangChain and LlamaIndex, which `tests/run --long` installs.
#[must_use]
pub fn python_frameworks(test: &str) -> Option<PathBuf> {
    find_program(test, "LODE_PYTHON_FRAMEWORKS", &[])
}

/// The folder of `tests/clients/node`'s programs, with the npm packages that they use.
#[must_use]
pub fn node_packages(test: &str) -> Option<PathBuf> {
    let script = "provider.mjs";
    let folder = std::env::var_os("LODE_NODE_PACKAGES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| "/usr/local/lib/lode-tests/node".into());
    let is_there = folder.join(script).is_file() && folder.join("node_modules").is_dir();
    if !is_there {
        report::skip(test, "no npm packages (set LODE_NODE_PACKAGES)");
    }
    is_there.then_some(folder)
}

/// A client program with a home of its own, and the arguments and variables of each of its commands.
pub struct Client {
    program: PathBuf,
    home: Folder,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Client {
    /// A client with an empty home.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, home: Folder::new(), args: Vec::new(), env: Vec::new() }
    }

    /// Adds an argument in front of those of each command.
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

    /// The path of a file in its home, which is also the working folder of its commands.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A command with these arguments.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let home = self.home.path();
        command.args(&self.args).args(args).current_dir(home);
        command.env("HOME", home).env("XDG_RUNTIME_DIR", home).env("DOCKER_CONFIG", home.join("docker"));
        command.env_remove("HTTP_PROXY").env_remove("HTTPS_PROXY");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command that has to succeed; returns its output.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        run_successfully(&mut self.command(args))
    }

    /// Runs a command that has to fail with this line.
    #[track_caller]
    pub fn run_refused(&self, args: &[&str], line: &str) {
        run_refused(&mut self.command(args), line);
    }
}

/// An ollama server, which is the registry client, and the `ollama` program that controls it.
pub struct Ollama {
    server: Child,
    program: PathBuf,
    host: String,
    scratch: PathBuf,
}

impl Ollama {
    /// Starts an ollama server with an empty store. Reports a skip if `tests/run` could not build ollama.
    pub fn start(test: &str, scratch: &Path) -> Option<Self> {
        let program = find_program(test, "LODE_OLLAMA", &["/usr/local/bin/ollama", "/usr/bin/ollama"])?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let (host, scratch) = (format!("127.0.0.1:{port}"), scratch.join("ollama"));
        std::fs::create_dir_all(&scratch).expect("a folder");
        let (stdout, stderr) = output_file(&scratch.join("server.log"));
        let mut command = Command::new(&program);
        environment(&mut command, &host, &scratch);
        let server = command.arg("serve").stdout(stdout).stderr(stderr).process_group(0).spawn();
        let ollama = Self { server: server.expect("the server starts"), program, host, scratch };
        let deadline = Instant::now() + TIMEOUT;
        while !ollama.command(&["list"]).output().is_ok_and(|output| output.status.success()) {
            assert!(Instant::now() < deadline, "ollama does not respond:\n{}", ollama.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(ollama)
    }

    /// A client command with these arguments.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        environment(&mut command, &self.host, &self.scratch);
        command.args(args);
        command
    }

    /// The folder with its manifests and blobs.
    #[must_use]
    pub fn models(&self) -> PathBuf {
        self.scratch.join("models")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("server.log")).unwrap_or_default()
    }
}

impl Drop for Ollama {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn environment(command: &mut Command, host: &str, scratch: &Path) {
    command.env("OLLAMA_HOST", host).env("OLLAMA_MODELS", scratch.join("models")).env("HOME", scratch);
    command.current_dir(scratch).env_remove("HTTP_PROXY").env_remove("HTTPS_PROXY");
}

/// A docker daemon with a scratch folder and socket, and its client.
pub struct Docker {
    daemon: Child,
    client: PathBuf,
    socket: String,
    scratch: PathBuf,
}

impl Docker {
    /// Starts a daemon. Reports a skip if docker is missing or this user is not root.
    pub fn start(test: &str, scratch: &Path) -> Option<Self> {
        let client = find_program(test, "LODE_DOCKER", &["/usr/bin/docker"])?;
        let daemon = find_program(test, "LODE_DOCKERD", &["/usr/sbin/dockerd"])?;
        if !is_root() {
            report::skip(test, "only root can start a docker daemon");
            return None;
        }
        // A socket path is limited to about 100 bytes, so the folder has a short name.
        let scratch = scratch.join("docker");
        std::fs::create_dir_all(&scratch).expect("a folder");
        let socket = format!("unix://{}/d.sock", scratch.display());
        let (stdout, stderr) = output_file(&scratch.join("daemon.log"));
        let mut command = Command::new(daemon);
        command.args([
            "-H",
            &socket,
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            "--storage-driver=vfs",
        ]);
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            command.arg(flag).arg(scratch.join(name));
        }
        let daemon =
            command.stdout(stdout).stderr(stderr).process_group(0).spawn().expect("the daemon starts");
        let mut docker = Self { daemon, client, socket, scratch };
        docker.wait();
        Some(docker)
    }

    /// A client command with these arguments.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.client);
        command.args(args).env("DOCKER_HOST", &self.socket).env("DOCKER_CONFIG", self.scratch.join("config"));
        command.env("DOCKER_BUILDKIT", "0").env_remove("HTTP_PROXY").env_remove("HTTPS_PROXY");
        command
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if self.command(&["version"]).output().is_ok_and(|output| output.status.success()) {
                return;
            }
            let ended = self.daemon.try_wait().expect("the daemon can be waited for");
            let log = || std::fs::read_to_string(self.scratch.join("daemon.log")).unwrap_or_default();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the docker daemon does not respond:\n{}",
                log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        signal(self.daemon.id(), libc::SIGTERM); // lets it stop its container daemon and unmount its mounts
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if !matches!(self.daemon.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// Whether this process may mount file systems and start daemons.
#[must_use]
#[allow(unsafe_code)]
pub fn is_root() -> bool {
    // SAFETY: geteuid has no arguments, returns an integer and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
