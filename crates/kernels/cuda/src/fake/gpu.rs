//! The fake GPUs of the process, and the handles of their objects.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regatta_comm::gpu_runtime::{Stream, Vendor};

use super::blas::Library;
use super::driver::{Function, Module};
use super::error::{INVALID_DEVICE, INVALID_HANDLE};
use super::graph::{FakeGraph, GraphFault, Node};
use super::memory::Allocation;
use super::streams::{Clock, FakeStream, RecordedPoint};

/// Properties and faults of a fake GPU.
#[derive(Debug, Clone)]
pub struct Config {
    pub vendor: Vendor,
    /// What kernels must be compiled for.
    pub arch: String,
    pub compute_capability: (u32, u32),
    /// Version of the HIP runtime.
    pub hip_version: c_int,
    /// Whether kernels run from their sources, compiled for the host.
    pub runs_sources: bool,
    /// Allocations beyond it fail.
    pub memory_bytes: usize,
    /// Allocations of pinned host memory beyond it fail.
    pub pinned_bytes: usize,
    /// The number of the copy of pinned memory that fails, from 1 on.
    pub failing_copy: Option<u64>,
    /// Offset of allocations from an aligned address.
    pub offset_bytes: usize,
    /// Kernels whose launch fails.
    pub failing_launches: BTreeSet<String>,
    /// Kernels that fail after their launch.
    pub failing_kernels: BTreeSet<String>,
    /// Sources that do not compile.
    pub failing_sources: BTreeSet<String>,
    /// Kernels that modules do not have.
    pub missing_kernels: BTreeSet<String>,
    /// Functions of graphs that fail.
    pub graph_faults: BTreeSet<GraphFault>,
    /// Whether GEMMs check that their matrices are in device memory.
    pub checks_gemm_memory: bool,
}

/// Few, so that blocks of small tensors process several rows.
pub const MULTIPROCESSORS: c_int = 4;

impl Config {
    /// Without faults: as an H200 or an MI250X, but for memory and multiprocessors.
    pub fn new(vendor: Vendor, memory_bytes: usize) -> Self {
        let (arch, compute_capability) = match vendor {
            Vendor::Nvidia => ("sm_90a", (9, 0)),
            Vendor::Amd => ("gfx90a", (9, 0)),
        };
        Self {
            vendor,
            arch: arch.to_owned(),
            compute_capability,
            hip_version: 60_342_134,
            runs_sources: false,
            memory_bytes,
            pinned_bytes: usize::MAX,
            failing_copy: None,
            offset_bytes: 0,
            failing_launches: BTreeSet::new(),
            failing_kernels: BTreeSet::new(),
            failing_sources: BTreeSet::new(),
            missing_kernels: BTreeSet::new(),
            graph_faults: BTreeSet::new(),
            checks_gemm_memory: true,
        }
    }

    /// Threads of a warp.
    pub fn warp_size(&self) -> usize {
        if self.vendor == Vendor::Amd { 64 } else { 32 }
    }

    /// Shared memory that a block may use.
    pub fn max_shared_bytes(&self) -> u32 {
        if self.vendor == Vendor::Amd { 64 * 1024 } else { 227 * 1024 }
    }
}

/// A fake GPU.
pub struct FakeGpu {
    pub index: c_int,
    pub config: Config,
    pub state: Mutex<GpuState>,
    pub blas: Mutex<Library>,
    /// The work of the capture in progress.
    pub captured: Mutex<Vec<Node>>,
}

/// What changes.
#[derive(Debug)]
pub struct GpuState {
    /// Advances with kernels.
    pub clock_ms: f32,
    pub is_capturing: bool,
    /// An error of queued work, which the next synchronisation returns.
    pub queued_error: Option<c_int>,
    /// An error that was returned by a synchronisation: all later calls return it.
    pub error: Option<c_int>,
    /// Larger allocations fail.
    pub max_allocation_bytes: usize,
    pub allocated_bytes: usize,
    pub peak_bytes: usize,
    pub pinned_bytes: usize,
    pub peak_pinned_bytes: usize,
    /// Copies of pinned memory that have run.
    pub pinned_copies: u64,
    /// What the host has waited for.
    pub host_clock: Clock,
    pub allocations: usize,
    /// Bytes of all allocations of device memory so far.
    pub device_allocations: Vec<usize>,
    pub events: usize,
    /// Graphs and executable graphs that are not destroyed.
    pub graphs: usize,
    pub graph_launches: usize,
    /// Kernels that fail after their launch, besides those of the configuration.
    pub failing_kernels: BTreeSet<String>,
    /// Sources and functions of the kernels that were launched.
    pub launched: BTreeSet<(String, String)>,
}

impl FakeGpu {
    /// A new GPU, which becomes the current device of this thread.
    pub fn create(config: Config, blas: Library) -> Arc<Self> {
        let state = GpuState {
            clock_ms: 0.0,
            is_capturing: false,
            queued_error: None,
            error: None,
            max_allocation_bytes: usize::MAX,
            allocated_bytes: 0,
            peak_bytes: 0,
            pinned_bytes: 0,
            peak_pinned_bytes: 0,
            pinned_copies: 0,
            host_clock: Clock::default(),
            allocations: 0,
            device_allocations: Vec::new(),
            events: 0,
            graphs: 0,
            graph_launches: 0,
            failing_kernels: BTreeSet::new(),
            launched: BTreeSet::new(),
        };
        let mut world = world();
        // There is no device 0, the default: a thread must select its device.
        let index = world.gpus.len() as c_int + 1;
        let (state, blas) = (Mutex::new(state), Mutex::new(blas));
        let gpu = Arc::new(Self { index, config, state, blas, captured: Mutex::default() });
        world.gpus.insert(index, gpu.clone());
        CURRENT.set(index);
        gpu
    }

    pub fn lock(&self) -> MutexGuard<'_, GpuState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of earlier work, if it was returned already.
    pub fn check(&self) -> Result<(), c_int> {
        self.lock().error.map_or(Ok(()), Err)
    }

    /// Waits for all work, and returns its error.
    pub fn synchronize(&self) -> Result<(), c_int> {
        let mut state = self.lock();
        state.error = state.error.or(state.queued_error);
        state.error.map_or(Ok(()), Err)
    }

    /// Fails by the next synchronisation.
    pub fn queue_error(&self, code: c_int) {
        self.lock().queued_error.get_or_insert(code);
    }
}

/// Everything with a handle or an address.
#[derive(Default)]
pub struct World {
    last_handle: usize,
    pub gpus: BTreeMap<c_int, Arc<FakeGpu>>,
    /// By address.
    pub allocations: BTreeMap<usize, Allocation>,
    pub streams: BTreeMap<usize, FakeStream>,
    pub events: BTreeMap<usize, Event>,
    pub graphs: BTreeMap<usize, FakeGraph>,
    pub modules: BTreeMap<usize, Arc<Module>>,
    pub functions: BTreeMap<usize, Arc<Function>>,
}

/// An event: its last record.
pub struct Event {
    pub gpu: Arc<FakeGpu>,
    pub has_timing: bool,
    pub recorded_ms: Option<f32>,
    pub point: Option<RecordedPoint>,
}

impl World {
    /// A handle that is never used again.
    pub fn new_handle(&mut self) -> usize {
        self.last_handle += 64;
        self.last_handle
    }

    /// The GPU of a stream.
    pub fn stream(&self, stream: Stream) -> Result<Arc<FakeGpu>, c_int> {
        let stream = self.streams.get(&(stream as usize)).ok_or(INVALID_HANDLE)?;
        Ok(stream.gpu.clone())
    }

    pub fn event(&mut self, event: *mut c_void) -> Result<&mut Event, c_int> {
        self.events.get_mut(&(event as usize)).ok_or(INVALID_HANDLE)
    }
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// All fake GPUs.
pub struct WorldGuard(MutexGuard<'static, Option<World>>);

pub fn world() -> WorldGuard {
    let mut guard = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    WorldGuard(guard)
}

impl std::ops::Deref for WorldGuard {
    type Target = World;

    fn deref(&self) -> &World {
        self.0.as_ref().unwrap()
    }
}

impl std::ops::DerefMut for WorldGuard {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().unwrap()
    }
}

thread_local! {
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

/// The index of the thread's current device.
pub fn current_index() -> c_int {
    CURRENT.get()
}

pub fn set_current_index(index: c_int) {
    CURRENT.set(index);
}

/// The thread's current device.
pub fn current() -> Result<Arc<FakeGpu>, c_int> {
    world().gpus.get(&CURRENT.get()).cloned().ok_or(INVALID_DEVICE)
}

/// Starts an operation on a stream. Its GPU must be the current device and without errors.
pub fn gpu_of_stream(stream: Stream) -> Result<Arc<FakeGpu>, c_int> {
    let mut world = world();
    let gpu = world.stream(stream)?;
    if gpu.index != CURRENT.get() {
        return Err(INVALID_HANDLE);
    }
    gpu.check()?;
    world.start_operation(stream).map(|()| gpu)
}
