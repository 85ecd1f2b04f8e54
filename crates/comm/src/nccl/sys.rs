//! The functions of NCCL and CUDA, or of RCCL and HIP, as their libraries have them: opened at run
//! time, so that nothing needs them to build or to run without.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

use libloading::{Library, Symbol};

use crate::CommError;

/// What tells ranks of one communicator where to meet.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

/// A communicator of the library's.
pub type RawComm = *mut c_void;
/// A queue of work on a device.
pub type Stream = *mut c_void;

/// How a communicator is to work, as the library's version 2.14 knew it; later ones take their
/// defaults for what this does not say.
#[repr(C)]
pub struct Config {
    bytes: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// What the library does may keep a caller waiting, or not.
    pub fn new(blocking: bool) -> Self {
        let (bytes, blocking) = (size_of::<Self>(), c_int::from(blocking));
        Self { bytes, magic: 0xcafe_beef, version: 21400, blocking }
    }
}

/// What a function of the library returns when all is well.
pub const OK: c_int = 0;
/// The library is still at it.
pub const IN_PROGRESS: c_int = 7;
/// The runtime's word for work that goes on.
pub const NOT_READY: c_int = 600;
/// A stream that does not wait for what programs do without one.
pub const NON_BLOCKING: c_uint = 1;
/// Copies whose direction the addresses tell.
pub const ANY_DIRECTION: c_int = 4;

/// Whose libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// NCCL and CUDA.
    Nvidia,
    /// RCCL and HIP.
    Amd,
}

impl Vendor {
    /// The libraries' names, the newest first, and the variables that name other ones.
    fn libraries(self) -> [(&'static str, &'static [&'static str]); 2] {
        match self {
            Self::Nvidia => [
                ("REGATTA_NCCL", &["libnccl.so.2"]),
                ("REGATTA_CUDART", &["libcudart.so.13", "libcudart.so.12", "libcudart.so"]),
            ],
            Self::Amd => [
                ("REGATTA_RCCL", &["librccl.so.1"]),
                ("REGATTA_HIP", &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"]),
            ],
        }
    }

    /// What the runtime's functions begin with.
    fn prefix(self) -> &'static str {
        match self {
            Self::Nvidia => "cuda",
            Self::Amd => "hip",
        }
    }
}

/// The functions that are used. The libraries stay open as long as this lives.
pub struct Functions {
    pub version: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub device_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub bus: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    pub memory_info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
    pub unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub init: unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int, *mut Config) -> c_int,
    pub finalize: unsafe extern "C" fn(RawComm) -> c_int,
    pub destroy: unsafe extern "C" fn(RawComm) -> c_int,
    pub abort: unsafe extern "C" fn(RawComm) -> c_int,
    pub async_error: unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    pub error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub group_start: unsafe extern "C" fn() -> c_int,
    pub group_end: unsafe extern "C" fn() -> c_int,
    pub all_reduce: Reduction,
    pub reduce_scatter: Reduction,
    pub reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        c_int,
        RawComm,
        Stream,
    ) -> c_int,
    pub broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        RawComm,
        Stream,
    ) -> c_int,
    pub all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, RawComm, Stream) -> c_int,
    pub send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawComm, Stream) -> c_int,
    pub receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawComm, Stream) -> c_int,
    pub set_device: unsafe extern "C" fn(c_int) -> c_int,
    pub get_device: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub malloc: unsafe extern "C" fn(*mut *mut c_void, usize, Stream) -> c_int,
    pub free: unsafe extern "C" fn(*mut c_void, Stream) -> c_int,
    pub copy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, Stream) -> c_int,
    pub stream_create: unsafe extern "C" fn(*mut Stream, c_uint) -> c_int,
    pub stream_destroy: unsafe extern "C" fn(Stream) -> c_int,
    pub stream_wait: unsafe extern "C" fn(Stream) -> c_int,
    pub stream_query: unsafe extern "C" fn(Stream) -> c_int,
    pub runtime_error: unsafe extern "C" fn(c_int) -> *const c_char,
    _collectives: Library,
    _runtime: Library,
}

/// All-reduce and reduce-scatter.
pub type Reduction =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, Stream) -> c_int;

impl Functions {
    /// Opens the libraries of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, CommError> {
        let [collectives, runtime] = vendor.libraries();
        // The collectives need the runtime, which may be found by us and not by them.
        let runtime = open(runtime.0, runtime.1)?;
        let collectives = open(collectives.0, collectives.1)?;
        let of = |name: &str| format!("{}{name}\0", vendor.prefix());
        Ok(Self {
            version: symbol(&collectives, "ncclGetVersion\0")?,
            device_count: symbol(&runtime, &of("GetDeviceCount"))?,
            bus: symbol(&runtime, &of("DeviceGetPCIBusId"))?,
            memory_info: symbol(&runtime, &of("MemGetInfo"))?,
            unique_id: symbol(&collectives, "ncclGetUniqueId\0")?,
            init: symbol(&collectives, "ncclCommInitRankConfig\0")?,
            finalize: symbol(&collectives, "ncclCommFinalize\0")?,
            destroy: symbol(&collectives, "ncclCommDestroy\0")?,
            abort: symbol(&collectives, "ncclCommAbort\0")?,
            async_error: symbol(&collectives, "ncclCommGetAsyncError\0")?,
            error_string: symbol(&collectives, "ncclGetErrorString\0")?,
            group_start: symbol(&collectives, "ncclGroupStart\0")?,
            group_end: symbol(&collectives, "ncclGroupEnd\0")?,
            all_reduce: symbol(&collectives, "ncclAllReduce\0")?,
            reduce_scatter: symbol(&collectives, "ncclReduceScatter\0")?,
            reduce: symbol(&collectives, "ncclReduce\0")?,
            broadcast: symbol(&collectives, "ncclBroadcast\0")?,
            all_gather: symbol(&collectives, "ncclAllGather\0")?,
            send: symbol(&collectives, "ncclSend\0")?,
            receive: symbol(&collectives, "ncclRecv\0")?,
            set_device: symbol(&runtime, &of("SetDevice"))?,
            get_device: symbol(&runtime, &of("GetDevice"))?,
            malloc: symbol(&runtime, &of("MallocAsync"))?,
            free: symbol(&runtime, &of("FreeAsync"))?,
            copy: symbol(&runtime, &of("MemcpyAsync"))?,
            stream_create: symbol(&runtime, &of("StreamCreateWithFlags"))?,
            stream_destroy: symbol(&runtime, &of("StreamDestroy"))?,
            stream_wait: symbol(&runtime, &of("StreamSynchronize"))?,
            stream_query: symbol(&runtime, &of("StreamQuery"))?,
            runtime_error: symbol(&runtime, &of("GetErrorString"))?,
            _collectives: collectives,
            _runtime: runtime,
        })
    }

    /// What a result of the collectives means.
    pub fn explain(&self, code: c_int) -> String {
        // SAFETY: the function takes any number.
        text(unsafe { (self.error_string)(code) }, code)
    }

    /// What a result of the runtime means.
    pub fn explain_runtime(&self, code: c_int) -> String {
        // SAFETY: the function takes any number.
        text(unsafe { (self.runtime_error)(code) }, code)
    }
}

fn text(words: *const c_char, code: c_int) -> String {
    if words.is_null() {
        return format!("error {code}");
    }
    // SAFETY: both libraries return texts that live as long as they.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

fn open(variable: &str, names: &[&str]) -> Result<Library, CommError> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let candidates = named.into_iter().chain(names.iter().map(PathBuf::from));
    let mut why = String::new();
    for path in candidates {
        // SAFETY: a library that the user installed, and that every program with GPUs opens.
        match unsafe { Library::new(&path) } {
            Ok(library) => return Ok(library),
            Err(error) => why = error.to_string(),
        }
    }
    let what = format!("{} cannot be opened ({why})", names.join(", "));
    let hint = format!("name it by {variable}, or put its folder into LD_LIBRARY_PATH");
    Err(CommError::Join { what, hint })
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, CommError> {
    // SAFETY: the types are those of the libraries' headers, which have not changed in years.
    let found: Result<Symbol<'_, F>, _> = unsafe { library.get(name.as_bytes()) };
    found.map(|f| *f).map_err(|error| CommError::Join {
        what: error.to_string(),
        hint: "use NCCL or RCCL 2.14 or newer".to_owned(),
    })
}
