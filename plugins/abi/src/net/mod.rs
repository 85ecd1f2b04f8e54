//! NCCL's network interface: one file per version, and what they share.
//!
//! A plug-in exports a static table of functions per version, named `ncclNetPlugin_v8` and so on, and NCCL
//! uses the newest that it knows.

pub mod v10;
pub mod v11;
pub mod v8;
pub mod v9;

use std::ffi::{c_char, c_int, c_void};

use crate::NcclResult;

/// Size of a handle that `listen` writes and `connect` gets.
pub const HANDLE_BYTES: usize = 128;
/// The most receives of a group.
pub const MAX_GROUPED_RECVS: usize = 8;
/// The most operations in flight of a communicator (`NCCL_NET_MAX_REQUESTS`), of which each may be a group.
pub const MAX_REQUESTS: usize = 32;

/// Memory of the host (`NCCL_PTR_HOST`).
pub const PTR_HOST: c_int = 1;
/// Memory of a GPU, also of AMD GPUs (`NCCL_PTR_CUDA`).
pub const PTR_CUDA: c_int = 2;
/// Memory that is registered by a dma-buf descriptor (`NCCL_PTR_DMABUF`).
pub const PTR_DMABUF: c_int = 4;

/// No part of the transport runs on the GPU (`NCCL_NET_DEVICE_HOST`).
pub const DEVICE_HOST: c_int = 0;
/// Version of the part on the GPU, if there is none (`NCCL_NET_DEVICE_INVALID_VERSION`).
pub const DEVICE_INVALID_VERSION: c_int = 0;

/// From version 9 on, a request with this value before `irecv` says that its completion is optional.
pub const OPTIONAL_RECV_COMPLETION: *mut c_void = std::ptr::without_provenance_mut(1);

/// A connection, a registration or a request.
pub type Object = *mut c_void;
/// Where a function writes an object.
pub type Out = *mut *mut c_void;

/// Closes an object.
pub type Close = unsafe extern "C" fn(Object) -> NcclResult;
/// `devices`: the number of NICs.
pub type Devices = unsafe extern "C" fn(count: *mut c_int) -> NcclResult;
/// `getProperties`, with the properties of a version.
pub type GetProperties<P> = unsafe extern "C" fn(device: c_int, properties: *mut P) -> NcclResult;
/// `listen` of versions without a context.
pub type Listen =
    unsafe extern "C" fn(device: c_int, handle: *mut c_void, listener: Out) -> NcclResult;
/// `connect` of versions without settings of a communicator.
pub type Connect =
    unsafe extern "C" fn(device: c_int, handle: *mut c_void, send: Out, offload: Out) -> NcclResult;
/// `accept`.
pub type Accept = unsafe extern "C" fn(listener: Object, recv: Out, offload: Out) -> NcclResult;
/// `regMr`.
pub type RegMr = unsafe extern "C" fn(
    comm: Object,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    registration: Out,
) -> NcclResult;
/// `regMrDmaBuf`.
pub type RegMrDmaBuf = unsafe extern "C" fn(
    comm: Object,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    registration: Out,
) -> NcclResult;
/// `deregMr`.
pub type DeregMr = unsafe extern "C" fn(comm: Object, registration: Object) -> NcclResult;
/// `iflush`.
pub type Iflush = unsafe extern "C" fn(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    registrations: *mut Object,
    request: Out,
) -> NcclResult;
/// `test`.
pub type Test =
    unsafe extern "C" fn(request: Object, done: *mut c_int, sizes: *mut c_int) -> NcclResult;
/// A function that this project neither has nor calls.
pub type Unused = Option<unsafe extern "C" fn()>;
/// `isend` of versions 10 and later.
pub type Isend = unsafe extern "C" fn(
    send: Object,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    registration: Object,
    profiler: *mut c_void,
    request: Out,
) -> NcclResult;
/// `irecv` of versions 10 and later.
pub type Irecv = unsafe extern "C" fn(
    recv: Object,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    registrations: *mut Object,
    profiler: *mut *mut c_void,
    request: Out,
) -> NcclResult;
/// NCCL's callback for events of the network, which this project does not send.
pub type ProfilerCallback = *mut c_void;

/// The functions that the tables of all versions begin with.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Functions<Init, Properties, Listen, Connect, Isend, Irecv> {
    /// The name that NCCL logs.
    pub name: *const c_char,
    /// `init`.
    pub init: Init,
    /// `devices`.
    pub devices: Devices,
    /// `getProperties`.
    pub get_properties: GetProperties<Properties>,
    /// `listen`.
    pub listen: Listen,
    /// `connect`.
    pub connect: Connect,
    /// `accept`.
    pub accept: Accept,
    /// `regMr`.
    pub reg_mr: RegMr,
    /// `regMrDmaBuf`; NULL without dma-buf support.
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    /// `deregMr`.
    pub dereg_mr: DeregMr,
    /// `isend`.
    pub isend: Isend,
    /// `irecv`.
    pub irecv: Irecv,
    /// `iflush`.
    pub iflush: Iflush,
    /// `test`.
    pub test: Test,
    /// `closeSend`.
    pub close_send: Close,
    /// `closeRecv`.
    pub close_recv: Close,
    /// `closeListen`.
    pub close_listen: Close,
    /// `getDeviceMr`, for transports with a part on the GPU.
    pub get_device_mr: Unused,
    /// `irecvConsumed`, for transports with a part on the GPU.
    pub irecv_consumed: Unused,
}

// SAFETY: pointers to constants.
unsafe impl<I: Sync, P, L: Sync, C: Sync, S: Sync, R: Sync> Sync for Functions<I, P, L, C, S, R> {}

/// The tables of versions 9 and 10, by the functions that these begin with.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct VirtualDeviceNet<Functions> {
    /// As in version 8.
    pub functions: Functions,
    /// `makeVDevice`: combines NICs to a virtual one.
    pub make_v_device: Unused,
}

/// The NICs of a virtual device (`ncclNetVDeviceProps`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct VirtualDevice {
    /// How many of `devices` count.
    pub count: c_int,
    /// NICs.
    pub devices: [c_int; 4],
}

impl VirtualDevice {
    /// A device that is one NIC.
    pub const fn single(device: c_int) -> Self {
        Self { count: 1, devices: [device, 0, 0, 0] }
    }
}

/// Settings of a communicator (`ncclNetCommConfig`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CommConfig {
    /// Traffic class; -1 if it is not set.
    pub traffic_class: c_int,
}

/// The properties of a NIC in version 9, with which those of versions 10 and 11 begin.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    /// Name, for logs.
    pub name: *const c_char,
    /// Path of the PCI device in `/sys`, or NULL.
    pub pci_path: *const c_char,
    /// Identifies the chip: ports of one chip share it.
    pub guid: u64,
    /// [`PTR_HOST`], [`PTR_CUDA`], [`PTR_DMABUF`].
    pub pointer_support: c_int,
    /// Whether registrations hold for all connections of the device.
    pub is_registration_global: c_int,
    /// Whether every receive must be flushed.
    pub force_flush: c_int,
    /// Mbit/s.
    pub speed: c_int,
    /// Number of the port.
    pub port: c_int,
    /// Microseconds; 0 if unknown.
    pub latency: f32,
    /// The most connections.
    pub max_comms: c_int,
    /// The most receives of a group.
    pub max_recvs: c_int,
    /// [`DEVICE_HOST`].
    pub device_type: c_int,
    /// [`DEVICE_INVALID_VERSION`].
    pub device_version: c_int,
    /// The NICs that the device consists of.
    pub members: VirtualDevice,
    /// Largest point-to-point message.
    pub max_p2p_bytes: usize,
    /// Largest message of an in-network collective.
    pub max_coll_bytes: usize,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    type Any = Functions<Devices, (), Devices, Devices, Devices, Devices>;
    assert!(offset_of!(Any, connect) == 40 && offset_of!(Any, isend) == 80);
    assert!(offset_of!(Any, test) == 104 && offset_of!(Any, irecv_consumed) == 144);
    assert!(size_of::<VirtualDevice>() == 20 && size_of::<CommConfig>() == 4);
    assert!(offset_of!(Properties, guid) == 16 && offset_of!(Properties, pointer_support) == 24);
    assert!(offset_of!(Properties, force_flush) == 32 && offset_of!(Properties, speed) == 36);
    assert!(offset_of!(Properties, latency) == 44 && offset_of!(Properties, max_recvs) == 52);
    assert!(offset_of!(Properties, device_version) == 60 && offset_of!(Properties, members) == 64);
    assert!(offset_of!(Properties, max_p2p_bytes) == 88 && size_of::<Properties>() == 104);
};
