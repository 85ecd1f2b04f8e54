//! Connection-oriented endpoints (`FI_EP_MSG`): each connection has an endpoint of its own, whose messages arrive
//! in the order in which they are sent. A passive endpoint listens for connections. They share the completion
//! queue.

use std::ffi::c_int;

use super::{Endpoint, close, fi_call, serialized};
use crate::FiResult;
use crate::abi::{self, Context, Ep, Eq, EqAttr, EqCmEntry, EqError, Fid, Info};
use crate::library::InfoList;
use crate::memory::Region;

/// The most data of a request for a connection.
pub const MAX_REQUEST_DATA: usize = 256;

/// Events that the provider queues; more are allocated.
const EQ_SIZE: usize = 64;

/// The endpoint of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectedEp(pub(super) *mut Ep);

// SAFETY: libfabric objects may be used from any thread, one at a time.
unsafe impl Send for ConnectedEp {}

/// A request of a peer for a connection, to be accepted or rejected.
pub struct ConnectRequest {
    info: InfoList,
    /// What the peer sent with it.
    pub data: Vec<u8>,
}

/// What happened to a connection.
pub enum ConnectionEvent {
    /// A peer asks for one.
    Requested(ConnectRequest),
    /// It is established.
    Connected(ConnectedEp),
    /// It ended.
    Closed(ConnectedEp),
    /// It could not be established, or ended, for this reason.
    Failed(ConnectedEp, String),
}

/// Space for an event.
#[repr(C)]
struct EventBuffer {
    entry: EqCmEntry,
    data: [u8; MAX_REQUEST_DATA],
}

impl Endpoint {
    /// Opens the event queue, and the endpoint that listens.
    pub(super) fn open_listener(&mut self) -> FiResult {
        let (fabric, info, none) = (self.fabric, self.info_list.first, std::ptr::null_mut());
        let (eq, pep) = (&raw mut self.eq, &raw mut self.pep);
        let wait_obj = abi::WAIT_NONE;
        let mut attributes = EqAttr { size: EQ_SIZE, flags: 0, wait_obj, rest: [0; 8] };
        let a = &raw mut attributes;
        fi_call!(self, "fi_eq_open", ((*(*fabric).ops).eq_open)(fabric, a, eq, none))?;
        fi_call!(self, "fi_passive_ep", ((*(*fabric).ops).passive_ep)(fabric, info, pep, none))?;
        let (pep, eq): (*mut Fid, *mut Fid) = (self.pep.cast(), self.eq.cast());
        fi_call!(self, "fi_pep_bind", ((*(*pep).ops).bind)(pep, eq, 0))?;
        let pep = self.pep;
        fi_call!(self, "fi_listen", ((*(*pep).cm).listen)(pep))
    }

    /// Asks a peer for a connection, whose listener has this address.
    pub fn connect(&mut self, address: &[u8], data: &[u8]) -> FiResult<ConnectedEp> {
        // Aligned and long enough for any socket address.
        let mut padded = [0u64; super::MAX_ADDRESS_BYTES / 8];
        if address.len() > super::MAX_ADDRESS_BYTES || data.len() > MAX_REQUEST_DATA {
            return Err(format!("fi_connect: the address has {} bytes", address.len()));
        }
        // SAFETY: the destination is long enough.
        unsafe {
            let to: *mut u8 = padded.as_mut_ptr().cast();
            to.copy_from_nonoverlapping(address.as_ptr(), address.len());
        }
        let opened = self.open_connected(self.info_list.first)?;
        let (ep, address) = (opened.0, padded.as_ptr().cast());
        let (data, length) = (data.as_ptr().cast(), data.len());
        let asked = fi_call!(self, "fi_connect", ((*(*ep).cm).connect)(ep, address, data, length));
        self.or_close(opened, asked)
    }

    /// Accepts a connection.
    pub fn accept(&mut self, request: &ConnectRequest) -> FiResult<ConnectedEp> {
        let accepted = self.open_connected(request.info.first).and_then(|opened| {
            let (ep, none) = (opened.0, std::ptr::null());
            let accepted = fi_call!(self, "fi_accept", ((*(*ep).cm).accept)(ep, none, 0));
            self.or_close(opened, accepted)
        });
        if accepted.is_err() {
            self.reject(request);
        }
        accepted
    }

    /// Rejects a connection.
    pub fn reject(&mut self, request: &ConnectRequest) {
        let (pep, none) = (self.pep, std::ptr::null());
        // SAFETY: the listener is open, and the request was neither accepted nor rejected.
        unsafe { ((*(*pep).cm).reject)(pep, (*request.info.first).handle, none, 0) };
    }

    fn or_close(&mut self, opened: ConnectedEp, result: FiResult) -> FiResult<ConnectedEp> {
        if result.is_err() {
            self.close_connected(opened);
        }
        result.map(|()| opened)
    }

    /// Opens an endpoint for a connection.
    fn open_connected(&mut self, info: *mut Info) -> FiResult<ConnectedEp> {
        self.check_open()?;
        let (domain, none) = (self.domain, std::ptr::null_mut());
        let mut ep: *mut Ep = std::ptr::null_mut();
        let into = &raw mut ep;
        serialized(|| {
            fi_call!(self, "fi_endpoint", ((*(*domain).ops).endpoint)(domain, info, into, none))
        })?;
        let opened = ConnectedEp(ep);
        self.connected.insert(opened);
        let fid: *mut Fid = ep.cast();
        let (cq, eq): (*mut Fid, *mut Fid) = (self.cq.cast(), self.eq.cast());
        let flags = abi::SEND | abi::RECV;
        let enabled = fi_call!(self, "fi_ep_bind", ((*(*fid).ops).bind)(fid, eq, 0))
            .and_then(|()| fi_call!(self, "fi_ep_bind", ((*(*fid).ops).bind)(fid, cq, flags)))
            .and_then(|()| {
                fi_call!(self, "fi_enable", ((*(*fid).ops).control)(fid, abi::ENABLE, none))
            });
        self.or_close(opened, enabled)
    }

    /// Makes progress with connections that are being established, and reads an event.
    pub fn poll_connections(&mut self) -> FiResult<Option<ConnectionEvent>> {
        let eq = self.eq;
        let entry = EqCmEntry { fid: std::ptr::null_mut(), info: std::ptr::null_mut() };
        let mut buffer = EventBuffer { entry, data: [0; MAX_REQUEST_DATA] };
        let (into, mut event) = (&raw mut buffer, 0);
        // SAFETY: the queue is open, and the buffer has this size.
        let code = unsafe {
            // Up to version 2.1, libfabric looks at errno also after a short read, and does not close the socket
            // of a stranger if an earlier call has left EAGAIN.
            *libc::__errno_location() = 0;
            ((*(*eq).ops).read)(eq, &mut event, into.cast(), size_of::<EventBuffer>(), 0)
        };
        match code {
            code if code > 0 => Ok(self.connection_event(event, &buffer, code as usize)),
            code if code == -abi::EAVAIL => Ok(self.connection_error(eq)),
            code if code == 0 || code == -abi::EAGAIN => Ok(None),
            code => Err(self.error("fi_eq_read", code)),
        }
    }

    fn connection_event(
        &self,
        event: u32,
        EventBuffer { entry, data }: &EventBuffer,
        length: usize,
    ) -> Option<ConnectionEvent> {
        let ep = ConnectedEp(entry.fid.cast());
        match event {
            abi::CONNREQ => {
                let info = InfoList { library: self.info_list.library, first: entry.info };
                let length = length.saturating_sub(size_of::<EqCmEntry>()).min(data.len());
                let data = data[..length].to_vec();
                Some(ConnectionEvent::Requested(ConnectRequest { info, data }))
            }
            abi::CONNECTED => Some(ConnectionEvent::Connected(ep)),
            abi::SHUTDOWN => Some(ConnectionEvent::Closed(ep)),
            _ => None,
        }
    }

    fn connection_error(&self, eq: *mut Eq) -> Option<ConnectionEvent> {
        // SAFETY: all fields are integers or pointers, for which zero is valid.
        let mut error: EqError = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open.
        let read = unsafe { ((*(*eq).ops).readerr)(eq, &mut error, 0) };
        let why = |code: c_int| self.info_list.library.error_text(code);
        (read > 0).then(|| ConnectionEvent::Failed(ConnectedEp(error.fid.cast()), why(error.err)))
    }

    /// Posts a send or a receive of a connection, which match in order. Returns false if the caller must retry.
    ///
    /// # Safety
    /// The bytes and the context must stay valid until the request completes or the endpoint of the connection
    /// is closed.
    pub unsafe fn post_connected(
        &mut self,
        ConnectedEp(ep): ConnectedEp,
        is_send: bool,
        bytes: *mut [u8],
        region: Region,
        context: *mut Context,
    ) -> FiResult<bool> {
        self.check_open()?;
        let (start, length, context) = (bytes.cast(), bytes.len(), context.cast());
        let (any, region) = (abi::ADDR_UNSPEC, region.descriptor());
        // SAFETY: guaranteed by the caller.
        let (what, code) = unsafe {
            let ops = (*ep).msg;
            match is_send {
                true => ("fi_send", ((*ops).send)(ep, start, length, region, any, context)),
                false => ("fi_recv", ((*ops).recv)(ep, start, length, region, any, context)),
            }
        };
        self.accepted(what, code)
    }

    /// Closes the endpoint of a connection. What is posted completes as cancelled; no memory is accessed
    /// afterwards. Returns false if it is busy.
    pub fn close_connected(&mut self, key: ConnectedEp) -> bool {
        if !self.connected.contains(&key) {
            return true;
        }
        let mut ep = key.0;
        let closed = serialized(|| {
            // SAFETY: the endpoint is open. What the kernel has not taken yet is sent, if it takes it now.
            unsafe { ((*(*ep).cm).shutdown)(ep, 0) };
            close(&mut ep)
        });
        // Not tried again: the provider has closed its socket, whose number may be another's by then.
        self.connected.remove(&key);
        self.has_busy_connection |= !closed;
        closed
    }
}
