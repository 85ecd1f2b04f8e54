//! The functions of CUDA and cuBLAS, or of HIP and rocBLAS, as their libraries have them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

use libloading::{Library, Symbol};
use regatta_comm::nccl::Vendor;

use super::GpuError;

/// A queue of work on a device.
pub type Stream = *mut c_void;
/// A BLAS library's own state.
pub type Handle = *mut c_void;

/// What every function returns when all is well.
pub const OK: c_int = 0;
/// A stream that does not wait for what programs do without one.
pub const NON_BLOCKING: c_uint = 1;
/// Copies whose direction the addresses tell.
pub const ANY_DIRECTION: c_int = 4;
/// More than the properties of a device take in any version. Its name comes first.
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
    pub copy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, Stream) -> c_int,
    pub stream_create: unsafe extern "C" fn(*mut Stream, c_uint) -> c_int,
    pub stream_destroy: unsafe extern "C" fn(Stream) -> c_int,
    pub stream_wait: unsafe extern "C" fn(Stream) -> c_int,
    pub error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Stays open as long as this lives; a fake has none.
    pub _library: Option<Library>,
}

/// The BLAS library.
pub struct BlasFunctions {
    pub create: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub set_stream: unsafe extern "C" fn(Handle, Stream) -> c_int,
    pub product: Product,
    /// As before.
    pub _library: Option<Library>,
}

/// The product of matrices of any type, which the vendors declare differently.
#[derive(Clone, Copy)]
pub enum Product {
    /// Transpositions, sizes, alpha, left, right, beta, result, compute type, algorithm.
    Cublas(CublasGemmEx),
    /// The same with a second result, and a solution and flags at the end.
    Rocblas(RocblasGemmEx),
}

pub type CublasGemmEx = unsafe extern "C" fn(
    Handle,
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
    Handle,
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
    /// Opens the runtime of a vendor.
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
            // Versions that have several layouts of them have several names.
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
            stream_wait: symbol(&library, &of("StreamSynchronize"))?,
            error_string: symbol(&library, &of("GetErrorString"))?,
            _library: Some(library),
        })
    }

    /// What a result means.
    pub fn explain(&self, code: c_int) -> String {
        // SAFETY: the function takes any number.
        let words = unsafe { (self.error_string)(code) };
        if words.is_null() {
            return format!("error {code}");
        }
        // SAFETY: the library returns texts that live as long as it.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    }
}

impl BlasFunctions {
    /// Opens the library of a vendor.
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
                    product: Product::Cublas(symbol(&library, "cublasGemmEx\0")?),
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
                    product: Product::Rocblas(symbol(&library, "rocblas_gemm_ex\0")?),
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
        // SAFETY: a library that the user installed, and that every program with GPUs opens.
        if let Ok(library) = unsafe { Library::new(&path) } {
            return Ok(library);
        }
    }
    let first = names.first().copied().unwrap_or_default();
    Err(GpuError { what: first.to_owned(), why: format!("not found (name it by {variable})") })
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, GpuError> {
    // SAFETY: the types are those of the libraries' headers, which have not changed in years.
    let found: Result<Symbol<'_, F>, _> = unsafe { library.get(name.as_bytes()) };
    found.map(|f| *f).map_err(|error| GpuError {
        what: name.trim_end_matches('\0').to_owned(),
        why: format!("{error}: use CUDA 11 or ROCm 5, or newer"),
    })
}
