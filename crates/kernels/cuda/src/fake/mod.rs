//! A fake GPU of either vendor in host memory, for tests without a device. It calls itself `Fake NVIDIA GPU
//! (host memory)` or `Fake AMD GPU (host memory)`.
//!
//! The host code of the backend runs as on a GPU: allocations, copies, kernel launches and GEMMs. The
//! driver, the runtime, the compiler and the BLAS library are fakes. Every launch is compared with the
//! declaration of the kernel in its source, and what the kernel does is emulated. Accesses outside of
//! allocations, unaligned vectors and invalid handles are errors; new memory is NaN. Copies of pinned memory
//! run as late as possible, and accesses of the same bytes by two streams without an order are errors, so
//! that a missing wait is found. With [`FakeDevice::running_sources`], the sources themselves run on an
//! emulated AMD GPU.
//!
//! ```
//! use regatta_device::DeviceMemory;
//! use regatta_device::precision::Precision;
//!
//! let device = regatta_kernels_cuda::fake::device(Precision::F32);
//! let mut x = device.zeros_master(3);
//! device.fill(2.5, x.view_mut());
//! let mut values = [0.0; 3];
//! device.copy_to_host(x.view(), &mut values);
//! assert_eq!(values, [2.5; 3]);
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "misuse of the fake may panic")]

mod access_log;
mod array;
pub(crate) mod blas;
mod compiler;
mod declarations;
mod driver;
mod error;
pub(crate) mod gemm;
pub(crate) mod gpu;
mod graph;
mod kernels;
pub(crate) mod launch;
mod memory;
pub(crate) mod runtime;
mod simt;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::Arc;

use regatta_comm::gpu_runtime::Vendor;
use regatta_device::DeviceError;
use regatta_device::precision::Precision;

use crate::CudaDevice;
use crate::blaslt::BlasLt;
use crate::blaslt::constants::Constants;
use crate::device::Libraries;
use blas::{Library, candidate};
use gpu::{Config, FakeGpu};

pub use graph::GraphFault;

/// The name of a vendor's fake GPUs.
fn name(vendor: Vendor) -> &'static CStr {
    match vendor {
        Vendor::Nvidia => c"Fake NVIDIA GPU (host memory)",
        Vendor::Amd => c"Fake AMD GPU (host memory)",
    }
}

/// Memory of a fake GPU.
const MEMORY_BYTES: usize = 8 << 30;

/// A fake NVIDIA GPU without faults.
pub fn device(precision: Precision) -> CudaDevice {
    FakeDevice::new(precision).open().unwrap()
}

/// Properties and faults of a fake GPU.
#[derive(Debug, Clone)]
pub struct FakeDevice {
    precision: Precision,
    has_epilogues: bool,
    has_mixed_gemms: bool,
    has_scale_modes: bool,
    config: Config,
}

impl FakeDevice {
    /// An NVIDIA GPU of compute capability 9.0, without faults.
    pub fn new(precision: Precision) -> Self {
        Self::of_vendor(Vendor::Nvidia, precision)
    }

    /// An AMD GPU of architecture gfx90a, without faults.
    pub fn amd(precision: Precision) -> Self {
        Self::of_vendor(Vendor::Amd, precision)
    }

    fn of_vendor(vendor: Vendor, precision: Precision) -> Self {
        let config = Config::new(vendor, MEMORY_BYTES);
        Self {
            precision,
            has_epilogues: true,
            has_mixed_gemms: true,
            has_scale_modes: true,
            config,
        }
    }

    /// An AMD GPU that runs the sources of its kernels, compiled for the host by the system's C++ compiler.
    /// `None` if there is no compiler.
    pub fn running_sources(precision: Precision) -> Option<Self> {
        simt::cpp_compiler()?;
        let mut fake = Self::amd(precision);
        fake.config.runs_sources = true;
        Some(fake)
    }

    /// Allocations fail when more than this number of bytes are in use.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.config.memory_bytes = bytes;
        self
    }

    /// Allocations of pinned host memory fail when more than this number of bytes are in use.
    pub fn pinned_bytes(mut self, bytes: usize) -> Self {
        self.config.pinned_bytes = bytes;
        self
    }

    /// The copy of pinned memory with this number, from 1 on, fails: the next synchronisation returns the
    /// error.
    pub fn fail_copy(mut self, number: u64) -> Self {
        self.config.failing_copy = Some(number);
        self
    }

    /// Allocations are aligned to 8 bytes only, as views of tensors may be: vectors are never aligned.
    pub fn unaligned(mut self) -> Self {
        self.config.offset_bytes = 8;
        self
    }

    /// Launches of this kernel fail.
    pub fn fail_launch(mut self, kernel: &str) -> Self {
        self.config.failing_launches.insert(kernel.to_owned());
        self
    }

    /// This kernel fails after it was launched: the next synchronisation returns the error.
    pub fn fail_kernel(mut self, kernel: &str) -> Self {
        self.config.failing_kernels.insert(kernel.to_owned());
        self
    }

    /// Modules do not have this kernel.
    pub fn without_kernel(mut self, kernel: &str) -> Self {
        self.config.missing_kernels.insert(kernel.to_owned());
        self
    }

    /// A function of graphs fails.
    pub fn fail_graph(mut self, fault: GraphFault) -> Self {
        self.config.graph_faults.insert(fault);
        self
    }

    /// GEMMs do not support bias and GELU.
    pub fn without_epilogues(mut self) -> Self {
        self.has_epilogues = false;
        self
    }

    /// GEMMs on fp8 operands have no scales per row, as in older libraries.
    pub fn without_scale_modes(mut self) -> Self {
        self.has_scale_modes = false;
        self
    }

    /// GEMMs of bf16 do not have f32 outputs.
    pub fn without_mixed_gemms(mut self) -> Self {
        self.has_mixed_gemms = false;
        self
    }

    /// This source does not compile.
    pub fn fail_compilation(mut self, source: &str) -> Self {
        self.config.failing_sources.insert(source.to_owned());
        self
    }

    /// With another architecture than gfx90a.
    pub fn arch(mut self, arch: &str) -> Self {
        self.config.arch = arch.to_owned();
        self
    }

    /// With another version of the HIP runtime.
    pub fn hip_version(mut self, version: i32) -> Self {
        self.config.hip_version = version;
        self
    }

    /// With another compute capability than 9.0.
    pub fn compute_capability(mut self, major: u32, minor: u32) -> Self {
        self.config.compute_capability = (major, minor);
        self
    }

    /// Opens the device.
    pub fn open(self) -> Result<CudaDevice, DeviceError> {
        self.open_with_probe().map(|(device, _)| device)
    }

    /// Opens the device, and returns what observes it.
    pub fn open_with_probe(self) -> Result<(CudaDevice, Probe), DeviceError> {
        let vendor = self.config.vendor;
        let mut library = Library { candidates: vec![candidate(1, 0.01)], ..Library::default() };
        if !self.has_epilogues {
            let epilogues = &Constants::of(vendor).epilogues;
            library.unsupported_epilogues = vec![epilogues.bias, epilogues.gelu_aux_bias];
        }
        library.rejects_mixed_dtypes = !self.has_mixed_gemms;
        library.rejects_scale_modes = !self.has_scale_modes;
        let gpu = FakeGpu::create(self.config, library);
        let libraries = Libraries {
            runtime: runtime::runtime(vendor),
            driver: driver::driver(vendor),
            compiler: compiler::compiler(vendor),
            blas: BlasLt::with_functions(blas::functions(vendor)),
            cudnn: None,
        };
        let device = CudaDevice::with_libraries(libraries, gpu.index as u32, self.precision)?;
        Ok((device, Probe { gpu }))
    }
}

/// Observes a fake GPU, also after its device was dropped.
pub struct Probe {
    gpu: Arc<FakeGpu>,
}

impl Probe {
    /// Allocations that are not freed, of device memory and of pinned host memory.
    pub fn allocations(&self) -> usize {
        self.gpu.lock().allocations
    }

    /// Bytes of all allocations of device memory so far, in their order, also of those that are freed.
    pub fn device_allocations(&self) -> Vec<usize> {
        self.gpu.lock().device_allocations.clone()
    }

    /// Most bytes of device memory that were in use at a time.
    pub fn peak_bytes(&self) -> usize {
        self.gpu.lock().peak_bytes
    }

    /// From now on, this kernel fails after it was launched.
    pub fn fail_kernel(&self, kernel: &str) {
        self.gpu.lock().failing_kernels.insert(kernel.to_owned());
    }

    /// Launches of graphs.
    pub fn graph_launches(&self) -> usize {
        self.gpu.lock().graph_launches
    }

    /// Graphs that are not destroyed.
    pub fn graphs(&self) -> usize {
        self.gpu.lock().graphs
    }

    /// Most bytes of pinned host memory that were in use at a time.
    pub fn peak_pinned_bytes(&self) -> usize {
        self.gpu.lock().peak_pinned_bytes
    }

    /// Copies of pinned memory that have run.
    pub fn pinned_copies(&self) -> u64 {
        self.gpu.lock().pinned_copies
    }

    /// Sources and names of the kernels that were launched.
    pub fn launched(&self) -> BTreeSet<(String, String)> {
        self.gpu.lock().launched.clone()
    }
}
