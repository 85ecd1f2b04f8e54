//! Matrix products on a device.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::sys::{BlasFunctions, CublasGemmEx, Handle, OK, Product, RocblasGemmEx};
use super::{Device, GpuError, Memory};

/// What is multiplied. All but `f64` are added up as `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    F64,
    F32,
    /// `f32` in memory, of which the multiplication takes 19 bits.
    Tf32,
    F16,
    Bf16,
}

impl Number {
    pub const ALL: [Self; 5] = [Self::F64, Self::F32, Self::Tf32, Self::F16, Self::Bf16];

    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::Tf32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// cuBLAS's numbers for elements, and for the way to compute.
    fn cublas(self) -> (c_int, c_int) {
        match self {
            Self::F64 => (1, 70),
            Self::F32 => (0, 68),
            Self::Tf32 => (0, 77),
            Self::F16 => (2, 68),
            Self::Bf16 => (14, 68),
        }
    }

    /// rocBLAS's, which has no such thing as tf32 on most devices.
    fn rocblas(self) -> Option<(c_int, c_int)> {
        match self {
            Self::F64 => Some((152, 152)),
            Self::F32 => Some((151, 151)),
            Self::Tf32 => None,
            Self::F16 => Some((150, 151)),
            Self::Bf16 => Some((168, 151)),
        }
    }
}

/// Matrices as they are, not transposed.
const CUBLAS_PLAIN: c_int = 0;
const ROCBLAS_PLAIN: c_int = 111;
/// The library chooses.
const CUBLAS_ANY: c_int = -1;
const ROCBLAS_ANY: c_int = 0;

/// The BLAS library of a device.
pub struct Blas {
    functions: BlasFunctions,
    handle: Handle,
}

impl Blas {
    /// Opens the library, to queue its work where the device's other work is.
    pub fn open(device: &Device) -> Result<Self, GpuError> {
        Self::with(BlasFunctions::open(device.vendor())?, device)
    }

    pub(super) fn with(functions: BlasFunctions, device: &Device) -> Result<Self, GpuError> {
        let mut blas = Self { functions, handle: null_mut() };
        // SAFETY: the function writes one pointer.
        check("the BLAS library", unsafe { (blas.functions.create)(&mut blas.handle) })?;
        // SAFETY: both are ours.
        let code = unsafe { (blas.functions.set_stream)(blas.handle, device.stream()) };
        check("the BLAS library's stream", code)?;
        Ok(blas)
    }

    /// Whether it multiplies such numbers.
    pub fn has(&self, number: Number) -> bool {
        match self.functions.product {
            Product::Cublas(_) => true,
            Product::Rocblas(_) => number.rocblas().is_some(),
        }
    }

    /// Queues the product of two matrices of `size` rows, column by column: left, right, result.
    pub fn product(
        &self,
        device: &Device,
        number: Number,
        size: usize,
        matrices: [&Memory; 3],
    ) -> Result<(), GpuError> {
        let what = || format!("a product of {} on GPU {}", number.name(), device.number());
        let short = matrices.iter().any(|matrix| matrix.bytes < size * size * number.bytes());
        let Some(n) = c_int::try_from(size).ok().filter(|_| !short) else {
            return Err(GpuError { what: what(), why: format!("no room for {size} rows") });
        };
        let [left, right, result] = matrices.map(|matrix| matrix.start);
        let (double, single) = ([1.0f64, 0.0], [1.0f32, 0.0]);
        let [alpha, beta]: [*const c_void; 2] = match number {
            Number::F64 => [(&raw const double[0]).cast(), (&raw const double[1]).cast()],
            _ => [(&raw const single[0]).cast(), (&raw const single[1]).cast()],
        };
        let call = Call { handle: self.handle, n, alpha, beta, left, right, result };
        let code = match (self.functions.product, number.rocblas()) {
            // SAFETY: the memory has room for such matrices; the scales are of the type that is
            // computed in, and are read before the function returns.
            (Product::Cublas(gemm), _) => unsafe { call.cublas(gemm, number.cublas()) },
            // SAFETY: as before.
            (Product::Rocblas(gemm), Some(types)) => unsafe { call.rocblas(gemm, types) },
            (Product::Rocblas(_), None) => {
                return Err(GpuError { what: what(), why: "the library has none".to_owned() });
            }
        };
        // Its words are only put together when they are needed: it is called often.
        check("", code).map_err(|error| GpuError { what: what(), ..error })
    }
}

/// What both libraries are told of a product.
struct Call {
    handle: Handle,
    /// Rows and columns of all matrices.
    n: c_int,
    /// What the product is multiplied with.
    alpha: *const c_void,
    /// What the result that was there before is multiplied with.
    beta: *const c_void,
    left: *const c_void,
    right: *const c_void,
    result: *mut c_void,
}

impl Call {
    /// # Safety
    /// The matrices must have room for `n` times `n` elements, and the scales be of the type that
    /// is computed in.
    unsafe fn cublas(&self, gemm: CublasGemmEx, (kind, compute): (c_int, c_int)) -> c_int {
        let Self { handle, n, alpha, beta, left, right, result } = *self;
        let plain = CUBLAS_PLAIN;
        // SAFETY: as the caller says.
        #[rustfmt::skip]
        let code = unsafe {
            gemm(
                handle, plain, plain, n, n, n, alpha, left, kind, n, right, kind, n,
                beta, result, kind, n, compute, CUBLAS_ANY,
            )
        };
        code
    }

    /// # Safety
    /// As before.
    unsafe fn rocblas(&self, gemm: RocblasGemmEx, (kind, compute): (c_int, c_int)) -> c_int {
        let Self { handle, n, alpha, beta, left, right, result } = *self;
        let plain = ROCBLAS_PLAIN;
        // SAFETY: as the caller says.
        #[rustfmt::skip]
        let code = unsafe {
            gemm(
                handle, plain, plain, n, n, n, alpha, left, kind, n, right, kind, n,
                beta, result, kind, n, result, kind, n, compute, ROCBLAS_ANY, 0, 0,
            )
        };
        code
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is ours, and nobody uses it any more.
            unsafe { (self.functions.destroy)(self.handle) };
        }
    }
}

fn check(what: &str, code: c_int) -> Result<(), GpuError> {
    match code {
        OK => Ok(()),
        code => Err(GpuError { what: what.to_owned(), why: format!("the library says {code}") }),
    }
}
