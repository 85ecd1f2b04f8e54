//! The part of libfabric's ABI that is used. Function tables and structures allocated by the library
//! are only declared up to the last field in use, because both only grow at the end. Checked against
//! the headers of 1.17 and 2.7, which agree on all of it.

#![allow(missing_docs, reason = "the names are libfabric's")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// Untyped memory.
type Ptr = *mut c_void;
type ConstPtr = *const c_void;

/// An object that a function creates.
pub type Out<T> = *mut *mut T;

/// `fi_mr_reg`.
type RegFunction =
    unsafe extern "C" fn(*mut Fid, ConstPtr, usize, u64, u64, u64, u64, Out<Mr>, Ptr) -> c_int;

/// The requested API version; newer libraries are compatible with it.
pub const API: u32 = (1 << 16) | 9;

/// The API version in which memory can be registered by a dma-buf descriptor.
pub const API_DMABUF: u32 = (1 << 16) | 20;

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const TAGGED: u64 = 1 << 3;
pub const READ: u64 = 1 << 8;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
/// The provider accesses memory of GPUs.
pub const HMEM: u64 = 1 << 47;
/// Memory is registered by a dma-buf descriptor.
pub const MR_DMABUF: u64 = 1 << 40;
/// The provider uses the context of an operation as scratch space.
pub const MODE_CONTEXT: u64 = 1 << 59;
/// The same with twice the space.
pub const MODE_CONTEXT2: u64 = 1 << 52;
/// For `fi_getinfo`: the address is the source address.
pub const SOURCE: u64 = 1 << 57;

pub const MR_LOCAL: c_int = 1 << 2;
pub const MR_VIRT_ADDR: c_int = 1 << 4;
pub const MR_ALLOCATED: c_int = 1 << 5;
pub const MR_PROV_KEY: c_int = 1 << 6;
pub const MR_ENDPOINT: c_int = 1 << 9;
pub const MR_HMEM: c_int = 1 << 10;

pub const HMEM_SYSTEM: c_int = 0;
pub const HMEM_CUDA: c_int = 1;
pub const HMEM_ROCR: c_int = 2;
pub const BUS_PCI: c_int = 1;

pub const EP_MSG: c_int = 1;
pub const EP_RDM: c_int = 3;
pub const AV_UNSPEC: c_int = 0;
pub const AV_TABLE: c_int = 2;
pub const THREAD_DOMAIN: c_int = 3;
pub const PROGRESS_MANUAL: c_int = 2;
pub const CQ_FORMAT_MSG: c_int = 2;
pub const WAIT_NONE: c_int = 0;
pub const WAIT_FD: c_int = 3;
pub const GETWAIT: c_int = 5;
pub const ENABLE: c_int = 6;
pub const OPT_ENDPOINT: c_int = 0;
pub const OPT_CUDA_API_PERMITTED: c_int = 10;
pub const ADDR_UNSPEC: u64 = u64::MAX;

/// Events of connections.
pub const CONNREQ: u32 = 1;
pub const CONNECTED: u32 = 2;
pub const SHUTDOWN: u32 = 3;

pub const EAGAIN: isize = 11;
pub const ENOMEM: isize = 12;
pub const EAVAIL: isize = 259;
pub const ECANCELED: c_int = 125;

/// The context of an operation, with the scratch space that providers require.
#[repr(C, align(16))]
pub struct Context {
    pub internal: [*mut c_void; 8],
    /// The request slot.
    pub number: usize,
}

#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    unused: [usize; 5],
    /// The request for a connection that an endpoint accepts.
    pub handle: *mut Fid,
    pub tx_attr: *mut QueueAttr,
    pub rx_attr: *mut QueueAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut Nic,
}

/// The NIC of a domain; its attributes may be null.
#[repr(C)]
pub struct Nic {
    fid: Fid,
    device_attr: *mut c_void,
    pub bus_attr: *mut BusAttr,
    pub link_attr: *mut LinkAttr,
}

#[repr(C)]
pub struct BusAttr {
    pub kind: c_int,
    pub domain: u16,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

#[repr(C)]
pub struct LinkAttr {
    address: *mut c_char,
    mtu: usize,
    /// Bits per second.
    pub speed: usize,
}

/// The attributes of the transmit queue or of the receive queue.
#[repr(C)]
pub struct QueueAttr {
    unused: [u64; 5],
    /// Only of the transmit queue.
    pub inject_size: usize,
    pub size: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    protocol: [u32; 2],
    pub max_msg_size: usize,
    unused: [usize; 4],
    pub mem_tag_format: u64,
}

#[repr(C)]
pub struct DomainAttr {
    domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    control_progress: c_int,
    pub data_progress: c_int,
    resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
}

#[repr(C)]
pub struct FabricAttr {
    fabric: *mut c_void,
    name: *mut c_char,
    pub prov_name: *mut c_char,
}

/// The common prefix of all objects.
#[repr(C)]
pub struct Fid {
    unused: [usize; 2],
    pub ops: *const Ops,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ops {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

/// The first fields of most objects.
#[repr(C)]
pub struct Object<O> {
    pub fid: Fid,
    pub ops: *const O,
}

pub type Fabric = Object<FabricOps>;
pub type Av = Object<AvOps>;
pub type Cq = Object<CqOps>;
pub type Eq = Object<EqOps>;

#[repr(C)]
pub struct FabricOps {
    size: usize,
    pub domain: unsafe extern "C" fn(*mut Fabric, *mut Info, Out<Domain>, Ptr) -> c_int,
    pub passive_ep: unsafe extern "C" fn(*mut Fabric, *mut Info, Out<Pep>, Ptr) -> c_int,
    pub eq_open: unsafe extern "C" fn(*mut Fabric, *mut EqAttr, Out<Eq>, Ptr) -> c_int,
    unused: usize,
    pub trywait: unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub struct Domain {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

#[repr(C)]
pub struct DomainOps {
    size: usize,
    pub av_open: unsafe extern "C" fn(*mut Domain, *mut AvAttr, Out<Av>, Ptr) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut Domain, *mut CqAttr, Out<Cq>, Ptr) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, Out<Ep>, Ptr) -> c_int,
}

#[repr(C)]
pub struct MrOps {
    size: usize,
    pub reg: RegFunction,
    regv: usize,
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, Out<Mr>) -> c_int,
}

/// What is registered. Padded for newer versions.
#[repr(C)]
pub struct MrAttr {
    /// An [`libc::iovec`], or a [`MrDmaBuf`] with [`MR_DMABUF`].
    pub memory: *const c_void,
    pub count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_int,
    pub device: u64,
    pub rest: [usize; 8],
}

#[repr(C)]
pub struct MrDmaBuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}

#[repr(C)]
pub struct Mr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct Ep {
    pub fid: Fid,
    pub ops: *const EpOps,
    pub cm: *const CmOps,
    pub msg: *const MsgOps,
    pub rma: *const RmaOps,
    pub tagged: *const TaggedOps,
}

/// A passive endpoint, which listens for connections.
#[repr(C)]
pub struct Pep {
    pub fid: Fid,
    ops: *const c_void,
    pub cm: *const CmOps,
}

#[repr(C)]
pub struct RmaOps {
    size: usize,
    pub read: unsafe extern "C" fn(*mut Ep, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
}

#[repr(C)]
pub struct EpOps {
    size: usize,
    pub cancel: unsafe extern "C" fn(*mut Fid, *mut c_void) -> isize,
    getopt: usize,
    pub setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, ConstPtr, usize) -> c_int,
}

#[repr(C)]
pub struct CmOps {
    unused: [usize; 2],
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    getpeer: usize,
    pub connect: unsafe extern "C" fn(*mut Ep, ConstPtr, ConstPtr, usize) -> c_int,
    pub listen: unsafe extern "C" fn(*mut Pep) -> c_int,
    pub accept: unsafe extern "C" fn(*mut Ep, ConstPtr, usize) -> c_int,
    pub reject: unsafe extern "C" fn(*mut Pep, *mut Fid, ConstPtr, usize) -> c_int,
    pub shutdown: unsafe extern "C" fn(*mut Ep, u64) -> c_int,
}

#[repr(C)]
pub struct MsgOps {
    size: usize,
    pub recv: unsafe extern "C" fn(*mut Ep, Ptr, usize, Ptr, u64, Ptr) -> isize,
    unused: [usize; 2],
    pub send: unsafe extern "C" fn(*mut Ep, ConstPtr, usize, Ptr, u64, Ptr) -> isize,
}

#[repr(C)]
pub struct TaggedOps {
    size: usize,
    pub recv: unsafe extern "C" fn(*mut Ep, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    unused: [usize; 2],
    pub send: unsafe extern "C" fn(*mut Ep, ConstPtr, usize, Ptr, u64, u64, Ptr) -> isize,
    more: [usize; 2],
    pub inject: unsafe extern "C" fn(*mut Ep, ConstPtr, usize, u64, u64) -> isize,
}

#[repr(C)]
pub struct AvOps {
    size: usize,
    pub insert: unsafe extern "C" fn(*mut Av, ConstPtr, usize, *mut u64, u64, Ptr) -> c_int,
}

/// Padded for newer versions.
#[repr(C)]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub rest: [usize; 9],
}

#[repr(C)]
pub struct CqOps {
    size: usize,
    pub read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
    unused: usize,
    pub readerr: unsafe extern "C" fn(*mut Cq, *mut CqError, u64) -> isize,
}

/// Padded for newer versions.
#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub rest: [usize; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CqEntry {
    pub context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

/// Padded for newer versions.
#[repr(C)]
pub struct CqError {
    pub context: *mut c_void,
    unused: [u64; 6],
    pub err: c_int,
    rest: [usize; 8],
}

#[repr(C)]
pub struct EqOps {
    size: usize,
    pub read: unsafe extern "C" fn(*mut Eq, *mut u32, *mut c_void, usize, u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut Eq, *mut EqError, u64) -> isize,
}

/// Padded for newer versions.
#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: c_int,
    pub rest: [usize; 8],
}

/// An event of a connection, followed by the data of its request.
#[repr(C)]
pub struct EqCmEntry {
    pub fid: *mut Fid,
    /// Of a request; owned by the reader.
    pub info: *mut Info,
}

/// Padded for newer versions.
#[repr(C)]
pub struct EqError {
    pub fid: *mut Fid,
    unused: [usize; 2],
    pub err: c_int,
    rest: [usize; 8],
}

/// The offsets in the headers.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(Info, handle) == 64);
    assert!(offset_of!(Info, tx_attr) == 72 && offset_of!(Info, fabric_attr) == 104);
    assert!(offset_of!(Info, nic) == 112 && offset_of!(Nic, bus_attr) == 32);
    assert!(offset_of!(Nic, link_attr) == 40 && offset_of!(LinkAttr, speed) == 16);
    assert!(offset_of!(BusAttr, domain) == 4 && offset_of!(BusAttr, function) == 8);
    assert!(offset_of!(MrOps, regattr) == 24 && offset_of!(Mr, key) == 32);
    assert!(offset_of!(MrAttr, iface) == 64 && offset_of!(MrAttr, device) == 72);
    assert!(size_of::<MrAttr>() >= 112 && size_of::<MrDmaBuf>() == 32);
    assert!(offset_of!(Ep, rma) == 48 && offset_of!(RmaOps, read) == 8);
    assert!(offset_of!(TaggedOps, inject) == 56);
    assert!(offset_of!(QueueAttr, inject_size) == 40 && offset_of!(QueueAttr, size) == 48);
    assert!(offset_of!(EpAttr, max_msg_size) == 16 && offset_of!(EpAttr, mem_tag_format) == 56);
    assert!(offset_of!(DomainAttr, threading) == 16 && offset_of!(DomainAttr, mr_mode) == 36);
    assert!(offset_of!(FabricAttr, prov_name) == 16 && size_of::<CqEntry>() == 24);
    assert!(size_of::<Fid>() == 24 && offset_of!(Ops, control) == 24);
    assert!(offset_of!(FabricOps, domain) == 8 && offset_of!(FabricOps, trywait) == 40);
    assert!(offset_of!(FabricOps, passive_ep) == 16 && offset_of!(FabricOps, eq_open) == 24);
    assert!(size_of::<Domain>() == 40 && offset_of!(DomainOps, endpoint) == 24);
    assert!(offset_of!(MrOps, reg) == 8 && offset_of!(Mr, mem_desc) == 24);
    assert!(offset_of!(Ep, cm) == 32 && offset_of!(Ep, tagged) == 56);
    assert!(offset_of!(EpOps, setopt) == 24);
    assert!(offset_of!(EpOps, cancel) == 8 && offset_of!(CmOps, getname) == 16);
    assert!(offset_of!(TaggedOps, recv) == 8 && offset_of!(TaggedOps, send) == 32);
    assert!(size_of::<Av>() == 32 && offset_of!(AvOps, insert) == 8);
    assert!(offset_of!(AvAttr, rest) == 8 && size_of::<AvAttr>() >= 48);
    assert!(offset_of!(CqOps, read) == 8 && offset_of!(CqOps, readerr) == 24);
    assert!(offset_of!(CqAttr, format) == 16 && offset_of!(CqAttr, wait_obj) == 20);
    assert!(size_of::<CqAttr>() >= 48);
    assert!(offset_of!(Ep, msg) == 40 && offset_of!(Pep, cm) == 32);
    assert!(offset_of!(CmOps, connect) == 32 && offset_of!(CmOps, shutdown) == 64);
    assert!(offset_of!(MsgOps, recv) == 8 && offset_of!(MsgOps, send) == 32);
    assert!(offset_of!(EqOps, read) == 8 && offset_of!(EqOps, readerr) == 16);
    assert!(offset_of!(EqAttr, wait_obj) == 16 && size_of::<EqAttr>() >= 32);
    assert!(size_of::<EqCmEntry>() == 16 && offset_of!(EqError, err) == 24);
    assert!(size_of::<EqError>() >= 48);
    assert!(offset_of!(CqError, err) == 56 && size_of::<CqError>() >= 88);
};
