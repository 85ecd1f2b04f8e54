//! The part of libfabric's ABI that is used. Function tables and structures allocated by the library
//! are only declared up to the last field in use, because both only grow at the end. Checked against
//! the headers of 1.17 and 2.7, which agree on all of it.

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

pub const TAGGED: u64 = 1 << 3;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
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
pub const ADDR_UNSPEC: u64 = u64::MAX;

pub const EAGAIN: isize = 11;
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
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
}

#[repr(C)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order: [usize; 3],
    pub mem_tag_format: u64,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

/// The common prefix of all objects.
#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const Ops,
}

#[repr(C)]
pub struct Ops {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct Fabric {
    pub fid: Fid,
    pub ops: *const FabricOps,
    pub api_version: u32,
}

#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut Fabric, *mut Info, Out<Domain>, Ptr) -> c_int,
    pub passive_ep: *const c_void,
    pub eq_open: *const c_void,
    pub wait_open: *const c_void,
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
    pub size: usize,
    pub av_open: unsafe extern "C" fn(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void) -> c_int,
    pub cq_open: unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct MrOps {
    pub size: usize,
    pub reg: RegFunction,
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
    pub msg: *const c_void,
    pub rma: *const c_void,
    pub tagged: *const TaggedOps,
}

#[repr(C)]
pub struct EpOps {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(*mut Fid, *mut c_void) -> isize,
}

#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: *const c_void,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub struct TaggedOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(*mut Ep, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
    pub recvv: *const c_void,
    pub recvmsg: *const c_void,
    pub send: unsafe extern "C" fn(*mut Ep, ConstPtr, usize, Ptr, u64, u64, Ptr) -> isize,
}

#[repr(C)]
pub struct Av {
    pub fid: Fid,
    pub ops: *const AvOps,
}

#[repr(C)]
pub struct AvOps {
    pub size: usize,
    pub insert: unsafe extern "C" fn(*mut Av, ConstPtr, usize, *mut u64, u64, Ptr) -> c_int,
}

/// Padded for newer versions.
#[repr(C)]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub rest: [usize; 8],
}

#[repr(C)]
pub struct Cq {
    pub fid: Fid,
    pub ops: *const CqOps,
}

#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
    pub readfrom: *const c_void,
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
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub rest: [usize; 8],
}

/// The offsets in the headers.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Info>() == 120 && offset_of!(Info, tx_attr) == 72);
    assert!(offset_of!(Info, src_addrlen) == 32 && offset_of!(Info, fabric_attr) == 104);
    assert!(offset_of!(TxAttr, inject_size) == 40 && offset_of!(TxAttr, size) == 48);
    assert!(offset_of!(RxAttr, size) == 48);
    assert!(offset_of!(EpAttr, max_msg_size) == 16 && offset_of!(EpAttr, mem_tag_format) == 56);
    assert!(offset_of!(DomainAttr, threading) == 16 && offset_of!(DomainAttr, mr_mode) == 36);
    assert!(size_of::<FabricAttr>() == 32 && offset_of!(FabricAttr, prov_name) == 16);
    assert!(size_of::<Fid>() == 24 && offset_of!(Ops, control) == 24);
    assert!(size_of::<Fabric>() == 40 && offset_of!(FabricOps, trywait) == 40);
    assert!(size_of::<Domain>() == 40 && offset_of!(DomainOps, endpoint) == 24);
    assert!(offset_of!(MrOps, reg) == 8 && size_of::<Mr>() == 40);
    assert!(offset_of!(Ep, cm) == 32 && offset_of!(Ep, tagged) == 56);
    assert!(offset_of!(EpOps, cancel) == 8 && offset_of!(CmOps, getname) == 16);
    assert!(offset_of!(TaggedOps, recv) == 8 && offset_of!(TaggedOps, send) == 32);
    assert!(size_of::<Av>() == 32 && offset_of!(AvOps, insert) == 8);
    assert!(offset_of!(AvAttr, count) == 8 && size_of::<AvAttr>() >= 48);
    assert!(size_of::<Cq>() == 32 && offset_of!(CqOps, read) == 8);
    assert!(offset_of!(CqOps, readerr) == 24 && offset_of!(CqAttr, format) == 16);
    assert!(offset_of!(CqAttr, wait_obj) == 20 && size_of::<CqAttr>() >= 48);
    assert!(size_of::<CqEntry>() == 24 && offset_of!(CqError, err) == 56);
    assert!(offset_of!(CqError, prov_errno) == 60 && size_of::<CqError>() >= 88);
};
