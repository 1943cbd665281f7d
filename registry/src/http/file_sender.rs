//! Sends files over plain connections with sendfile: their bytes go from the page cache to the socket without
//! passing through this process. A response body contains a marker in place of a file piece's bytes. The
//! connection recognises a marker by its address, and sends the piece itself.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Version;
use http::request::Parts;
use hyper::body::{Body, Frame, SizeHint};
use rustix::fs::{Advice, fadvise, sendfile};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_blocking};

/// The size of one piece.
const PIECE_BYTES: usize = 1024 * 1024;
/// How many pieces may wait in a connection's buffers. Each has its own address range, so that they cannot be
/// confused.
const SLOTS: usize = 32;
/// How far ahead of sending the file is read.
const AHEAD_BYTES: u64 = 4 * 1024 * 1024;

/// The memory that markers point to: zeroed by the system and never read, so it occupies neither RAM nor
/// space in the executable.
static MARKERS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; PIECE_BYTES * SLOTS]);

/// The pieces that a connection has to send; shared by its responses and its socket.
#[derive(Clone, Default)]
pub(crate) struct SendfileQueue(Arc<Mutex<PieceQueue>>);

#[derive(Default)]
struct PieceQueue {
    pieces: VecDeque<Piece>,
    next_slot: usize,
}

#[derive(Clone)]
struct Piece {
    slot: usize,
    file: Arc<File>,
    /// The part of the file that is still to be sent.
    range: Range<u64>,
    /// How many bytes of the marker are consumed.
    sent: usize,
}

impl SendfileQueue {
    /// The outlet of a request's connection, if the connection sends bytes unchanged: plain HTTP/1.1.
    pub(crate) fn of(request: &Parts) -> Option<SendfileQueue> {
        request.extensions.get().cloned().filter(|_| request.version == Version::HTTP_11)
    }

    /// Queues a piece of a file and returns its marker. None if too many are queued.
    fn queue_piece(&self, file: &Arc<File>, range: Range<u64>) -> Option<Bytes> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.pieces.len() >= SLOTS {
            return None;
        }
        let slot = waiting.next_slot;
        waiting.next_slot = (slot + 1) % SLOTS;
        let len = usize::try_from(range.end - range.start).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        waiting.pieces.push_back(Piece { slot, file: file.clone(), range, sent: 0 });
        Some(Bytes::from_static(&MARKERS[slot * PIECE_BYTES..][..len]))
    }

    /// The piece of these bytes, if they are a marker.
    fn find_piece(&self, bytes: &[u8]) -> Option<io::Result<Piece>> {
        let at = offset_of(bytes)?;
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Earlier pieces belong to a response that was abandoned.
        while waiting.pieces.front().is_some_and(|piece| piece.slot != at / PIECE_BYTES) {
            waiting.pieces.pop_front();
        }
        let piece = waiting.pieces.front().filter(|piece| piece.sent == at % PIECE_BYTES);
        Some(piece.cloned().ok_or_else(|| io::Error::other("no piece for this marker")))
    }

    /// Whether a queued piece is not yet sent.
    fn has_unsent_pieces(&self) -> bool {
        !self.0.lock().unwrap_or_else(PoisonError::into_inner).pieces.is_empty()
    }

    fn sent(&self, n: usize) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(piece) = waiting.pieces.front_mut() else { return };
        piece.sent += n;
        piece.range.start += n as u64;
        if piece.range.is_empty() {
            waiting.pieces.pop_front();
        }
    }
}

/// The offset of these bytes within the markers.
fn offset_of(bytes: &[u8]) -> Option<usize> {
    let at = bytes.as_ptr().addr().checked_sub(MARKERS.as_ptr().addr())?;
    (at < MARKERS.len() && !bytes.is_empty()).then_some(at)
}

/// A response body that a connection with an outlet sends.
pub(crate) struct FileBody {
    outlet: SendfileQueue,
    file: Arc<File>,
    range: Range<u64>,
}

impl FileBody {
    pub(crate) fn new(outlet: SendfileQueue, file: File, range: Range<u64>) -> FileBody {
        FileBody { outlet, file: Arc::new(file), range }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.range.is_empty() {
            return Poll::Ready(None);
        }
        let end = self.range.end.min(self.range.start + PIECE_BYTES as u64);
        let piece = self.range.start..end;
        self.range.start = end;
        let marker = self.outlet.queue_piece(&self.file, piece);
        let marker = marker.ok_or_else(|| io::Error::other("too many pieces are queued for this connection"));
        Poll::Ready(Some(marker.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.range.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.range.end - self.range.start)
    }
}

/// A TCP connection that recognises markers.
pub(crate) struct SendfileStream {
    stream: Arc<TcpStream>,
    outlet: SendfileQueue,
    sending: Option<JoinHandle<io::Result<usize>>>,
}

impl SendfileStream {
    pub(crate) fn new(stream: TcpStream, outlet: SendfileQueue) -> SendfileStream {
        SendfileStream { stream: Arc::new(stream), outlet, sending: None }
    }

    /// Sends as much of a piece as the socket accepts, on a blocking thread, because it may wait for the
    /// disk.
    fn poll_send(&mut self, context: &mut Context<'_>, piece: &Piece) -> Poll<io::Result<usize>> {
        loop {
            if let Some(sending) = &mut self.sending {
                let sent = ready!(Pin::new(sending).poll(context));
                self.sending = None;
                match sent.map_err(io::Error::other)? {
                    Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    Ok(n) => {
                        self.outlet.sent(n);
                        return Poll::Ready(Ok(n));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            ready!(self.stream.poll_write_ready(context))?;
            let (stream, Piece { file, range, .. }) = (self.stream.clone(), piece.clone());
            self.sending = Some(spawn_blocking(move || {
                // Only a hint: without it the file is read when it is sent.
                let _ = fadvise(&*file, range.end, std::num::NonZeroU64::new(AHEAD_BYTES), Advice::WillNeed);
                stream.try_io(Interest::WRITABLE, || {
                    let (mut at, mut total) = (range.start, 0);
                    // Until the socket is full, because each switch to this thread has a cost.
                    while at < range.end {
                        let left = usize::try_from(range.end - at).unwrap_or(PIECE_BYTES);
                        match sendfile(&*stream, &*file, Some(&mut at), left) {
                            Ok(0) => break,
                            Ok(n) => total += n,
                            Err(_) if total > 0 => break,
                            Err(error) => return Err(error.into()),
                        }
                    }
                    Ok(total)
                })
            }));
        }
    }

    fn poll_try<T>(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncRead for SendfileStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read_buf(buffer) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for SendfileStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.outlet.find_piece(bytes) {
            Some(piece) => self.poll_send(context, &piece?),
            None => self.poll_try(context, |stream| stream.try_write(bytes)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = buffers.iter().position(|buffer| !buffer.is_empty()).unwrap_or_default();
        let buffers = &buffers[first..];
        let plain = buffers.iter().position(|buffer| offset_of(buffer).is_some()).unwrap_or(buffers.len());
        match buffers.first() {
            Some(marker) if plain == 0 => match self.outlet.find_piece(marker) {
                Some(piece) => self.poll_send(context, &piece?),
                None => Poll::Ready(Ok(0)),
            },
            _ => self.poll_try(context, |stream| stream.try_write_vectored(&buffers[..plain])),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Called when everything has been written. A piece still queued then was never recognised as a marker.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outlet.has_unsent_pieces() {
            tracing::error!(
                "a response's marker was copied before it reached the socket; closing the connection"
            );
            return Poll::Ready(Err(io::Error::other("a marker was copied")));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&*self.stream, rustix::net::Shutdown::Write).map_err(Into::into))
    }
}
