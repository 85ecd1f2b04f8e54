//! Connections, their registered memory and their requests.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use regatta_plugin_abi::net::{Object, Out, PTR_HOST};
use regatta_plugin_abi::{NcclResult, SUCCESS};

use crate::transfer::Transfer;
use crate::{INVALID_USAGE, code, fail_if_asked, warn};

/// Registered memory of all connections.
static REGISTERED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

fn registered() -> MutexGuard<'static, Vec<Range<usize>>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of a connection is not registered any more.
fn forget(memory: &Range<usize>) {
    let mut all = registered();
    let at = all.iter().position(|one| one == memory);
    at.map(|at| all.swap_remove(at));
}

/// For tests: how many registrations overlap memory.
#[unsafe(no_mangle)]
pub extern "C" fn regatta_fake_net_registrations(start: usize, length: usize) -> usize {
    let overlaps = |one: &&Range<usize>| one.start < start + length && start < one.end;
    registered().iter().filter(overlaps).count()
}

/// A connection, in one direction.
pub struct Connection {
    pub stream: TcpStream,
    pub is_send: bool,
    /// Registered memory. A registration is the number of its entry, plus one.
    pub regions: Vec<Option<Range<usize>>>,
    /// Requests in flight, oldest first.
    pub requests: VecDeque<*mut Transfer>,
    in_use: AtomicBool,
}

impl Connection {
    /// A new connection, as an object for the host.
    pub fn object(stream: TcpStream, is_send: bool) -> Object {
        let (regions, requests) = (Vec::new(), VecDeque::new());
        let in_use = AtomicBool::new(false);
        let connection = Self { stream, is_send, regions, requests, in_use };
        Box::into_raw(Box::new(connection)).cast()
    }

    /// Whether a request uses memory in a range.
    fn uses(&self, memory: &Range<usize>) -> bool {
        // SAFETY: requests in flight.
        let mut used = self.requests.iter().map(|request| unsafe { (**request).memory() });
        used.any(|used| used.start < memory.end && memory.start < used.end)
    }

    /// Fails unless the memory lies within the registration.
    pub fn check_memory(&self, memory: Range<usize>, region: Object) -> Result<(), NcclResult> {
        let region = region.addr().checked_sub(1).and_then(|at| self.regions.get(at)?.as_ref());
        let contains = |all: &Range<usize>| all.start <= memory.start && memory.end <= all.end;
        match region.is_some_and(contains) {
            true => Ok(()),
            false => Err(warn("memory that is not registered", INVALID_USAGE)),
        }
    }
}

/// Runs `work` on a connection; fails if another thread uses it.
///
/// # Safety
/// An open connection.
pub unsafe fn with<R>(
    object: Object,
    work: impl FnOnce(&mut Connection) -> Result<R, NcclResult>,
) -> Result<R, NcclResult> {
    let connection: *mut Connection = object.cast();
    // SAFETY: the connection is open, and only its flag is accessed here.
    let in_use = unsafe { &(*connection).in_use };
    if in_use.swap(true, Ordering::Acquire) {
        return Err(warn("two threads use a connection at the same time", INVALID_USAGE));
    }
    // SAFETY: no other thread uses the connection.
    let result = work(unsafe { &mut *connection });
    in_use.store(false, Ordering::Release);
    result
}

pub unsafe extern "C" fn reg_mr(
    connection: Object,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    registration: Out,
) -> NcclResult {
    // SAFETY: the host passes an open connection.
    let registered = unsafe {
        with(connection, |connection| {
            fail_if_asked("regMr")?;
            if kind != PTR_HOST || data.is_null() || size == 0 {
                return Err(warn("registration of no host memory", INVALID_USAGE));
            }
            let memory = data.addr()..data.addr() + size;
            registered().push(memory.clone());
            connection.regions.push(Some(memory));
            Ok(connection.regions.len())
        })
    };
    // SAFETY: the host passes where to write the registration.
    code(
        registered
            .map(|number| unsafe { *registration = std::ptr::without_provenance_mut(number) }),
    )
}

pub unsafe extern "C" fn dereg_mr(connection: Object, region: Object) -> NcclResult {
    let deregister = |connection: &mut Connection| {
        let at = region.addr().wrapping_sub(1);
        let memory = connection.regions.get_mut(at).and_then(Option::take);
        memory.iter().for_each(forget);
        match memory {
            // Some plug-ins take it as the end of all use of the memory.
            Some(memory) if connection.uses(&memory) => {
                Err(warn("deregistration of memory in use", INVALID_USAGE))
            }
            Some(_) => Ok(()),
            None => Err(warn("deregistration of memory that is not registered", INVALID_USAGE)),
        }
    };
    // SAFETY: the host passes an open connection.
    code(unsafe { with(connection, deregister) })
}

pub unsafe extern "C" fn close(connection: Object) -> NcclResult {
    let check = |connection: &mut Connection| match connection.regions.iter().flatten().next() {
        Some(_) => Err(warn("a connection is closed with registered memory", INVALID_USAGE)),
        None => Ok(()),
    };
    // SAFETY: the host passes an open connection and does not use it afterwards.
    unsafe {
        let checked = with(connection, check);
        let connection = Box::from_raw(connection.cast::<Connection>());
        connection.regions.iter().flatten().for_each(forget);
        connection.requests.iter().for_each(|request| drop(Box::from_raw(*request)));
        checked.map_or_else(|error| error, |()| SUCCESS)
    }
}
