//! The GPU backend of the training engine.
//!
//! Nothing is linked: the CUDA driver, the runtime, NVRTC, cuBLASLt and cuDNN, or the HIP runtime, hipRTC and
//! hipBLASLt, are loaded at run time. Kernels are compiled for the device from the same sources and cached
//! on disk. All operations are queued on one stream, copies of offloaded state on a stream per direction; the
//! host waits only where it reads results. The first error makes all later operations no-ops and is returned
//! by the next synchronisation.

mod activation;
mod arena;
mod attention;
mod blaslt;
mod cache_dir;
mod compiler;
mod cudnn;
mod device;
mod driver;
mod elementwise;
mod embedding;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod flash;
mod fp8;
mod gemm_peak;
mod graph;
#[cfg(test)]
mod hip_compilation;
mod host_copy;
mod kernel_times;
mod launch;
mod linear;
mod loss;
mod memory;
mod mixed_gemm;
mod module_cache;
mod norm;
mod optimizer;
mod owned_stream;
mod rope;
mod runtime_memory;
#[cfg(test)]
mod sources;
mod token_staging;

pub use device::{
    CountDevicesError, CudaDevice, DeviceInfo, count_devices, device_count, has_driver_library,
};

pub(crate) use launch::{Arg, Grid, Kernel, Ptr, Source};
pub(crate) use regatta_comm::gpu_runtime::library_path;
