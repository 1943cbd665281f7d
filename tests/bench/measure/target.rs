//! The measured servers. Each is started on empty storage and stopped, and its content is deleted. All have
//! the same configuration: no authentication, no access log, and durable writes if they are optional.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::http::{Body, Connection};

const START_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Lode,
    Distribution,
    Zot,
}

#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) program: PathBuf,
}

/// The storage of a server.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Folder {
        name: String,
        root: PathBuf,
    },
    S3 {
        endpoint: String,
        bucket: String,
        access_key: String,
        secret_key: String,
        scratch: PathBuf,
        /// The folder with the S3 server's objects, possibly a tmpfs. A target's objects are deleted after it
        /// has run.
        objects: Option<PathBuf>,
        /// Whether pulls are redirected to the S3 server.
        redirect: bool,
    },
}

impl Place {
    pub(crate) fn name(&self) -> &str {
        match self {
            Place::Folder { name, .. } => name,
            Place::S3 { redirect: false, .. } => "s3",
            Place::S3 { redirect: true, .. } => "s3, redirected",
        }
    }
}

pub(crate) struct RunningServer {
    child: Child,
    pub(crate) address: SocketAddr,
    folder: PathBuf,
    objects: Option<PathBuf>,
}

/// The password of the administrator of a server with accounts.
pub(crate) const ADMIN_PASSWORD: &str = "a long password";

impl Target {
    pub(crate) fn is_lode(&self) -> bool {
        self.kind == Kind::Lode
    }

    /// Like `start`, with the administrator `admin`. Clients on this machine may name another address.
    pub(crate) fn start_with_accounts(&self, place: &Place, run: u32) -> io::Result<RunningServer> {
        self.start_in(
            place,
            run,
            &[("LODE_ADMIN_PASSWORD", ADMIN_PASSWORD), ("LODE_TRUSTED_PROXIES", "127.0.0.0/8")],
        )
    }

    /// Starts the server on empty storage. `run` makes the names of its folder and prefix unique.
    pub(crate) fn start(&self, place: &Place, run: u32) -> io::Result<RunningServer> {
        self.start_in(place, run, &[])
    }

    fn start_in(&self, place: &Place, run: u32, variables: &[(&str, &str)]) -> io::Result<RunningServer> {
        let (root, objects) = match place {
            Place::Folder { root, .. } => (root, None),
            Place::S3 { scratch, objects, .. } => (scratch, objects.as_ref()),
        };
        let folder = root.join(format!("{}-{run}", self.name));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let address = free_address()?;
        let prefix = format!("{}-{}-{run}", self.name, std::process::id());
        let mut command = match self.kind {
            Kind::Lode => lode(&self.program, place, &folder, address, &prefix),
            Kind::Distribution => distribution(&self.program, place, &folder, address, &prefix)?,
            Kind::Zot => zot(&self.program, place, &folder, address, &prefix)?,
        };
        command.envs(variables.iter().copied());
        let log = File::create(folder.join("server.log"))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let objects = objects.map(|objects| objects.join(&prefix));
        let mut running = RunningServer { child, address, folder, objects };
        let started = Instant::now();
        loop {
            let response = Connection::new(address).send_and_discard("GET", "/v2/", "", Body::None);
            // A server with accounts asks for credentials.
            if response.is_ok_and(|head| [200, 401].contains(&head.status)) {
                return Ok(running);
            }
            if running.child.try_wait()?.is_some() || started.elapsed() > START_TIMEOUT {
                let log = fs::read_to_string(running.folder.join("server.log")).unwrap_or_default();
                return Err(io::Error::other(format!("{} did not start:\n{log}", self.name)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl RunningServer {
    /// CPU time so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name in parentheses may contain spaces; user and system time are the 14th and 15th fields.
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
        (ticks(11) + ticks(12)) / 100.0
    }

    /// Peak resident memory since the last `reset_peak`.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or_default() * 1024
    }

    pub(crate) fn reset_peak(&self) {
        // Without permission, the peak counts from the server's start.
        let _ = fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5");
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(objects) = &self.objects {
            let _ = fs::remove_dir_all(objects);
        }
    }
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// A command without the caller's environment.
fn clean_command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", folder).env("PATH", "/usr/bin:/bin").env("OTEL_TRACES_EXPORTER", "none");
    command
}

fn lode(program: &Path, place: &Place, folder: &Path, address: SocketAddr, prefix: &str) -> Command {
    let mut command = clean_command(program, folder);
    command.args(["serve", "--no-worker", "--listen"]).arg(address.to_string());
    command.arg("--data").arg(folder.join("data"));
    if let Place::S3 { endpoint, bucket, access_key, secret_key, redirect, .. } = place {
        command.arg("--storage").arg(format!("s3://{bucket}/{prefix}"));
        command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", access_key).env("AWS_SECRET_ACCESS_KEY", secret_key);
        command.env("LODE_REDIRECT", redirect.to_string());
    }
    command
}

fn distribution(
    program: &Path,
    place: &Place,
    folder: &Path,
    address: SocketAddr,
    prefix: &str,
) -> io::Result<Command> {
    let driver = match place {
        Place::Folder { .. } => {
            format!("  filesystem:\n    rootdirectory: {}\n", folder.join("data").display())
        }
        Place::S3 { endpoint, bucket, access_key, secret_key, redirect, .. } => format!(
            "  s3:\n    regionendpoint: {endpoint}\n    region: us-east-1\n    bucket: {bucket}\n    rootdirectory: /{prefix}\n    \
             accesskey: {access_key}\n    secretkey: {secret_key}\n    forcepathstyle: true\n    secure: false\n  redirect:\n    disable: {}\n",
            !redirect
        ),
    };
    let config = format!(
        "version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\nstorage:\n{driver}  cache:\n    blobdescriptor: inmemory\n  \
         delete:\n    enabled: true\nhttp:\n  addr: {address}\n"
    );
    let path = folder.join("config.yml");
    File::create(&path)?.write_all(config.as_bytes())?;
    let mut command = clean_command(program, folder);
    command.arg("serve").arg(path);
    Ok(command)
}

fn zot(
    program: &Path,
    place: &Place,
    folder: &Path,
    address: SocketAddr,
    prefix: &str,
) -> io::Result<Command> {
    let mut storage = serde_json::json!({
        "rootDirectory": folder.join("data"), "commit": true, "gc": false, "dedupe": true,
    });
    if let Place::S3 { endpoint, bucket, access_key, secret_key, .. } = place {
        // zot refuses deduplication on remote storage without a remote database.
        storage["dedupe"] = false.into();
        storage["storageDriver"] = serde_json::json!({
            "name": "s3", "rootdirectory": format!("/{prefix}"), "region": "us-east-1", "regionendpoint": endpoint,
            "bucket": bucket, "accesskey": access_key, "secretkey": secret_key, "secure": false, "forcepathstyle": true,
        });
    }
    let config = serde_json::json!({
        "distSpecVersion": "1.1.1", "storage": storage, "log": { "level": "error" },
        "http": { "address": address.ip().to_string(), "port": address.port().to_string() },
    });
    let path = folder.join("config.json");
    File::create(&path)?.write_all(config.to_string().as_bytes())?;
    let mut command = clean_command(program, folder);
    command.arg("serve").arg(path);
    Ok(command)
}
