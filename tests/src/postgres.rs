//! A separate Postgres server for tests that would disturb others: with TLS only, or with a full disk.
//! It uses the programs of the Debian package. As root it runs as the package's `postgres` user.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::clients::is_root;
use crate::command::run_successfully;
use crate::report;

/// A running server. Dropping it stops the server.
pub struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    /// Its port on 127.0.0.1.
    pub port: u16,
}

impl Postgres {
    /// Starts a server on a free port. `prepare` may change the data folder first. Reports a skip if
    /// PostgreSQL is not installed.
    ///
    /// # Panics
    ///
    /// If the server does not start.
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
        server.chown_to_server(server.folder.path());
        server.run(&["initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-D", text(&data)]);
        prepare(&data);
        server.chown_to_server(&data);
        let settings =
            format!("-c listen_addresses=127.0.0.1 -p {port} -k {} -c fsync=off", text(server.folder.path()));
        let log = server.folder.path().join("log");
        server.run(&["pg_ctl", "-w", "-D", text(&data), "-l", text(&log), "-o", &settings, "start"]);
        Some(server)
    }

    /// Its URL with these parameters.
    #[must_use]
    pub fn url(&self, parameters: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres{parameters}", self.port)
    }

    /// Changes the owner of a file or folder, recursively, to the server's user.
    pub fn chown_to_server(&self, path: &Path) {
        if is_root() {
            run_successfully(Command::new("chown").args(["-R", "postgres:"]).arg(path));
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
        // A file, because the server that `pg_ctl` starts would keep a pipe open.
        let log = fs::File::create(self.folder.path().join("output")).expect("an output file");
        let errors = log.try_clone().expect("a second handle");
        let status = command
            .args(&arguments[1..])
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .status();
        let output = ["output", "log"].map(|name| fs::read_to_string(self.folder.path().join(name)));
        assert!(status.is_ok_and(|status| status.success()), "{arguments:?}: {output:?}");
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

/// The program folder of the newest installed version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.retain(|folder| folder.join("initdb").is_file());
    folders.sort();
    folders.pop()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}
