//! A listening socket and those who came in by it and have not yet proved themselves.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

use mio::net::TcpListener;

use super::ConnId;

/// Connections that the kernel holds until we accept them; it may allow fewer. Where there are
/// more, the kernel ignores a caller, which tries again only after a second.
const BACKLOG: i32 = 4096;

/// How many of one listener may be without proof: in any case more than the 64 that a wide tree
/// brings at once, but strangers must not use up the files of this process.
static MOST_STRANGERS: LazyLock<usize> = LazyLock::new(|| (files() / 4).clamp(128, 1024));

/// A listener.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    /// The first is the oldest, because the numbers of connections count upwards.
    pub(super) strangers: BTreeSet<ConnId>,
}

impl Listener {
    /// Listens. A port that a job has just left can be used at once (mio sets `SO_REUSEADDR`).
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        // SAFETY: the file descriptor is that of an open socket, and no memory is passed.
        if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket, strangers: BTreeSet::new() })
    }

    /// Whether one has to go for the next to come in.
    pub(super) fn is_crowded(&self) -> bool {
        self.strangers.len() >= *MOST_STRANGERS
    }

    pub(super) fn oldest(&self) -> Option<ConnId> {
        self.strangers.first().copied()
    }
}

/// How many files this process may have open.
fn files() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to `limit` alone.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1024 }
}
