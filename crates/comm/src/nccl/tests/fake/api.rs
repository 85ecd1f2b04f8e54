//! The functions of NCCL.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::super::sys::{IN_PROGRESS, NcclApi, RawComm, RawConfig, UniqueId};
use super::{FakeComm, Operation, Part, PartKind, Simulation, simulation};
use crate::gpu_runtime::{SUCCESS, Stream};

/// `ncclInvalidUsage`.
const INVALID_USAGE: c_int = 5;
const NCCL_FLOAT: c_int = 7;

thread_local! {
    /// The operations since `ncclGroupStart`.
    static GROUP: RefCell<Vec<(usize, Part)>> = const { RefCell::new(Vec::new()) };
}

/// The functions of the simulated library.
pub fn api() -> NcclApi {
    NcclApi {
        get_version,
        get_unique_id,
        comm_init_rank_config,
        comm_finalize: ignore,
        comm_destroy: comm_abort,
        comm_abort,
        comm_get_async_error,
        get_error_string,
        group_start,
        group_end,
        all_reduce,
        reduce_scatter: unsupported,
        reduce: unsupported_reduce,
        broadcast: unsupported,
        all_gather,
        send,
        recv,
        _library: None,
    }
}

unsafe extern "C" fn get_version(version: *mut c_int) -> c_int {
    // SAFETY: the caller passes a valid pointer, here and below.
    unsafe { *version = 22_800 };
    SUCCESS
}

unsafe extern "C" fn get_unique_id(id: *mut UniqueId) -> c_int {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // SAFETY: as above.
    unsafe { (&mut (*id).0)[..8].copy_from_slice(&number.to_le_bytes()) };
    SUCCESS
}

unsafe extern "C" fn comm_init_rank_config(
    raw: *mut RawComm,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    _: *mut RawConfig,
) -> c_int {
    let mut simulation = simulation();
    let handle = simulation.new_handle();
    let (words, _) = id.0.as_chunks();
    let comm = FakeComm {
        id: u64::from_le_bytes(words[0]),
        rank: rank as usize,
        size: size as usize,
        aborted: false,
        async_error: SUCCESS,
        unlaunched: Vec::new(),
        launches: 0,
        issued: HashMap::new(),
    };
    simulation.comms.insert(handle, comm);
    // SAFETY: as above.
    unsafe { *raw = handle as RawComm };
    SUCCESS
}

unsafe extern "C" fn ignore(_: RawComm) -> c_int {
    SUCCESS
}

unsafe extern "C" fn comm_abort(raw: RawComm) -> c_int {
    let mut simulation = simulation();
    if let Some(comm) = simulation.comms.get_mut(&(raw as usize)) {
        comm.aborted = true;
    }
    simulation.progress();
    SUCCESS
}

/// Launches enqueued groups: a stream that is used before the library is idle gets them too late.
unsafe extern "C" fn comm_get_async_error(raw: RawComm, state: *mut c_int) -> c_int {
    let mut simulation = simulation();
    let Some(comm) = simulation.comms.get_mut(&(raw as usize)) else { return INVALID_USAGE };
    let unlaunched = std::mem::take(&mut comm.unlaunched);
    let code = if unlaunched.is_empty() { comm.async_error } else { IN_PROGRESS };
    // SAFETY: as above.
    unsafe { *state = code };
    for (stream, parts) in unlaunched {
        let is_connected = parts.iter().all(|part| simulation.is_connected(part));
        let Some(comm) = simulation.comms.get_mut(&(raw as usize)) else { continue };
        if is_connected {
            comm.launches += 1;
            simulation.push(stream, Operation::Group(parts));
        } else {
            comm.unlaunched.push((stream, parts));
        }
    }
    SUCCESS
}

unsafe extern "C" fn get_error_string(_: c_int) -> *const c_char {
    c"remote process exited or there was a network error".as_ptr()
}

unsafe extern "C" fn group_start() -> c_int {
    GROUP.with_borrow_mut(Vec::clear);
    SUCCESS
}

unsafe extern "C" fn group_end() -> c_int {
    let parts = GROUP.take();
    let Some(&(stream, Part { comm, .. })) = parts.first() else { return SUCCESS };
    let mut simulation = simulation();
    let parts: Vec<Part> = parts.into_iter().map(|(_, part)| part).collect();
    parts.iter().for_each(|part| simulation.connect(part));
    if let Some(comm) = simulation.comms.get_mut(&comm) {
        comm.unlaunched.push((stream, parts));
    }
    IN_PROGRESS
}

/// Adds an operation to the group of this thread.
fn add(raw: RawComm, stream: Stream, kind: PartKind) -> c_int {
    let mut simulation = simulation();
    let Some(number) = number(&mut simulation, raw as usize, kind) else { return INVALID_USAGE };
    let part = Part { comm: raw as usize, kind, number, done: false };
    GROUP.with_borrow_mut(|group| group.push((stream as usize, part)));
    SUCCESS
}

fn number(simulation: &mut Simulation, comm: usize, kind: PartKind) -> Option<u64> {
    let comm = simulation.comms.get_mut(&comm).filter(|comm| !comm.aborted)?;
    let key = match kind {
        PartKind::Send { to, .. } => Some((true, to)),
        PartKind::Recv { from, .. } => Some((false, from)),
        _ => None,
    };
    let issued = comm.issued.entry(key).or_default();
    *issued += 1;
    Some(*issued)
}

unsafe extern "C" fn all_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    _: c_int,
    raw: RawComm,
    stream: Stream,
) -> c_int {
    let is_f32 = dtype == NCCL_FLOAT;
    let bytes = if is_f32 { count * 4 } else { count };
    let (from, to) = (send as usize, recv as usize);
    add(raw, stream, PartKind::AllReduce { from, to, bytes, is_f32 })
}

unsafe extern "C" fn all_gather(
    send: *const c_void,
    recv: *mut c_void,
    bytes: usize,
    _: c_int,
    raw: RawComm,
    stream: Stream,
) -> c_int {
    add(raw, stream, PartKind::AllGather { from: send as usize, to: recv as usize, bytes })
}

unsafe extern "C" fn send(
    address: *const c_void,
    bytes: usize,
    _: c_int,
    to: c_int,
    raw: RawComm,
    stream: Stream,
) -> c_int {
    add(raw, stream, PartKind::Send { to: to as usize, address: address as usize, bytes })
}

unsafe extern "C" fn recv(
    address: *mut c_void,
    _: usize,
    _: c_int,
    from: c_int,
    raw: RawComm,
    stream: Stream,
) -> c_int {
    add(raw, stream, PartKind::Recv { from: from as usize, address: address as usize })
}

unsafe extern "C" fn unsupported(
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: c_int,
    _: RawComm,
    _: Stream,
) -> c_int {
    INVALID_USAGE
}

unsafe extern "C" fn unsupported_reduce(
    _: *const c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: c_int,
    _: c_int,
    _: RawComm,
    _: Stream,
) -> c_int {
    INVALID_USAGE
}
