//! GEMMs by cuBLASLt or hipBLASLt, with autotuned algorithms.

pub(crate) mod constants;
mod conversion;
mod descriptors;
mod error;
mod gemm;
mod owned;
mod plan_cache;
pub(crate) mod sys;
#[cfg(test)]
mod tests;
mod tune;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regatta_comm::gpu_runtime::{LibraryError, Runtime, SUCCESS, Stream, Vendor};

use crate::Ptr;
use crate::cache_dir::cache_dir;
use crate::runtime_memory::RuntimeMemory;
use conversion::Conversions;
use descriptors::{Descriptors, StatusError, WORKSPACE_BYTES};
pub(crate) use error::GemmError;
pub(crate) use gemm::{Epilogue, Gemm, GemmArgs};
use owned::Owned;
use plan_cache::PlanCache;
use sys::{Algorithm, Functions, Handle};
use tune::MAX_CANDIDATES;

/// The BLAS library of a device.
pub(crate) struct BlasLt {
    /// `None` keeps tuned algorithms in memory only.
    cache_dir: Option<PathBuf>,
    state: Mutex<State>,
    pub conversions: Conversions,
    /// Dropped last: it keeps the library loaded.
    functions: Arc<Functions>,
}

/// Where GEMMs are queued.
#[derive(Clone, Copy)]
pub(crate) struct StreamContext<'a> {
    /// The runtime, whose current device is that of the stream.
    pub runtime: &'a Arc<Runtime>,
    pub stream: Stream,
    pub gpu_name: &'a str,
    /// Whether algorithms may be chosen by their measured time, which differs between runs.
    pub tune: bool,
}

/// What is created on first use.
#[derive(Default)]
struct State {
    plans: HashMap<Gemm, Plan>,
    cache: Option<PlanCache>,
    workspace: Option<RuntimeMemory>,
    handle: Option<Owned>,
}

// SAFETY: handle and descriptors may be used by any thread; a lock serialises their use.
unsafe impl Send for State {}

/// How a GEMM is computed.
enum Plan {
    Ready {
        descriptors: Descriptors,
        algorithm: Algorithm,
        /// Whether the algorithm is final: a GEMM that is captured first is tuned later.
        is_final: bool,
    },
    Unsupported(StatusError),
}

impl BlasLt {
    /// Loads the library of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, LibraryError> {
        let functions = Functions::open(vendor)?;
        Ok(Self { cache_dir: cache_dir(), ..Self::with_functions(functions) })
    }

    /// With a library, or a fake of one.
    pub fn with_functions(functions: Functions) -> Self {
        Self {
            functions: Arc::new(functions),
            cache_dir: None,
            state: Mutex::default(),
            conversions: Conversions::default(),
        }
    }

    /// Name and version of the library, such as `cuBLASLt 13.1`.
    pub fn describe(&self) -> String {
        self.functions.describe()
    }

    /// Queues a GEMM. The first of its kind is tuned, unless it is small or captured.
    ///
    /// # Safety
    /// The stream must be valid, and the matrices must be as large as the GEMM demands.
    pub unsafe fn run(
        &self,
        context: StreamContext<'_>,
        gemm: Gemm,
        args: &GemmArgs,
    ) -> Result<(), GemmError> {
        let gemm = gemm.aligned_for(args);
        let mut state = self.lock();
        let call = self.call(&mut state, context, args)?;
        match state.plans.get(&gemm) {
            Some(Plan::Unsupported(cause)) => return Err(self.unsupported(gemm, *cause)),
            Some(Plan::Ready { descriptors, algorithm, is_final })
                if *is_final || !may_tune(context, &gemm) =>
            {
                descriptors.set_pointers(args).map_err(|error| self.failed(error))?;
                // SAFETY: as required of the caller.
                return match unsafe { call.launch(args, descriptors, algorithm) } {
                    SUCCESS => Ok(()),
                    code => Err(self.failed(StatusError { function: "Matmul", code })),
                };
            }
            _ => {}
        }
        // SAFETY: as required of the caller.
        unsafe { self.prepare(&mut state, gemm, &call) }
    }

    /// Chooses an algorithm and queues the GEMM.
    ///
    /// # Safety
    /// As for [`BlasLt::run`].
    unsafe fn prepare(
        &self,
        state: &mut State,
        gemm: Gemm,
        call: &Call<'_>,
    ) -> Result<(), GemmError> {
        let failed = |error| self.failed(error);
        let descriptors = Descriptors::new(&self.functions, gemm).map_err(failed)?;
        descriptors.set_pointers(call.args).map_err(failed)?;
        let tune = may_tune(call.context, &gemm);
        let is_final = tune || !(call.context.tune && tune::is_worthwhile(&gemm));
        let cache = state.cache.get_or_insert_with(|| self.open_cache(call));
        if tune && let Some(algorithm) = cache.get(&gemm) {
            // SAFETY: as required of the caller.
            if unsafe { call.launch(call.args, &descriptors, &algorithm) } == SUCCESS {
                state.plans.insert(gemm, Plan::Ready { descriptors, algorithm, is_final });
                return Ok(());
            }
            cache.reject(&gemm);
        }
        // SAFETY: the handle is valid.
        let candidates = unsafe { descriptors.heuristic(call.handle, MAX_CANDIDATES) };
        let mut cause = *candidates.as_ref().err().unwrap_or(&NO_ALGORITHM);
        let mut candidates = candidates.unwrap_or_default();
        if tune {
            // SAFETY: as required of the caller.
            if let Some(fastest) = unsafe { call.fastest(&descriptors, &gemm, &candidates) } {
                let agreed = cache.insert(gemm, candidates[fastest]);
                candidates.insert(0, agreed);
            }
        }
        for algorithm in candidates {
            // SAFETY: as required of the caller.
            let code = unsafe { call.launch(call.args, &descriptors, &algorithm) };
            if code == SUCCESS {
                state.plans.insert(gemm, Plan::Ready { descriptors, algorithm, is_final });
                return Ok(());
            }
            cause = StatusError { function: "Matmul", code };
        }
        state.plans.insert(gemm, Plan::Unsupported(cause));
        Err(self.unsupported(gemm, cause))
    }

    /// The handle and the workspace, which are created on first use: then the device is current.
    fn call<'a>(
        &self,
        state: &mut State,
        context: StreamContext<'a>,
        args: &'a GemmArgs,
    ) -> Result<Call<'a>, GemmError> {
        let handle = match &state.handle {
            Some(handle) => handle.raw,
            None => {
                let Functions { create, destroy, .. } = *self.functions;
                // SAFETY: the functions are those of handles.
                let handle = unsafe { Owned::new("Create", destroy, |to| create(to)) };
                state.handle.insert(handle.map_err(|error| self.failed(error))?).raw
            }
        };
        let workspace = match &state.workspace {
            Some(workspace) => workspace.ptr(),
            None => {
                let workspace = RuntimeMemory::device(context.runtime, WORKSPACE_BYTES);
                let workspace = workspace.map_err(|code| GemmError::Workspace {
                    bytes: WORKSPACE_BYTES,
                    cause: context.runtime.error_string(code),
                })?;
                state.workspace.insert(workspace).ptr()
            }
        };
        Ok(Call { handle, workspace, context, args })
    }

    fn open_cache(&self, call: &Call<'_>) -> PlanCache {
        // SAFETY: the handle is valid.
        let library = unsafe { self.functions.version(call.handle) };
        PlanCache::open(self.cache_dir.as_deref(), library, call.context.gpu_name.to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, cause: StatusError) -> GemmError {
        GemmError::Status { vendor: self.functions.vendor, cause }
    }

    fn unsupported(&self, gemm: Gemm, cause: StatusError) -> GemmError {
        GemmError::Unsupported { vendor: self.functions.vendor, gemm: Box::new(gemm), cause }
    }
}

/// The heuristic found nothing, but did not fail.
const NO_ALGORITHM: StatusError = StatusError { function: "MatmulAlgoGetHeuristic", code: SUCCESS };

/// Whether a GEMM may be timed now.
fn may_tune(context: StreamContext<'_>, gemm: &Gemm) -> bool {
    let StreamContext { runtime, stream, tune, .. } = context;
    tune && tune::is_worthwhile(gemm) && !tune::is_capturing(runtime, stream)
}

/// One call of [`BlasLt::run`].
struct Call<'a> {
    handle: Handle,
    workspace: Ptr,
    context: StreamContext<'a>,
    args: &'a GemmArgs,
}

impl Call<'_> {
    /// Queues the GEMM of some matrices.
    ///
    /// # Safety
    /// As for [`BlasLt::run`]; the descriptors must be those of its GEMM.
    unsafe fn launch(
        &self,
        args: &GemmArgs,
        descriptors: &Descriptors,
        algorithm: &Algorithm,
    ) -> i32 {
        let Self { handle, workspace, context, .. } = *self;
        // SAFETY: as required of the caller; handle and workspace are valid.
        unsafe { descriptors.launch(handle, args, algorithm, workspace, context.stream) }
    }

    /// The index of the fastest algorithm; `None` if none works or there is no memory to tune in.
    ///
    /// # Safety
    /// As for [`Call::launch`].
    unsafe fn fastest(
        &self,
        descriptors: &Descriptors,
        gemm: &Gemm,
        candidates: &[Algorithm],
    ) -> Option<usize> {
        let StreamContext { runtime, stream, .. } = self.context;
        let output = tune::tuning_output(runtime, stream, gemm, self.args).ok()?;
        let d = output.as_ref().map_or(self.args.d, RuntimeMemory::ptr);
        let args = GemmArgs { d, ..*self.args };
        tune::fastest(candidates.len(), |candidate, launches| {
            tune::average_ms(runtime, stream, launches, || {
                // SAFETY: as required of the caller; the output for tuning is as large.
                unsafe { self.launch(&args, descriptors, &candidates[candidate]) }
            })
        })
    }
}
