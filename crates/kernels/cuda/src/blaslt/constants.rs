//! Numeric values of the enumerations in `cublasLt.h` and `hipblaslt.h`.

use std::ffi::c_int;

use regatta_comm::DType;
use regatta_comm::gpu_runtime::Vendor;
use regatta_device::ops::FP8_DTYPE;

/// The values that one vendor's library uses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Constants {
    /// `…_OP_N` and `…_OP_T`.
    pub operations: [i32; 2],
    /// `…_COMPUTE_32F`: f32 inputs are multiplied in f32, not TF32.
    pub compute_f32: c_int,
    /// `…_R_32F`.
    pub f32: c_int,
    /// `…_R_16BF`.
    pub bf16: c_int,
    pub desc: DescAttributes,
    /// `…_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
    pub max_workspace_bytes: c_int,
    /// `…_MATMUL_PREF_MIN_ALIGNMENT_{A,B,C,D}_BYTES`. hipBLASLt assumes no alignment.
    pub min_alignment_bytes: &'static [c_int],
    pub epilogues: Epilogues,
    /// GEMMs on fp8 operands, if they are supported.
    pub fp8: Option<Fp8Constants>,
}

/// Attributes and values of GEMMs on fp8 operands with a scale per row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fp8Constants {
    /// `…_R_8F_E4M3`.
    pub e4m3: c_int,
    /// `…_MATMUL_DESC_{A,B}_SCALE_POINTER`.
    pub scale_pointers: [c_int; 2],
    /// `…_MATMUL_DESC_{A,B}_SCALE_MODE`.
    pub scale_modes: [c_int; 2],
    /// `…_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`.
    pub outer_vector: c_int,
    /// `…_MATMUL_DESC_FAST_ACCUM`.
    pub fast_accumulation: c_int,
}

/// `…MatmulDescAttributes_t`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DescAttributes {
    pub transpose_a: c_int,
    pub transpose_b: c_int,
    pub epilogue: c_int,
    pub bias_pointer: c_int,
    pub bias_data_type: c_int,
    pub aux_pointer: c_int,
    pub aux_ld: c_int,
}

/// `…Epilogue_t`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Epilogues {
    pub default: u32,
    pub bias: u32,
    pub gelu_aux_bias: u32,
}

const EPILOGUES: Epilogues = Epilogues { default: 1, bias: 4, gelu_aux_bias: 164 };

static CUBLASLT: Constants = Constants {
    operations: [0, 1],
    compute_f32: 68,
    f32: 0,
    bf16: 14,
    desc: DescAttributes {
        transpose_a: 3,
        transpose_b: 4,
        epilogue: 7,
        bias_pointer: 8,
        bias_data_type: 26,
        aux_pointer: 11,
        aux_ld: 12,
    },
    max_workspace_bytes: 1,
    min_alignment_bytes: &[5, 6, 7, 8],
    epilogues: EPILOGUES,
    fp8: Some(Fp8Constants {
        e4m3: 28,
        scale_pointers: [17, 18],
        scale_modes: [31, 32],
        outer_vector: 3,
        fast_accumulation: 25,
    }),
};

/// Operations and compute types are in `hipblas-common.h` of hipBLAS-common, data types in
/// `hip/library_types.h` of HIP, the others in `hipblaslt/hipblaslt.h` of hipBLASLt, since ROCm 6.1.
static HIPBLASLT: Constants = Constants {
    operations: [111, 112],
    compute_f32: 2,
    f32: 0,
    bf16: 14,
    desc: DescAttributes {
        transpose_a: 0,
        transpose_b: 1,
        epilogue: 2,
        bias_pointer: 3,
        bias_data_type: 4,
        aux_pointer: 10,
        aux_ld: 11,
    },
    max_workspace_bytes: 1,
    min_alignment_bytes: &[],
    epilogues: EPILOGUES,
    // Its fp8 of gfx942 has another bias, and gfx90a has none.
    fp8: None,
};

impl Constants {
    /// The values of a vendor.
    pub fn of(vendor: Vendor) -> &'static Self {
        match vendor {
            Vendor::Nvidia => &CUBLASLT,
            Vendor::Amd => &HIPBLASLT,
        }
    }

    /// `cudaDataType` or `hipDataType`.
    ///
    /// # Panics
    /// If GEMMs do not support the dtype.
    pub fn data_type(&self, dtype: DType) -> c_int {
        match dtype {
            DType::F32 => self.f32,
            DType::Bf16 => self.bf16,
            FP8_DTYPE => self.fp8.as_ref().map_or(self.bf16, |fp8| fp8.e4m3),
            dtype => panic!("GEMM operands must be f32, bf16 or fp8, not {dtype}"),
        }
    }
}
