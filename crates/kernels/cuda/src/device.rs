//! The device: its libraries, its stream and its first error.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use regatta_comm::gpu_runtime::{
    DEVICE_PROPERTIES_BYTES, LibraryError, Runtime, SUCCESS, Stream, Vendor,
};
use regatta_comm::nccl::{Gpu, PCI_BUS_ID_BYTES};
use regatta_device::DeviceError;
use regatta_device::ops::Fp8;
use regatta_device::precision::Precision;

use crate::blaslt::BlasLt;
use crate::compiler::Compiler;
use crate::cudnn::Cudnn;
use crate::driver::{Attribute, Driver};
use crate::graph::CaptureState;
use crate::host_copy::CopyStreams;
use crate::kernel_times::KernelTimes;
use crate::memory::Allocation;
use crate::module_cache::ModuleCache;
use crate::owned_stream::OwnedStream;
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
    /// Grow-only memory for temporary results.
    pub(crate) workspace: Mutex<Option<Arc<Allocation>>>,
    stream: Arc<OwnedStream>,
    pub(crate) index: u32,
    info: DeviceInfo,
    pub(crate) precision: Precision,
    pub(crate) residual: Precision,
    pub(crate) residual_gradient: Precision,
    pub(crate) fp8: Fp8,
    pub(crate) deterministic: bool,
    /// Whether errors are attributed to kernels.
    pub(crate) launch_blocking: bool,
    /// The first error: later operations would only report its consequences.
    error: OnceLock<DeviceError>,
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
    /// Architecture that kernels are compiled for, such as `sm_90a` or `gfx90a`.
    pub arch: String,
    /// Compute capability; of an AMD GPU the first two numbers of the architecture.
    pub compute_capability: (u32, u32),
    /// Threads of a warp, or of a wavefront.
    pub warp_size: u32,
    /// Streaming multiprocessors, or compute units.
    pub multiprocessors: u32,
    /// Shared memory that a block may use, in bytes.
    pub max_shared_bytes: u32,
}

/// Oldest supported compute capability: bf16 tensor cores and cp.async.
const MIN_COMPUTE_CAPABILITY: (u32, u32) = (8, 0);

/// Oldest compute capability whose fp8 GEMMs have a scale per row.
const MIN_FP8_CAPABILITY: (u32, u32) = (9, 0);
/// Supported AMD architectures, MI200 and MI300: kernels assume their MFMA instructions, wavefronts of 64
/// lanes and 64 KiB of shared memory.
pub(crate) const AMD_ARCHITECTURES: [&str; 2] = ["gfx90a", "gfx942"];

/// Oldest supported HIP runtime, 6.1: hipBLASLt takes `hipDataType` since then.
const MIN_HIP_VERSION: u32 = 60_100_000;

/// `cudaErrorNoDevice` and `hipErrorNoDevice`.
const NO_DEVICE: i32 = 100;

thread_local! {
    /// The device that this thread made current; -1 for none.
    static CURRENT: Cell<i64> = const { Cell::new(-1) };
}

/// Why the devices of a vendor cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountDevicesError {
    /// Whether the runtime works, and finds none.
    pub finds_none: bool,
    /// The text of the runtime, or why it cannot be loaded.
    pub why: String,
}

/// Number of devices of a vendor that this process can see; 0 without a driver.
pub fn device_count(vendor: Vendor) -> u32 {
    count_devices(vendor).unwrap_or(0)
}

/// Number of devices of a vendor that this process can see, or why they cannot be counted.
pub fn count_devices(vendor: Vendor) -> Result<u32, CountDevicesError> {
    let failed =
        |error: LibraryError| CountDevicesError { finds_none: false, why: error.to_string() };
    let runtime = Runtime::open(vendor).map_err(failed)?;
    let mut count = 0;
    // SAFETY: the function writes one integer.
    match unsafe { (runtime.get_device_count)(&mut count) } {
        SUCCESS => Ok(count.unsigned_abs()),
        code => Err(CountDevicesError {
            finds_none: code == NO_DEVICE,
            why: runtime.error_string(code),
        }),
    }
}

/// Whether the driver library of a vendor can be loaded.
pub fn has_driver_library(vendor: Vendor) -> bool {
    Driver::open(vendor).is_ok()
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
            compiler: Compiler::open(vendor).map_err(failed)?,
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
        let hip_version = driver.hip_version();
        check_hip_version(hip_version).map_err(|error| open_error(index, error))?;
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
            modules: ModuleCache::new(compiler, hip_version, info.arch.clone()),
            tokens: TokenStaging::new(runtime.clone()),
            copies: CopyStreams::new(&device_name(&info, index)),
            workspace: Mutex::default(),
            launch_blocking: std::env::var_os(LAUNCH_BLOCKING).is_some_and(|value| value != "0"),
            error: OnceLock::new(),
            capture: CaptureState::default(),
            notes: Mutex::new(notes),
            kernel_times: KernelTimes::default(),
            deterministic: false,
            residual: Precision::F32,
            residual_gradient: precision,
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

    /// With another precision of the gradient of the residual stream; that of other gradients of
    /// activations by default.
    pub fn with_residual_gradient(mut self, residual_gradient: Precision) -> Self {
        self.residual_gradient = residual_gradient;
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
        let attention = match (&self.cudnn, self.runtime.vendor) {
            (Some(cudnn), _) => format!("cuDNN {}", cudnn.version()),
            (None, Vendor::Nvidia) => "without cuDNN".to_owned(),
            (None, Vendor::Amd) => "own attention kernels".to_owned(),
        };
        let precision = match self.fp8 {
            Fp8::Off => self.precision.name().to_owned(),
            fp8 => format!("{}, fp8 GEMMs ({})", self.precision.name(), fp8.name()),
        };
        format!("{name} ({arch}), {precision}, {}, {attention}", self.blas.describe())
    }

    /// Its vendor.
    pub fn vendor(&self) -> Vendor {
        self.runtime.vendor
    }

    /// Its PCI bus id, which identifies it among processes that see different devices; `None` if the
    /// runtime does not tell.
    pub fn pci_bus_id(&self) -> Option<String> {
        let mut text = [0 as c_char; PCI_BUS_ID_BYTES];
        let (get, index) = (self.runtime.device_get_pci_bus_id, self.index as c_int);
        // SAFETY: the function writes at most this many bytes, including the terminating 0.
        let code = unsafe { get(text.as_mut_ptr(), PCI_BUS_ID_BYTES as c_int, index) };
        let bytes = text.map(|byte| byte as u8);
        let text = CStr::from_bytes_until_nul(&bytes).ok().filter(|_| code == SUCCESS)?;
        Some(text.to_string_lossy().to_lowercase())
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

    pub(crate) fn stream(&self) -> Stream {
        self.stream.raw
    }

    /// The stream, for memory that is freed in its order.
    pub(crate) fn owned_stream(&self) -> Arc<OwnedStream> {
        self.stream.clone()
    }

    pub(crate) fn sm_count(&self) -> u32 {
        self.info.multiprocessors.max(1)
    }

    pub(crate) fn max_shared_bytes(&self) -> u32 {
        self.info.max_shared_bytes
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
        if self.capture.is_active() {
            self.capture.fail(error);
        } else {
            let _ = self.error.set(error);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.error.get().is_some() || self.capture.has_failed()
    }

    /// The first error, if any.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.error.get().map_or(Ok(()), |error| Err(error.clone()))
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
    pub compiler: Compiler,
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
        let name = CStr::from_bytes_until_nul(&bytes[..256]).unwrap_or_default();
        // ROCm has no name of GPUs that its tables do not know.
        let name = match name.to_string_lossy() {
            name if name.is_empty() => format!("GPU {index}"),
            name => name.into_owned(),
        };
        let attribute = |which| driver.attribute(index, which);
        let major = attribute(Attribute::COMPUTE_CAPABILITY_MAJOR);
        let minor = attribute(Attribute::COMPUTE_CAPABILITY_MINOR);
        let arch = match runtime.vendor {
            Vendor::Nvidia if (major, minor) < MIN_COMPUTE_CAPABILITY => {
                let why = format!(
                    "{name} has compute capability {major}.{minor}; bf16 tensor cores need 8.0 \
                     (Ampere) or newer"
                );
                return Err(open_error(index, why));
            }
            // The a variants have the instructions of one architecture that later ones lack.
            Vendor::Nvidia if major >= 9 => format!("sm_{major}{minor}a"),
            Vendor::Nvidia => format!("sm_{major}{minor}"),
            Vendor::Amd => {
                supported_gfx(&name, gfx_name(&bytes)).map_err(|error| open_error(index, error))?
            }
        };
        Ok(Self {
            name,
            arch,
            compute_capability: (major, minor),
            warp_size: attribute(Attribute::WARP_SIZE),
            multiprocessors: attribute(Attribute::MULTIPROCESSORS),
            max_shared_bytes: attribute(Attribute::MAX_SHARED_BYTES_PER_BLOCK),
        })
    }
}

fn check_hip_version(version: Option<u32>) -> Result<(), String> {
    match version {
        Some(version) if version < MIN_HIP_VERSION => Err(format!(
            "the HIP runtime is version {}.{}: use ROCm 6.1 or newer",
            version / 10_000_000,
            version / 100_000 % 100
        )),
        _ => Ok(()),
    }
}

/// The architecture of an AMD GPU, if kernels support it.
fn supported_gfx(name: &str, arch: Option<String>) -> Result<String, String> {
    let arch = arch.unwrap_or_else(|| "unknown".to_owned());
    if AMD_ARCHITECTURES.contains(&arch.as_str()) {
        return Ok(arch);
    }
    let supported = AMD_ARCHITECTURES.join(" and ");
    Err(format!("{name} has the architecture {arch}; {supported} are supported"))
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

    #[test]
    fn unsupported_amd_gpus_and_old_runtimes_are_rejected() {
        let gfx = |arch: &str| supported_gfx("Radeon", Some(arch.to_owned()));
        assert_eq!(gfx("gfx942"), Ok("gfx942".to_owned()));
        let error = gfx("gfx1100").unwrap_err();
        assert!(error.contains("gfx1100; gfx90a and gfx942 are supported"), "{error}");
        assert!(supported_gfx("Radeon", None).is_err());
        assert_eq!(check_hip_version(None), Ok(()));
        assert_eq!(check_hip_version(Some(60_140_091)), Ok(()));
        let error = check_hip_version(Some(50_731_921)).unwrap_err();
        assert!(error.starts_with("the HIP runtime is version 5.7: use ROCm 6.1"), "{error}");
    }
}
