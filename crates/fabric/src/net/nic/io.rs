//! The endpoint: its operations, and the memory of the plug-in that they use.

use std::collections::HashMap;
use std::mem::ManuallyDrop;

use super::Buffer;
use super::connected::Connections;
use super::connection::Step;
use super::liveness::Liveness;
use crate::FiResult;
use crate::abi::{Context, CqEntry};
use crate::atexit_guard::enter;
use crate::endpoint::{Address, Endpoint, PollResult};
use crate::in_flight::InFlight;
use crate::memory::{Memory, Region};
use crate::net::clear_to_send::{CONTROL_BYTES, ClearToSend};
use crate::net::tag;

/// Receives for clear-to-sends that are always posted.
const CONTROL_RECVS: usize = 128;
/// Clear-to-sends in flight, with providers that cannot inject them.
const CONTROL_SENDS: usize = 64;
/// Bytes that a flush reads.
const FLUSH_BYTES: usize = 4;
/// Completions read per poll.
const CQ_BATCH: usize = 16;
/// Polls in a row.
const MAX_POLLS: usize = 4;

/// What a request wants from the endpoint.
pub struct Item {
    pub connection: u32,
    pub slot: u8,
    /// The step of the request that this is.
    pub step: Step,
    pub action: Action,
}

/// An operation to be posted.
pub enum Action {
    /// To the peer's address, or to its endpoint of the connection.
    Send {
        to: Option<Address>,
        buffer: Buffer,
        tag: u64,
    },
    Receive {
        buffer: Buffer,
        tag: u64,
        index: u8,
    },
    ClearToSend {
        to: Address,
        message: ClearToSend,
    },
    Read {
        from: (u64, u64),
    },
}

/// What happened to a connection.
pub enum Event {
    /// A clear-to-send arrived.
    Granted(ClearToSend),
    /// A message of a request is complete, with this many bytes.
    Completed { slot: u8, index: u8, bytes: usize },
    /// The endpoint is connected.
    Established,
    /// The peer closed the connection.
    Closed,
    /// An operation failed.
    Failed(String),
}

/// An operation in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Receives a clear-to-send into a control buffer.
    ControlRecv(usize),
    /// Sends one of a connection from a control buffer.
    ControlSend { buffer: usize, connection: u32 },
    /// A message of a request.
    Data { connection: u32, slot: u8, index: u8 },
}

/// The endpoint, its operations, and its control buffers.
pub struct Io {
    pub endpoint: ManuallyDrop<Endpoint>,
    pub(super) operations: InFlight<Operation>,
    /// Those with endpoints of their own.
    pub(super) connections: Connections,
    /// Of all peers that were connected.
    addresses: HashMap<Vec<u8>, Address>,
    /// Control buffers, and what a flush reads to.
    memory: ControlMemory,
    region: Region,
    /// Control buffers to be posted, and those to send from.
    unposted: Vec<usize>,
    free: Vec<usize>,
    /// This process, to read its own memory.
    own: Option<Address>,
    pub liveness: Liveness,
    /// What is being posted, empty between calls; and what happened to which connections.
    pub items: Vec<Item>,
    pub events: Vec<(u32, Event)>,
}

/// Memory that the provider accesses while it is owned here.
struct ControlMemory(*mut [u8]);

// SAFETY: owned memory.
unsafe impl Send for ControlMemory {}

impl ControlMemory {
    fn new() -> Self {
        let bytes = vec![0; (CONTROL_RECVS + CONTROL_SENDS) * CONTROL_BYTES + FLUSH_BYTES];
        // Freed when the endpoint is closed.
        Self(Box::into_raw(bytes.into_boxed_slice()))
    }

    fn slice(&self, at: usize, length: usize) -> *mut [u8] {
        // SAFETY: `at` lies within the memory, as all callers use indices of control buffers.
        let start = unsafe { self.0.cast::<u8>().add(at) };
        std::ptr::slice_from_raw_parts_mut(start, length)
    }

    fn control(&self, buffer: usize) -> *mut [u8] {
        self.slice(buffer * CONTROL_BYTES, CONTROL_BYTES)
    }

    fn flush(&self) -> *mut [u8] {
        self.slice((CONTROL_RECVS + CONTROL_SENDS) * CONTROL_BYTES, FLUSH_BYTES)
    }
}

impl Io {
    pub fn new(mut endpoint: Endpoint, can_flush: bool, own_address: &[u8]) -> FiResult<Self> {
        let liveness =
            Liveness::new().map_err(|error| format!("cannot create an epoll: {error}"))?;
        let memory = ControlMemory::new();
        let start = memory.0.cast();
        let region = endpoint.register(Memory::host(start, memory.0.len()), false)?;
        let own = if can_flush { Some(endpoint.insert_address(own_address)?) } else { None };
        let recvs = match endpoint.info.is_connection_oriented {
            true => 0,
            false => CONTROL_RECVS.min(endpoint.info.rx_size / 2).max(1),
        };
        let mut io = Self {
            endpoint: ManuallyDrop::new(endpoint),
            operations: InFlight::default(),
            connections: Connections::default(),
            addresses: HashMap::new(),
            memory,
            region,
            unposted: (0..recvs).collect(),
            free: (CONTROL_RECVS..CONTROL_RECVS + CONTROL_SENDS).collect(),
            own,
            liveness,
            items: Vec::new(),
            events: Vec::new(),
        };
        io.post_control_recvs()?;
        Ok(io)
    }

    /// Peers that were connected.
    pub fn peer_count(&self) -> usize {
        self.addresses.len()
    }

    /// The address of a peer, inserted once.
    pub fn address(&mut self, encoded: &[u8]) -> FiResult<Address> {
        if let Some(address) = self.addresses.get(encoded) {
            return Ok(*address);
        }
        let address = self.endpoint.insert_address(encoded)?;
        self.addresses.insert(encoded.to_vec(), address);
        Ok(address)
    }

    /// Keeps receives for clear-to-sends posted.
    pub fn post_control_recvs(&mut self) -> FiResult {
        while let Some(buffer) = self.unposted.pop() {
            let (bytes, region) = (self.memory.control(buffer), self.region);
            let endpoint = &mut *self.endpoint;
            // SAFETY: the buffer lives as long as the endpoint, and nothing else uses it while it is posted.
            let post =
                |context| unsafe { endpoint.post(None, bytes, region, tag::CONTROL, context) };
            if let Err((_, why)) = self.operations.post(Operation::ControlRecv(buffer), post) {
                self.unposted.push(buffer);
                return why.map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    /// Posts what a request wants. Returns false if it must be tried again.
    pub fn post(&mut self, item: &Item) -> FiResult<bool> {
        let Item { connection, slot, .. } = *item;
        let data = |index: u8| Operation::Data { connection, slot, index };
        match item.action {
            Action::Send { to: None, buffer, .. } => {
                self.post_connected(connection, true, buffer, data(0))
            }
            Action::Send { to, buffer, tag } => self.post_data(to, buffer, tag, data(0)),
            Action::Receive { buffer, .. } if self.endpoint.info.is_connection_oriented => {
                self.post_connected(connection, false, buffer, data(0))
            }
            Action::Receive { buffer, tag, index } => {
                self.post_data(None, buffer, tag, data(index))
            }
            Action::ClearToSend { to, ref message } => self.send_control(connection, to, message),
            Action::Read { from } => self.read(from, data(0)),
        }
    }

    fn post_data(
        &mut self,
        to: Option<Address>,
        Buffer { start, length, region, .. }: Buffer,
        tag: u64,
        operation: Operation,
    ) -> FiResult<bool> {
        let bytes = std::ptr::slice_from_raw_parts_mut(start, length);
        let endpoint = &mut *self.endpoint;
        // SAFETY: the host program keeps the memory valid until the request is complete or released.
        let post = |context| unsafe { endpoint.post(to, bytes, region, tag, context) };
        accepted(self.operations.post(operation, post))
    }

    fn read(&mut self, from: (u64, u64), operation: Operation) -> FiResult<bool> {
        let Some(own) = self.own else { return Err("cannot flush".to_owned()) };
        let (bytes, region) = (self.memory.flush(), self.region);
        let endpoint = &mut *self.endpoint;
        // SAFETY: the memory lives as long as the endpoint; what is read is not used.
        let post = |context| unsafe { endpoint.read(own, bytes, region, from, context) };
        accepted(self.operations.post(operation, post))
    }

    fn send_control(
        &mut self,
        connection: u32,
        to: Address,
        message: &ClearToSend,
    ) -> FiResult<bool> {
        let mut bytes = [0; CONTROL_BYTES];
        let length = message.encode(&mut bytes);
        if length <= self.endpoint.info.inject {
            return self.endpoint.inject(to, &bytes[..length], tag::CONTROL);
        }
        let Some(buffer) = self.free.pop() else { return Ok(false) };
        // SAFETY: a free buffer, which nothing accesses.
        unsafe { (&mut *self.memory.control(buffer)).copy_from_slice(&bytes) };
        let sent = self.memory.slice(buffer * CONTROL_BYTES, length);
        let (region, endpoint) = (self.region, &mut *self.endpoint);
        // SAFETY: the buffer lives as long as the endpoint, and is not changed until it is sent.
        let post =
            |context| unsafe { endpoint.post(Some(to), sent, region, tag::CONTROL, context) };
        let sent =
            accepted(self.operations.post(Operation::ControlSend { buffer, connection }, post));
        if !matches!(sent, Ok(true)) {
            self.free.push(buffer);
        }
        sent
    }

    /// Reads completions into `events`. Returns whether there were any, or why the endpoint failed.
    pub fn poll(&mut self) -> FiResult<bool> {
        let empty = CqEntry { context: std::ptr::null_mut(), flags: 0, len: 0 };
        for polls in 0..MAX_POLLS {
            let mut entries = [empty; CQ_BATCH];
            match self.endpoint.poll_cq(&mut entries) {
                PollResult::Empty => return Ok(polls > 0),
                PollResult::Done(count) => {
                    for entry in &entries[..count] {
                        if let Some(operation) = self.operations.complete(entry.context) {
                            self.completed(operation, entry.len);
                        }
                    }
                    // The provider would have returned more, or there is an error that the next call returns. A
                    // provider that is read again looks for others, with system calls.
                    if count < CQ_BATCH {
                        return Ok(true);
                    }
                }
                PollResult::Failed(context, why) => {
                    match self.operations.complete(context) {
                        Some(operation) => self.failed(operation, why),
                        // A message that was injected: its connection is not known.
                        None if context.is_null() => why.map_or(Ok(()), Err)?,
                        None => {}
                    }
                }
                PollResult::Broken(why) => return Err(why),
            }
        }
        Ok(true)
    }

    fn completed(&mut self, operation: Operation, bytes: usize) {
        match operation {
            Operation::ControlRecv(buffer) => {
                // SAFETY: the receive is complete, so that nothing writes to the buffer.
                let received = unsafe { &*self.memory.control(buffer) };
                let message = ClearToSend::decode(&received[..bytes.min(CONTROL_BYTES)]);
                let granted = |message: ClearToSend| (message.connection, Event::Granted(message));
                self.events.extend(message.map(granted));
                self.unposted.push(buffer);
            }
            Operation::ControlSend { buffer, .. } => self.free.push(buffer),
            Operation::Data { connection, slot, index } => {
                self.events.push((connection, Event::Completed { slot, index, bytes }));
            }
        }
    }

    /// An operation failed; without a reason, it was cancelled.
    fn failed(&mut self, operation: Operation, why: Option<String>) {
        match operation {
            Operation::ControlRecv(buffer) => self.unposted.push(buffer),
            Operation::ControlSend { buffer, connection } => {
                self.free.push(buffer);
                // Without it, the peer would wait for ever.
                self.events.extend(why.map(|why| (connection, Event::Failed(why))));
            }
            Operation::Data { connection, .. } => {
                let event = match why {
                    Some(why) => Event::Failed(why),
                    // So the provider ends what is posted when the peer has closed the connection.
                    None if self.endpoint.info.is_connection_oriented => Event::Closed,
                    None => Event::Failed("an operation was cancelled".to_owned()),
                };
                self.events.push((connection, event));
            }
        }
    }

    /// Cancels the operations of a connection.
    pub fn cancel(&mut self, connection: u32) {
        let contexts: Vec<_> = self.in_flight(connection).collect();
        contexts.into_iter().for_each(|context| self.endpoint.cancel(context));
    }

    /// Whether operations of a connection are in flight.
    pub fn uses(&self, connection: u32) -> bool {
        self.in_flight(connection).next().is_some()
    }

    fn in_flight(&self, id: u32) -> impl Iterator<Item = *mut Context> {
        self.operations.iter().filter_map(move |(operation, context)| {
            let is_own =
                matches!(operation, Operation::Data { connection, .. } if *connection == id);
            is_own.then_some(context)
        })
    }

    /// Gives up the endpoint, which then accesses no memory. Closing an endpoint during a transfer crashes
    /// some providers: one that only makes progress when it is polled is not polled any more instead.
    pub fn give_up(&mut self) {
        if !self.endpoint.info.manual_progress && self.endpoint.close_ep() {
            self.operations.take_all();
        }
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        let Some(_guard) = enter() else { return self.operations.leak() };
        let is_busy =
            |(operation, _): (&Operation, _)| !matches!(operation, Operation::ControlRecv(_));
        // Closing an endpoint during a transfer crashes some providers.
        let is_safe = !self.endpoint.info.manual_progress || !self.operations.iter().any(is_busy);
        if !is_safe || !self.endpoint.close() {
            // An open endpoint may access its memory at any time.
            return self.operations.leak();
        }
        // SAFETY: neither is used afterwards, and the endpoint that accessed the memory is closed.
        unsafe {
            ManuallyDrop::drop(&mut self.endpoint);
            drop(Box::from_raw(self.memory.0));
        }
    }
}

/// Whether an operation was posted, or has to be tried again.
pub(super) fn accepted(posted: Result<(), (Operation, Option<String>)>) -> FiResult<bool> {
    match posted {
        Ok(()) => Ok(true),
        Err((_, None)) => Ok(false),
        Err((_, Some(why))) => Err(why),
    }
}
