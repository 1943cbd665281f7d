//! The public socket of `lode serve`: bound by this process, or passed by the service manager (systemd's socket
//! activation, sd_listen_fds(3)), which keeps it open while the server restarts.

use std::{io, net::SocketAddr};

use listenfd::ListenFd;
use tokio::net::{TcpListener, TcpSocket};

use crate::error::{CANNOT_RUN, Failure, Outcome};

/// Connections that the kernel establishes before the server accepts them.
const BACKLOG: u32 = 1024;

/// A socket that refuses connections until it listens, unless it was passed.
pub(crate) enum PublicSocket {
    Bound(TcpSocket),
    Passed(std::net::TcpListener),
}

impl PublicSocket {
    /// Takes the socket that was passed to this process, or binds one.
    pub(crate) fn open(address: SocketAddr) -> Outcome<PublicSocket> {
        let mut passed = ListenFd::from_env();
        if passed.len() > 1 {
            let message = format!("the service manager passed {} sockets; expected one", passed.len());
            return Err(Failure::new(message)
                .hint("the .socket unit must have one ListenStream")
                .code(CANNOT_RUN));
        }
        let socket = passed.take_tcp_listener(0).map_err(|error| {
            Failure::with_source("the socket from the service manager is not a TCP socket", &error)
                .hint("set ListenStream to a port, or to an address with a port")
                .code(CANNOT_RUN)
        })?;
        match socket {
            Some(listener) => {
                let prepared = listener.set_nonblocking(true).and_then(|()| {
                    // The processes of models must not inherit it.
                    Ok(rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?)
                });
                prepared.map_err(|error| {
                    Failure::with_source("cannot use the socket from the service manager", &error)
                })?;
                match listener.local_addr() {
                    Ok(passed) if passed != address => tracing::info!(
                        %passed, listen = %address,
                        "serving on the socket from the service manager; the setting `listen` is not used"
                    ),
                    _ => tracing::info!("serving on the socket from the service manager"),
                }
                Ok(PublicSocket::Passed(listener))
            }
            None => bind(address).map(PublicSocket::Bound).map_err(|error| listen_failure(address, &error)),
        }
    }

    pub(crate) fn address(&self) -> Outcome<SocketAddr> {
        let address = match self {
            PublicSocket::Bound(socket) => socket.local_addr(),
            PublicSocket::Passed(listener) => listener.local_addr(),
        };
        address.map_err(|error| Failure::with_source("cannot listen", &error))
    }

    pub(crate) fn listen(self) -> Outcome<TcpListener> {
        let address = self.address()?;
        let listener = match self {
            PublicSocket::Bound(socket) => socket.listen(BACKLOG),
            PublicSocket::Passed(listener) => TcpListener::from_std(listener),
        };
        listener.map_err(|error| listen_failure(address, &error))
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a previous process may not have ended.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn listen_failure(address: SocketAddr, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AddrInUse => Failure::new(format!("{address} is in use by another program"))
            .hint("is `lode serve` running already? `--listen 127.0.0.1:0` picks a free port"),
        io::ErrorKind::PermissionDenied => Failure::new(format!("this user may not listen on {address}"))
            .hint("ports below 1024 are privileged: use `--listen 127.0.0.1:5000`"),
        io::ErrorKind::AddrNotAvailable => {
            Failure::new(format!("{} is not an address of this machine", address.ip()))
                .hint("use `--listen 127.0.0.1:5000`, or 0.0.0.0 for all addresses")
        }
        _ => Failure::with_source(format!("cannot listen on {address}"), error),
    }
}
