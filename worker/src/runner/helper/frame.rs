//! Frames between a runner and its text helper: a header in JSON, followed by bytes (ids, masks, texts,
//! bodies).

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A helper's replies are untrusted, so their size is limited. Headers have tools, options and a schema.
const MAX_HEADER_BYTES: usize = 4 << 20;
/// A vocabulary, a prompt's text, or ids.
const MAX_BYTES: usize = 64 << 20;

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Encodes the header, after the lengths of both parts.
fn header(head: &impl Serialize, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut wire = vec![0; 8];
    serde_json::to_writer(&mut wire, head).map_err(invalid)?;
    let head_len = u32::try_from(wire.len() - 8).map_err(invalid)?;
    let bytes_len = u32::try_from(bytes.len()).map_err(invalid)?;
    wire[..4].copy_from_slice(&head_len.to_le_bytes());
    wire[4..8].copy_from_slice(&bytes_len.to_le_bytes());
    Ok(wire)
}

fn lengths(wire: [u8; 8]) -> (usize, usize) {
    let [a, b, c, d, e, f, g, h] = wire;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize)
}

/// Sends a frame from the helper. A frame that exceeds the runner's limits is an error, and nothing is sent.
pub(super) fn write(mut socket: impl Write, head: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
    let wire = header(head, bytes)?;
    if wire.len() - 8 > MAX_HEADER_BYTES || bytes.len() > MAX_BYTES {
        return Err(invalid("the reply is too long"));
    }
    socket.write_all(&wire)?;
    socket.write_all(bytes)
}

/// Reads a frame in the helper, from its trusted runner.
pub(super) fn read<T: DeserializeOwned>(mut socket: impl Read) -> io::Result<(T, Vec<u8>)> {
    let mut wire = [0; 8];
    socket.read_exact(&mut wire)?;
    let (head_len, bytes_len) = lengths(wire);
    let mut head = vec![0; head_len];
    socket.read_exact(&mut head)?;
    let mut bytes = vec![0; bytes_len];
    socket.read_exact(&mut bytes)?;
    Ok((serde_json::from_slice(&head).map_err(invalid)?, bytes))
}

/// Sends a frame from the runner.
pub(super) async fn send(
    socket: &mut (impl AsyncWriteExt + Unpin),
    head: &impl Serialize,
    bytes: &[u8],
) -> io::Result<()> {
    socket.write_all(&header(head, bytes)?).await?;
    socket.write_all(bytes).await
}

/// Reads a frame in the runner.
pub(super) async fn receive<T: DeserializeOwned>(
    socket: &mut (impl AsyncReadExt + Unpin),
) -> io::Result<(T, Vec<u8>)> {
    let mut wire = [0; 8];
    socket.read_exact(&mut wire).await?;
    let (head_len, bytes_len) = lengths(wire);
    if head_len > MAX_HEADER_BYTES || bytes_len > MAX_BYTES {
        return Err(invalid("the text helper's reply is too long"));
    }
    let mut head = vec![0; head_len];
    socket.read_exact(&mut head).await?;
    let mut bytes = vec![0; bytes_len];
    socket.read_exact(&mut bytes).await?;
    Ok((serde_json::from_slice(&head).map_err(invalid)?, bytes))
}

/// Ids, or words of a mask, as bytes.
pub(super) fn to_bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(super) fn from_bytes(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number)).collect()
}
