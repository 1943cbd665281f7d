//! Splits a worker's byte stream into records: one JSON value per line.

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use serde_json::Value;

use crate::gateway::GatewayError;

/// The maximum length of a line.
const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;

type Bytestream = BoxStream<'static, Result<Bytes, GatewayError>>;

/// The records, up to the first error.
pub(super) fn records(bytes: Bytestream) -> impl Stream<Item = Result<Value, GatewayError>> + Send {
    stream::unfold(Some((bytes, BytesMut::new())), |state| async {
        let (mut bytes, mut buffer) = state?;
        match next_line(&mut bytes, &mut buffer).await {
            Ok(Some(line)) => match serde_json::from_slice(&line) {
                Ok(record) => Some((Ok(record), Some((bytes, buffer)))),
                Err(error) => Some((Err(GatewayError::InvalidResponse(error)), None)),
            },
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

async fn next_line(bytes: &mut Bytestream, buffer: &mut BytesMut) -> Result<Option<BytesMut>, GatewayError> {
    let mut searched = 0;
    loop {
        if let Some(end) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(searched + end + 1);
            if line.trim_ascii().is_empty() {
                searched = 0;
                continue;
            }
            return Ok(Some(line));
        }
        searched = buffer.len();
        if searched > MAX_LINE_BYTES {
            return Err(GatewayError::LineTooLong { limit_bytes: MAX_LINE_BYTES });
        }
        match bytes.next().await {
            Some(more) => buffer.extend_from_slice(&more?),
            // Bytes without a final newline are a record too.
            None if buffer.trim_ascii().is_empty() => return Ok(None),
            None => return Ok(Some(buffer.split())),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn records_are_split_at_any_chunk_size() {
        let text = "{\"n\":1}\n\n{\"n\":2}\n{\"n\":3}";
        for size in 1..text.len() {
            let pieces: Vec<_> =
                text.as_bytes().chunks(size).map(|piece| Ok(Bytes::from_static(piece))).collect();
            let found: Vec<Value> = records(stream::iter(pieces).boxed()).try_collect().await.unwrap();
            assert_eq!(found, [json!({"n": 1}), json!({"n": 2}), json!({"n": 3})], "{size}");
        }
    }

    #[tokio::test]
    async fn an_invalid_record_ends_the_stream() {
        let bytes = stream::iter([Ok(Bytes::from_static(b"{}\nnonsense\n{}\n"))]).boxed();
        let found: Vec<_> = records(bytes).collect().await;
        assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false]);
    }
}
