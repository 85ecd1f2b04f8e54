//! Entry points of NCCL and RCCL, which declare identical functions, types and values (`src/nccl.h.in` of
//! either).

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::gpu_runtime::{LibraryError, Stream, Vendor, error_text, open_library, symbol};

/// `ncclUniqueId`, which identifies a communicator during its initialisation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

/// `ncclComm_t`.
pub type RawComm = *mut c_void;

/// `ncclConfig_t` of version 2.14; later versions use their defaults for the rest.
#[repr(C)]
pub struct RawConfig {
    bytes: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl RawConfig {
    pub fn new(blocking: bool) -> Self {
        let (bytes, blocking) = (size_of::<Self>(), c_int::from(blocking));
        Self { bytes, magic: 0xcafe_beef, version: 21400, blocking }
    }
}

/// `ncclInProgress`.
pub const IN_PROGRESS: c_int = 7;

/// Device memory that is read or written.
type Src = *const c_void;
type Dst = *mut c_void;

/// All-reduce and reduce-scatter.
pub type ReduceFunction =
    unsafe extern "C" fn(Src, Dst, usize, c_int, c_int, RawComm, Stream) -> c_int;

/// Reduce.
pub type ReduceToRootFunction =
    unsafe extern "C" fn(Src, Dst, usize, c_int, c_int, c_int, RawComm, Stream) -> c_int;

/// Functions of the library.
pub struct NcclApi {
    pub get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub comm_init_rank_config:
        unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int, *mut RawConfig) -> c_int,
    pub comm_finalize: unsafe extern "C" fn(RawComm) -> c_int,
    pub comm_destroy: unsafe extern "C" fn(RawComm) -> c_int,
    pub comm_abort: unsafe extern "C" fn(RawComm) -> c_int,
    pub comm_get_async_error: unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    pub get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub group_start: unsafe extern "C" fn() -> c_int,
    pub group_end: unsafe extern "C" fn() -> c_int,
    pub all_reduce: ReduceFunction,
    pub reduce_scatter: ReduceFunction,
    pub reduce: ReduceToRootFunction,
    pub broadcast: unsafe extern "C" fn(Src, Dst, usize, c_int, c_int, RawComm, Stream) -> c_int,
    pub all_gather: unsafe extern "C" fn(Src, Dst, usize, c_int, RawComm, Stream) -> c_int,
    pub send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawComm, Stream) -> c_int,
    pub recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawComm, Stream) -> c_int,
    /// Keeps the library loaded; a fake has none.
    pub _library: Option<Library>,
}

impl NcclApi {
    /// Loads the library of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, LibraryError> {
        let library = match vendor {
            Vendor::Nvidia => open_library("REGATTA_NCCL", &["libnccl.so.2"]),
            Vendor::Amd => open_library("REGATTA_RCCL", &["librccl.so.1"]),
        }?;
        let library_ref = &library;
        macro_rules! load {
            ($name:literal) => {
                symbol(library_ref, $name, "use NCCL or RCCL 2.14 or newer")?
            };
        }
        Ok(Self {
            get_version: load!("ncclGetVersion"),
            get_unique_id: load!("ncclGetUniqueId"),
            comm_init_rank_config: load!("ncclCommInitRankConfig"),
            comm_finalize: load!("ncclCommFinalize"),
            comm_destroy: load!("ncclCommDestroy"),
            comm_abort: load!("ncclCommAbort"),
            comm_get_async_error: load!("ncclCommGetAsyncError"),
            get_error_string: load!("ncclGetErrorString"),
            group_start: load!("ncclGroupStart"),
            group_end: load!("ncclGroupEnd"),
            all_reduce: load!("ncclAllReduce"),
            reduce_scatter: load!("ncclReduceScatter"),
            reduce: load!("ncclReduce"),
            broadcast: load!("ncclBroadcast"),
            all_gather: load!("ncclAllGather"),
            send: load!("ncclSend"),
            recv: load!("ncclRecv"),
            _library: Some(library),
        })
    }

    /// The message of an error code.
    pub fn error_string(&self, code: c_int) -> String {
        // SAFETY: the function accepts any code and returns a static string.
        unsafe { error_text((self.get_error_string)(code), code) }
    }
}
