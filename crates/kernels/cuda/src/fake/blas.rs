//! A BLAS library that computes on the host, with column-major matrices as in the vendors' libraries.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use regatta_comm::DType;
use regatta_comm::gpu_runtime::{SUCCESS, Stream, Vendor};
use regatta_device::ops::FP8_DTYPE;

use super::driver::panic_text;
use super::gemm::{self, Gemm, Matrix};
use super::gpu::{FakeGpu, current, gpu_of_stream};
use super::runtime::code;
use crate::blaslt::constants::Constants;
use crate::blaslt::sys::{
    Algorithm, CUBLASLT_ALGORITHM_WORDS, Functions, GetVersion, HIPBLASLT_ALGORITHM_WORDS, Handle,
    HeuristicResult, MatmulDesc, MatmulPreference, MatrixLayout,
};

/// An algorithm that the heuristic proposes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub id: u8,
    pub ms: f32,
    /// Whether launches succeed.
    pub works: bool,
}

pub(crate) const fn candidate(id: u8, ms: f32) -> Candidate {
    Candidate { id, ms, works: true }
}

/// Behaviour and record of a GPU's library.
#[derive(Default)]
pub(crate) struct Library {
    /// What the heuristic proposes.
    pub candidates: Vec<Candidate>,
    /// Epilogues without algorithms.
    pub unsupported_epilogues: Vec<u32>,
    /// Whether GEMMs of bf16 have no algorithms for f32 outputs.
    pub rejects_mixed_dtypes: bool,
    /// Whether it is older than scales per row.
    pub rejects_scale_modes: bool,
    /// Status of the heuristic without proposals.
    pub no_algorithm_status: c_int,
    /// Whether products are 1, whatever the operands: for GEMMs too large to compute.
    pub products_are_one: bool,
    /// Algorithms in the order of their launches.
    pub launches: Vec<u8>,
    pub heuristic_calls: usize,
    /// The alignments of the last heuristic call.
    pub alignments: Vec<u64>,
    /// Descriptors, layouts, preferences and handles that are not destroyed.
    pub live_objects: usize,
}

/// Accesses the library of this thread's GPU.
#[cfg(test)]
pub(crate) fn library<R>(access: impl FnOnce(&mut Library) -> R) -> R {
    let gpu = current().unwrap_or_else(|_| panic!("the thread has no GPU"));
    access(&mut gpu.blas.lock().unwrap())
}

/// The functions of a vendor's library.
pub(crate) fn functions(vendor: Vendor) -> Functions {
    Functions {
        vendor,
        create,
        destroy: destroy::<()>,
        get_version: match vendor {
            Vendor::Nvidia => GetVersion::Cublas(cublas_version),
            Vendor::Amd => GetVersion::Hipblas(hipblas_version),
        },
        matmul_desc_create,
        matmul_desc_destroy: destroy::<Desc>,
        matmul_desc_set_attribute: set_attribute,
        matrix_layout_create,
        matrix_layout_destroy: destroy::<Layout>,
        matmul_preference_create,
        matmul_preference_destroy: destroy::<Desc>,
        matmul_preference_set_attribute: set_attribute,
        matmul_algo_get_heuristic,
        matmul,
        _library: None,
    }
}

/// A descriptor, a layout, a preference or a handle.
struct Object<T> {
    value: T,
    gpu: Arc<FakeGpu>,
}

impl<T> Object<T> {
    /// # Safety
    /// `to` must be valid.
    unsafe fn create(to: *mut *mut c_void, value: T) -> c_int {
        code(current().map(|gpu| {
            lock(&gpu, |library| library.live_objects += 1);
            // SAFETY: as required of the caller.
            unsafe { *to = Box::into_raw(Box::new(Self { value, gpu })).cast() };
        }))
    }

    /// # Safety
    /// `raw` must be an object of this type that is not destroyed.
    unsafe fn of<'a>(raw: *mut c_void) -> &'a mut Self {
        // SAFETY: as required of the caller; the library is not used concurrently.
        unsafe { &mut *raw.cast::<Self>() }
    }
}

fn lock<R>(gpu: &FakeGpu, access: impl FnOnce(&mut Library) -> R) -> R {
    access(&mut gpu.blas.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

unsafe extern "C" fn destroy<T>(object: *mut c_void) -> c_int {
    // SAFETY: created by `Object::create`, and not used afterwards.
    let object = unsafe { Box::from_raw(object.cast::<Object<T>>()) };
    lock(&object.gpu, |library| library.live_objects -= 1);
    SUCCESS
}

/// Attributes of a matmul descriptor or a preference.
#[derive(Clone, Default)]
pub(super) struct Desc(HashMap<c_int, u64>);

impl Desc {
    pub fn get(&self, attribute: c_int) -> u64 {
        *self.0.get(&attribute).unwrap_or_else(|| panic!("attribute {attribute} is not set"))
    }
}

/// The shape of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub dtype: DType,
    pub rows: usize,
    pub columns: usize,
    pub ld: usize,
}

pub(super) fn dtype(data_type: c_int) -> DType {
    match data_type {
        0 => DType::F32,
        14 => DType::Bf16,
        28 => FP8_DTYPE,
        other => panic!("unknown data type {other}"),
    }
}

unsafe extern "C" fn create(handle: *mut Handle) -> c_int {
    // SAFETY: the caller passes a valid pointer, as in all functions below.
    unsafe { Object::create(handle, ()) }
}

unsafe extern "C" fn cublas_version() -> usize {
    130_100
}

unsafe extern "C" fn hipblas_version(_: Handle, version: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe { *version = 1200 };
    SUCCESS
}

unsafe extern "C" fn matmul_desc_create(
    desc: *mut MatmulDesc,
    compute: c_int,
    scale: c_int,
) -> c_int {
    let is_f32 = [Vendor::Nvidia, Vendor::Amd]
        .map(Constants::of)
        .iter()
        .any(|constants| (compute, scale) == (constants.compute_f32, constants.f32));
    // SAFETY: as above.
    if is_f32 { unsafe { Object::create(desc, Desc::default()) } } else { NOT_SUPPORTED }
}

unsafe extern "C" fn matmul_preference_create(preference: *mut MatmulPreference) -> c_int {
    // SAFETY: as above.
    unsafe { Object::create(preference, Desc::default()) }
}

unsafe extern "C" fn set_attribute(
    desc: *mut c_void,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller passes a descriptor from above.
    let desc = unsafe { Object::<Desc>::of(desc) };
    let fp8 = Constants::of(desc.gpu.config.vendor).fp8.as_ref();
    let is_scale_mode = fp8.is_some_and(|fp8| fp8.scale_modes.contains(&attribute));
    if is_scale_mode && lock(&desc.gpu, |library| library.rejects_scale_modes) {
        return INVALID_LAYOUT;
    }
    let mut word = [0u8; 8];
    // SAFETY: the caller passes a value of this size.
    unsafe { std::ptr::copy_nonoverlapping(value.cast(), word.as_mut_ptr(), bytes) };
    desc.value.0.insert(attribute, u64::from_le_bytes(word));
    SUCCESS
}

unsafe extern "C" fn matrix_layout_create(
    layout: *mut MatrixLayout,
    data_type: c_int,
    rows: u64,
    columns: u64,
    ld: i64,
) -> c_int {
    // Columns must not overlap.
    if (ld as u64) < rows || rows == 0 || columns == 0 {
        return INVALID_LAYOUT;
    }
    let dtype = dtype(data_type);
    let (rows, columns, ld) = (rows as usize, columns as usize, ld as usize);
    // SAFETY: as above.
    unsafe { Object::create(layout, Layout { dtype, rows, columns, ld }) }
}

/// `CUBLAS_STATUS_INVALID_VALUE`.
const INVALID_LAYOUT: c_int = 7;
/// `CUBLAS_STATUS_EXECUTION_FAILED`.
const EXECUTION_FAILED: c_int = 13;
/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: c_int = 15;

/// Bytes of the workspace.
const WORKSPACE_BYTES: usize = 64 << 20;

unsafe extern "C" fn matmul_algo_get_heuristic(
    handle: Handle,
    desc: MatmulDesc,
    a: MatrixLayout,
    _: MatrixLayout,
    _: MatrixLayout,
    d: MatrixLayout,
    preference: MatmulPreference,
    count: c_int,
    results: *mut c_void,
    found: *mut c_int,
) -> c_int {
    // SAFETY: created above.
    let (handle, desc, preference) = unsafe {
        (Object::<()>::of(handle), Object::<Desc>::of(desc), Object::<Desc>::of(preference))
    };
    // SAFETY: as above.
    let is_mixed =
        unsafe { Object::<Layout>::of(a).value.dtype != Object::<Layout>::of(d).value.dtype };
    let vendor = handle.gpu.config.vendor;
    let constants = Constants::of(vendor);
    lock(&handle.gpu, |library| {
        library.heuristic_calls += 1;
        let alignments = constants.min_alignment_bytes.iter();
        library.alignments = alignments.map(|at| preference.value.get(*at)).collect();
        let epilogue = desc.value.get(constants.desc.epilogue) as u32;
        let is_rejected = library.unsupported_epilogues.contains(&epilogue)
            || is_mixed && library.rejects_mixed_dtypes;
        let is_supported = !is_rejected
            && preference.value.get(constants.max_workspace_bytes) == WORKSPACE_BYTES as u64;
        let proposals: &[Candidate] = if is_supported { &library.candidates } else { &[] };
        let proposals = &proposals[..proposals.len().min(count as usize)];
        // SAFETY: the caller's buffer has `count` results of the vendor's layout.
        unsafe {
            *found = proposals.len() as c_int;
            for (at, proposal) in proposals.iter().enumerate() {
                match vendor {
                    Vendor::Nvidia => {
                        let results = results.cast::<HeuristicResult<CUBLASLT_ALGORITHM_WORDS>>();
                        *results.add(at) = result(proposal);
                    }
                    Vendor::Amd => {
                        let results = results.cast::<HeuristicResult<HIPBLASLT_ALGORITHM_WORDS>>();
                        *results.add(at) = result(proposal);
                    }
                }
            }
        }
        if is_supported { SUCCESS } else { library.no_algorithm_status }
    })
}

fn result<const WORDS: usize>(candidate: &Candidate) -> HeuristicResult<WORDS> {
    let mut algorithm = [u64::from(candidate.id); WORDS];
    algorithm[WORDS - 1] = 0x5eed;
    HeuristicResult { algorithm, workspace_bytes: 1, state: 0, waves: 1.0, reserved: [0; 4] }
}

#[rustfmt::skip]
unsafe extern "C" fn matmul(
    _: Handle, desc: MatmulDesc, alpha: *const c_void,
    a: *const c_void, a_layout: MatrixLayout, b: *const c_void, b_layout: MatrixLayout,
    beta: *const c_void, c: *const c_void, _: MatrixLayout, d: *mut c_void, d_layout: MatrixLayout,
    algorithm: *const Algorithm, workspace: *mut c_void, workspace_bytes: usize, stream: Stream,
) -> c_int {
    let Ok(gpu) = gpu_of_stream(stream) else { return EXECUTION_FAILED };
    // SAFETY: the caller passes valid pointers to objects from above.
    let (desc, alpha, beta, algorithm) = unsafe {
        let scalar = |value: *const c_void| *value.cast::<f32>();
        (&Object::<Desc>::of(desc).value, scalar(alpha), scalar(beta), &*algorithm)
    };
    // SAFETY: as above.
    let [a_layout, b_layout, layout] = unsafe {
        [a_layout, b_layout, d_layout].map(|layout| Object::<Layout>::of(layout).value)
    };
    if workspace.is_null() || workspace_bytes != WORKSPACE_BYTES || c != d || alpha != 1.0 {
        return INVALID_LAYOUT;
    }
    let id = algorithm.0[0];
    let (launched, is_one) = lock(&gpu, |library| {
        library.launches.push(id);
        let candidate = library.candidates.iter().find(|candidate| candidate.id == id);
        (candidate.copied(), library.products_are_one)
    });
    let Some(candidate) = launched.filter(|candidate| candidate.works) else {
        return NOT_SUPPORTED;
    };
    let gemm = Gemm {
        desc: desc.clone(),
        a: Matrix { start: a as u64, layout: a_layout },
        b: Matrix { start: b as u64, layout: b_layout },
        d: Matrix { start: d as u64, layout },
        beta,
        is_one,
    };
    let on = gpu.clone();
    code(gpu.submit(move || run(&gemm, &on, candidate)))
}

fn run(gemm: &Gemm, gpu: &FakeGpu, candidate: Candidate) -> Result<(), c_int> {
    gpu.lock().clock_ms += candidate.ms;
    if gpu.lock().queued_error.is_some() {
        return Ok(());
    }
    let run = || gemm::run(gemm, gpu);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(|panic| {
        eprintln!("the fake BLAS library: {}", panic_text(&*panic));
        EXECUTION_FAILED
    })
}
