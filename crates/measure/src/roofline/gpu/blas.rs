//! GEMM on a device.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use regatta_comm::gpu_runtime::SUCCESS;

use super::blas_sys::{BlasFunctions, BlasHandle, CublasGemmEx, GemmFn, RocblasGemmEx};
use super::{GpuBuffer, GpuError, GpuResult, RooflineGpu};

/// Element types. All but `f64` accumulate in `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GemmType {
    F64,
    F32,
    /// `f32` in memory, multiplied with 19 bits.
    Tf32,
    F16,
    Bf16,
}

impl GemmType {
    pub const ALL: [Self; 5] = [Self::F64, Self::F32, Self::Tf32, Self::F16, Self::Bf16];

    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// Element size in bytes.
    pub fn bytes(self) -> usize {
        self.facts().1
    }

    /// Name, element size, and data type and compute type of cuBLAS and of rocBLAS; most devices of rocBLAS
    /// have no tf32.
    fn facts(self) -> (&'static str, usize, BlasTypes, Option<BlasTypes>) {
        match self {
            Self::F64 => ("f64", 8, (1, 70), Some((152, 152))),
            Self::F32 => ("f32", 4, (0, 68), Some((151, 151))),
            Self::Tf32 => ("tf32", 4, (0, 77), None),
            Self::F16 => ("f16", 2, (2, 68), Some((150, 151))),
            Self::Bf16 => ("bf16", 2, (14, 68), Some((168, 151))),
        }
    }
}

/// Data type and compute type of a BLAS library.
type BlasTypes = (c_int, c_int);

/// Not transposed.
const CUBLAS_OP_N: c_int = 0;
const ROCBLAS_OPERATION_NONE: c_int = 111;
/// Default algorithm.
const CUBLAS_GEMM_DEFAULT: c_int = -1;
const ROCBLAS_GEMM_ALGO_STANDARD: c_int = 0;

/// The BLAS library of a device.
pub struct Blas {
    functions: BlasFunctions,
    handle: BlasHandle,
}

impl Blas {
    /// Opens the library on the device's stream.
    pub fn open(device: &RooflineGpu) -> GpuResult<Self> {
        Self::with(BlasFunctions::open(device.vendor())?, device)
    }

    pub(super) fn with(functions: BlasFunctions, device: &RooflineGpu) -> GpuResult<Self> {
        let mut blas = Self { functions, handle: null_mut() };
        // SAFETY: the function writes one pointer.
        check("BLAS handle", unsafe { (blas.functions.create)(&mut blas.handle) })?;
        // SAFETY: both handles are valid.
        let code = unsafe { (blas.functions.set_stream)(blas.handle, device.stream()) };
        check("BLAS stream", code)?;
        Ok(blas)
    }

    /// Whether the library supports the type.
    pub fn supports(&self, dtype: GemmType) -> bool {
        match self.functions.gemm {
            GemmFn::Cublas(_) => true,
            GemmFn::Rocblas(_) => dtype.facts().3.is_some(),
        }
    }

    /// Queues the product of two column-major `size` × `size` matrices: left, right, result.
    pub fn gemm(
        &self,
        device: &RooflineGpu,
        dtype: GemmType,
        size: usize,
        matrices: [&GpuBuffer; 3],
    ) -> GpuResult {
        let what = || format!("GEMM of {} on GPU {}", dtype.name(), device.index());
        let short = matrices.iter().any(|matrix| matrix.bytes < size * size * dtype.bytes());
        let Some(n) = c_int::try_from(size).ok().filter(|_| !short) else {
            return Err(GpuError::new(what(), format!("buffer too small for {size} rows")));
        };
        let [left, right, result] = matrices.map(|matrix| matrix.start);
        let (double, single) = ([1.0f64, 0.0], [1.0f32, 0.0]);
        let [alpha, beta]: [*const c_void; 2] = match dtype {
            GemmType::F64 => [(&raw const double[0]).cast(), (&raw const double[1]).cast()],
            _ => [(&raw const single[0]).cast(), (&raw const single[1]).cast()],
        };
        let call = Call { handle: self.handle, n, alpha, beta, left, right, result };
        let (.., cublas, rocblas) = dtype.facts();
        let code = match (self.functions.gemm, rocblas) {
            // SAFETY: the buffers hold such matrices; the scalars have the compute type and are
            // read before the function returns.
            (GemmFn::Cublas(gemm), _) => unsafe { call.cublas(gemm, cublas) },
            // SAFETY: as above.
            (GemmFn::Rocblas(gemm), Some(types)) => unsafe { call.rocblas(gemm, types) },
            (GemmFn::Rocblas(_), None) => {
                return Err(GpuError::new(what(), "not supported by the library"));
            }
        };
        // The message is only built on failure because this is called in a loop.
        check("", code).map_err(|error| GpuError { what: what(), ..error })
    }
}

/// Arguments common to both libraries.
struct Call {
    handle: BlasHandle,
    /// Rows and columns of all matrices.
    n: c_int,
    /// Scale of the product.
    alpha: *const c_void,
    /// Scale of the previous result.
    beta: *const c_void,
    left: *const c_void,
    right: *const c_void,
    result: *mut c_void,
}

impl Call {
    /// # Safety
    /// The matrices must hold `n * n` elements, and the scalars must have the compute type.
    unsafe fn cublas(&self, gemm: CublasGemmEx, (kind, compute): BlasTypes) -> c_int {
        let Self { handle, n, alpha, beta, left, right, result } = *self;
        let no_transpose = CUBLAS_OP_N;
        // SAFETY: guaranteed by the caller.
        #[rustfmt::skip]
        let code = unsafe {
            gemm(
                handle, no_transpose, no_transpose, n, n, n, alpha, left, kind, n, right, kind, n,
                beta, result, kind, n, compute, CUBLAS_GEMM_DEFAULT,
            )
        };
        code
    }

    /// # Safety
    /// See [`Call::cublas`].
    unsafe fn rocblas(&self, gemm: RocblasGemmEx, (kind, compute): BlasTypes) -> c_int {
        let Self { handle, n, alpha, beta, left, right, result } = *self;
        let no_transpose = ROCBLAS_OPERATION_NONE;
        // SAFETY: guaranteed by the caller.
        #[rustfmt::skip]
        let code = unsafe {
            gemm(
                handle, no_transpose, no_transpose, n, n, n, alpha, left, kind, n, right, kind, n,
                beta, result, kind, n, result, kind, n, compute, ROCBLAS_GEMM_ALGO_STANDARD, 0, 0,
            )
        };
        code
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is valid and not used afterwards.
            unsafe { (self.functions.destroy)(self.handle) };
        }
    }
}

fn check(what: &str, code: c_int) -> GpuResult {
    if code == SUCCESS {
        Ok(())
    } else {
        Err(GpuError::new(what, format!("library status {code}")))
    }
}
