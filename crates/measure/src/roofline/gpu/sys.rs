//! Function tables of CUDA and cuBLAS, or HIP and rocBLAS.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

use libloading::{Library, Symbol};
use regatta_comm::nccl::Vendor;

use super::GpuError;

/// A device stream.
pub type StreamHandle = *mut c_void;
/// A BLAS library handle.
pub type BlasHandle = *mut c_void;

/// Status of a successful call.
pub const SUCCESS: c_int = 0;
/// A stream that does not synchronise with the null stream.
pub const NON_BLOCKING: c_uint = 1;
/// The addresses determine the direction of a copy.
pub const MEMCPY_DEFAULT: c_int = 4;
/// Larger than the device properties of any version. The name comes first.
pub const PROPERTIES_BYTES: usize = 1 << 16;

/// The runtime: devices, memory, streams.
pub struct Runtime {
    pub vendor: Vendor,
    pub device_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub set_device: unsafe extern "C" fn(c_int) -> c_int,
    pub properties: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    pub free: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub host_malloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    pub host_free: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub copy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, StreamHandle) -> c_int,
    pub stream_create: unsafe extern "C" fn(*mut StreamHandle, c_uint) -> c_int,
    pub stream_destroy: unsafe extern "C" fn(StreamHandle) -> c_int,
    pub stream_synchronize: unsafe extern "C" fn(StreamHandle) -> c_int,
    pub error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Keeps the library loaded; `None` for the fake.
    pub _library: Option<Library>,
}

/// The BLAS library.
pub struct BlasFunctions {
    pub create: unsafe extern "C" fn(*mut BlasHandle) -> c_int,
    pub destroy: unsafe extern "C" fn(BlasHandle) -> c_int,
    pub set_stream: unsafe extern "C" fn(BlasHandle, StreamHandle) -> c_int,
    pub gemm: GemmFn,
    /// Keeps the library loaded.
    pub _library: Option<Library>,
}

/// GemmEx, which the vendors declare differently.
#[derive(Clone, Copy)]
pub enum GemmFn {
    /// Transpositions, sizes, alpha, left, right, beta, result, compute type, algorithm.
    Cublas(CublasGemmEx),
    /// Has a second result, and a solution index and flags at the end.
    Rocblas(RocblasGemmEx),
}

pub type CublasGemmEx = unsafe extern "C" fn(
    BlasHandle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

pub type RocblasGemmEx = unsafe extern "C" fn(
    BlasHandle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    i32,
    u32,
) -> c_int;

impl Runtime {
    /// Loads the runtime of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, GpuError> {
        let (library, prefix, [host_malloc, host_free]) = match vendor {
            Vendor::Nvidia => {
                let names =
                    ["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"];
                (open("REGATTA_CUDART", &names)?, "cuda", ["HostAlloc", "FreeHost"])
            }
            Vendor::Amd => {
                let names = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];
                (open("REGATTA_HIP", &names)?, "hip", ["HostMalloc", "HostFree"])
            }
        };
        let of = |name: &str| format!("{prefix}{name}\0");
        Ok(Self {
            vendor,
            device_count: symbol(&library, &of("GetDeviceCount"))?,
            set_device: symbol(&library, &of("SetDevice"))?,
            // The name depends on the version of the struct's layout.
            properties: symbol(&library, &of("GetDeviceProperties"))
                .or_else(|_| symbol(&library, &of("GetDeviceProperties_v2")))
                .or_else(|_| symbol(&library, &of("GetDevicePropertiesR0600")))?,
            malloc: symbol(&library, &of("Malloc"))?,
            free: symbol(&library, &of("Free"))?,
            host_malloc: symbol(&library, &of(host_malloc))?,
            host_free: symbol(&library, &of(host_free))?,
            copy: symbol(&library, &of("MemcpyAsync"))?,
            stream_create: symbol(&library, &of("StreamCreateWithFlags"))?,
            stream_destroy: symbol(&library, &of("StreamDestroy"))?,
            stream_synchronize: symbol(&library, &of("StreamSynchronize"))?,
            error_string: symbol(&library, &of("GetErrorString"))?,
            _library: Some(library),
        })
    }

    /// Describes a status code.
    pub fn error_message(&self, code: c_int) -> String {
        // SAFETY: the function accepts any code.
        let words = unsafe { (self.error_string)(code) };
        if words.is_null() {
            return format!("error {code}");
        }
        // SAFETY: the library returns static strings.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    }
}

impl BlasFunctions {
    /// Loads the BLAS library of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, GpuError> {
        match vendor {
            Vendor::Nvidia => {
                let names =
                    ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"];
                let library = open("REGATTA_CUBLAS", &names)?;
                Ok(Self {
                    create: symbol(&library, "cublasCreate_v2\0")?,
                    destroy: symbol(&library, "cublasDestroy_v2\0")?,
                    set_stream: symbol(&library, "cublasSetStream_v2\0")?,
                    gemm: GemmFn::Cublas(symbol(&library, "cublasGemmEx\0")?),
                    _library: Some(library),
                })
            }
            Vendor::Amd => {
                let names = ["librocblas.so.5", "librocblas.so.4", "librocblas.so.3"];
                let library = open("REGATTA_ROCBLAS", &names)?;
                Ok(Self {
                    create: symbol(&library, "rocblas_create_handle\0")?,
                    destroy: symbol(&library, "rocblas_destroy_handle\0")?,
                    set_stream: symbol(&library, "rocblas_set_stream\0")?,
                    gemm: GemmFn::Rocblas(symbol(&library, "rocblas_gemm_ex\0")?),
                    _library: Some(library),
                })
            }
        }
    }
}

fn open(variable: &str, names: &[&str]) -> Result<Library, GpuError> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let candidates = named.into_iter().chain(names.iter().map(PathBuf::from));
    for path in candidates {
        // SAFETY: a vendor library that every GPU program loads.
        if let Ok(library) = unsafe { Library::new(&path) } {
            return Ok(library);
        }
    }
    let first = names.first().copied().unwrap_or_default();
    Err(GpuError { what: first.to_owned(), why: format!("not found (set {variable} to its path)") })
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, GpuError> {
    // SAFETY: the types match the vendor headers, which are stable.
    let found: Result<Symbol<'_, F>, _> = unsafe { library.get(name.as_bytes()) };
    found.map(|f| *f).map_err(|error| GpuError {
        what: name.trim_end_matches('\0').to_owned(),
        why: format!("{error}; CUDA 11 or ROCm 5 or newer is required"),
    })
}
