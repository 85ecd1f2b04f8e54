//! CUDA graphs: the capture of the stream, and launches of what was captured.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regatta_comm::gpu_runtime::{
    CAPTURE_MODE_RELAXED, GraphFunctions, RawGraph, RawGraphExec, Runtime, SUCCESS,
};
use regatta_device::DeviceError;
use regatta_device::ops::{AttentionDropout, Graph, GraphMasks, GraphOps, TOKEN_DTYPE};
use regatta_device::random::DropoutMask;

use crate::flash::Problem;
use crate::memory::Allocation;
use crate::{CudaDevice, Ptr};

/// The operation in errors.
const CAPTURE: &str = "capturing a graph";

/// The capture in progress, if any.
#[derive(Default)]
pub(crate) struct CaptureState {
    is_active: AtomicBool,
    has_failed: AtomicBool,
    /// Whether a graph was launched since the host last waited.
    has_launched: AtomicBool,
    details: Mutex<CaptureDetails>,
}

#[derive(Default)]
struct CaptureDetails {
    error: Option<DeviceError>,
    masks: Vec<(DropoutMask, Ptr)>,
}

impl CaptureState {
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Whether an operation of this capture has failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Records the first error of a capture.
    pub fn fail(&self, error: DeviceError) {
        self.lock().error.get_or_insert(error);
        self.has_failed.store(true, Ordering::Release);
    }

    /// Whether a graph was launched since this was last called.
    pub fn take_launched(&self) -> bool {
        self.has_launched.swap(false, Ordering::AcqRel)
    }

    fn mask(&self, key: u64) -> Option<(DropoutMask, Ptr)> {
        self.lock().masks.iter().find(|(captured, _)| captured.key == key).copied()
    }

    fn begin(&self, masks: Vec<(DropoutMask, Ptr)>) {
        *self.lock() = CaptureDetails { error: None, masks };
        self.is_active.store(true, Ordering::Release);
    }

    /// The first error of the capture, which ends.
    fn end(&self) -> Option<DeviceError> {
        self.is_active.store(false, Ordering::Release);
        self.has_failed.store(false, Ordering::Release);
        std::mem::take(&mut *self.lock()).error
    }

    fn lock(&self) -> MutexGuard<'_, CaptureDetails> {
        self.details.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A dropout mask as kernels take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoundMask {
    /// Key and offset in device memory, or null.
    pub state: Ptr,
    pub key: u64,
    /// Added to the offset in device memory.
    pub offset: u64,
}

impl CudaDevice {
    pub(crate) fn is_capturing(&self) -> bool {
        self.capture.is_active()
    }

    /// Fails a capture because of an operation that a graph cannot have: one that depends on host memory or
    /// waits. Returns whether there is a capture.
    pub(crate) fn fails_capture(&self, operation: &str) -> bool {
        let is_capturing = self.is_capturing();
        if is_capturing {
            self.fail(operation, "not possible in a graph");
        }
        is_capturing
    }

    /// A mask as kernels take it: in a capture, from device memory.
    pub(crate) fn bound_mask(&self, mask: DropoutMask) -> BoundMask {
        let DropoutMask { key, offset, .. } = mask;
        if !self.is_capturing() {
            return BoundMask { state: Ptr::NULL, key, offset };
        }
        if let Some((captured, state)) = self.capture.mask(key) {
            let offset = offset.wrapping_sub(captured.offset);
            return BoundMask { state, key: 0, offset };
        }
        self.fail("dropout", "the mask is not among those of the graph");
        BoundMask { state: Ptr::NULL, key, offset }
    }

    /// Lets the kernels of attention take their dropout mask from device memory in a capture.
    pub(crate) fn bind_mask(&self, problem: Problem) -> Problem {
        let Some(dropout) = problem.dropout.filter(|_| self.is_capturing()) else { return problem };
        let BoundMask { state, key, offset } = self.bound_mask(dropout.mask);
        let mask = DropoutMask { key, offset, ..dropout.mask };
        let dropout = Some(AttentionDropout { mask, ..dropout });
        Problem { dropout, mask_state: state, ..problem }
    }

    fn graph_functions(&self) -> Result<GraphFunctions, DeviceError> {
        let missing = || self.error(CAPTURE, "the runtime has no graphs; use CUDA 11.4 or newer");
        self.runtime.graphs.ok_or_else(missing)
    }

    fn begin_capture(&self, masks: GraphMasks<'_>) -> Result<ActiveCapture<'_>, DeviceError> {
        let functions = self.graph_functions()?;
        self.check()?;
        let masks = captured_masks(masks);
        self.make_current();
        let begin = functions.stream_begin_capture;
        // The relaxed mode does not restrict other threads, nor allocations that are not in stream order.
        // SAFETY: the stream is valid.
        match unsafe { begin(self.stream(), CAPTURE_MODE_RELAXED) } {
            SUCCESS => {
                self.owned_stream().defer_frees();
                self.capture.begin(masks);
                Ok(ActiveCapture { device: self, functions, is_ended: false })
            }
            code => Err(self.error(CAPTURE, self.runtime.error_string(code))),
        }
    }

    fn instantiate(&self, graph: &CapturedGraph) -> Result<CudaGraph, DeviceError> {
        let (functions, mut exec) = (graph.functions, null_mut());
        // SAFETY: the graph is valid, and the function writes one pointer.
        match unsafe { (functions.instantiate)(&mut exec, graph.raw, 0) } {
            SUCCESS => Ok(CudaGraph {
                exec,
                functions,
                _runtime: self.runtime.clone(),
                _workspace: self.shared_workspace(),
            }),
            code => Err(self.error("instantiating a graph", self.runtime.error_string(code))),
        }
    }
}

/// The masks of a capture, with the addresses of their words.
fn captured_masks(masks: GraphMasks<'_>) -> Vec<(DropoutMask, Ptr)> {
    let GraphMasks { masks, words } = masks;
    let len = masks.len() * DropoutMask::WORDS;
    assert!(words.len() == len && words.dtype() == TOKEN_DTYPE, "masks have {len} words");
    let bytes = DropoutMask::WORDS * TOKEN_DTYPE.size();
    let address = |at: usize| Ptr::of(words).offset_bytes(at * bytes);
    masks.iter().enumerate().map(|(at, mask)| (*mask, address(at))).collect()
}

/// The capture of a device's stream. It ends also if what is captured panics.
struct ActiveCapture<'a> {
    device: &'a CudaDevice,
    functions: GraphFunctions,
    is_ended: bool,
}

impl ActiveCapture<'_> {
    fn end(&mut self) -> Result<CapturedGraph, DeviceError> {
        let Self { device, functions, is_ended } = self;
        *is_ended = true;
        let mut raw = null_mut();
        // SAFETY: the stream is valid, and the function writes one pointer.
        let code = unsafe { (functions.stream_end_capture)(device.stream(), &mut raw) };
        let error = device.capture.end();
        device.owned_stream().free_deferred();
        let graph = CapturedGraph { raw, functions: *functions };
        match (error, code) {
            (Some(error), _) => Err(error),
            (None, SUCCESS) => Ok(graph),
            (None, code) => Err(device.error(CAPTURE, device.runtime.error_string(code))),
        }
    }
}

impl Drop for ActiveCapture<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            let _ = self.end();
        }
    }
}

/// A graph that cannot be launched yet.
struct CapturedGraph {
    /// Null after a failed capture.
    raw: RawGraph,
    functions: GraphFunctions,
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the graph is valid and not used afterwards.
            unsafe { (self.functions.destroy)(self.raw) };
        }
    }
}

/// A graph that can be launched.
struct CudaGraph {
    exec: RawGraphExec,
    functions: GraphFunctions,
    /// Keeps the library loaded.
    _runtime: Arc<Runtime>,
    /// Temporary results of the captured operations, also after the device has a larger workspace.
    _workspace: Option<Arc<Allocation>>,
}

// SAFETY: graphs may be launched and destroyed by any thread.
unsafe impl Send for CudaGraph {}
// SAFETY: the driver serialises launches.
unsafe impl Sync for CudaGraph {}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: the graph is not launched again; launches in progress complete.
        unsafe { (self.functions.exec_destroy)(self.exec) };
    }
}

impl GraphOps for CudaDevice {
    fn can_capture(&self) -> bool {
        // Blocking launches and timing are for single kernels.
        let is_per_kernel = self.launch_blocking || self.kernel_times.is_enabled();
        self.runtime.graphs.is_some() && !is_per_kernel && !self.is_capturing()
    }

    fn capture(
        &self,
        masks: GraphMasks<'_>,
        queue: &mut dyn FnMut(),
    ) -> Result<Graph, DeviceError> {
        let mut capture = self.begin_capture(masks)?;
        queue();
        let graph = self.instantiate(&capture.end()?)?;
        Ok(Graph(Box::new(graph)))
    }

    unsafe fn launch_graph(&self, graph: &Graph) -> Result<(), DeviceError> {
        let operation = "launching a graph";
        let Some(CudaGraph { exec, functions, .. }) = graph.0.downcast_ref() else {
            return Err(self.error(operation, "another device captured it"));
        };
        self.check()?;
        self.make_current();
        // SAFETY: the graph and the stream are valid, and so is the memory, as required of the caller.
        match unsafe { (functions.launch)(*exec, self.stream()) } {
            SUCCESS => {
                self.capture.has_launched.store(true, Ordering::Release);
                Ok(())
            }
            code => Err(self.error(operation, self.runtime.error_string(code))),
        }
    }
}
