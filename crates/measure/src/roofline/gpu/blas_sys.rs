//! Function tables of cuBLAS and rocBLAS.

use std::ffi::{c_int, c_void};

use libloading::Library;
use regatta_comm::gpu_runtime::{LibraryError, Stream, Vendor, open_library, symbol};

/// A BLAS library handle.
pub type BlasHandle = *mut c_void;

/// The BLAS library.
pub struct BlasFunctions {
    pub create: unsafe extern "C" fn(*mut BlasHandle) -> c_int,
    pub destroy: unsafe extern "C" fn(BlasHandle) -> c_int,
    pub set_stream: unsafe extern "C" fn(BlasHandle, Stream) -> c_int,
    pub gemm: GemmFn,
    /// Keeps the library loaded.
    pub _library: Option<Library>,
}

/// GemmEx, which the vendors declare differently.
#[derive(Clone, Copy)]
pub enum GemmFn {
    /// Transpositions, sizes, alpha, left, right, beta, result, compute type, algorithm.
    Cublas(CublasGemmEx),
    /// Has a second result, and a solution index and flags at the end.
    Rocblas(RocblasGemmEx),
}

#[rustfmt::skip]
pub type CublasGemmEx = unsafe extern "C" fn(
    BlasHandle, c_int, c_int, c_int, c_int, c_int,
    *const c_void, *const c_void, c_int, c_int,
    *const c_void, c_int, c_int,
    *const c_void, *mut c_void, c_int, c_int,
    c_int, c_int,
) -> c_int;

#[rustfmt::skip]
pub type RocblasGemmEx = unsafe extern "C" fn(
    BlasHandle, c_int, c_int, c_int, c_int, c_int,
    *const c_void, *const c_void, c_int, c_int,
    *const c_void, c_int, c_int,
    *const c_void, *const c_void, c_int, c_int,
    *mut c_void, c_int, c_int,
    c_int, c_int,
    i32, u32,
) -> c_int;

impl BlasFunctions {
    /// Loads the BLAS library of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, LibraryError> {
        let (variable, names, [create, destroy, set_stream, gemm]): (_, &[&str], _) = match vendor {
            Vendor::Nvidia => (
                "REGATTA_CUBLAS",
                &["libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"],
                ["cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2", "cublasGemmEx"],
            ),
            Vendor::Amd => (
                "REGATTA_ROCBLAS",
                &["librocblas.so.5", "librocblas.so.4", "librocblas.so.3"],
                [
                    "rocblas_create_handle",
                    "rocblas_destroy_handle",
                    "rocblas_set_stream",
                    "rocblas_gemm_ex",
                ],
            ),
        };
        let library = open_library(variable, names)?;
        let hint = "use CUDA 11, ROCm 5 or newer";
        Ok(Self {
            create: symbol(&library, create, hint)?,
            destroy: symbol(&library, destroy, hint)?,
            set_stream: symbol(&library, set_stream, hint)?,
            gemm: match vendor {
                Vendor::Nvidia => GemmFn::Cublas(symbol(&library, gemm, hint)?),
                Vendor::Amd => GemmFn::Rocblas(symbol(&library, gemm, hint)?),
            },
            _library: Some(library),
        })
    }
}
