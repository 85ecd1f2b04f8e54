//! Answers the tests of other nodes.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use regatta_wire::secret::Secret;

use super::protocol::{self, Command};
use super::{PeerLimits, PeerTable, PeerTestError, schedule};

/// Bytes of one read or write.
pub(super) const BLOCK: usize = 1 << 18;

/// A listening node.
pub(super) struct Server {
    state: Arc<State>,
}

/// Which nodes are still to end their tests.
struct State {
    awaited: Mutex<BTreeSet<u32>>,
    changed: Condvar,
}

impl Server {
    /// Listens on the first free port and answers in threads that end with the process.
    pub(super) fn start(
        table: &PeerTable,
        own: usize,
        secret: &Secret,
        limits: PeerLimits,
    ) -> Result<Self, PeerTestError> {
        let listener = listen(&table.ports)?;
        let sources = schedule::sources(own, table.nodes.len());
        let connecting = sources.into_iter().filter(|&node| !table.routes(node, own).is_empty());
        let awaited = Mutex::new(connecting.map(|node| node as u32).collect());
        let state = Arc::new(State { awaited, changed: Condvar::new() });
        let (shared, secret, own) = (Arc::clone(&state), secret.clone(), own as u32);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, secret) = (Arc::clone(&shared), secret.clone());
                std::thread::spawn(move || {
                    // An error is the other node's to report.
                    let _ = answer(stream, &secret, own, limits, &state);
                });
            }
        });
        Ok(Self { state })
    }

    /// Waits until all nodes have ended their tests.
    pub(super) fn finish(self, deadline: Instant) {
        let awaited = self.state.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let left = deadline.saturating_duration_since(Instant::now());
        let _ = self.state.changed.wait_timeout_while(awaited, left, |nodes| !nodes.is_empty());
    }
}

fn listen(ports: &[u16]) -> Result<TcpListener, PeerTestError> {
    let mut source = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for &port in ports {
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => source = error,
        }
    }
    Err(PeerTestError::Listen { ports: ports.to_vec(), source })
}

fn answer(
    mut stream: TcpStream,
    secret: &Secret,
    own: u32,
    limits: PeerLimits,
    state: &State,
) -> io::Result<()> {
    prepare(&stream, limits.answer)?;
    let node = protocol::accept(&mut stream, secret, own)?;
    // Between two tests the other node may wait for a third.
    stream.set_read_timeout(Some(limits.total))?;
    let mut block = vec![0; BLOCK];
    loop {
        match protocol::read_command(&mut stream)? {
            Command::Time => stream.write_all(&now().to_le_bytes())?,
            Command::Receive(bytes) => {
                receive(&mut stream, bytes, &mut block)?;
                stream.write_all(&[1])?;
            }
            Command::Send(bytes) => send(&mut stream, bytes, &block)?,
            Command::End => break,
        }
    }
    state.end(node);
    Ok(())
}

impl State {
    /// Records that this node has ended all its tests.
    fn end(&self, node: u32) {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).remove(&node);
        self.changed.notify_all();
    }
}

/// Sets time limits and disables the delay of short messages.
pub(super) fn prepare(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))
}

pub(super) fn receive(stream: &mut impl Read, mut bytes: u64, block: &mut [u8]) -> io::Result<()> {
    while bytes > 0 {
        let wanted = block.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        match stream.read(&mut block[..wanted])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => bytes -= read as u64,
        }
    }
    Ok(())
}

pub(super) fn send(stream: &mut impl Write, mut bytes: u64, block: &[u8]) -> io::Result<()> {
    while bytes > 0 {
        let part = block.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        stream.write_all(&block[..part])?;
        bytes -= part as u64;
    }
    Ok(())
}

/// The time in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
