//! Content that is pushed. It is read on a blocking thread, passed through a bounded channel and counted.

use std::{
    io::{self, Read},
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::StreamExt;

use crate::Progress;

const READ_BYTES: usize = 256 << 10;

/// Content that can be read again from any offset, such as a file, a slice or generated data.
pub trait Content: Send + Sync {
    /// The number of bytes.
    fn size(&self) -> u64;
    /// Returns a reader from `offset` to the end. Called on a thread that may block, again after each
    /// interruption.
    fn reader(&self, offset: u64) -> io::Result<Box<dyn Read + Send + '_>>;
}

impl Content for Bytes {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn reader(&self, offset: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        Ok(Box::new(self.get(offset as usize..).unwrap_or_default()))
    }
}

/// Reads content on a blocking thread and counts the sent bytes.
pub(crate) struct ContentReader {
    content: Arc<dyn Content>,
    progress: Arc<dyn Progress>,
    /// Bytes of the blob that were reported to `progress`.
    counted: AtomicU64,
    /// Bytes of the current chunk that were sent.
    fed: AtomicU64,
    failure: Mutex<Option<io::Error>>,
}

impl ContentReader {
    pub(crate) fn new(content: Arc<dyn Content>, progress: Arc<dyn Progress>) -> ContentReader {
        ContentReader {
            content,
            progress,
            counted: AtomicU64::new(0),
            fed: AtomicU64::new(0),
            failure: Mutex::new(None),
        }
    }

    /// Starts a new chunk.
    pub(crate) fn begin(&self) {
        self.fed.store(0, Ordering::Relaxed);
    }

    /// The number of sent bytes of the current chunk.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.fed.load(Ordering::Relaxed)
    }

    /// Takes the error of a failed read, if there was one.
    pub(crate) fn take_failure(&self) -> Option<io::Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Corrects the progress: the registry has `offset` bytes.
    pub(crate) fn set_offset(&self, offset: u64) {
        let counted = self.counted.swap(offset, Ordering::Relaxed);
        if offset > counted {
            self.progress.transferred(offset - counted);
        } else if counted > offset {
            self.progress.retracted(counted - offset);
        }
    }

    fn count(&self, bytes: u64) {
        self.fed.fetch_add(bytes, Ordering::Relaxed);
        self.counted.fetch_add(bytes, Ordering::Relaxed);
        self.progress.transferred(bytes);
    }

    pub(crate) async fn read(self: &Arc<Self>, range: Range<u64>) -> io::Result<Bytes> {
        let feed = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
            feed.content.reader(range.start)?.take(range.end - range.start).read_to_end(&mut bytes)?;
            if bytes.len() as u64 != range.end - range.start {
                return Err(ended_early());
            }
            Ok(Bytes::from(bytes))
        });
        let bytes = read.await.map_err(io::Error::other)??;
        self.count(bytes.len() as u64);
        Ok(bytes)
    }

    /// Returns a body that streams `range`. A second call starts again and subtracts what the first one
    /// counted.
    pub(crate) fn body(self: &Arc<Self>, range: Range<u64>) -> reqwest::Body {
        self.fed.store(0, Ordering::Relaxed);
        self.set_offset(range.start);
        let (sender, receiver) = tokio::sync::mpsc::channel::<io::Result<Bytes>>(4);
        let feed = self.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = feed.pump(range, &sender) {
                let again = io::Error::new(error.kind(), error.to_string());
                *feed.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                let _closed = sender.blocking_send(Err(again));
            }
        });
        let feed = self.clone();
        let stream = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|item| (item, receiver))
        })
        .inspect(move |item| {
            if let Ok(bytes) = item {
                feed.count(bytes.len() as u64);
            }
        });
        reqwest::Body::wrap_stream(stream)
    }

    /// Reads the content into the channel. Returns early, without an error, if the receiver is closed.
    fn pump(
        &self,
        range: Range<u64>,
        sender: &tokio::sync::mpsc::Sender<io::Result<Bytes>>,
    ) -> io::Result<()> {
        let mut reader = self.content.reader(range.start)?;
        let mut left = range.end - range.start;
        while left > 0 {
            let mut buffer = vec![0; READ_BYTES.min(left as usize)];
            let mut filled = 0;
            while filled < buffer.len() {
                match reader.read(&mut buffer[filled..]) {
                    Ok(0) => return Err(ended_early()),
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            left -= filled as u64;
            if sender.blocking_send(Ok(buffer.into())).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn ended_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the content became shorter after it was hashed")
}
