//! The text helper's process and the evaluators that it forks. `lode runner --text` calls [`main`].

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, WaitOptions, getpid, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, waitpid,
};
use serde::Serialize;

use super::super::protocol::{GenerateRequest, RunnerError};
use super::super::text_side::{TextProcessor, TextReader};
use super::fork::{ForkSide, fork};
use super::frame;
use super::protocol::{
    AllowedNext, Call, FORK, Hello, MAKE_GRAMMARS, ReadText, Reply, TemplateReply, TokenizerReply,
};
use crate::text::{GrammarCompiler, GrammarState};

/// An evaluator that has mapped more than one part in this many of its limit ends after its call, so that the
/// next call has the full limit.
const KEPT_LIMIT_DIVISOR: u64 = 8;

/// Runs the helper until its standard input, the socket of its runner, closes. Call it before any thread is
/// started.
pub fn main() -> io::Result<()> {
    // No core dumps for failures that untrusted input causes, and no helper left behind by a killed runner.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (request, _): (ReadText, _) = frame::read(&control)?;
    let memory = request.memory;
    let Some(mut helper) = Helper::read(&control, request)? else { return Ok(()) };
    limit_memory(memory)?;
    helper.serve(&control, memory)
}

/// Limits this process to this many bytes beyond those that it has already mapped.
fn limit_memory(bytes: u64) -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::As);
    let wanted = mapped_bytes()?.saturating_add(bytes);
    let current = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    Ok(setrlimit(Resource::As, Rlimit { current: Some(current), maximum })?)
}

fn mapped_bytes() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kibibytes = size.and_then(|size| size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.map(|size| size << 10).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A model's parsed text data.
struct Helper {
    text: TextProcessor,
    grammars: Option<Result<GrammarCompiler, RunnerError>>,
}

impl Helper {
    /// Reads the text data and sends the results; `None` if it is unusable.
    fn read(control: &UnixStream, request: ReadText) -> io::Result<Option<Helper>> {
        limit_memory(request.read_memory)?;
        let reader = match catch_panic(|| TextReader::read(&request.model, &request.config)) {
            Ok(reader) => reader,
            Err(error) => {
                frame::write(control, &Err::<TokenizerReply, _>(error), &[])?;
                return Ok(None);
            }
        };
        let text = reader.text();
        let read = TokenizerReply {
            has_tokenizer: text.tokenizer.is_some(),
            eos: text.special.eos.iter().copied().collect(),
            embedding: text.embedding.clone(),
        };
        let vocabulary = text.tokenizer.as_ref().map(|tokenizer| tokenizer.vocabulary().to_wire());
        let reply = Ok::<_, RunnerError>(read);
        if frame::write(control, &reply, &vocabulary.unwrap_or_default()).is_err() {
            let error = RunnerError::unsupported("the vocabulary is too large");
            frame::write(control, &Err::<TokenizerReply, _>(error), &[])?;
            return Ok(None);
        }
        limit_memory(request.memory)?;
        match catch_panic(|| reader.read_template()) {
            Ok(text) => {
                let read = TemplateReply { has_template: text.template.is_some(), reply: text.reply.clone() };
                frame::write(control, &Ok::<_, RunnerError>(read), &[])?;
                Ok(Some(Helper { text, grammars: None }))
            }
            Err(error) => {
                frame::write(control, &Err::<TemplateReply, _>(error), &[])?;
                Ok(None)
            }
        }
    }

    /// Forks an evaluator for each received socket, until the control socket closes.
    fn serve(&mut self, control: &UnixStream, memory: u64) -> io::Result<()> {
        while let Some((command, socket)) = receive(control)? {
            // Reap the evaluators that have ended.
            while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
            match (command, socket) {
                (FORK, Some(socket)) => {
                    if let ForkSide::Child = fork()? {
                        let ended = self.evaluate(&UnixStream::from(socket), memory);
                        std::process::exit(i32::from(ended.is_err()));
                    }
                }
                (MAKE_GRAMMARS, _) => {
                    let made = self.make_grammars();
                    frame::write(control, &made, &[])?;
                    limit_memory(memory)?;
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    fn make_grammars(&mut self) -> Result<(), RunnerError> {
        let TextProcessor { tokenizer, special, .. } = &self.text;
        let made = self.grammars.get_or_insert_with(|| {
            let tokenizer =
                tokenizer.as_ref().ok_or_else(|| RunnerError::unsupported("the model has no tokenizer"))?;
            catch_panic(|| {
                GrammarCompiler::new(tokenizer.vocabulary(), &special.eos).map_err(RunnerError::invalid)
            })
        });
        made.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// Evaluates the calls from one socket, in a separate process.
    fn evaluate(&self, socket: &UnixStream, memory: u64) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        limit_memory(memory)?;
        let mapped = mapped_bytes()?;
        frame::write(socket, &Hello { pid: getpid().as_raw_pid() }, &[])?;
        let mut matching = None;
        loop {
            // The runner has closed the socket or ended.
            let Ok((call, body)) = frame::read::<Call>(socket) else { return Ok(()) };
            let is_last =
                || mapped_bytes().is_ok_and(|now| now.saturating_sub(mapped) > memory / KEPT_LIMIT_DIVISOR);
            match call {
                Call::Prepare(facts) => {
                    let prepared = catch_panic(|| {
                        let request = parse(body)?;
                        self.text.prepare(request, facts)
                    });
                    let prepared = prepared.map(|(prepared, ids)| (prepared, frame::to_bytes(&ids)));
                    send_reply(socket, prepared, is_last())?;
                }
                Call::Render(facts) => {
                    let rendered = catch_panic(|| {
                        let request = parse(body)?;
                        self.text.render(request, facts)
                    });
                    let rendered = rendered.map(|(tokens, text)| (tokens, text.into_bytes()));
                    send_reply(socket, rendered, is_last())?;
                }
                Call::Encode { texts, limit, truncate } => {
                    let encoded = catch_panic(|| self.text.encode(&texts, limit, truncate));
                    let encoded = encoded.map(|texts| {
                        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
                        (lengths, frame::to_bytes(&texts.concat()))
                    });
                    send_reply(socket, encoded, is_last())?;
                }
                Call::EncodePairs { query, documents, limit, truncate } => {
                    let encoded = catch_panic(|| self.text.encode_pairs(&query, &documents, limit, truncate));
                    let encoded = encoded.map(|pairs| {
                        let sizes: Vec<_> = pairs.iter().map(|pair| (pair.ids.len(), pair.second)).collect();
                        let ids: Vec<u32> = pairs.into_iter().flat_map(|pair| pair.ids).collect();
                        (sizes, frame::to_bytes(&ids))
                    });
                    send_reply(socket, encoded, is_last())?;
                }
                Call::Begin { schema } => {
                    let begun = catch_panic(|| {
                        let missing = || RunnerError::failed("the grammars were not prepared");
                        let grammars = self.grammars.as_ref().ok_or_else(missing)?;
                        let grammars = grammars.as_ref().map_err(Clone::clone)?;
                        grammars.begin(schema).map_err(RunnerError::invalid)
                    });
                    let allowed = begun.map(|(begun, allowed)| {
                        matching = Some(begun);
                        (AllowedNext { is_complete: allowed.is_complete }, frame::to_bytes(&allowed.mask))
                    });
                    send_reply(socket, allowed, false)?;
                }
                Call::Take { id } => {
                    let allowed = catch_panic(|| {
                        let matching: &mut GrammarState =
                            matching.as_mut().ok_or_else(|| RunnerError::failed("no grammar was started"))?;
                        matching.take(id).map_err(RunnerError::invalid)
                    });
                    let allowed = allowed.map(|allowed| {
                        (AllowedNext { is_complete: allowed.is_complete }, frame::to_bytes(&allowed.mask))
                    });
                    send_reply(socket, allowed, false)?;
                }
            }
        }
    }
}

fn parse(body: Vec<u8>) -> Result<GenerateRequest, RunnerError> {
    serde_json::from_slice(&body).map_err(RunnerError::invalid)
}

/// Runs `work` and turns a panic into an error: libraries panic on some invalid input.
fn catch_panic<T>(work: impl FnOnce() -> Result<T, RunnerError>) -> Result<T, RunnerError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(RunnerError::invalid("the model's text data or the request cannot be evaluated"))
    })
}

fn send_reply<T: Serialize>(
    socket: &UnixStream,
    result: Result<(T, Vec<u8>), RunnerError>,
    is_last: bool,
) -> io::Result<()> {
    let (result, bytes) = match result {
        Ok((value, bytes)) => (Ok(value), bytes),
        Err(error) => (Err(error), Vec::new()),
    };
    if let Err(error) = frame::write(socket, &Reply { result, is_last }, &bytes) {
        if error.kind() != io::ErrorKind::InvalidData {
            return Err(error);
        }
        let refused = RunnerError::invalid("the request's tools, options and stop texts are too long");
        frame::write(socket, &Reply::<()> { result: Err(refused), is_last: true }, &[])?;
    }
    if is_last { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
}

/// Receives the runner's next command and the socket sent with it; `None` once the runner has closed the
/// connection.
fn receive(control: &UnixStream) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut command = [0];
    let received =
        recvmsg(control, &mut [IoSliceMut::new(&mut command)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut sockets = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    Ok(Some((command[0], sockets.next().and_then(|mut sockets| sockets.next()))))
}
