//! Starts probes and reads their reports.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::probe::{ProbeRequest, Report};
use crate::child_env;

/// How long a probe may take. The first one compiles the kernels of its test.
const TEST_TIMEOUT: Duration = Duration::from_secs(180);
/// How long a probe without a test may take.
const FACTS_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of a report.
const MAX_REPORT: u64 = 1 << 20;

/// How probes are started: `PROGRAM runner --probe REQUEST`.
#[derive(Clone, Debug)]
pub struct Prober {
    pub program: PathBuf,
    /// Environment variables for them, in addition to the inherited ones.
    pub env: Vec<(String, String)>,
    /// Files of NVRTC to try, in this order.
    pub nvrtc: Vec<PathBuf>,
    /// The folder of compiled kernels.
    pub kernels: Option<PathBuf>,
}

impl Prober {
    /// A request for a report with the test of kernels, of one device or of all.
    pub fn test_of(&self, device: Option<usize>) -> ProbeRequest {
        ProbeRequest {
            device,
            nvrtc: self.nvrtc.clone(),
            kernels: self.kernels.clone(),
            self_test: true,
            bandwidth: false,
        }
    }

    /// Runs a probe in a child process. Fails if the process crashes, hangs or cannot be started.
    pub async fn run(&self, request: &ProbeRequest) -> Result<Report, String> {
        let timeout = if request.self_test { TEST_TIMEOUT } else { FACTS_TIMEOUT };
        let request = serde_json::to_string(request).map_err(|error| error.to_string())?;
        let mut child = Command::new(&self.program)
            .env_clear()
            .envs(child_env::inherited())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .args(["runner", "--probe"])
            .arg(request)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start the probe of devices: {error}"))?;
        let finish = async {
            let mut text = Vec::new();
            if let Some(stdout) = child.stdout.take() {
                stdout.take(MAX_REPORT).read_to_end(&mut text).await?;
            }
            Ok::<_, std::io::Error>((child.wait().await?, text))
        };
        let (status, text) = tokio::time::timeout(timeout, finish)
            .await
            .map_err(|_| format!("the probe of devices did not end within {} seconds", timeout.as_secs()))?
            .map_err(|error| format!("the probe of devices failed: {error}"))?;
        if !status.success() {
            return Err(format!("the probe of devices crashed ({status}); its messages are above"));
        }
        serde_json::from_slice(&text).map_err(|error| format!("the probe of devices gave no report: {error}"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::write_program;

    /// A program that is started as a probe and runs `body` in a shell.
    pub(in super::super) fn script(folder: &Path, body: &str) -> Prober {
        let program = folder.join("program");
        write_program(&program, body);
        let kernels = Some(folder.join("kernels"));
        Prober { program, env: Vec::new(), nvrtc: vec!["/x/libnvrtc.so.12".into()], kernels }
    }

    #[tokio::test]
    async fn a_crash_and_nonsense_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        for (body, expect) in [
            ("kill -SEGV $$", "crashed"),
            ("exit 3", "crashed"),
            ("echo nonsense", "no report"),
            ("head -c 3000000 /dev/zero", "the probe of devices"),
        ] {
            let prober = script(folder.path(), body);
            let error = prober.run(&prober.test_of(None)).await.unwrap_err();
            assert!(error.contains(expect), "{body}: {error}");
        }
        let prober = Prober { program: "/no/such/program".into(), ..script(folder.path(), "") };
        assert!(prober.run(&prober.test_of(None)).await.unwrap_err().contains("cannot start"));
    }

    #[tokio::test]
    async fn a_probe_gets_its_request_and_no_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let given = folder.path().join("given");
        let body = format!("echo \"$@\" > {}; env >> {0}; echo '{{}}'", given.display());
        // An empty object lacks the libraries.
        let prober = script(folder.path(), &body);
        prober.run(&prober.test_of(Some(2))).await.unwrap_err();
        let given = std::fs::read_to_string(given).unwrap();
        assert!(given.starts_with("runner --probe {\"device\":2,"), "{given}");
        assert!(given.contains("PATH=") && !given.contains("CARGO_"), "{given}");
    }
}
