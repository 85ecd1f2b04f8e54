//! What is passed to libfabric when memory of a GPU is registered: no provider of this machine accesses GPUs.

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use regatta_testbed::{REQUIRE_LIBFABRIC, skip};

use super::*;
use crate::abi::{Fid, MrAttr, MrDmaBuf, MrOps, Out};
use crate::library::{Query, library};
use crate::memory::DmaBuf;

/// What a registration was called with: flags, address or descriptor and offset, length, access, interface
/// and device.
type Registered = (u64, usize, u64, usize, u64, c_int, u64);

static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

unsafe extern "C" fn regattr(_: *mut Fid, attr: *const MrAttr, flags: u64, _: Out<Mr>) -> c_int {
    // SAFETY: the attributes and what they point to live during the call.
    let registered = unsafe {
        let attr = &*attr;
        let (address, offset, length) = if flags & abi::MR_DMABUF == 0 {
            let segment = &*attr.memory.cast::<libc::iovec>();
            (segment.iov_base as usize, 0, segment.iov_len)
        } else {
            let descriptor = &*attr.memory.cast::<MrDmaBuf>();
            assert_eq!(descriptor.base_addr as u64 + descriptor.offset, 0x1000);
            (descriptor.fd as usize, descriptor.offset, descriptor.len)
        };
        assert_eq!(attr.count, 1);
        (flags, address, offset, length, attr.access, attr.iface, attr.device)
    };
    REGISTERED.lock().unwrap().push(registered);
    -libc::ENOSYS
}

/// An endpoint of the tcp provider.
fn open() -> Option<Endpoint> {
    let query = Query { provider: Some("tcp"), registration: true, ..Query::default() };
    let infos = match library().and_then(|library| library.infos(&query)) {
        Ok(infos) => infos,
        Err(why) => {
            skip(REQUIRE_LIBFABRIC, why);
            return None;
        }
    };
    let (provider, domain) = infos.names()[0].clone();
    let names = (&*provider, &*domain);
    Some(Endpoint::open(infos.get(0).unwrap(), names, WaitMode::Poll).unwrap())
}

#[test]
fn gpu_memory_is_registered_with_its_interface_and_descriptor() {
    let Some(mut endpoint) = open() else { return };
    // SAFETY: the table of an open domain; it is put back before the domain is closed.
    let real = unsafe { (*endpoint.domain).mr };
    // SAFETY: a copy of that table.
    let mut ops: MrOps = unsafe { std::ptr::read(real) };
    ops.regattr = regattr;
    // SAFETY: as above.
    unsafe { (*endpoint.domain).mr = &ops };
    let start = std::ptr::without_provenance_mut(0x1000);
    let mut register = |kind, dma_buf, is_read| {
        let memory = Memory { start, length: 77, kind, dma_buf };
        let error = endpoint.register(memory, is_read).unwrap_err();
        assert!(error.starts_with("fi_mr_regattr: "), "{error}");
    };
    register(MemoryKind::Cuda(3), None, false);
    register(MemoryKind::Rocr, Some(DmaBuf { fd: 9, offset: 4096 }), true);
    // SAFETY: the domain is open.
    unsafe { (*endpoint.domain).mr = real };
    let local = abi::SEND | abi::RECV;
    let read = local | abi::READ | abi::REMOTE_READ;
    let expected = [
        (0, 0x1000, 0, 77, local, abi::HMEM_CUDA, 3),
        (abi::MR_DMABUF, 9, 4096, 77, read, abi::HMEM_ROCR, 0),
    ];
    assert_eq!(*REGISTERED.lock().unwrap(), expected);
}

static CQ_CLOSES: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn refuse_to_close(_: *mut Fid) -> c_int {
    CQ_CLOSES.fetch_add(1, Ordering::Relaxed);
    -libc::EBUSY
}

#[test]
fn a_queue_that_the_provider_does_not_close_is_closed_once() {
    let Some(mut endpoint) = open() else { return };
    // SAFETY: the queue is open, and the functions live for ever.
    unsafe {
        let fid: *mut Fid = endpoint.cq.cast();
        let ops = abi::Ops { close: refuse_to_close, ..*(*fid).ops };
        (*fid).ops = Box::leak(Box::new(ops));
    }
    assert!(endpoint.close());
    drop(endpoint);
    assert_eq!(CQ_CLOSES.load(Ordering::Relaxed), 1);
}
