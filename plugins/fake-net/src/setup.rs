//! Listening, connecting and accepting.

use std::ffi::{c_int, c_void};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use regatta_plugin_abi::NcclResult;
use regatta_plugin_abi::net::{CommConfig, HANDLE_BYTES, Object, Out};

use crate::connection::Connection;
use crate::{
    CONTEXT, INVALID_USAGE, SYSTEM_ERROR, code, device_count, fail_if_asked, once_in, warn,
};

/// What the fake writes into a handle.
#[repr(C)]
struct HandleState {
    magic: u64,
    port: u64,
    /// Where the handle was in the first call of `connect`.
    address: u64,
}

const MAGIC: u64 = 0x6661_6b65_2d6e_6574;

const _: () = assert!(size_of::<HandleState>() <= HANDLE_BYTES);

/// A listener, until its connection is accepted.
struct Listener(Option<TcpListener>);

fn check_device(device: c_int) -> Result<(), NcclResult> {
    match (0..device_count()).contains(&device) {
        true => Ok(()),
        false => Err(warn("no such NIC", INVALID_USAGE)),
    }
}

fn check_context(context: Object) -> Result<(), NcclResult> {
    match context == CONTEXT {
        true => Ok(()),
        false => Err(warn("not the context of init", INVALID_USAGE)),
    }
}

fn failed(error: std::io::Error) -> NcclResult {
    warn(&error.to_string(), SYSTEM_ERROR)
}

pub unsafe extern "C" fn listen(device: c_int, handle: *mut c_void, listener: Out) -> NcclResult {
    let open = || {
        check_device(device)?;
        fail_if_asked("listen")?;
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        Ok((port, socket))
    };
    code(open().map(|(port, socket)| {
        let state = HandleState { magic: MAGIC, port: port.into(), address: 0 };
        // SAFETY: the host passes a handle of 128 bytes and where to write the listener.
        unsafe {
            handle.cast::<HandleState>().write_unaligned(state);
            *listener = Box::into_raw(Box::new(Listener(Some(socket)))).cast();
        }
    }))
}

pub unsafe extern "C" fn listen_v11(
    context: Object,
    device: c_int,
    handle: *mut c_void,
    listener: Out,
) -> NcclResult {
    match check_context(context) {
        // SAFETY: as above.
        Ok(()) => unsafe { listen(device, handle, listener) },
        Err(result) => result,
    }
}

pub unsafe extern "C" fn connect(
    device: c_int,
    handle: *mut c_void,
    send: Out,
    _: Out,
) -> NcclResult {
    // SAFETY: the host passes a handle of 128 bytes and where to write the connection.
    code(unsafe { try_connect(device, handle.cast(), send) })
}

unsafe fn try_connect(
    device: c_int,
    handle: *mut HandleState,
    send: Out,
) -> Result<(), NcclResult> {
    // SAFETY: by the caller's contract.
    let HandleState { magic, port, address } = unsafe {
        *send = std::ptr::null_mut();
        handle.read_unaligned()
    };
    check_device(device)?;
    fail_if_asked("connect")?;
    if magic != MAGIC {
        return Err(warn("the handle is not one of a listener", INVALID_USAGE));
    }
    let here = handle.addr() as u64;
    if address == 0 || once_in(2) {
        if address != 0 && address != here {
            return Err(warn("the handle was moved", INVALID_USAGE));
        }
        // SAFETY: by the caller's contract.
        unsafe { handle.write_unaligned(HandleState { magic, port, address: here }) };
        return Ok(());
    }
    if address != here {
        return Err(warn("the handle was moved", INVALID_USAGE));
    }
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port as u16)).map_err(failed)?;
    stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).map_err(failed)?;
    // SAFETY: by the caller's contract.
    unsafe { *send = Connection::object(stream, true) };
    Ok(())
}

pub unsafe extern "C" fn connect_v10(
    device: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    send: Out,
    offload: Out,
) -> NcclResult {
    // SAFETY: the host passes settings, if any.
    if config.is_null() || unsafe { (*config).traffic_class } != -1 {
        return warn("connect without settings", INVALID_USAGE);
    }
    // SAFETY: as above.
    unsafe { connect(device, handle, send, offload) }
}

pub unsafe extern "C" fn connect_v11(
    context: Object,
    device: c_int,
    handle: *mut c_void,
    send: Out,
    offload: Out,
) -> NcclResult {
    match check_context(context) {
        // SAFETY: as above.
        Ok(()) => unsafe { connect(device, handle, send, offload) },
        Err(result) => result,
    }
}

pub unsafe extern "C" fn accept(listener: Object, recv: Out, _: Out) -> NcclResult {
    // SAFETY: the host passes an open listener and where to write the connection.
    let (Listener(socket), recv) = unsafe {
        *recv = std::ptr::null_mut();
        (&mut *listener.cast::<Listener>(), recv)
    };
    let Some(listening) = socket else {
        return warn("a listener accepts one connection", INVALID_USAGE);
    };
    if once_in(2) {
        return regatta_plugin_abi::SUCCESS;
    }
    let accepted = match listening.accept() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return regatta_plugin_abi::SUCCESS,
        accepted => accepted.map_err(failed),
    };
    code(accepted.and_then(|(stream, _)| {
        fail_if_asked("accept")?;
        stream.set_nonblocking(true).map_err(failed)?;
        *socket = None;
        // SAFETY: as above.
        unsafe { *recv = Connection::object(stream, false) };
        Ok(())
    }))
}

pub unsafe extern "C" fn close_listen(listener: Object) -> NcclResult {
    // SAFETY: the host passes an open listener and does not use it afterwards.
    drop(unsafe { Box::from_raw(listener.cast::<Listener>()) });
    regatta_plugin_abi::SUCCESS
}
