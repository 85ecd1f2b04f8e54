//! A listening socket with a large backlog.

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// Enough for thousands of ranks that connect at once, if the system allows it.
const BACKLOG: i32 = 4096;

/// Listens at an address; port 0 selects a free port.
pub fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections of a job that just ended (TIME_WAIT) must not block its port.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &at)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
