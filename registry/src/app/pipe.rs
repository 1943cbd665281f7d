//! Bytes that this process produces, as the body of an upload.

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::sync::mpsc;

use super::Body;

/// How many pieces wait for the upload.
const PIECES: usize = 4;

/// The end into which pieces are put. Without [`PipeSender::finish`], the upload fails.
pub(super) struct PipeSender(mpsc::Sender<Option<Bytes>>);

pub(super) fn pipe() -> (PipeSender, Body) {
    let (sender, receiver) = mpsc::channel(PIECES);
    let body = stream::unfold(Some(receiver), |receiver| async move {
        let mut receiver: mpsc::Receiver<Option<Bytes>> = receiver?;
        match receiver.recv().await {
            Some(Some(piece)) => Some((Ok(piece), Some(receiver))),
            Some(None) => None,
            None => Some((Err("the content was not completed".into()), None)),
        }
    });
    (PipeSender(sender), body.boxed())
}

impl PipeSender {
    /// Returns false if the upload has ended; its error says why.
    pub(super) async fn send(&self, piece: Bytes) -> bool {
        piece.is_empty() || self.0.send(Some(piece)).await.is_ok()
    }

    /// Ends the body as a complete one.
    pub(super) async fn finish(self) {
        // An upload that has ended has an error of its own.
        let _ = self.0.send(None).await;
    }
}
