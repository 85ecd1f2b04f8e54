//! The device: its libraries, its stream and its first error.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use regatta_comm::gpu_runtime::{
    DEVICE_PROPERTIES_BYTES, LibraryError, Runtime, SUCCESS, Stream, Vendor,
};
use regatta_comm::nccl::Gpu;
use regatta_device::DeviceError;
use regatta_device::ops::Fp8;
use regatta_device::precision::Precision;

use crate::Ptr;
use crate::blaslt::BlasLt;
use crate::compiler::Compiler;
use crate::cudnn::Cudnn;
use crate::driver::{Attribute, Driver};
use crate::graph::CaptureState;
use crate::host_copy::CopyStreams;
use crate::kernel_times::KernelTimes;
use crate::memory::{Allocation, Workspace};
use crate::module_cache::ModuleCache;
use crate::owned_stream::OwnedStream;
use crate::sticky_error::StickyError;
use crate::token_staging::TokenStaging;

/// Waits after every kernel, so that an error is attributed to the kernel that caused it.
const LAUNCH_BLOCKING: &str = "REGATTA_LAUNCH_BLOCKING";

/// A GPU that trains.
pub struct CudaDevice {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) driver: Driver,
    pub(crate) modules: ModuleCache,
    pub(crate) blas: BlasLt,
    pub(crate) cudnn: Option<Cudnn>,
    pub(crate) gpu: Gpu,
    pub(crate) tokens: TokenStaging,
    pub(crate) copies: CopyStreams,
    pub(crate) workspace: Mutex<Workspace>,
    stream: Arc<OwnedStream>,
    index: u32,
    info: DeviceInfo,
    precision: Precision,
    residual: Precision,
    fp8: Fp8,
    deterministic: bool,
    launch_blocking: bool,
    error: StickyError,
    pub(crate) capture: CaptureState,
    notes: Mutex<Vec<String>>,
    pub(crate) kernel_times: KernelTimes,
}

// SAFETY: the libraries may be called from any thread; handles that may not are behind locks.
unsafe impl Send for CudaDevice {}
// SAFETY: as above.
unsafe impl Sync for CudaDevice {}

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Model name.
    pub name: String,
    /// Architecture that kernels are compiled for, such as `sm_90a`.
    pub arch: String,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors, or compute units.
    pub multiprocessors: u32,
    /// Shared memory that a block may use, in bytes.
    pub max_shared_bytes: u32,
}

/// Oldest supported compute capability: bf16 tensor cores and cp.async.
const MIN_COMPUTE_CAPABILITY: (u32, u32) = (8, 0);

/// Oldest compute capability whose fp8 GEMMs have a scale per row.
const MIN_FP8_CAPABILITY: (u32, u32) = (9, 0);

thread_local! {
    /// The device that this thread made current; -1 for none.
    static CURRENT: Cell<i64> = const { Cell::new(-1) };
}

/// Number of devices of a vendor that this process can see; 0 without a driver.
pub fn device_count(vendor: Vendor) -> u32 {
    let Ok(runtime) = Runtime::open(vendor) else { return 0 };
    let mut count = 0;
    // SAFETY: the function writes one integer.
    let code = unsafe { (runtime.get_device_count)(&mut count) };
    if code == SUCCESS { count.unsigned_abs() } else { 0 }
}

impl CudaDevice {
    /// Opens an NVIDIA GPU by its index among those visible to the process.
    pub fn open(index: u32, precision: Precision) -> Result<Self, DeviceError> {
        Self::open_vendor(Vendor::Nvidia, index, precision)
    }

    /// Opens a GPU of a vendor.
    pub fn open_vendor(
        vendor: Vendor,
        index: u32,
        precision: Precision,
    ) -> Result<Self, DeviceError> {
        let failed = |error: LibraryError| open_error(index, error);
        let libraries = Libraries {
            runtime: Runtime::open(vendor).map_err(failed)?,
            driver: Driver::open(vendor).map_err(failed)?,
            compiler: Some(Compiler::open(vendor).map_err(failed)?),
            blas: BlasLt::open(vendor).map_err(failed)?,
            cudnn: (vendor == Vendor::Nvidia).then(Cudnn::open),
        };
        Self::with_libraries(libraries, index, precision)
    }

    pub(crate) fn with_libraries(
        libraries: Libraries,
        index: u32,
        precision: Precision,
    ) -> Result<Self, DeviceError> {
        let Libraries { runtime, driver, compiler, blas, cudnn } = libraries;
        let runtime = Arc::new(runtime);
        // Before anything else of the driver: it creates the device's primary context.
        let gpu = Gpu::with_runtime(runtime.clone(), index).map_err(|e| open_error(index, e))?;
        // SAFETY: the function accepts any index.
        let code = unsafe { (runtime.set_device)(index as c_int) };
        if code != SUCCESS {
            return Err(open_error(index, runtime.error_string(code)));
        }
        CURRENT.set(i64::from(index));
        let info = DeviceInfo::read(&runtime, &driver, index)?;
        let stream = OwnedStream::create(&runtime)
            .map_err(|code| open_error(index, runtime.error_string(code)))?;
        let mut notes = Vec::new();
        let cudnn = cudnn.and_then(|cudnn| {
            let note = |error: &LibraryError| {
                notes.push(format!("attention runs without cuDNN: {error}"));
            };
            cudnn.inspect_err(note).ok()
        });
        Ok(Self {
            modules: ModuleCache::new(compiler, info.arch.clone()),
            tokens: TokenStaging::new(runtime.clone()),
            copies: CopyStreams::new(&device_name(&info, index)),
            workspace: Mutex::new(Workspace::default()),
            launch_blocking: std::env::var_os(LAUNCH_BLOCKING).is_some_and(|value| value != "0"),
            error: StickyError::default(),
            capture: CaptureState::default(),
            notes: Mutex::new(notes),
            kernel_times: KernelTimes::default(),
            deterministic: false,
            residual: Precision::F32,
            fp8: Fp8::Off,
            runtime,
            driver,
            blas,
            cudnn,
            gpu,
            stream: Arc::new(stream),
            index,
            info,
            precision,
        })
    }

    /// With bit-reproducible results, which cost some speed.
    pub fn deterministic_results(mut self) -> Self {
        self.deterministic = true;
        self
    }

    /// With another precision of the residual stream; f32 by default.
    pub fn with_residual(mut self, residual: Precision) -> Self {
        self.residual = residual;
        self
    }

    /// With GEMMs on fp8 operands. An error if the device has none.
    pub fn with_fp8(mut self, fp8: Fp8) -> Result<Self, DeviceError> {
        let is_supported = self.runtime.vendor == Vendor::Nvidia
            && self.info.compute_capability >= MIN_FP8_CAPABILITY
            && self.precision == Precision::Bf16;
        if fp8 != Fp8::Off && !is_supported {
            let why = "fp8 GEMMs with a scale per row need train.precision=bf16 and an NVIDIA GPU of \
                       compute capability 9.0 (Hopper) or newer; set train.fp8=off";
            return Err(self.error("selecting fp8 GEMMs", why));
        }
        self.fp8 = fp8;
        Ok(self)
    }

    /// Its properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The device, its architecture and the libraries in use.
    pub fn describe(&self) -> String {
        let DeviceInfo { name, arch, .. } = &self.info;
        let attention = match &self.cudnn {
            Some(cudnn) => format!("cuDNN {}", cudnn.version()),
            None => "without cuDNN".to_owned(),
        };
        let precision = match self.fp8 {
            Fp8::Off => self.precision.name().to_owned(),
            fp8 => format!("{}, fp8 GEMMs ({})", self.precision.name(), fp8.name()),
        };
        format!("{name} ({arch}), {precision}, {}, {attention}", self.blas.describe())
    }

    /// Free memory in bytes.
    pub fn free_bytes(&self) -> Result<u64, DeviceError> {
        self.gpu.free_bytes().map_err(|error| self.error("querying the free memory", error))
    }

    /// Device communicators run on: for calls that depend on this device's operations.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// What a user should know about the libraries in use.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    pub(crate) fn residual(&self) -> Precision {
        self.residual
    }

    pub(crate) fn fp8_gemms(&self) -> Fp8 {
        self.fp8
    }

    pub(crate) fn deterministic(&self) -> bool {
        self.deterministic
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream.raw
    }

    /// The stream, for memory that is freed in its order.
    pub(crate) fn owned_stream(&self) -> Arc<OwnedStream> {
        self.stream.clone()
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn sm_count(&self) -> u32 {
        self.info.multiprocessors.max(1)
    }

    pub(crate) fn max_shared_bytes(&self) -> u32 {
        self.info.max_shared_bytes
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Makes this the thread's current device; whether that succeeded.
    pub(crate) fn make_current(&self) -> bool {
        if CURRENT.get() == i64::from(self.index) {
            return true;
        }
        // SAFETY: the function accepts any index.
        let code = unsafe { (self.runtime.set_device)(self.index as c_int) };
        if code == SUCCESS {
            CURRENT.set(i64::from(self.index));
        } else {
            self.fail("selecting the device", self.runtime.error_string(code));
        }
        code == SUCCESS
    }

    /// Device memory for the temporary results of one operation, valid until the next call.
    pub(crate) fn scratch(&self, bytes: usize) -> Ptr {
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        workspace.reserve(self, bytes)
    }

    /// The memory of [`CudaDevice::scratch`], to keep.
    pub(crate) fn shared_workspace(&self) -> Option<Arc<Allocation>> {
        self.workspace.lock().unwrap_or_else(PoisonError::into_inner).memory()
    }

    /// Waits for the stream.
    pub(crate) fn synchronize_stream(&self) -> c_int {
        self.make_current();
        // SAFETY: the stream is valid.
        unsafe { (self.runtime.stream_synchronize)(self.stream()) }
    }

    /// Attributes errors to this kernel, if launches are blocking.
    pub(crate) fn after_launch(&self, kernel: &str) {
        if self.launch_blocking {
            let code = self.synchronize_stream();
            if code != SUCCESS {
                self.fail(kernel, self.runtime.error_string(code));
            }
        }
    }

    /// Records the first error; later operations are no-ops. An error in a capture only ends the capture.
    pub(crate) fn fail(&self, operation: &str, cause: impl Display) {
        let error = self.error(operation, cause);
        match self.capture.is_active() {
            true => self.capture.fail(error),
            false => self.error.set(error),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_set() || self.capture.has_failed()
    }

    /// The first error, if any.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.error.check()
    }

    /// Whether errors are attributed to kernels.
    pub(crate) fn is_launch_blocking(&self) -> bool {
        self.launch_blocking
    }

    pub(crate) fn error(&self, operation: &str, cause: impl Display) -> DeviceError {
        let device = device_name(&self.info, self.index);
        DeviceError { device, operation: operation.to_owned(), cause: cause.to_string() }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.synchronize_stream();
        self.copies.synchronize(&self.runtime);
    }
}

/// The device in errors.
fn device_name(info: &DeviceInfo, index: u32) -> String {
    format!("{} (device {index})", info.name)
}

/// The libraries of a device.
pub(crate) struct Libraries {
    pub runtime: Runtime,
    pub driver: Driver,
    /// `None` for a fake driver, which knows kernels by name.
    pub compiler: Option<Compiler>,
    pub blas: BlasLt,
    /// `None` if the vendor has no such library.
    pub cudnn: Option<Result<Cudnn, LibraryError>>,
}

fn open_error(index: u32, cause: impl Display) -> DeviceError {
    let (device, operation) = (format!("GPU {index}"), "opening the device".to_owned());
    DeviceError { device, operation, cause: cause.to_string() }
}

impl DeviceInfo {
    fn read(runtime: &Runtime, driver: &Driver, index: u32) -> Result<Self, DeviceError> {
        let mut properties = vec![0u64; DEVICE_PROPERTIES_BYTES / 8];
        // SAFETY: the buffer is larger than the properties of any version.
        let code = unsafe {
            (runtime.get_device_properties)(properties.as_mut_ptr().cast(), index as c_int)
        };
        if code != SUCCESS {
            return Err(open_error(index, runtime.error_string(code)));
        }
        let bytes: Vec<u8> = properties.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = CStr::from_bytes_until_nul(&bytes[..256]);
        let name = name.map_or_else(|_| format!("GPU {index}"), |n| n.to_string_lossy().into());
        let attribute = |which| driver.attribute(index, which);
        let major = attribute(Attribute::ComputeCapabilityMajor);
        let minor = attribute(Attribute::ComputeCapabilityMinor);
        let arch = match runtime.vendor {
            Vendor::Nvidia if (major, minor) < MIN_COMPUTE_CAPABILITY => {
                let why = format!(
                    "{name} has compute capability {major}.{minor}; bf16 tensor cores need 8.0 \
                     (Ampere) or newer; train on CPUs with --device cpu"
                );
                return Err(open_error(index, why));
            }
            // The a variants have the instructions of one architecture that later ones lack.
            Vendor::Nvidia if major >= 9 => format!("sm_{major}{minor}a"),
            Vendor::Nvidia => format!("sm_{major}{minor}"),
            Vendor::Amd => gfx_name(&bytes).unwrap_or_else(|| "gfx90a".to_owned()),
        };
        Ok(Self {
            name,
            arch,
            compute_capability: (major, minor),
            multiprocessors: attribute(Attribute::MultiprocessorCount),
            max_shared_bytes: attribute(Attribute::MaxSharedBytesPerBlock),
        })
    }
}

/// The architecture in `hipDeviceProp_t`, whose layout differs between versions.
fn gfx_name(properties: &[u8]) -> Option<String> {
    let start =
        properties.windows(4).position(|w| w.starts_with(b"gfx") && w[3].is_ascii_digit())?;
    let name = properties[start..].iter().take_while(|byte| byte.is_ascii_alphanumeric());
    Some(name.map(|byte| char::from(*byte)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_of_an_amd_gpu_is_found_in_any_layout() {
        let mut properties = vec![0u8; 300];
        properties[..19].copy_from_slice(b"AMD Instinct MI250X");
        properties[200..226].copy_from_slice(b"gfx90a:sramecc+:xnack-\0\0\0\0");
        assert_eq!(gfx_name(&properties).unwrap(), "gfx90a");
        assert_eq!(gfx_name(&properties[..200]), None);
    }
}
