//! A NIC: an endpoint, which connections share, and what they do. If the provider does not give up an
//! operation that is cancelled, the endpoint fails with all of its connections, so those of different
//! communicators should have endpoints of their own.
//!
//! NCCL calls from several threads, and from one for all connections: nothing may keep that one from the
//! others. So a call starts a request and tries to make progress; the provider's copies of large messages may
//! run in a thread of the endpoint.

mod connected;
mod connection;
mod engine;
mod io;
mod liveness;
mod release;
mod state;
mod stuck_provider;

use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::device::Device;
use super::handle::Token;
use super::hello::Hello;
use super::{MAX_GROUPED_RECVS, MAX_REQUESTS, NetResult};
use crate::atexit_guard::enter;
use crate::endpoint::{Endpoint, ProviderInfo, WaitMode};
use crate::memory::{Memory, MemoryKind, Region};
use crate::shm_cleanup;
use crate::shm_lock::SegmentLock;
use connection::{ConnectionState, Peer, Role, SLOTS};
use engine::Engine;
use io::Io;
use state::State;

pub use connection::Direction;
pub(super) use liveness::keep_alive;

/// Requests with at least this many bytes are moved by the thread of the endpoint, if it has one.
const BULK_BYTES: usize = 32 << 10;

/// New connections of shm need another endpoint after this many peers: it has room for 256, and addresses are never
/// removed.
const MAX_SHM_PEERS: usize = 192;

/// A message in memory of the host program.
#[derive(Debug, Clone, Copy)]
pub struct Buffer {
    /// First byte.
    pub start: *mut u8,
    /// Bytes.
    pub length: usize,
    /// Registration of the memory with the provider.
    pub region: Region,
    /// Identifies the registration of the host program, also if the provider needs none; 0 without one.
    pub registration: usize,
}

impl Buffer {
    /// No memory.
    pub const NONE: Self =
        Self { start: std::ptr::null_mut(), length: 0, region: Region::NONE, registration: 0 };
}

// SAFETY: the host program keeps the memory valid while a request uses it.
unsafe impl Send for Buffer {}

/// Memory of a GPU, whose last bytes are to be visible to the GPU.
#[derive(Debug, Clone, Copy)]
pub struct FlushBuffer {
    /// A byte that was received.
    pub start: *mut u8,
    /// Registration of the memory.
    pub region: Region,
    /// Start of that registration.
    pub base: *mut u8,
    /// Identifies the registration of the host program.
    pub registration: usize,
}

impl FlushBuffer {
    /// The address and key of the bytes that a flush reads.
    fn source(self, info: &ProviderInfo) -> (u64, u64) {
        let offset = (self.start as u64).wrapping_sub(self.base as u64);
        (if info.virtual_addresses { self.start as u64 } else { offset }, self.region.key())
    }
}

/// Whether a request is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestResult {
    /// It is not.
    Pending,
    /// It is, with the sizes of its messages.
    Done {
        /// Messages.
        count: usize,
        /// Bytes of each.
        sizes: [usize; MAX_GROUPED_RECVS],
    },
}

/// How an endpoint is used.
#[derive(Debug, Clone, Copy)]
pub struct NicOptions {
    /// Address of listeners.
    pub control_ip: IpAddr,
    /// Time after which a peer that does not answer is lost.
    pub timeout: Duration,
    /// Whether a thread of its own makes progress with large messages.
    pub has_thread: bool,
}

/// An endpoint of a NIC.
pub struct Nic {
    /// Properties of the endpoint, for which it need not be locked.
    info: ProviderInfo,
    /// Version of libfabric.
    library: (u32, u32),
    host: String,
    own_address: Vec<u8>,
    pub(super) options: NicOptions,
    can_flush: bool,
    takes_dma_buf: bool,
    engine: Arc<Engine>,
}

impl Nic {
    /// Opens an endpoint.
    pub fn open(device: &Device, options: NicOptions) -> NetResult<Arc<Self>> {
        let _guard = enter().ok_or("the process exits")?;
        let Device { provider, domain, .. } = device;
        let endpoint = Endpoint::open(device.info()?, (provider, domain), WaitMode::Poll);
        let endpoint = endpoint.map_err(|why| format!("{provider} on {domain}: {why}"))?;
        Self::new(endpoint, (device.gpu_memory, device.dma_buf), options)
    }

    /// A NIC with an endpoint, which may be able to read its own memory for a flush, and to register memory by
    /// dma-buf.
    fn new(
        endpoint: Endpoint,
        (can_flush, takes_dma_buf): (bool, bool),
        options: NicOptions,
    ) -> NetResult<Arc<Self>> {
        let own_address = endpoint.address()?;
        // NICs are kept for later communicators, and never closed if the process exits.
        shm_cleanup::remove_at_exit(&own_address);
        let info = endpoint.info.clone();
        let library = endpoint.library_version();
        let engine = Arc::new(Engine::new(Io::new(endpoint, can_flush, &own_address)?));
        if let Some(own) = SegmentLock::map(&own_address, library) {
            let watched = stuck_provider::watch(Arc::downgrade(&engine), own);
            watched.map_err(|error| format!("cannot start a thread: {error}"))?;
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        if options.has_thread {
            let engine = engine.clone();
            let spawned = spawn(move || engine.run());
            spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
        }
        Ok(Arc::new(Self {
            info,
            library,
            host,
            own_address,
            options,
            can_flush,
            takes_dma_buf,
            engine,
        }))
    }

    fn is_shm(&self) -> bool {
        self.info.provider.starts_with("shm")
    }

    /// Whether its connections have failed.
    pub fn has_failed(&self) -> bool {
        self.engine.state().failure.is_some()
    }

    /// Whether new connections need another endpoint: this one has failed, is full, or has cancelled receives. A
    /// message that arrives for a cancelled receive stays unexpected for ever, and with some providers
    /// everything that the same peer sends later waits behind it.
    pub fn is_retired(&self) -> bool {
        let state = self.engine.state();
        state.is_retired || state.failure.is_some()
    }

    /// Adds a connection that is being established. Clear-to-sends for it may arrive before the end of the
    /// handshake.
    pub(super) fn add_connection(self: &Arc<Self>, direction: Direction) -> NetResult<Connection> {
        let key = super::handle::random_key()?;
        let mut state = self.engine.state();
        state.check()?;
        let id = state.next_connection()?;
        state.connections.insert(id, ConnectionState::new(direction, key));
        drop(state);
        let handle = |slot| RequestHandle { nic: self.clone(), connection: id, slot: slot as u8 };
        let handles = (0..SLOTS).map(handle).collect();
        Ok(Connection { nic: self.clone(), id, key, handles })
    }

    /// The message of this side.
    pub(super) fn hello(&self, connection: &Connection, token: Token) -> Hello {
        Hello {
            token,
            key: connection.key,
            connection: connection.id,
            process: std::process::id(),
            provider: self.info.provider.clone(),
            host: self.host.clone(),
            address: self.own_address.clone(),
        }
    }

    /// Completes a handshake.
    pub(super) fn connected(
        &self,
        connection: &Connection,
        peer: &Hello,
        stream: TcpStream,
    ) -> NetResult {
        let name = format!("{} (process {})", peer.host, peer.process);
        if peer.provider != self.info.provider {
            let (theirs, ours) = (&peer.provider, &self.info.provider);
            return Err(format!("{name} uses provider {theirs}, {} uses {ours}", self.host));
        }
        let is_own = peer.process == std::process::id() && peer.host == self.host;
        if is_own && self.is_shm() {
            return Err("provider shm cannot connect ranks of the same process".to_owned());
        }
        let kept = keep_alive(&stream, self.options.timeout);
        kept.map_err(|error| format!("{name}: {error}"))?;
        let _guard = enter().ok_or("the process exits")?;
        let mut io = self.engine.io();
        self.engine.state().check()?;
        let address = match io.endpoint.info.is_connection_oriented {
            true => self.connect_ep(&mut io, connection, peer).map(|()| None),
            false => io.address(&peer.address).map(Some),
        };
        let address = address.map_err(|why| format!("{name}: {why}"))?;
        let watched = io.liveness.watch(&stream, connection.id);
        watched.map_err(|error| format!("{name}: {error}"))?;
        let segment_lock = SegmentLock::map(&peer.address, self.library).map(Arc::new);
        let mut state = self.engine.state();
        state.is_retired |= self.is_shm() && io.peer_count() >= MAX_SHM_PEERS;
        let own = state.connection(connection.id)?;
        own.is_established = address.is_some();
        own.peer = Some(Peer {
            name,
            address,
            is_visible: shm_cleanup::is_running(&peer.address),
            fabric_address: peer.address.clone(),
            connection: peer.connection,
            key: peer.key,
            stream,
            segment_lock,
        });
        Ok(())
    }

    /// Begins to connect the endpoint of a connection to the receiver's, or waits for the sender.
    fn connect_ep(&self, io: &mut Io, connection: &Connection, peer: &Hello) -> NetResult {
        let is_send = matches!(self.engine.state().connection(connection.id)?.role, Role::Send(_));
        match is_send {
            true => io.connect(connection.id, &peer.address, (peer.connection, peer.key))?,
            false => io.expect(connection.id, connection.key),
        }
        Ok(())
    }

    /// Whether a connection is established, after its handshake. Never blocks.
    pub(super) fn is_established(&self, connection: &Connection) -> NetResult<bool> {
        let _guard = enter().ok_or("the process exits")?;
        self.engine.try_progress();
        Ok(self.engine.state().connection(connection.id)?.is_established)
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

/// Starts a thread without signals, which are for the threads of the host program.
fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let run = move || {
        // SAFETY: the set is initialised by the call, and only this thread is affected.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
        }
        work();
    };
    std::thread::Builder::new().name("regatta-net".to_owned()).spawn(run).map(drop)
}

/// One direction of messages between two processes.
pub struct Connection {
    nic: Arc<Nic>,
    id: u32,
    key: u64,
    /// Where requests are; the host program gets pointers to these.
    handles: Box<[RequestHandle]>,
}

/// A request, as the host program sees it.
pub struct RequestHandle {
    nic: Arc<Nic>,
    connection: u32,
    slot: u8,
}

impl Connection {
    /// Registers memory. The GPU's is also read, to flush it.
    pub fn register(&self, memory: Memory) -> NetResult<Region> {
        let _guard = enter().ok_or("the process exits")?;
        self.nic.engine.state().check()?;
        let is_read = memory.kind != MemoryKind::Host && self.nic.can_flush;
        if !self.nic.info.needs_region(&memory, is_read) {
            return Ok(Region::NONE);
        }
        // RCCL passes a descriptor to every provider.
        let dma_buf = memory.dma_buf.filter(|_| self.nic.takes_dma_buf);
        self.nic.engine.io().endpoint.register(Memory { dma_buf, ..memory }, is_read)
    }

    /// Posts a send with a tag of the host program. `None` if the receive is not posted yet, or all requests
    /// are in use: to be tried again.
    ///
    /// # Safety
    /// The memory stays valid until the request is complete, deregistered, or the connection is closed.
    pub unsafe fn send(&self, buffer: Buffer, tag: i32) -> NetResult<Option<&RequestHandle>> {
        self.start(MAX_REQUESTS, |connection| {
            let Some(grant) = connection.grant(tag)? else { return Ok(None) };
            let length = buffer.length.min(usize::try_from(grant.size).unwrap_or(usize::MAX));
            Ok(Some(connection.start_send(Buffer { length, ..buffer }, grant)))
        })
    }

    /// Posts a group of receives with tags of the host program. `None` if all requests are in use.
    ///
    /// # Safety
    /// As for [`Self::send`].
    pub unsafe fn receive(&self, group: &[(Buffer, i32)]) -> NetResult<Option<&RequestHandle>> {
        if !(1..=MAX_GROUPED_RECVS).contains(&group.len()) {
            return Err(format!("a group of {} receives", group.len()));
        }
        self.start(MAX_REQUESTS, |connection| {
            let Role::Recv { .. } = connection.role else {
                return Err("not a connection to receive from".to_owned());
            };
            if group.len() > 1 && connection.is_in_order() {
                return Err(format!("a group of {} receives, expected one", group.len()));
            }
            Ok(Some(connection.start_receive(group)))
        })
    }

    /// Makes received bytes visible to the GPU. `None` if that needs nothing.
    ///
    /// # Safety
    /// As for [`Self::send`].
    pub unsafe fn flush(&self, buffer: FlushBuffer) -> NetResult<Option<&RequestHandle>> {
        if !self.nic.can_flush {
            return Ok(None);
        }
        let from = buffer.source(&self.nic.info);
        let memory = Buffer { registration: buffer.registration, ..Buffer::NONE };
        let posted =
            self.start(SLOTS, |connection| Ok(Some(connection.start_flush(memory, from))))?;
        // The host program would take `None` for complete.
        posted.map(Some).ok_or_else(|| format!("more than {SLOTS} requests are in flight"))
    }

    /// Starts a request if fewer than `limit` are in use, and posts it. If none can be started, tries once more
    /// after some progress.
    fn start(
        &self,
        limit: usize,
        start: impl Fn(&mut ConnectionState) -> NetResult<Option<u8>>,
    ) -> NetResult<Option<&RequestHandle>> {
        let _guard = enter().ok_or("the process exits")?;
        let engine = &self.nic.engine;
        let try_start = |state: &mut State| -> NetResult<Option<u8>> {
            let connection = state.connection(self.id)?;
            if !connection.has_free_request(limit) {
                return Ok(None);
            }
            let started = start(connection)?;
            let is_bulk = started.is_some_and(|slot| state.started(self.id, slot));
            if is_bulk && self.nic.options.has_thread {
                engine.wake();
            }
            Ok(started)
        };
        let mut started = try_start(&mut engine.state())?;
        if started.is_none() {
            engine.try_progress();
            started = try_start(&mut engine.state())?;
        }
        if started.is_some() {
            engine.try_post();
        }
        let Some(slot) = started else { return Ok(None) };
        engine.state().connection(self.id)?;
        Ok(self.handles.get(usize::from(slot)))
    }
}

impl RequestHandle {
    /// Whether the request is complete. It must not be used afterwards.
    pub fn test(&self) -> NetResult<TestResult> {
        let Some(_guard) = enter() else { return Ok(TestResult::Pending) };
        // What has arrived counts, also if the connection failed since.
        let take_done = |state: &mut State| state.take_done(self.connection, self.slot);
        if let Some(done) = take_done(&mut self.nic.engine.state()) {
            return Ok(done);
        }
        self.nic.engine.try_progress();
        let mut state = self.nic.engine.state();
        if let Some(done) = take_done(&mut state) {
            return Ok(done);
        }
        state.connection(self.connection)?;
        Ok(TestResult::Pending)
    }
}

/// What tests need besides.
#[cfg(test)]
impl Nic {
    /// A NIC that flushes memory of the host.
    pub fn flushing(
        info: crate::library::InfoList,
        (provider, domain): (&str, &str),
        options: NicOptions,
    ) -> NetResult<Arc<Self>> {
        let endpoint = Endpoint::open(info, (provider, domain), WaitMode::Poll)?;
        Self::new(endpoint, (true, false), options)
    }

    /// Where connection-oriented endpoints listen.
    pub fn fabric_address(&self) -> std::net::SocketAddr {
        let port = u16::from_be_bytes([self.own_address[2], self.own_address[3]]);
        (std::net::Ipv4Addr::LOCALHOST, port).into()
    }

    /// Asks another for a connection, with a number and a key.
    pub fn ask_for_connection(&self, id: u32, other: &Self, request: (u32, u64)) {
        self.engine.io().connect(id, &other.own_address, request).unwrap();
    }
}

#[cfg(test)]
impl Connection {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.id
    }

    /// Makes progress of the NIC.
    pub fn progress(&self) {
        self.nic.engine.try_progress();
    }

    /// Registers memory of the host that the NIC may read.
    pub fn register_readable(&self, memory: Memory) -> NetResult<Region> {
        self.nic.engine.io().endpoint.register(memory, true)
    }
}

#[cfg(test)]
impl RequestHandle {
    /// Makes progress of the NIC.
    pub fn progress(&self) {
        self.nic.engine.try_progress();
    }
}
