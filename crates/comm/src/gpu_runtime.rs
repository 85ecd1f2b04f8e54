//! Entry points of the CUDA and HIP runtimes, loaded at run time: neither building nor running
//! without a GPU needs CUDA or ROCm.
//!
//! The two runtimes declare these functions identically but for their names, so one table serves
//! both. NCCL and BLAS bindings load their libraries through [`open_library`] and [`symbol`], too.

pub mod library_path;
mod timing_event;
pub mod trace;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::{Library, Symbol};

pub use library_path::open as open_library;
pub use timing_event::TimingEvent;

use crate::CommError;

/// `cudaStream_t` or `hipStream_t`.
pub type Stream = *mut c_void;

/// `cudaEvent_t` or `hipEvent_t`.
pub type RawEvent = *mut c_void;

/// `cudaSuccess`; also the success code of NCCL and the BLAS libraries.
pub const SUCCESS: c_int = 0;
/// `cudaErrorNotReady`: queued work has not completed.
pub const NOT_READY: c_int = 600;
/// `cudaStreamNonBlocking`: no implicit synchronisation with the default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `cudaEventDisableTiming`: without time stamps, which are slower to record.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `cudaStreamCaptureModeRelaxed`: a capture by another thread does not restrict this one.
pub const CAPTURE_MODE_RELAXED: c_int = 2;
/// `cudaMemcpyDefault`: the addresses determine the direction.
pub const MEMCPY_DEFAULT: c_int = 4;
/// Larger than `cudaDeviceProp` in any version. The device name comes first.
pub const DEVICE_PROPERTIES_BYTES: usize = 1 << 16;

/// A GPU vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// CUDA, NCCL, cuBLAS.
    Nvidia,
    /// HIP, RCCL, rocBLAS.
    Amd,
}

impl Vendor {
    /// All vendors, in the order of preference.
    pub const ALL: [Self; 2] = [Self::Nvidia, Self::Amd];

    /// Whether the kernel driver of the vendor's GPUs is loaded.
    pub fn has_kernel_driver(self) -> bool {
        let device = if self == Self::Nvidia { "/dev/nvidiactl" } else { "/dev/kfd" };
        std::path::Path::new(device).exists()
    }
}

/// A library or symbol that could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}; {hint}")]
pub struct LibraryError {
    /// The library or symbol.
    pub what: String,
    /// The cause.
    pub why: String,
    /// The fix.
    pub hint: String,
}

impl From<LibraryError> for CommError {
    fn from(LibraryError { what, why, hint }: LibraryError) -> Self {
        Self::Bootstrap { what: format!("{what}: {why}"), hint }
    }
}

/// `cudaMallocAsync` and `cudaFreeAsync`.
#[derive(Debug, Clone, Copy)]
pub struct StreamOrderedAllocator {
    /// Allocates memory in stream order.
    pub malloc: unsafe extern "C" fn(*mut *mut c_void, usize, Stream) -> c_int,
    /// Frees memory in stream order.
    pub free: unsafe extern "C" fn(*mut c_void, Stream) -> c_int,
}

/// `cudaGraph_t` or `hipGraph_t`.
pub type RawGraph = *mut c_void;

/// `cudaGraphExec_t` or `hipGraphExec_t`.
pub type RawGraphExec = *mut c_void;

/// Stream capture and graph launches.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the vendors document their functions")]
pub struct GraphFunctions {
    pub stream_begin_capture: unsafe extern "C" fn(Stream, c_int) -> c_int,
    pub stream_end_capture: unsafe extern "C" fn(Stream, *mut RawGraph) -> c_int,
    /// Unlike `GraphInstantiate`, it has the same parameters in all versions.
    pub instantiate: unsafe extern "C" fn(*mut RawGraphExec, RawGraph, c_ulonglong) -> c_int,
    pub launch: unsafe extern "C" fn(RawGraphExec, Stream) -> c_int,
    pub destroy: unsafe extern "C" fn(RawGraph) -> c_int,
    pub exec_destroy: unsafe extern "C" fn(RawGraphExec) -> c_int,
}

/// Functions of the runtime, named after `cuda…` and `hip…`.
#[derive(Debug)]
#[allow(missing_docs, reason = "the vendors document their functions")]
pub struct Runtime {
    pub vendor: Vendor,
    pub get_device_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub get_device: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub set_device: unsafe extern "C" fn(c_int) -> c_int,
    pub get_device_properties: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub device_get_pci_bus_id: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    pub mem_get_info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
    pub malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    pub free: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// `None` before CUDA 11.2 and ROCm 5.2.
    pub stream_ordered: Option<StreamOrderedAllocator>,
    pub host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    pub free_host: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub memcpy_async:
        unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, Stream) -> c_int,
    pub device_get_stream_priority_range: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    pub stream_create_with_priority: unsafe extern "C" fn(*mut Stream, c_uint, c_int) -> c_int,
    pub stream_destroy: unsafe extern "C" fn(Stream) -> c_int,
    pub stream_synchronize: unsafe extern "C" fn(Stream) -> c_int,
    pub stream_query: unsafe extern "C" fn(Stream) -> c_int,
    pub stream_wait_event: unsafe extern "C" fn(Stream, RawEvent, c_uint) -> c_int,
    pub stream_is_capturing: unsafe extern "C" fn(Stream, *mut c_int) -> c_int,
    pub thread_exchange_stream_capture_mode: unsafe extern "C" fn(*mut c_int) -> c_int,
    /// `None` before CUDA 11.4 and ROCm 5.3.
    pub graphs: Option<GraphFunctions>,
    pub event_create_with_flags: unsafe extern "C" fn(*mut RawEvent, c_uint) -> c_int,
    pub event_record: unsafe extern "C" fn(RawEvent, Stream) -> c_int,
    pub event_query: unsafe extern "C" fn(RawEvent) -> c_int,
    pub event_elapsed_time: unsafe extern "C" fn(*mut f32, RawEvent, RawEvent) -> c_int,
    pub event_destroy: unsafe extern "C" fn(RawEvent) -> c_int,
    pub get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Keeps the library loaded; a fake has none.
    pub library: Option<Library>,
}

impl Runtime {
    /// Loads the runtime of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, LibraryError> {
        let (variable, names, prefix, [host_alloc, free_host]): (_, &[&str], _, _) = match vendor {
            Vendor::Nvidia => (
                "REGATTA_CUDART",
                &["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"],
                "cuda",
                ["HostAlloc", "FreeHost"],
            ),
            Vendor::Amd => (
                "REGATTA_HIP",
                &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"],
                "hip",
                ["HostMalloc", "HostFree"],
            ),
        };
        let library = open_library(variable, names)?;
        let library_ref = &library;
        let hint = "use CUDA 11, ROCm 5 or newer";
        let named = |name: &str| format!("{prefix}{name}");
        macro_rules! load {
            ($name:expr) => {
                symbol(library_ref, &named($name), hint)
            };
        }
        let stream_ordered = match (load!("MallocAsync"), load!("FreeAsync")) {
            (Ok(malloc), Ok(free)) => Some(StreamOrderedAllocator { malloc, free }),
            _ => None,
        };
        let graphs = || {
            Ok::<_, LibraryError>(GraphFunctions {
                stream_begin_capture: load!("StreamBeginCapture")?,
                stream_end_capture: load!("StreamEndCapture")?,
                instantiate: load!("GraphInstantiateWithFlags")?,
                launch: load!("GraphLaunch")?,
                destroy: load!("GraphDestroy")?,
                exec_destroy: load!("GraphExecDestroy")?,
            })
        };
        let graphs = graphs().ok();
        Ok(Self {
            vendor,
            get_device_count: load!("GetDeviceCount")?,
            get_device: load!("GetDevice")?,
            set_device: load!("SetDevice")?,
            // Versions with several layouts of the properties have several symbols.
            get_device_properties: load!("GetDeviceProperties")
                .or_else(|_| load!("GetDeviceProperties_v2"))
                .or_else(|_| load!("GetDevicePropertiesR0600"))?,
            device_get_pci_bus_id: load!("DeviceGetPCIBusId")?,
            mem_get_info: load!("MemGetInfo")?,
            malloc: load!("Malloc")?,
            free: load!("Free")?,
            stream_ordered,
            host_alloc: load!(host_alloc)?,
            free_host: load!(free_host)?,
            memcpy_async: load!("MemcpyAsync")?,
            device_get_stream_priority_range: load!("DeviceGetStreamPriorityRange")?,
            stream_create_with_priority: load!("StreamCreateWithPriority")?,
            stream_destroy: load!("StreamDestroy")?,
            stream_synchronize: load!("StreamSynchronize")?,
            stream_query: load!("StreamQuery")?,
            stream_wait_event: load!("StreamWaitEvent")?,
            stream_is_capturing: load!("StreamIsCapturing")?,
            thread_exchange_stream_capture_mode: load!("ThreadExchangeStreamCaptureMode")?,
            graphs,
            event_create_with_flags: load!("EventCreateWithFlags")?,
            event_record: load!("EventRecord")?,
            event_query: load!("EventQuery")?,
            event_elapsed_time: load!("EventElapsedTime")
                .or_else(|_| load!("EventElapsedTime_v2"))?,
            event_destroy: load!("EventDestroy")?,
            get_error_string: load!("GetErrorString")?,
            library: Some(library),
        })
    }

    /// The message of an error code.
    pub fn error_string(&self, code: c_int) -> String {
        // SAFETY: the function accepts any code and returns a static string.
        unsafe { error_text((self.get_error_string)(code), code) }
    }
}

/// The text of an error code, as a vendor library returned it.
///
/// # Safety
/// `text` must be null or a valid C string.
pub unsafe fn error_text(text: *const c_char, code: c_int) -> String {
    if text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: as required of the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Resolves a symbol; `F` must be the type of the function in the vendor's header.
pub fn symbol<F: Copy>(library: &Library, name: &str, hint: &str) -> Result<F, LibraryError> {
    // SAFETY: the caller passes the type from the vendor's header, which is stable across versions.
    let found: Result<Symbol<'_, F>, _> = unsafe { library.get(name.as_bytes()) };
    found.map(|f| *f).map_err(|error| LibraryError {
        what: name.to_owned(),
        why: error.to_string(),
        hint: hint.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_names_the_variable_that_overrides_it() {
        let error = open_library("REGATTA_TEST_NO_LIBRARY", &["libregatta-no-such-library.so"]);
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with("cannot load the library (tried libregatta-no-such"), "{text}");
        assert!(text.contains("set REGATTA_TEST_NO_LIBRARY to its path"), "{text}");
    }

    #[test]
    fn missing_symbol_names_the_required_version() {
        let library = open_library("REGATTA_TEST_NO_LIBRARY", &["libc.so.6"]).unwrap();
        type NoArguments = unsafe extern "C" fn() -> c_int;
        assert!(symbol::<NoArguments>(&library, "getpid", "").is_ok());
        let error = symbol::<NoArguments>(&library, "cudaNone", "use CUDA 11").unwrap_err();
        assert_eq!((error.what.as_str(), error.hint.as_str()), ("cudaNone", "use CUDA 11"));
    }
}
