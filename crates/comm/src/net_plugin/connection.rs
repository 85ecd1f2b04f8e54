//! A communicator of the plug-in, which transfers messages in one direction, with its requests in flight
//! and its bounce buffers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use regatta_plugin_abi::net::{MAX_REQUESTS, Object};

use super::table::{Net, NetError, ObjectKind};
use crate::buffer::Buffer;

/// Memory that is registered for one connection.
pub struct BounceBuffer {
    pub buffer: Buffer,
    region: Region,
}

/// A registration of memory. Plug-ins without registration return the same object for all of them.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    object: Object,
    number: u64,
}

/// A registration and the number of messages that use it.
struct Registration {
    region: Region,
    memory: Range<usize>,
    users: usize,
}

// SAFETY: as for `Connection`.
unsafe impl Send for Region {}

/// The memory of a request.
pub enum RequestMemory {
    Bounce(BounceBuffer),
    /// Memory of the user of a communicator, and its registration.
    User {
        start: *mut u8,
        region: Region,
        comm_id: u64,
    },
}

/// A request: a control message, or a chunk of a message.
pub struct Request {
    pub memory: RequestMemory,
    /// The message that it is a chunk of.
    pub message: u64,
    /// The offset in the message.
    pub at: usize,
    pub size: usize,
}

impl Request {
    /// Whether it uses memory of a user.
    pub fn is_direct(&self) -> bool {
        matches!(self.memory, RequestMemory::User { .. })
    }
}

/// A connection. Its owner serialises all calls.
pub struct Connection {
    net: Arc<Net>,
    comm: Object,
    kind: ObjectKind,
    /// In the order of posting.
    in_flight: VecDeque<(Object, Request)>,
    registrations: Vec<Registration>,
    /// The number of the last registration.
    last: u64,
    bounce_bytes: usize,
    free: Vec<BounceBuffer>,
}

// SAFETY: one thread at a time uses the objects of the plug-in, which NCCL passes between threads, too.
unsafe impl Send for Connection {}

impl Connection {
    /// Takes over a communicator, with bounce buffers of this size.
    pub fn new(net: Arc<Net>, comm: Object, kind: ObjectKind, bounce_bytes: usize) -> Self {
        let (in_flight, registrations, free) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { net, comm, kind, in_flight, registrations, last: 0, bounce_bytes, free }
    }

    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.in_flight.iter().map(|(_, request)| request)
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Registers memory, which must stay valid until it is deregistered or the connection is dropped.
    pub fn register(&mut self, memory: *mut [u8]) -> Result<Region, NetError> {
        let start = memory.cast::<u8>().addr();
        let range = start..start + memory.len();
        // Messages from the same memory share a registration: a plug-in may take the end of one as the end
        // of all use of the memory.
        let contains = |all: &Range<usize>| all.start <= range.start && range.end <= all.end;
        if let Some(shared) = self.registrations.iter_mut().find(|one| contains(&one.memory)) {
            shared.users += 1;
            return Ok(shared.region);
        }
        // SAFETY: the communicator is open, and the memory stays valid by the caller's contract.
        let object = unsafe { self.net.register(self.comm, memory) }?;
        self.last += 1;
        let region = Region { object, number: self.last };
        self.registrations.push(Registration { region, memory: range, users: 1 });
        Ok(region)
    }

    pub fn deregister(&mut self, region: Region) -> Result<(), NetError> {
        let is_region = |one: &Registration| one.region.number == region.number;
        let Some(at) = self.registrations.iter().position(is_region) else { return Ok(()) };
        self.registrations[at].users -= 1;
        if self.registrations[at].users > 0 {
            return Ok(());
        }
        self.registrations.swap_remove(at);
        // SAFETY: the registration is one of this communicator.
        unsafe { self.net.deregister(self.comm, region.object) }
    }

    /// A bounce buffer, registered.
    pub fn bounce_buffer(&mut self) -> Result<BounceBuffer, NetError> {
        if let Some(free) = self.free.pop() {
            return Ok(free);
        }
        let mut buffer = Buffer::zeroed(self.bounce_bytes);
        let region = self.register(buffer.bytes_mut())?;
        Ok(BounceBuffer { buffer, region })
    }

    /// Returns a bounce buffer for reuse.
    pub fn release(&mut self, memory: RequestMemory) {
        if let RequestMemory::Bounce(bounce) = memory {
            self.free.push(bounce);
        }
    }

    /// Posts a request. Returns false if the plug-in cannot take one now; the caller tries again later.
    ///
    /// # Safety
    /// User memory must be valid, and not be accessed otherwise than a send or a receive allows, until the
    /// request has completed or the connection is dropped.
    pub unsafe fn post(&mut self, mut request: Request) -> Result<bool, NetError> {
        if self.in_flight.len() >= MAX_REQUESTS {
            self.release(request.memory);
            return Ok(false);
        }
        let (start, region) = match &mut request.memory {
            RequestMemory::Bounce(bounce) => {
                (bounce.buffer.bytes_mut().as_mut_ptr(), bounce.region)
            }
            RequestMemory::User { start, region, .. } => (*start, *region),
        };
        let memory = std::ptr::slice_from_raw_parts_mut(start, request.size);
        // SAFETY: by the caller's contract; bounce buffers stay with the request.
        let posted = unsafe {
            match self.kind {
                ObjectKind::Send => self.net.isend(self.comm, memory, region.object),
                _ => self.net.irecv(self.comm, memory, region.object),
            }
        }?;
        match posted {
            Some(object) => self.in_flight.push_back((object, request)),
            None => self.release(request.memory),
        }
        Ok(posted.is_some())
    }

    /// The next request that has completed, and its number of bytes. Only the oldest one is tested, as
    /// NCCL does: the requests of a socket transport share a stream, which the request that is tested
    /// reads or writes.
    pub fn poll(&mut self) -> Result<Option<(Request, usize)>, NetError> {
        let Some((object, _)) = self.in_flight.front() else { return Ok(None) };
        // SAFETY: a request in flight of this communicator.
        let Some(size) = unsafe { self.net.test(*object) }? else { return Ok(None) };
        Ok(self.in_flight.pop_front().map(|(_, request)| (request, size)))
    }
}

/// Closes the communicator, after which the plug-in accesses no memory.
impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: nothing uses the registrations and the communicator afterwards. Errors change nothing:
        // the connection is gone.
        let closed = unsafe {
            for Registration { region, .. } in self.registrations.drain(..) {
                let _ = self.net.deregister(self.comm, region.object);
            }
            self.net.close(self.comm, self.kind)
        };
        if closed.is_err() {
            // It may still be open and write to its buffers at any time, so they are leaked.
            std::mem::forget(std::mem::take(&mut self.in_flight));
            std::mem::forget(std::mem::take(&mut self.free));
        }
    }
}
