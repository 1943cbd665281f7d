//! A Postgres server of a test's own, for what would disturb others: TLS alone, a disk that is full.
//! Its programs come with the Debian package; as root it runs under the user that the package made.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::clients::is_root;
use crate::command::succeed;
use crate::report;

/// A running server; it ends when this goes.
pub struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
}

impl Postgres {
    /// Starts a server on a free port. `prepare` may change its data folder before; without the programs, a reported skip.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start(test: &str, prepare: impl FnOnce(&Path)) -> Option<Self> {
        let Some(programs) = programs() else {
            report::skip(test, "no PostgreSQL server is installed");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("lode-postgres-").tempdir().expect("a scratch folder");
        let data = folder.path().join("data");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let server = Self { folder, programs, port };
        server.give(server.folder.path());
        server.run(&["initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-D", text(&data)]);
        prepare(&data);
        server.give(&data);
        let settings =
            format!("-c listen_addresses=127.0.0.1 -p {port} -k {} -c fsync=off", text(server.folder.path()));
        let log = server.folder.path().join("log");
        server.run(&["pg_ctl", "-w", "-D", text(&data), "-l", text(&log), "-o", &settings, "start"]);
        Some(server)
    }

    /// Its address with these parameters.
    #[must_use]
    pub fn url(&self, parameters: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres{parameters}", self.port)
    }

    /// Makes a file or folder, and what is in it, belong to the server's user.
    pub fn give(&self, path: &Path) {
        if is_root() {
            succeed(Command::new("chown").args(["-R", "postgres:"]).arg(path));
        }
    }

    fn run(&self, arguments: &[&str]) {
        let program = self.programs.join(arguments[0]);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        // The server that `pg_ctl` starts would keep a pipe open.
        let log = fs::File::create(self.folder.path().join("output")).expect("an output file");
        let errors = log.try_clone().expect("a second handle");
        let status = command
            .args(&arguments[1..])
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .status();
        let said = ["output", "log"].map(|name| fs::read_to_string(self.folder.path().join(name)));
        assert!(status.is_ok_and(|status| status.success()), "{arguments:?}: {said:?}");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let data = self.folder.path().join("data");
        if data.join("postmaster.pid").is_file() {
            self.run(&["pg_ctl", "-D", text(&data), "-m", "immediate", "stop"]);
        }
    }
}

/// The folder of the newest server's programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.retain(|folder| folder.join("initdb").is_file());
    folders.sort();
    folders.pop()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of plain characters")
}
