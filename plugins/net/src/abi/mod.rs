//! NCCL's network interface: one file per version, and what they share.

pub mod v10;
pub mod v11;
pub mod v8;
pub mod v9;

#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use regatta_fabric::memory::{DmaBuf, Memory, MemoryKind, Region};
use regatta_fabric::net::handle::{HANDLE_BYTES, Handle};
use regatta_fabric::net::{
    Buffer, Connection, FlushBuffer, Listener, MAX_GROUPED_RECVS, RequestHandle, TestResult,
};
use regatta_plugin_abi::log::Logger;
use regatta_plugin_abi::net::{
    self, Functions, GetProperties, Object, Out, Properties, VirtualDevice,
};
use regatta_plugin_abi::{NcclResult, SUCCESS, SYSTEM_ERROR};

use crate::session::session;
use crate::{gpu, message};

/// The name that NCCL logs, and that `NCCL_NET` selects.
const NAME: *const c_char = c"Regatta".as_ptr();

/// More connections than a job has.
const MAX_COMMS: c_int = 1 << 16;

/// The table of a version: the functions that differ between versions, and those that do not.
pub(crate) const fn functions<Init, P, Listen, Connect, Isend, Irecv>(
    init: Init,
    get_properties: GetProperties<P>,
    listen: Listen,
    connect: Connect,
    isend: Isend,
    irecv: Irecv,
) -> Functions<Init, P, Listen, Connect, Isend, Irecv> {
    Functions {
        name: NAME,
        init,
        devices,
        get_properties,
        listen,
        connect,
        accept,
        reg_mr,
        reg_mr_dma_buf: Some(reg_mr_dma_buf),
        dereg_mr,
        isend,
        irecv,
        iflush,
        test,
        close_send: close_connection,
        close_recv: close_connection,
        close_listen,
        get_device_mr: None,
        irecv_consumed: None,
    }
}

/// A registration of memory.
struct Registration {
    region: Region,
    memory: Memory,
}

/// Runs the body of a function of the boundary. An error is logged, and ends the call. A panic ends there,
/// too: unwinding through NCCL's frames is undefined behaviour.
#[inline]
pub(crate) fn guard(work: impl FnOnce() -> Result<(), String>) -> NcclResult {
    let body = AssertUnwindSafe(|| {
        #[cfg(test)]
        tests::panic_if_injected();
        work()
    });
    match catch_unwind(body) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(why)) => {
            let _ = catch_unwind(|| message::warn(&why));
            SYSTEM_ERROR
        }
        Err(payload) => {
            // The payload's destructor might panic, too.
            std::mem::forget(payload);
            SYSTEM_ERROR
        }
    }
}

/// A pointer that NCCL must have passed.
fn given<T>(pointer: Option<T>, what: &str) -> Result<T, String> {
    pointer.ok_or_else(|| format!("NCCL passed no {what}"))
}

/// A place to write an object, with NULL in it.
///
/// # Safety
/// NULL, or valid for writes.
unsafe fn output<'a>(out: Out) -> Result<&'a mut *mut c_void, String> {
    // SAFETY: by the caller's contract.
    let out = given(unsafe { out.as_mut() }, "place for the result")?;
    *out = null_mut();
    Ok(out)
}

/// Passes an object to NCCL.
fn into_object<T>(value: T) -> Object {
    Box::into_raw(Box::new(value)).cast()
}

/// `init` of versions 8 and 9, and the part that later versions share.
pub(crate) extern "C" fn init(logger: Logger) -> NcclResult {
    guard(|| {
        message::set_logger(logger);
        session();
        Ok(())
    })
}

/// `devices`.
pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> NcclResult {
    guard(|| {
        // SAFETY: NULL, or valid for writes.
        let count = given(unsafe { count.as_mut() }, "count")?;
        *count = session().count() as c_int;
        Ok(())
    })
}

/// The properties of a NIC.
pub(crate) fn properties(device: c_int) -> Result<Properties, String> {
    let session = session();
    let index = usize::try_from(device).ok().filter(|index| *index < session.count());
    let index = index.ok_or_else(|| format!("there is no NIC {device}"))?;
    let mut properties = Properties {
        name: NAME,
        pci_path: std::ptr::null(),
        guid: 0,
        pointer_support: net::PTR_HOST,
        is_registration_global: 0,
        force_flush: 0,
        speed: 10_000,
        port: 1,
        latency: 0.0,
        max_comms: MAX_COMMS,
        max_recvs: 1,
        device_type: net::DEVICE_HOST,
        device_version: net::DEVICE_INVALID_VERSION,
        members: VirtualDevice::single(device),
        max_p2p_bytes: 1 << 30,
        max_coll_bytes: 1 << 30,
    };
    if let Some(named) = session.device(index) {
        let device = &named.device;
        properties.max_recvs = device.max_recvs() as c_int;
        properties.name = named.name.as_ptr();
        properties.pci_path = named.pci_path.as_ref().map_or(std::ptr::null(), |p| p.as_ptr());
        properties.guid = device.guid;
        properties.speed = c_int::try_from(device.speed).unwrap_or(c_int::MAX);
        if device.gpu_memory {
            properties.pointer_support |= net::PTR_CUDA;
        }
        if device.dma_buf {
            properties.pointer_support |= net::PTR_DMABUF;
        }
        properties.max_p2p_bytes = device.max_message;
        properties.max_coll_bytes = device.max_message;
    }
    Ok(properties)
}

/// `getProperties` of versions 9 and 10.
pub(crate) unsafe extern "C" fn get_properties(device: c_int, into: *mut Properties) -> NcclResult {
    guard(|| {
        // SAFETY: NULL, or valid for writes.
        *given(unsafe { into.as_mut() }, "properties")? = properties(device)?;
        Ok(())
    })
}

/// `listen`.
pub(crate) unsafe extern "C" fn listen(
    device: c_int,
    handle: *mut c_void,
    listener: Out,
) -> NcclResult {
    guard(|| {
        // SAFETY: NULL, or valid for writes.
        let listener = unsafe { output(listener)? };
        // SAFETY: handles have 128 bytes.
        let into = unsafe { handle.cast::<[u8; net::HANDLE_BYTES]>().as_mut() };
        let into = given(into, "handle")?;
        let opened = Listener::new(session().nic(usize::try_from(device).unwrap_or(usize::MAX))?)?;
        into.fill(0);
        into[..HANDLE_BYTES].copy_from_slice(&opened.handle().encode());
        *listener = into_object(opened);
        Ok(())
    })
}

/// `connect`.
pub(crate) unsafe extern "C" fn connect(
    device: c_int,
    handle: *mut c_void,
    send: Out,
    _offload: Out,
) -> NcclResult {
    guard(|| {
        // SAFETY: NULL, or valid for writes.
        let send = unsafe { output(send)? };
        // SAFETY: handles have 128 bytes.
        let bytes = unsafe { handle.cast::<[u8; HANDLE_BYTES]>().as_ref() };
        let decoded = Handle::decode(given(bytes, "handle")?);
        let decoded = decoded.ok_or_else(|| {
            "the handle is not of this plug-in: load it on all nodes, in the same version"
                .to_owned()
        })?;
        let session = session();
        let nic = || session.nic(usize::try_from(device).unwrap_or(usize::MAX));
        if let Some(connection) = session.connectors.connect(nic, handle as usize, decoded)? {
            *send = into_object(connection);
        }
        Ok(())
    })
}

/// `accept`.
pub(crate) unsafe extern "C" fn accept(listener: Object, recv: Out, _offload: Out) -> NcclResult {
    guard(|| {
        // SAFETY: NULL, or valid for writes.
        let recv = unsafe { output(recv)? };
        // SAFETY: NULL, or a listener that is not closed.
        let listener = given(unsafe { listener.cast::<Listener>().as_ref() }, "listener")?;
        if let Some(connection) = listener.accept()? {
            *recv = into_object(connection);
        }
        Ok(())
    })
}

/// A connection that NCCL has passed.
///
/// # Safety
/// NULL, or a connection that is not closed.
unsafe fn connection<'a>(object: Object) -> Result<&'a Connection, String> {
    // SAFETY: by the caller's contract.
    given(unsafe { object.cast::<Connection>().as_ref() }, "connection")
}

/// `regMr`.
pub(crate) unsafe extern "C" fn reg_mr(
    comm: Object,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    registration: Out,
) -> NcclResult {
    // SAFETY: by NCCL's contract.
    guard(|| unsafe { register(comm, (data, size), kind, None, registration) })
}

/// `regMrDmaBuf`.
pub(crate) unsafe extern "C" fn reg_mr_dma_buf(
    comm: Object,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    registration: Out,
) -> NcclResult {
    let dma_buf = Some(DmaBuf { fd, offset });
    // SAFETY: by NCCL's contract.
    guard(|| unsafe { register(comm, (data, size), kind, dma_buf, registration) })
}

/// # Safety
/// As for [`connection`] and [`output`].
unsafe fn register(
    comm: Object,
    (data, length): (*mut c_void, usize),
    kind: c_int,
    dma_buf: Option<DmaBuf>,
    registration: Out,
) -> Result<(), String> {
    // SAFETY: by the caller's contract.
    let (registration, connection) = unsafe { (output(registration)?, connection(comm)?) };
    let start: *mut u8 = data.cast();
    let kind = match kind {
        net::PTR_HOST => MemoryKind::Host,
        net::PTR_CUDA => gpu::memory_kind(start)?,
        other => return Err(format!("memory of the unknown kind {other}")),
    };
    let memory = Memory { start, length, kind, dma_buf };
    let region = connection.register(memory).map_err(|why| match kind {
        MemoryKind::Host => format!("cannot register {length} bytes: {why}"),
        _ => format!(
            "cannot register {length} bytes of GPU memory: {why}; NCCL_NET_GDR_LEVEL=LOC avoids it"
        ),
    })?;
    *registration = into_object(Registration { region, memory });
    Ok(())
}

/// `deregMr`.
pub(crate) unsafe extern "C" fn dereg_mr(comm: Object, registration: Object) -> NcclResult {
    guard(|| {
        if registration.is_null() {
            return Ok(());
        }
        // SAFETY: a connection that is not closed, and its registration, which is given back.
        let (connection, registration) =
            unsafe { (connection(comm)?, Box::from_raw(registration.cast::<Registration>())) };
        let identity = std::ptr::from_ref(&*registration) as usize;
        connection.deregister(registration.region, identity);
        Ok(())
    })
}

/// The region of a registration; NCCL passes NULL for messages without bytes.
///
/// # Safety
/// NULL, or a registration that is not given back.
unsafe fn region(registration: Object) -> Region {
    // SAFETY: by the caller's contract.
    let registration = unsafe { registration.cast::<Registration>().as_ref() };
    registration.map_or(Region::NONE, |registration| registration.region)
}

/// `isend`, in all versions.
///
/// # Safety
/// As NCCL's.
pub(crate) unsafe fn isend(
    send: Object,
    (data, length): (*mut c_void, usize),
    tag: c_int,
    registration: Object,
    request: Out,
) -> NcclResult {
    guard(|| {
        // SAFETY: by the caller's contract.
        unsafe {
            let request = output(request)?;
            let (region, registration) = (region(registration), registration as usize);
            let buffer = Buffer { start: data.cast(), length, region, registration };
            *request = request_object(connection(send)?.send(buffer, tag)?);
        }
        Ok(())
    })
}

/// A request, or NULL.
fn request_object(request: Option<&RequestHandle>) -> Object {
    request.map_or(null_mut(), |request| std::ptr::from_ref(request).cast_mut().cast())
}

/// An element of an array that NCCL has passed.
///
/// # Safety
/// NULL, or an array with that element.
pub(crate) unsafe fn element<T: Copy>(array: *const T, index: usize) -> Result<T, String> {
    // SAFETY: by the caller's contract; an element of NULL is not accessed.
    let array = given((!array.is_null()).then_some(array), "array")?;
    // SAFETY: by the caller's contract.
    Ok(unsafe { *array.add(index) })
}

/// `irecv`, in all versions, with the size of each receive.
///
/// # Safety
/// As NCCL's.
pub(crate) unsafe fn irecv(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    size: impl Fn(usize) -> Result<usize, String>,
    (tags, registrations): (*mut c_int, *mut Object),
    request: Out,
) -> NcclResult {
    guard(|| {
        // SAFETY: by the caller's contract; the request may hold the value of an optional completion, and
        // gets a request all the same.
        let (request, connection) = unsafe { (output(request)?, connection(recv)?) };
        let valid = usize::try_from(count).ok().filter(|count| *count <= MAX_GROUPED_RECVS);
        let count = valid.ok_or_else(|| format!("a group of {count} receives"))?;
        let mut group = [(Buffer::NONE, 0); MAX_GROUPED_RECVS];
        for (index, (buffer, tag)) in group[..count].iter_mut().enumerate() {
            // SAFETY: all arrays have as many elements; registrations are valid.
            unsafe {
                buffer.start = element(data, index)?.cast();
                buffer.length = size(index)?;
                let registration = element(registrations, index)?;
                buffer.region = region(registration);
                buffer.registration = registration as usize;
                *tag = element(tags, index)?;
            }
        }
        // SAFETY: NCCL keeps the memory until the request is complete.
        *request = request_object(unsafe { connection.receive(&group[..count])? });
        Ok(())
    })
}

/// `iflush`. Memory of the host needs none.
pub(crate) unsafe extern "C" fn iflush(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    registrations: *mut Object,
    request: Out,
) -> NcclResult {
    guard(|| {
        // SAFETY: by NCCL's contract.
        let (request, connection) = unsafe { (output(request)?, connection(recv)?) };
        // Reading the last bytes orders all earlier writes of the NIC before it.
        for index in (0..usize::try_from(count).unwrap_or(0)).rev() {
            // SAFETY: all arrays have as many elements; registrations are NULL or valid.
            let (registration, start, size) = unsafe {
                let registration = element(registrations, index)?.cast::<Registration>().as_ref();
                (registration, element(data, index)?.cast(), element(sizes, index)?)
            };
            let is_gpu = |one: &&Registration| one.memory.kind != MemoryKind::Host && size > 0;
            let Some(registration) = registration.filter(is_gpu) else { continue };
            let base = registration.memory.start;
            let (region, id) = (registration.region, std::ptr::from_ref(registration).addr());
            let buffer = FlushBuffer { start, region, base, registration: id };
            // SAFETY: NCCL keeps the memory until the request is complete.
            *request = request_object(unsafe { connection.flush(buffer)? });
            break;
        }
        Ok(())
    })
}

/// `test`.
pub(crate) unsafe extern "C" fn test(
    request: Object,
    done: *mut c_int,
    sizes: *mut c_int,
) -> NcclResult {
    guard(|| {
        // SAFETY: NULL or valid for writes, and NULL or a request that is not complete.
        let (done, request) = unsafe {
            let done = given(done.as_mut(), "place for the result")?;
            (done, given(request.cast::<RequestHandle>().as_ref(), "request")?)
        };
        *done = 0;
        if let TestResult::Done { count, sizes: all } = request.test()? {
            *done = 1;
            if !sizes.is_null() {
                for (index, size) in all[..count].iter().enumerate() {
                    // SAFETY: the array has as many elements as the request has messages.
                    unsafe { *sizes.add(index) = c_int::try_from(*size).unwrap_or(c_int::MAX) };
                }
            }
        }
        Ok(())
    })
}

/// `closeSend` and `closeRecv`.
pub(crate) unsafe extern "C" fn close_connection(comm: Object) -> NcclResult {
    guard(|| {
        if !comm.is_null() {
            // SAFETY: a connection of this plug-in, which is given back.
            drop(unsafe { Box::from_raw(comm.cast::<Connection>()) });
        }
        Ok(())
    })
}

/// `closeListen`.
pub(crate) unsafe extern "C" fn close_listen(listener: Object) -> NcclResult {
    guard(|| {
        if !listener.is_null() {
            // SAFETY: a listener of this plug-in, which is given back.
            drop(unsafe { Box::from_raw(listener.cast::<Listener>()) });
        }
        Ok(())
    })
}
