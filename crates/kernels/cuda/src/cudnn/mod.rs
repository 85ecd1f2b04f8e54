//! Attention by cuDNN 9, through its backend descriptors.

mod attention;
mod descriptor;
mod graph;
mod plan;
mod sys;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use regatta_comm::gpu_runtime::{LibraryError, Stream};
use regatta_device::ops::AttentionShape;

pub(crate) use attention::TensorId;
pub(crate) use descriptor::CudnnError;
use plan::ExecutionPlan;
use sys::{Functions, Handle, SUCCESS};

/// The oldest supported version. Earlier ones do not clear the accumulator of the queries' gradient.
const MIN_VERSION: usize = 90_600;
/// Versions with a wrong backward pass.
const DEFECTIVE_VERSIONS: [usize; 2] = [91_000, 91_001];
/// Other lengths of sequences need a padding mask in the backward pass of some versions.
const SEQ_LEN_MULTIPLE: usize = 128;
/// Largest head dimension on all supported architectures.
const MAX_HEAD_DIM: usize = 128;

/// The pass of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    Forward,
    Backward,
}

/// cuDNN, and the plans of one device.
pub(crate) struct Cudnn {
    functions: Arc<Functions>,
    state: Mutex<State>,
}

/// What is created on first use.
#[derive(Default)]
struct State {
    /// Declared before the handle, so that plans are destroyed first. An error means that cuDNN does not
    /// support the shape.
    plans: HashMap<(Pass, AttentionShape), Result<ExecutionPlan, CudnnError>>,
    handle: Option<OwnedHandle>,
}

// SAFETY: the handle and descriptors may be used by any thread; a lock serialises their use.
unsafe impl Send for State {}

impl Cudnn {
    /// Loads the library.
    pub fn open() -> Result<Self, LibraryError> {
        let cudnn = Self::with_functions(Functions::open()?);
        let version = cudnn.functions.version();
        if version < MIN_VERSION || DEFECTIVE_VERSIONS.contains(&version) {
            let what = format!("cuDNN {} is not supported", format_version(version));
            let why = "its attention has defects".to_owned();
            let hint = "install cuDNN 9.11 or newer".to_owned();
            return Err(LibraryError { what, why, hint });
        }
        Ok(cudnn)
    }

    /// With a library, or a fake of one.
    pub fn with_functions(functions: Functions) -> Self {
        Self { functions: Arc::new(functions), state: Mutex::default() }
    }

    /// Its version, such as `9.14`.
    pub fn version(&self) -> String {
        format_version(self.functions.version())
    }

    /// Whether its attention is used for a shape, if a plan can be made.
    pub fn accepts(shape: AttentionShape) -> bool {
        let AttentionShape { seq_len, head_dim, .. } = shape;
        let head_dim_fits = head_dim.is_multiple_of(8) && (1..=MAX_HEAD_DIM).contains(&head_dim);
        head_dim_fits && seq_len > 0 && seq_len.is_multiple_of(SEQ_LEN_MULTIPLE)
    }

    /// Makes the plan of a shape, if there is none: the bytes of its workspace, or why the shape is not
    /// supported. The device must be current.
    pub fn prepare(&self, pass: Pass, shape: AttentionShape) -> Result<usize, CudnnError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = state.plan(&self.functions, pass, shape)?;
        Ok(plan.workspace_bytes)
    }

    /// Queues a pass on a stream. The device must be current.
    ///
    /// # Safety
    /// The stream must be valid; the memory must be as large as the tensors and the workspace are.
    pub unsafe fn execute(
        &self,
        stream: Stream,
        (pass, shape): (Pass, AttentionShape),
        tensors: &[(TensorId, *mut c_void)],
        workspace: *mut c_void,
    ) -> Result<(), CudnnError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = state.handle(&self.functions)?;
        // SAFETY: the handle is valid, and the stream is, as required of the caller.
        let status = unsafe { (self.functions.set_stream)(handle, stream) };
        if status != SUCCESS {
            return Err(CudnnError::new(&self.functions, "setting the stream", status));
        }
        let tensors: Vec<_> = tensors.iter().map(|(id, at)| (*id as i64, *at)).collect();
        let plan = state.plan(&self.functions, pass, shape)?;
        // SAFETY: as required of the caller.
        unsafe { plan.execute(handle, &tensors, workspace) }
    }
}

impl State {
    fn handle(&mut self, functions: &Arc<Functions>) -> Result<Handle, CudnnError> {
        if let Some(handle) = &self.handle {
            return Ok(handle.raw);
        }
        let mut raw = Handle(null_mut());
        // SAFETY: the function writes one pointer.
        match unsafe { (functions.create)(&mut raw) } {
            SUCCESS => self.handle = Some(OwnedHandle { raw, functions: functions.clone() }),
            status => return Err(CudnnError::new(functions, "creating a handle", status)),
        }
        Ok(raw)
    }

    fn plan(
        &mut self,
        functions: &Arc<Functions>,
        pass: Pass,
        shape: AttentionShape,
    ) -> Result<&ExecutionPlan, CudnnError> {
        let handle = self.handle(functions)?;
        let make = || {
            let graph = match pass {
                Pass::Forward => attention::forward(functions, shape)?,
                Pass::Backward => attention::backward(functions, shape)?,
            };
            ExecutionPlan::new(functions, handle, graph)
        };
        self.plans.entry((pass, shape)).or_insert_with(make).as_ref().map_err(Clone::clone)
    }
}

struct OwnedHandle {
    raw: Handle,
    functions: Arc<Functions>,
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is valid and not used afterwards.
        unsafe { (self.functions.destroy)(self.raw) };
    }
}

fn format_version(version: usize) -> String {
    format!("{}.{}", version / 10_000, version / 100 % 100)
}
