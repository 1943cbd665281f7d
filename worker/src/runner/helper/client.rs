//! The runner's side: starts the text helper, has it fork evaluators, and kills those that exceed a limit or
//! whose caller has disconnected.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::timeout;

use super::super::embedding::Embedding;
use super::super::limits::TextLimits;
use super::super::protocol::{ModelSpec, RenderResponse, RunnerError};
use super::evaluator::{Evaluator, KillOnDrop, allowed};
use super::frame;
use super::protocol::{
    AllowedNext, Call, EngineFacts, FORK, Hello, MAKE_GRAMMARS, PreparedRequest, ReadText, TemplateReply,
    TokenizerReply,
};
use super::session::Session;
use crate::text::grammar::AllowedIds;
use crate::text::{EncodedPair, ReplyFormat, Vocabulary};

/// Maximum number of idle evaluators that are kept for later calls.
const MAX_IDLE: usize = 2;

/// A model's text helper. Dropping it ends the process and all of its evaluators.
pub(crate) struct Helper {
    request: ReadText,
    limits: TextLimits,
    state: Arc<tokio::sync::Mutex<State>>,
    idle: Mutex<Vec<Evaluator>>,
}

struct State {
    process: Process,
    /// Why structured output failed for this model, if it did.
    no_grammars: Option<RunnerError>,
}

/// The part of a model's text data that the runner itself needs.
#[derive(Debug, Default)]
pub(crate) struct TextData {
    /// `None` without a tokenizer.
    pub(crate) vocabulary: Option<Arc<Vocabulary>>,
    pub(crate) eos: Arc<BTreeSet<u32>>,
    pub(crate) embedding: Embedding,
    pub(crate) has_template: bool,
    pub(crate) reply: ReplyFormat,
}

impl Helper {
    /// Starts the process, which reads the model's text data.
    pub(crate) async fn start(
        model: &ModelSpec,
        config: &Value,
        limits: TextLimits,
    ) -> Result<(Helper, TextData), RunnerError> {
        let (model, config, memory) = (model.clone(), config.clone(), limits.memory);
        let read_memory = limits.read_memory(&model);
        let request = ReadText { model, config, memory, read_memory };
        let (process, data) = Process::start(&request, &limits).await?;
        let state = Arc::new(tokio::sync::Mutex::new(State { process, no_grammars: None }));
        Ok((Helper { request, limits, state, idle: Mutex::default() }, data))
    }

    /// Returns the ids of a request's prompt, and the request without it.
    pub(crate) async fn prepare(
        &self,
        facts: EngineFacts,
        request: &[u8],
    ) -> Result<(PreparedRequest, Vec<u32>), RunnerError> {
        let what = "rendering and tokenizing the prompt";
        let (prepared, ids) = self.call(what, &Call::Prepare(facts), request).await?;
        Ok((prepared, frame::from_bytes(&ids)))
    }

    /// Returns the text of a request's prompt, and its number of ids.
    pub(crate) async fn render(
        &self,
        facts: EngineFacts,
        request: &[u8],
    ) -> Result<RenderResponse, RunnerError> {
        let what = "rendering the prompt";
        let (prompt_tokens, text) = self.call(what, &Call::Render(facts), request).await?;
        let text = String::from_utf8(text).map_err(|_| RunnerError::failed("the prompt is not UTF-8"))?;
        Ok(RenderResponse { text, prompt_tokens })
    }

    /// Returns the ids of texts to embed.
    pub(crate) async fn encode(
        &self,
        texts: Vec<String>,
        limit: usize,
        truncate: bool,
    ) -> Result<Vec<Vec<u32>>, RunnerError> {
        let expected = texts.len();
        let call = Call::Encode { texts, limit, truncate };
        let (lengths, ids): (Vec<usize>, _) = self.call("tokenizing the input", &call, &[]).await?;
        let texts = split(&frame::from_bytes(&ids), lengths.into_iter());
        texts.filter(|texts| texts.len() == expected).ok_or_else(invalid_reply_error)
    }

    /// Returns the pairs of a query with documents.
    pub(crate) async fn encode_pairs(
        &self,
        query: String,
        documents: Vec<String>,
        limit: usize,
        truncate: bool,
    ) -> Result<Vec<EncodedPair>, RunnerError> {
        let expected = documents.len();
        let call = Call::EncodePairs { query, documents, limit, truncate };
        let (sizes, ids): (Vec<(usize, usize)>, _) = self.call("tokenizing the input", &call, &[]).await?;
        let pairs = split(&frame::from_bytes(&ids), sizes.iter().map(|(len, _)| *len));
        let pairs = pairs.filter(|pairs| pairs.len() == expected).ok_or_else(invalid_reply_error)?;
        let pair = |(ids, (_, second))| EncodedPair { ids, second };
        Ok(pairs.into_iter().zip(sizes).map(pair).collect())
    }

    /// Starts a grammar in a separate evaluator. `wake` is called whenever the session has a result.
    pub(crate) async fn begin(
        &self,
        schema: Map<String, Value>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Session, AllowedIds), RunnerError> {
        let what = "compiling the grammar of the format";
        let mut evaluator = self.fork(true).await?;
        let call = Call::Begin { schema };
        let allowed = match timeout(self.limits.timeout, evaluator.call::<AllowedNext>(&call, &[])).await {
            Err(_) => return Err(self.limits.timeout_error(what)),
            Ok(Err(_)) => return Err(self.limits.memory_error(what)),
            Ok(Ok((reply, mask))) => allowed(reply.result?, &mask),
        };
        Ok((Session::start(evaluator, self.limits, wake), allowed))
    }

    /// Calls an evaluator. Dropping the future kills it.
    async fn call<T: DeserializeOwned>(
        &self,
        what: &str,
        call: &Call,
        body: &[u8],
    ) -> Result<(T, Vec<u8>), RunnerError> {
        loop {
            let idle = self.idle().pop();
            let is_fresh = idle.is_none();
            let mut evaluator = match idle {
                Some(evaluator) => evaluator,
                None => self.fork(false).await?,
            };
            match timeout(self.limits.timeout, evaluator.call(call, body)).await {
                Err(_) => return Err(self.limits.timeout_error(what)),
                // A reused evaluator may have ended, or has less memory left than a fresh one: retry.
                Ok(Err(_)) if !is_fresh => {}
                Ok(Err(_)) => return Err(self.limits.memory_error(what)),
                Ok(Ok((reply, bytes))) => {
                    if !reply.is_last && self.idle().len() < MAX_IDLE {
                        self.idle().push(evaluator);
                    }
                    return Ok((reply.result?, bytes));
                }
            }
        }
    }

    /// Forks a fresh evaluator. Restarts the helper if it has ended.
    async fn fork(&self, with_grammars: bool) -> Result<Evaluator, RunnerError> {
        let mut state = self.state.clone().lock_owned().await;
        loop {
            let is_new = state.process.is_ended();
            if is_new {
                self.idle().clear();
                tracing::warn!(model = %self.request.model.name, "text helper ended; starting another");
                state.process = Process::start(&self.request, &self.limits).await?.0;
            }
            if with_grammars {
                state = make_grammars(state, self.limits).await?;
            }
            match state.process.fork(&self.limits).await {
                Ok(evaluator) => return Ok(evaluator),
                Err(error) if is_new || !state.process.is_ended() => return Err(helper_call_error(&error)),
                // It ended just now: start another.
                Err(_) => {}
            }
        }
    }

    /// The process id of the helper, whose children are the evaluators.
    #[cfg(test)]
    pub(super) fn pid(&self) -> u32 {
        use std::os::fd::AsRawFd;
        let state = self.state.try_lock().expect("no fork in progress");
        let fdinfo = format!("/proc/self/fdinfo/{}", state.process.killed.0.as_raw_fd());
        let fdinfo = std::fs::read_to_string(fdinfo).expect("the pidfd is open");
        let pid = fdinfo.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<i32>().ok());
        u32::try_from(pid.expect("fdinfo has a Pid line")).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn kill_process(&self) {
        self.state.try_lock().expect("no fork in progress").process.killed.kill();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Evaluator>> {
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Has the helper build the data shared by all grammars, once. A caller that disconnects does not interrupt it: a reply
/// that is not read would be taken for that to the next command.
async fn make_grammars(
    mut state: OwnedMutexGuard<State>,
    limits: TextLimits,
) -> Result<OwnedMutexGuard<State>, RunnerError> {
    let make = async move {
        if let Some(error) = &state.no_grammars {
            return Err(error.clone());
        }
        let made = state.process.make_grammars(&limits).await;
        state.no_grammars = made.err();
        match &state.no_grammars {
            Some(error) => Err(error.clone()),
            None => Ok(state),
        }
    };
    tokio::spawn(make).await.unwrap_or_else(|_| Err(invalid_reply_error()))
}

/// Splits ids into texts of these lengths; `None` if there are too few.
fn split(mut ids: &[u32], lengths: impl Iterator<Item = usize>) -> Option<Vec<Vec<u32>>> {
    let mut text = |len: usize| {
        let (text, rest) = ids.split_at_checked(len)?;
        ids = rest;
        Some(text.to_vec())
    };
    lengths.map(&mut text).collect()
}

fn invalid_reply_error() -> RunnerError {
    RunnerError::failed("the text helper sent an invalid reply")
}

fn helper_call_error(error: &io::Error) -> RunnerError {
    RunnerError::failed(format!("call to the model's text helper failed: {error}"))
}

/// The helper process.
struct Process {
    control: UnixStream,
    killed: KillOnDrop,
    has_grammars: bool,
}

impl Process {
    async fn start(request: &ReadText, limits: &TextLimits) -> Result<(Process, TextData), RunnerError> {
        let (control, theirs) = StdStream::pair().map_err(|error| helper_call_error(&error))?;
        let (spawned, pidfd) = oneshot::channel();
        // The thread that starts the process waits for its end: the kernel's parent-death signal is tied to
        // that thread.
        std::thread::Builder::new()
            .name("helper".into())
            .spawn(move || spawn_and_wait(command(), theirs.into(), spawned))
            .map_err(|error| helper_call_error(&error))?;
        let pidfd =
            pidfd.await.map_err(|_| invalid_reply_error())?.map_err(|error| helper_call_error(&error))?;
        let killed = KillOnDrop(pidfd);
        control.set_nonblocking(true).map_err(|error| helper_call_error(&error))?;
        let mut control = UnixStream::from_std(control).map_err(|error| helper_call_error(&error))?;

        let name = &request.model.name;
        let (what, timeout_of_read) = (format!("{name}: reading its tokenizer"), limits.read_timeout());
        let read = async {
            frame::send(&mut control, request, &[]).await?;
            frame::receive::<Result<TokenizerReply, RunnerError>>(&mut control).await
        };
        let unusable = |error: RunnerError| RunnerError::unsupported(error.message);
        let (tokenizer, vocabulary) = match timeout(timeout_of_read, read).await {
            Err(_) => return Err(limits.read_timeout_error(&what)),
            Ok(Err(_)) => return Err(unusable(limits.memory_error(&what))),
            Ok(Ok((read, vocabulary))) => (read?, vocabulary),
        };
        let what = format!("{name}: reading its chat template");
        let read = frame::receive::<Result<TemplateReply, RunnerError>>(&mut control);
        let template = match timeout(limits.timeout, read).await {
            Err(_) => return Err(unusable(limits.timeout_error(&what))),
            Ok(Err(_)) => return Err(unusable(limits.memory_error(&what))),
            Ok(Ok((read, _))) => read?,
        };
        let vocabulary = match tokenizer.has_tokenizer {
            true => Some(Arc::new(Vocabulary::from_wire(&vocabulary).ok_or_else(invalid_reply_error)?)),
            false => None,
        };
        let data = TextData {
            vocabulary,
            eos: Arc::new(tokenizer.eos.into_iter().collect()),
            embedding: tokenizer.embedding,
            has_template: template.has_template,
            reply: template.reply,
        };
        Ok((Process { control, killed, has_grammars: false }, data))
    }

    /// Whether the process has ended: the socket is only readable without a call at its end.
    fn is_ended(&self) -> bool {
        !matches!(self.control.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Forks a fresh evaluator.
    async fn fork(&self, limits: &TextLimits) -> io::Result<Evaluator> {
        let forked = async {
            let (ours, theirs) = StdStream::pair()?;
            ours.set_nonblocking(true)?;
            let mut stream = UnixStream::from_std(ours)?;
            self.send(FORK, Some(&theirs)).await?;
            drop(theirs);
            let (hello, _): (Hello, _) = frame::receive(&mut stream).await?;
            let pid = Pid::from_raw(hello.pid).ok_or(io::ErrorKind::InvalidData)?;
            // The evaluator still runs or has not been reaped, so its process id is still valid.
            Ok(Evaluator::new(stream, pidfd_open(pid, PidfdFlags::empty())?))
        };
        timeout(limits.read_timeout(), forked).await?
    }

    /// Has the helper build the data shared by all grammars, once.
    async fn make_grammars(&mut self, limits: &TextLimits) -> Result<(), RunnerError> {
        if self.has_grammars {
            return Ok(());
        }
        let what = "preparing structured output for the model's vocabulary";
        let made = async {
            self.send(MAKE_GRAMMARS, None).await?;
            frame::receive::<Result<(), RunnerError>>(&mut self.control).await
        };
        match timeout(limits.read_timeout(), made).await {
            Err(_) => {
                self.killed.kill();
                Err(limits.read_timeout_error(what))
            }
            Ok(Err(_)) => Err(limits.memory_error(what)),
            Ok(Ok((made, _))) => {
                self.has_grammars = made.is_ok();
                made
            }
        }
    }

    async fn send(&self, command: u8, socket: Option<&StdStream>) -> io::Result<()> {
        self.control
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                let sockets = socket.map(|socket| [socket.as_fd()]);
                if let Some(sockets) = &sockets {
                    ancillary.push(SendAncillaryMessage::ScmRights(sockets));
                }
                sendmsg(&self.control, &[IoSlice::new(&[command])], &mut ancillary, SendFlags::NOSIGNAL)?;
                Ok(())
            })
            .await
    }
}

/// The command that starts the helper.
#[cfg(not(test))]
fn command() -> Command {
    // This program, even if its file has been replaced since.
    let mut command = Command::new("/proc/self/exe");
    // The helper does not need the server's secrets.
    command.args(["runner", "--text"]).env_clear();
    command
}

/// In tests, the test program runs the helper, in a test that does nothing else.
#[cfg(test)]
fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["runner::helper::tests::process", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(super::tests::IS_HELPER, "1");
    command
}

/// Starts the process, sends its pidfd to `spawned`, and waits for its end.
fn spawn_and_wait(mut command: Command, control: OwnedFd, spawned: oneshot::Sender<io::Result<OwnedFd>>) {
    // Otherwise the tokenizers library may start threads, and a process with threads must not fork.
    command.env("TOKENIZERS_PARALLELISM", "false");
    // A process that is out of memory cannot print a backtrace.
    command.env_remove("RUST_BACKTRACE");
    let child = command.stdin(control).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
    // It owns our end of the socket.
    drop(command);
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            let _ = spawned.send(Err(error));
            return;
        }
    };
    let pidfd = Pid::from_raw(child.id() as i32)
        .ok_or_else(|| io::Error::other("no process id"))
        .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
    if let Err(unwanted) = spawned.send(pidfd) {
        drop(unwanted);
        let _ = child.kill();
    }
    match child.wait() {
        Ok(status) => tracing::debug!(pid = child.id(), %status, "text helper ended"),
        Err(error) => tracing::error!(pid = child.id(), %error, "failed to wait for text helper"),
    }
}
