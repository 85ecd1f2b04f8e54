//! Functions of cuBLASLt, or of hipBLASLt, which declares them identically but for their names.

use std::ffi::{c_int, c_void};

use libloading::Library;
use regatta_comm::gpu_runtime::{LibraryError, Stream, Vendor, symbol};

use crate::library_path;

/// `cublasLtHandle_t`.
pub(crate) type Handle = *mut c_void;
/// `cublasLtMatmulDesc_t`.
pub(crate) type MatmulDesc = *mut c_void;
/// `cublasLtMatrixLayout_t`.
pub(crate) type MatrixLayout = *mut c_void;
/// `cublasLtMatmulPreference_t`.
pub(crate) type MatmulPreference = *mut c_void;

/// Bytes of a `cublasLtMatmulAlgo_t`. A `hipblasLtMatmulAlgo_t` is shorter.
pub(crate) const ALGORITHM_BYTES: usize = 64;
/// Words of a `cublasLtMatmulAlgo_t`.
pub(crate) const CUBLASLT_ALGORITHM_WORDS: usize = 8;
/// Words of a `hipblasLtMatmulAlgo_t`: 16 bytes and a `size_t` (`hipblaslt/hipblaslt.h`).
pub(crate) const HIPBLASLT_ALGORITHM_WORDS: usize = 3;

/// An algorithm of a GEMM and its configuration. Opaque; valid for one version of the library.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Algorithm(pub [u8; ALGORITHM_BYTES]);

/// `cublasLtMatmulHeuristicResult_t`, for algorithms of some words.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeuristicResult<const WORDS: usize> {
    pub algorithm: [u64; WORDS],
    pub workspace_bytes: usize,
    /// The other fields are valid only if this is `SUCCESS`.
    pub state: c_int,
    pub waves: f32,
    pub reserved: [c_int; 4],
}

const _: () = {
    assert!(size_of::<Algorithm>() == 64 && align_of::<Algorithm>() == 8);
    assert!(size_of::<HeuristicResult<CUBLASLT_ALGORITHM_WORDS>>() == 96);
    assert!(size_of::<HeuristicResult<HIPBLASLT_ALGORITHM_WORDS>>() == 56);
};

/// `cublasLtMatmulAlgoGetHeuristic`.
#[rustfmt::skip]
pub(crate) type GetHeuristic = unsafe extern "C" fn(
    Handle, MatmulDesc, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout, MatmulPreference,
    c_int, *mut c_void, *mut c_int,
) -> c_int;

/// `cublasLtMatmul`.
#[rustfmt::skip]
pub(crate) type Matmul = unsafe extern "C" fn(
    Handle, MatmulDesc, *const c_void,
    *const c_void, MatrixLayout, *const c_void, MatrixLayout, *const c_void,
    *const c_void, MatrixLayout, *mut c_void, MatrixLayout,
    *const Algorithm, *mut c_void, usize, Stream,
) -> c_int;

/// The version of the library, which the vendors return differently.
#[derive(Clone, Copy)]
pub(crate) enum GetVersion {
    Cublas(unsafe extern "C" fn() -> usize),
    Hipblas(unsafe extern "C" fn(Handle, *mut c_int) -> c_int),
}

/// `cublasLtMatmulDescSetAttribute` and `cublasLtMatmulPreferenceSetAttribute`.
pub(crate) type SetAttribute =
    unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> c_int;

/// Functions of the library, named after `cublasLt…` and `hipblasLt…`.
pub(crate) struct Functions {
    pub vendor: Vendor,
    pub create: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub get_version: GetVersion,
    pub matmul_desc_create: unsafe extern "C" fn(*mut MatmulDesc, c_int, c_int) -> c_int,
    pub matmul_desc_destroy: unsafe extern "C" fn(MatmulDesc) -> c_int,
    pub matmul_desc_set_attribute: SetAttribute,
    pub matrix_layout_create:
        unsafe extern "C" fn(*mut MatrixLayout, c_int, u64, u64, i64) -> c_int,
    pub matrix_layout_destroy: unsafe extern "C" fn(MatrixLayout) -> c_int,
    pub matmul_preference_create: unsafe extern "C" fn(*mut MatmulPreference) -> c_int,
    pub matmul_preference_destroy: unsafe extern "C" fn(MatmulPreference) -> c_int,
    pub matmul_preference_set_attribute: SetAttribute,
    pub matmul_algo_get_heuristic: GetHeuristic,
    pub matmul: Matmul,
    /// Keeps the library loaded; a fake has none.
    pub _library: Option<Library>,
}

impl Functions {
    /// Loads the library of a vendor.
    pub fn open(vendor: Vendor) -> Result<Self, LibraryError> {
        let (variable, names, prefix, hint): (_, &[&str], _, _) = match vendor {
            Vendor::Nvidia => (
                "REGATTA_CUBLASLT",
                &["libcublasLt.so.13", "libcublasLt.so.12"],
                "cublasLt",
                "use CUDA 12 or newer",
            ),
            Vendor::Amd => (
                "REGATTA_HIPBLASLT",
                &["libhipblaslt.so.1", "libhipblaslt.so.0"],
                "hipblasLt",
                "use ROCm 6.1 or newer",
            ),
        };
        let library = library_path::open(variable, names)?;
        macro_rules! load {
            ($name:literal) => {
                symbol(&library, &format!("{prefix}{}", $name), hint)?
            };
        }
        Ok(Self {
            vendor,
            create: load!("Create"),
            destroy: load!("Destroy"),
            get_version: match vendor {
                Vendor::Nvidia => GetVersion::Cublas(load!("GetVersion")),
                Vendor::Amd => GetVersion::Hipblas(load!("GetVersion")),
            },
            matmul_desc_create: load!("MatmulDescCreate"),
            matmul_desc_destroy: load!("MatmulDescDestroy"),
            matmul_desc_set_attribute: load!("MatmulDescSetAttribute"),
            matrix_layout_create: load!("MatrixLayoutCreate"),
            matrix_layout_destroy: load!("MatrixLayoutDestroy"),
            matmul_preference_create: load!("MatmulPreferenceCreate"),
            matmul_preference_destroy: load!("MatmulPreferenceDestroy"),
            matmul_preference_set_attribute: load!("MatmulPreferenceSetAttribute"),
            matmul_algo_get_heuristic: load!("MatmulAlgoGetHeuristic"),
            matmul: load!("Matmul"),
            _library: Some(library),
        })
    }

    /// Name and version for users; hipBLASLt tells its version only to a handle.
    pub fn describe(&self) -> String {
        match self.get_version {
            GetVersion::Cublas(get) => {
                // SAFETY: the function has no preconditions.
                let version = unsafe { get() };
                format!("cuBLASLt {}.{}", version / 10_000, version % 10_000 / 100)
            }
            GetVersion::Hipblas(_) => "hipBLASLt".to_owned(),
        }
    }

    /// Name and version of the library, such as `cublaslt-130100`.
    ///
    /// # Safety
    /// `handle` must be valid.
    pub unsafe fn version(&self, handle: Handle) -> String {
        match self.get_version {
            // SAFETY: the function has no preconditions.
            GetVersion::Cublas(get) => format!("cublaslt-{}", unsafe { get() }),
            GetVersion::Hipblas(get) => {
                let mut version = 0;
                // SAFETY: the function writes one integer.
                unsafe { get(handle, &mut version) };
                format!("hipblaslt-{version}")
            }
        }
    }
}
