//! Sends and receives. A message is its length, in eight bytes, and its bytes. As in NCCL's socket
//! transport, `test` moves them, so requests must be tested in order.

use std::ffi::{c_int, c_void};
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;

use regatta_plugin_abi::NcclResult;
use regatta_plugin_abi::net::{MAX_REQUESTS, Object, Out};

use crate::connection::{Connection, with};
use crate::{INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR, code, fail_if_asked, once_in, warn};

/// The largest message.
pub const MAX_BYTES: usize = 1 << 20;

const LENGTH_BYTES: usize = 8;

/// A request.
pub struct Transfer {
    connection: *mut Connection,
    memory: *mut u8,
    /// The length of the message; of a receive, at first the length of its memory.
    size: usize,
    length: [u8; LENGTH_BYTES],
    /// Bytes of length and message that have been moved.
    moved: usize,
}

fn post(
    connection: Object,
    memory: *mut c_void,
    size: usize,
    region: Object,
    is_send: bool,
) -> Result<Object, NcclResult> {
    let post = |this: &mut Connection| {
        fail_if_asked(if is_send { "isend" } else { "irecv" })?;
        if this.is_send != is_send || size > MAX_BYTES {
            return Err(warn("a message in the wrong direction, or too large", INVALID_USAGE));
        }
        this.check_memory(memory.addr()..memory.addr() + size, region)?;
        if this.requests.len() >= MAX_REQUESTS {
            return Err(warn("more than 32 requests in flight", INVALID_USAGE));
        }
        if once_in(4) {
            return Ok(std::ptr::null_mut());
        }
        let length = (size as u64).to_le_bytes();
        let (connection, memory) = (connection.cast(), memory.cast());
        let request = Transfer { connection, memory, size, length, moved: 0 };
        let request = Box::into_raw(Box::new(request));
        this.requests.push_back(request);
        Ok(request.cast())
    };
    // SAFETY: the host passes an open connection.
    unsafe { with(connection, post) }
}

pub unsafe extern "C" fn isend_v9(
    connection: Object,
    data: *mut c_void,
    size: usize,
    _tag: c_int,
    region: Object,
    request: Out,
) -> NcclResult {
    // SAFETY: the host passes where to write the request.
    code(post(connection, data, size, region, true).map(|posted| unsafe { *request = posted }))
}

pub unsafe extern "C" fn isend_v8(
    connection: Object,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    region: Object,
    request: Out,
) -> NcclResult {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    // SAFETY: as above.
    unsafe { isend_v9(connection, data, size, tag, region, request) }
}

pub unsafe extern "C" fn isend(
    connection: Object,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    region: Object,
    _profiler: *mut c_void,
    request: Out,
) -> NcclResult {
    // SAFETY: as above.
    unsafe { isend_v9(connection, data, size, tag, region, request) }
}

pub unsafe extern "C" fn irecv_v9(
    connection: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    _tags: *mut c_int,
    regions: *mut Object,
    request: Out,
) -> NcclResult {
    // SAFETY: the host passes arrays of `count` entries.
    unsafe {
        if count != 1 || !(*request).is_null() {
            return warn("a group, or a receive without completion", INVALID_USAGE);
        }
        let posted = post(connection, *data, *sizes, *regions, false);
        code(posted.map(|posted| *request = posted))
    }
}

pub unsafe extern "C" fn irecv_v8(
    connection: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    regions: *mut Object,
    request: Out,
) -> NcclResult {
    // SAFETY: as above.
    unsafe {
        let mut size = usize::try_from(*sizes).unwrap_or(usize::MAX);
        irecv_v9(connection, count, data, &mut size, tags, regions, request)
    }
}

pub unsafe extern "C" fn irecv(
    connection: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    regions: *mut Object,
    _profiler: *mut *mut c_void,
    request: Out,
) -> NcclResult {
    // SAFETY: as above.
    unsafe { irecv_v9(connection, count, data, sizes, tags, regions, request) }
}

pub unsafe extern "C" fn iflush(
    _: Object,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut c_int,
    _: *mut Object,
    _: Out,
) -> NcclResult {
    warn("iflush of host memory", INVALID_USAGE)
}

pub unsafe extern "C" fn test(request: Object, done: *mut c_int, sizes: *mut c_int) -> NcclResult {
    let request: *mut Transfer = request.cast();
    let test = |connection: &mut Connection| {
        if connection.requests.front() != Some(&request) {
            return Err(warn("requests are not tested in order", INVALID_USAGE));
        }
        // SAFETY: a request in flight.
        let transfer = unsafe { &mut *request };
        if once_in(4) || !transfer.advance(connection)? {
            return Ok(None);
        }
        connection.requests.pop_front();
        Ok(Some(transfer.size))
    };
    // SAFETY: the host passes a request in flight and where to write what became of it.
    unsafe {
        let tested = with((*request).connection.cast(), test);
        code(tested.map(|size| {
            *done = size.is_some().into();
            if let Some(size) = size {
                *sizes = size as c_int;
                drop(Box::from_raw(request));
            }
        }))
    }
}

impl Transfer {
    /// The memory of the message.
    pub fn memory(&self) -> Range<usize> {
        self.memory.addr()..self.memory.addr() + self.size
    }

    /// Moves bytes. Returns whether the message is complete.
    fn advance(&mut self, connection: &mut Connection) -> Result<bool, NcclResult> {
        while self.moved < LENGTH_BYTES + self.size {
            let is_length = self.moved < LENGTH_BYTES;
            let bytes = match is_length {
                true => &mut self.length[self.moved..],
                false => {
                    let at = self.moved - LENGTH_BYTES;
                    // SAFETY: the host keeps the memory valid until the request has completed.
                    unsafe { std::slice::from_raw_parts_mut(self.memory.add(at), self.size - at) }
                }
            };
            let moved = match connection.is_send {
                true => connection.stream.write(bytes),
                false => connection.stream.read(bytes),
            };
            match moved {
                Ok(0) => return Err(warn("the peer has closed the connection", REMOTE_ERROR)),
                Ok(moved) => self.moved += moved,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(warn(&error.to_string(), SYSTEM_ERROR)),
            }
            if is_length && self.moved == LENGTH_BYTES && !connection.is_send {
                let size = u64::from_le_bytes(self.length) as usize;
                if size > self.size {
                    return Err(warn("a message is larger than its receive", INVALID_USAGE));
                }
                self.size = size;
            }
        }
        Ok(true)
    }
}
