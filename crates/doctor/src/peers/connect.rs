//! A TCP connection from a given address, with a time limit.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};

/// Connects from the address `from`, so that the packets take its network: NICs of one node are
/// often in the same subnet.
pub(super) fn connect_from(from: IpAddr, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket(family, SocketType::STREAM, None)?;
    bind(&fd, &SocketAddr::new(from, 0))?;
    ioctl_fionbio(&fd, true)?;
    match connect(&fd, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            wait_writable(&fd, limit)?;
            sockopt::socket_error(&fd)??;
        }
        Err(error) => return Err(error.into()),
    }
    ioctl_fionbio(&fd, false)?;
    Ok(TcpStream::from(fd))
}

fn wait_writable(fd: &impl std::os::fd::AsFd, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(fd, PollFlags::OUT)], timeout.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
