//! Module loading and kernel launches: the CUDA driver, or the same functions of the HIP runtime.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null;

use libloading::Library;
use regatta_comm::gpu_runtime::{
    LibraryError, SUCCESS, Stream, Vendor, error_text, open_library, symbol,
};

/// `CUmodule` or `hipModule_t`.
pub type RawModule = *mut c_void;
/// `CUfunction` or `hipFunction_t`.
pub type RawFunction = *mut c_void;

/// Functions of the driver.
pub struct Driver {
    pub vendor: Vendor,
    pub module_load_data: unsafe extern "C" fn(*mut RawModule, *const c_void) -> c_int,
    pub module_get_function:
        unsafe extern "C" fn(*mut RawFunction, RawModule, *const c_char) -> c_int,
    pub launch_kernel: LaunchKernel,
    /// Allows more dynamic shared memory than 48 KiB; HIP needs no permission.
    pub func_set_attribute: Option<unsafe extern "C" fn(RawFunction, c_int, c_int) -> c_int>,
    /// `cuMemsetD8Async`, or `hipMemsetAsync`, which takes an int.
    pub memset_async: MemsetAsync,
    pub device_get_attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
    /// `hipRuntimeGetVersion`; CUDA has its versions in the names of its libraries.
    pub runtime_get_version: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
    pub get_error_string: GetErrorString,
    /// Keeps the library loaded; a fake has none.
    pub _library: Option<Library>,
}

#[rustfmt::skip]
pub type LaunchKernel = unsafe extern "C" fn(
    RawFunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream,
    *mut *mut c_void, *mut *mut c_void,
) -> c_int;

/// Memory, value, bytes, stream. Zero has the same representation in either type of the value.
pub type MemsetAsync = unsafe extern "C" fn(*mut c_void, c_uint, usize, Stream) -> c_int;

/// The text of an error code, which the vendors return differently.
#[derive(Clone, Copy)]
pub enum GetErrorString {
    Cuda(unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int),
    Hip(unsafe extern "C" fn(c_int) -> *const c_char),
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

/// A property of a device: its `CUdevice_attribute` of `cuda.h`, and its `hipDeviceAttribute_t` of
/// `hip/hip_runtime_api.h`, whose values are positions in the enumeration.
#[derive(Debug, Clone, Copy)]
pub struct Attribute {
    cuda: c_int,
    hip: c_int,
}

impl Attribute {
    pub const MULTIPROCESSORS: Self = Self { cuda: 16, hip: 63 };
    pub const COMPUTE_CAPABILITY_MAJOR: Self = Self { cuda: 75, hip: 23 };
    pub const COMPUTE_CAPABILITY_MINOR: Self = Self { cuda: 76, hip: 61 };
    pub const MAX_SHARED_BYTES_PER_BLOCK: Self = Self { cuda: 97, hip: 74 };
    pub const WARP_SIZE: Self = Self { cuda: 10, hip: 87 };

    /// Its value in the library of a vendor.
    pub fn code(self, vendor: Vendor) -> c_int {
        if vendor == Vendor::Nvidia { self.cuda } else { self.hip }
    }
}

impl Driver {
    /// Loads the driver of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, LibraryError> {
        let hip_libraries = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];
        let (variable, libraries, hint) = match vendor {
            Vendor::Nvidia => (
                "REGATTA_CUDA",
                &["libcuda.so.1"][..],
                "install an NVIDIA driver for CUDA 12 or newer",
            ),
            Vendor::Amd => ("REGATTA_HIP", &hip_libraries[..], "use ROCm 6.1 or newer"),
        };
        let library = open_library(variable, libraries)?;
        let is_nvidia = vendor == Vendor::Nvidia;
        macro_rules! load {
            ($cuda:literal, $hip:literal) => {
                symbol(&library, if is_nvidia { $cuda } else { $hip }, hint)?
            };
        }
        Ok(Self {
            vendor,
            module_load_data: load!("cuModuleLoadData", "hipModuleLoadData"),
            module_get_function: load!("cuModuleGetFunction", "hipModuleGetFunction"),
            launch_kernel: load!("cuLaunchKernel", "hipModuleLaunchKernel"),
            func_set_attribute: match vendor {
                Vendor::Nvidia => Some(symbol(&library, "cuFuncSetAttribute", hint)?),
                Vendor::Amd => None,
            },
            memset_async: load!("cuMemsetD8Async", "hipMemsetAsync"),
            device_get_attribute: load!("cuDeviceGetAttribute", "hipDeviceGetAttribute"),
            runtime_get_version: match vendor {
                Vendor::Nvidia => None,
                Vendor::Amd => Some(symbol(&library, "hipRuntimeGetVersion", hint)?),
            },
            get_error_string: match vendor {
                Vendor::Nvidia => GetErrorString::Cuda(symbol(&library, "cuGetErrorString", hint)?),
                Vendor::Amd => GetErrorString::Hip(symbol(&library, "hipGetErrorString", hint)?),
            },
            _library: Some(library),
        })
    }

    /// A property of a device; 0 if the driver does not know it.
    pub fn attribute(&self, device: u32, attribute: Attribute) -> u32 {
        let mut value = 0;
        let code = attribute.code(self.vendor);
        // SAFETY: the function writes one integer.
        match unsafe { (self.device_get_attribute)(&mut value, code, device as c_int) } {
            SUCCESS => value.unsigned_abs(),
            _ => 0,
        }
    }

    /// The version of the HIP runtime, such as 60_342_134 for 6.3; `None` of CUDA.
    pub fn hip_version(&self) -> Option<u32> {
        let get = self.runtime_get_version?;
        let mut version = 0;
        // SAFETY: the function writes one integer.
        unsafe { get(&mut version) };
        Some(version.unsigned_abs())
    }

    /// Allows a kernel this much dynamic shared memory.
    ///
    /// # Safety
    /// `function` must be a loaded kernel.
    pub unsafe fn allow_shared_bytes(&self, function: RawFunction, bytes: u32) -> c_int {
        match self.func_set_attribute {
            // SAFETY: as required of the caller.
            Some(set) => unsafe { set(function, MAX_DYNAMIC_SHARED_BYTES, bytes as c_int) },
            None => SUCCESS,
        }
    }

    /// The message of an error code.
    pub fn error_string(&self, code: c_int) -> String {
        let mut text = null();
        match self.get_error_string {
            // SAFETY: the function writes one pointer to a static string, or none for an unknown code.
            GetErrorString::Cuda(get) => unsafe {
                get(code, &mut text);
                error_text(text, code)
            },
            // SAFETY: the function returns a static string for any code.
            GetErrorString::Hip(get) => unsafe { error_text(get(code), code) },
        }
    }
}
