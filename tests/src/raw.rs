//! HTTP over a plain socket, for requests that a client library would not send and responses that it would
//! normalise. Status line and header fields are returned as received.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// A response as received.
#[derive(Debug, Clone)]
pub struct RawResponse {
    /// The status code.
    pub status: u16,
    /// The header fields in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body: up to the end of the connection, or up to Content-Length if the connection stays open.
    pub body: Vec<u8>,
}

impl RawResponse {
    /// The value of the first field with this (lower case) name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Opens a connection with a read timeout of two minutes.
#[must_use]
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server accepts connections");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    stream.set_nodelay(true).expect("TCP_NODELAY can be set");
    stream
}

/// Sends a whole request with `connection: close` and reads until the end of the connection. Returns `None`
/// if the server closes without a response.
#[must_use]
pub fn exchange(address: SocketAddr, request: &[u8]) -> Option<RawResponse> {
    let mut stream = connect(address);
    let _ = stream.write_all(request); // the server may respond and close before it has read everything
    read_to_end(&mut stream)
}

/// Sends the beginning of a request, shuts down the sending side, and reads the response.
#[must_use]
pub fn exchange_truncated(address: SocketAddr, request: &[u8]) -> Option<RawResponse> {
    let mut stream = connect(address);
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    read_to_end(&mut stream)
}

/// Sends a request without a body on its own connection. Each line in `headers` ends in `\r\n`.
#[must_use]
pub fn send(address: SocketAddr, method: &str, target: &str, headers: &str) -> RawResponse {
    let request =
        format!("{method} {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n");
    exchange(address, request.as_bytes()).expect("a response")
}

/// Reads a response until the server closes the connection.
pub fn read_to_end(stream: &mut TcpStream) -> Option<RawResponse> {
    let mut bytes = Vec::new();
    let mut buffer = [0u8; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => break,
            Err(e) => panic!("the server neither responded nor closed the connection: {e}"),
        }
    }
    parse(&bytes)
}

/// Reads one response from a connection that stays open, by its Content-Length.
#[must_use]
pub fn read_one(stream: &mut TcpStream) -> RawResponse {
    let mut bytes = Vec::new();
    let mut buffer = [0u8; 65536];
    loop {
        if let Some(response) = parse(&bytes) {
            let length =
                response.header("content-length").map_or(0, |text| text.parse::<usize>().expect("a length"));
            if response.body.len() >= length {
                return response;
            }
        }
        let n = stream.read(&mut buffer).expect("the server responds");
        assert!(
            n > 0,
            "the server closed the connection within a response: {}",
            String::from_utf8_lossy(&bytes)
        );
        bytes.extend_from_slice(&buffer[..n]);
    }
}

fn parse(bytes: &[u8]) -> Option<RawResponse> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).expect("the head is UTF-8");
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().expect("a status code");
    let headers = lines
        .map(|line| line.split_once(':').unwrap_or_else(|| panic!("expected a header field, got `{line}`")))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Some(RawResponse { status, headers, body: bytes[end + 4..].to_vec() })
}
