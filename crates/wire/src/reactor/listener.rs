//! A listening socket and its unauthenticated connections.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

use mio::net::TcpListener;

use super::ConnId;

/// Kernel backlog of connections not yet accepted; the kernel may cap it. Beyond it, the kernel
/// drops a SYN, which is retried only after a second.
const BACKLOG: i32 = 4096;

/// Maximum number of unauthenticated connections per listener: more than are accepted before those
/// that are open are served, but few enough to leave file descriptors for authenticated ones.
static MAX_UNAUTHENTICATED: LazyLock<usize> =
    LazyLock::new(|| (max_open_files() / 4).clamp(128, 1024));

/// Listens on an address; port 0 selects a free port. Connections of a job that just ended (TIME_WAIT) do
/// not block its port, since the standard library sets `SO_REUSEADDR`.
pub fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = std::net::TcpListener::bind(address)?;
    // SAFETY: the descriptor is an open socket, and no memory is passed.
    if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct LinkListener {
    pub(super) socket: TcpListener,
    /// The first is the oldest, because connection IDs increase.
    pub(super) unauthenticated: BTreeSet<ConnId>,
}

impl LinkListener {
    pub(super) fn new(socket: TcpListener) -> Self {
        Self { socket, unauthenticated: BTreeSet::new() }
    }

    /// Whether the oldest connection must be evicted before another is accepted.
    pub(super) fn is_full(&self) -> bool {
        self.unauthenticated.len() >= *MAX_UNAUTHENTICATED
    }

    pub(super) fn oldest(&self) -> Option<ConnId> {
        self.unauthenticated.first().copied()
    }
}

/// The limit on open files (RLIMIT_NOFILE).
fn max_open_files() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to `limit` alone.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1024 }
}
