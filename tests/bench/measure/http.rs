//! A minimal HTTP/1.1 client on one blocking connection, cheap enough that the server dominates the
//! measurement. It supports Content-Length and chunked responses. Callers follow redirects.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Bodies are received into a buffer of this size and discarded. It fits into a core's cache.
const RECEIVE_BYTES: usize = 256 * 1024;
const TIMEOUT: Duration = Duration::from_secs(300);

pub(crate) struct Connection {
    address: SocketAddr,
    /// Header lines of every request.
    headers: String,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
    /// The received and unused part of the buffer.
    unread_range: std::ops::Range<usize>,
}

/// The head of a response.
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    length: Option<u64>,
    chunked: bool,
    closing: bool,
}

/// The body of a request.
pub(crate) enum Body<'a> {
    None,
    Bytes { content_type: &'a str, bytes: &'a [u8] },
    Stream { length: u64, write: &'a mut dyn FnMut(&mut TcpStream) -> io::Result<()> },
}

impl Connection {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn new(address: SocketAddr) -> Connection {
        let (headers, buffer) = (String::new(), vec![0; RECEIVE_BYTES]);
        Connection { address, headers, stream: None, buffer, unread_range: 0..0 }
    }

    /// A connection whose requests have this `Authorization` header, unless it is empty.
    pub(crate) fn with_authorization(address: SocketAddr, value: &str) -> Connection {
        let headers = match value {
            "" => String::new(),
            value => format!("Authorization: {value}\r\n"),
        };
        Connection { headers, ..Connection::new(address) }
    }

    /// Names another client, as a proxy does.
    pub(crate) fn set_forwarded_for(&mut self, client: &str) {
        self.headers.push_str(&format!("X-Forwarded-For: {client}\r\n"));
    }

    /// Sends a request and returns the head of the response. The caller must read the body next.
    pub(crate) fn send(
        &mut self,
        method: &str,
        target: &str,
        accept: &str,
        body: Body<'_>,
    ) -> io::Result<Head> {
        let path = path_of(target);
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: bench\r\n", self.address);
        head.push_str(&self.headers);
        if !accept.is_empty() {
            head.push_str(&format!("Accept: {accept}\r\n"));
        }
        match &body {
            Body::None if matches!(method, "GET" | "HEAD") => {}
            Body::None => head.push_str("Content-Length: 0\r\n"),
            Body::Bytes { content_type, bytes } => {
                head.push_str(&format!(
                    "Content-Type: {content_type}\r\nContent-Length: {}\r\n",
                    bytes.len()
                ));
            }
            Body::Stream { length, .. } => head
                .push_str(&format!("Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n")),
        }
        head.push_str("\r\n");
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                self.unread_range = 0..0;
                self.stream.insert(stream)
            }
        };
        match body {
            Body::None => stream.write_all(head.as_bytes())?,
            Body::Bytes { bytes, .. } => {
                stream.write_all(&[head.as_bytes(), bytes].concat())?;
            }
            Body::Stream { write, .. } => {
                stream.write_all(head.as_bytes())?;
                write(stream)?;
            }
        }
        self.head()
    }

    /// Like `send`, but reads and discards the body of the response.
    pub(crate) fn send_and_discard(
        &mut self,
        method: &str,
        target: &str,
        accept: &str,
        body: Body<'_>,
    ) -> io::Result<Head> {
        let head = self.send(method, target, accept, body)?;
        if method != "HEAD" {
            self.receive(&head, &mut |_| {})?;
        }
        self.close_if_requested(&head);
        Ok(head)
    }

    /// Reads the body of a response and passes its pieces to `take`.
    pub(crate) fn receive(&mut self, head: &Head, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
        let bodyless = head.status == 204 || head.status == 304;
        let mut total = 0;
        if bodyless {
        } else if head.chunked {
            loop {
                let line = self.line()?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size =
                    u64::from_str_radix(size, 16).map_err(|_| invalid_data("a chunk without a size"))?;
                self.take(size, take)?;
                total += size;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            let length = head.length.ok_or_else(|| invalid_data("a response without a length"))?;
            self.take(length, take)?;
            total = length;
        }
        self.close_if_requested(head);
        Ok(total)
    }

    fn close_if_requested(&mut self, head: &Head) {
        if head.closing {
            self.stream = None;
        }
    }

    fn take(&mut self, mut left: u64, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        while left > 0 {
            if self.unread_range.is_empty() {
                self.fill()?;
            }
            let n = self.unread_range.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            take(&self.buffer[self.unread_range.start..self.unread_range.start + n]);
            self.unread_range.start += n;
            left -= n as u64;
        }
        Ok(())
    }

    /// Moves the unread bytes to the front of the buffer and receives more.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.unread_range.clone(), 0);
        self.unread_range = 0..self.unread_range.len();
        if self.unread_range.end == self.buffer.len() {
            return Err(invalid_data("a head that does not end"));
        }
        let stream = self.stream.as_mut().ok_or_else(|| invalid_data("no connection"))?;
        let n = stream.read(&mut self.buffer[self.unread_range.end..])?;
        if n == 0 {
            self.stream = None;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.unread_range.end += n;
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            let bytes = &self.buffer[self.unread_range.clone()];
            if let Some(at) = bytes.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&bytes[..at]).into_owned();
                self.unread_range.start += at + 2;
                return Ok(line);
            }
            self.fill()?;
        }
    }

    fn head(&mut self) -> io::Result<Head> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| invalid_data("no status line"))?;
        let mut head = Head { status, location: None, length: None, chunked: false, closing: false };
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(head);
            }
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = value.parse().ok(),
                "transfer-encoding" => head.chunked = value.eq_ignore_ascii_case("chunked"),
                "connection" => head.closing = value.eq_ignore_ascii_case("close"),
                "location" => head.location = Some(value.to_owned()),
                _ => {}
            }
        }
    }
}

/// The host and port of an absolute URL, which registries use to redirect to their storage.
pub(crate) fn host_of(target: &str) -> io::Result<SocketAddr> {
    let host = target.strip_prefix("http://").and_then(|rest| rest.split('/').next());
    let host = host.ok_or_else(|| invalid_data("a location that is not an http:// URL"))?;
    host.to_socket_addrs()?.next().ok_or_else(|| invalid_data("a location without a host"))
}

/// The path of a URL with or without a host, as in `Location`.
fn path_of(target: &str) -> &str {
    match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    }
}

fn invalid_data(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
