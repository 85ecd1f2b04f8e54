//! A listening socket on which thousands may come at once.

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as begin, socket_with};

/// So many wait to be taken in, if the system allows it.
const BACKLOG: i32 = 4096;

/// Listens at an address; port 0 is any that is free.
pub fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The connections of a job that has just ended do not keep its port.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &at)?;
    begin(&socket, BACKLOG)?;
    Ok(socket.into())
}
