//! Descriptions of GEMMs.

use regatta_comm::DType;
use regatta_device::ops::{FP8_DTYPE, LinearShape};
use serde::{Deserialize, Serialize};

use crate::Ptr;

/// What follows the product before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Epilogue {
    /// Nothing.
    None,
    /// A bias of this dtype, one element per output feature.
    Bias(DType),
    /// A bias of this dtype, then GELU (tanh approximation); its input is stored, too.
    GeluAuxBias(DType),
}

/// A GEMM on column-major matrices: `d = op(a) op(b)`, or `d += op(a) op(b)` if it accumulates. `d` is
/// `m` by `n`, `op(a)` is `m` by `k`, `op(b)` is `k` by `n`. Equal GEMMs use the same algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Gemm {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub lda: u64,
    pub ldb: u64,
    pub ldd: u64,
    /// Dtype of `a` and `b`; [`regatta_device::ops::FP8_DTYPE`] is e4m3 with scales.
    pub input: DType,
    /// Dtype of `d`.
    pub output: DType,
    pub epilogue: Epilogue,
    pub accumulate: bool,
    /// All addresses are multiples of this number of bytes.
    pub alignment: u32,
}

impl std::fmt::Display for Gemm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pass = match (self.transpose_a, self.transpose_b) {
            (true, _) => "forward",
            (false, false) => "backward input",
            (false, true) => "backward weight",
        };
        let Self { m, n, k, .. } = self;
        let fp8 = if self.input == FP8_DTYPE { "fp8 " } else { "" };
        write!(f, "GEMM {pass} {fp8}{m}x{n}x{k}")?;
        match self.epilogue {
            Epilogue::None => Ok(()),
            Epilogue::Bias(_) => f.write_str(" + bias"),
            Epilogue::GeluAuxBias(_) => f.write_str(" + bias + GELU"),
        }
    }
}

/// Addresses of the matrices of a GEMM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GemmArgs {
    pub a: Ptr,
    pub b: Ptr,
    pub d: Ptr,
    /// Null without a bias.
    pub bias: Ptr,
    /// The input of GELU, as large as `d`; null without GELU.
    pub aux: Ptr,
    /// Scales of the rows of `a` and of `b`, if these are fp8.
    pub scales: [Ptr; 2],
}

impl GemmArgs {
    /// Without an epilogue.
    pub fn new(a: Ptr, b: Ptr, d: Ptr) -> Self {
        Self { a, b, d, bias: Ptr::NULL, aux: Ptr::NULL, scales: [Ptr::NULL; 2] }
    }
}

/// Alignment of an allocation, which cuBLASLt assumes by default.
const MAX_ALIGNMENT: u32 = 256;
/// Alignment of vectorised accesses and bulk copies. No more is needed, so that the addresses of most
/// layers have the same alignment.
const VECTOR_ALIGNMENT: u32 = 16;

/// A row-major tensor is a column-major matrix of the transposed shape: a GEMM of row-major tensors
/// computes the transposed output from the operands in reverse order.
impl Gemm {
    /// `y = x weightᵀ`. `a` is the weight, `b` is `x`.
    pub fn forward(shape: LinearShape, input: DType, output: DType) -> Self {
        let LinearShape { rows, inputs, outputs } = shape;
        Self {
            transpose_a: true,
            lda: inputs as u64,
            ldb: inputs as u64,
            ..Self::new([outputs, rows, inputs], input, output)
        }
    }

    /// `dx = dy weight`. `a` is the weight, `b` is `dy`.
    pub fn backward_input(shape: LinearShape, input: DType, output: DType) -> Self {
        let LinearShape { rows, inputs, outputs } = shape;
        Self::new([inputs, rows, outputs], input, output)
    }

    /// `dweight += dyᵀ x`. `a` is `x`, `b` is `dy`.
    pub fn backward_weight(shape: LinearShape, input: DType, output: DType) -> Self {
        let LinearShape { rows, inputs, outputs } = shape;
        Self {
            transpose_b: true,
            ldb: outputs as u64,
            accumulate: true,
            ..Self::new([inputs, outputs, rows], input, output)
        }
    }

    /// A GEMM of matrices without gaps, neither transposed.
    fn new([m, n, k]: [usize; 3], input: DType, output: DType) -> Self {
        let (m, n, k) = (m as u64, n as u64, k as u64);
        Self {
            m,
            n,
            k,
            transpose_a: false,
            transpose_b: false,
            lda: m,
            ldb: k,
            ldd: m,
            input,
            output,
            epilogue: Epilogue::None,
            accumulate: false,
            alignment: MAX_ALIGNMENT,
        }
    }

    /// With an epilogue.
    pub fn with_epilogue(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }

    /// Adds to the output or overwrites it.
    pub fn accumulate(self, accumulate: bool) -> Self {
        Self { accumulate, ..self }
    }

    /// With the alignment of the addresses.
    pub fn aligned_for(self, args: &GemmArgs) -> Self {
        let bits = [args.a, args.b, args.d, args.bias, args.aux].iter().fold(0, |all, p| all | p.0);
        let alignment = match 1 << bits.trailing_zeros().min(MAX_ALIGNMENT.trailing_zeros()) {
            MAX_ALIGNMENT => MAX_ALIGNMENT,
            alignment => VECTOR_ALIGNMENT.min(alignment),
        };
        Self { alignment, ..self }
    }

    /// Floating-point operations.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Bytes of `d`.
    pub fn output_bytes(&self) -> usize {
        (self.ldd * self.n) as usize * self.output.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LinearShape = LinearShape { rows: 5, inputs: 3, outputs: 7 };

    #[test]
    fn layouts_are_those_of_row_major_tensors() {
        let layout = |gemm: Gemm| {
            let dimensions = (gemm.m, gemm.n, gemm.k);
            (dimensions, (gemm.transpose_a, gemm.transpose_b), (gemm.lda, gemm.ldb, gemm.ldd))
        };
        let forward = Gemm::forward(SHAPE, DType::Bf16, DType::Bf16);
        assert_eq!(layout(forward), ((7, 5, 3), (true, false), (3, 3, 7)));
        let input = Gemm::backward_input(SHAPE, DType::Bf16, DType::Bf16);
        assert_eq!(layout(input), ((3, 5, 7), (false, false), (3, 7, 3)));
        let weight = Gemm::backward_weight(SHAPE, DType::Bf16, DType::F32);
        assert_eq!(layout(weight), ((3, 7, 5), (false, true), (3, 7, 3)));
        assert!(weight.accumulate && !input.accumulate);
        assert_eq!((weight.flops(), weight.output_bytes()), (210.0, 84));
    }

    #[test]
    fn alignment_is_that_of_the_least_aligned_address() {
        let gemm = Gemm::forward(SHAPE, DType::Bf16, DType::Bf16);
        let aligned = |a, bias| {
            let args = GemmArgs { bias: Ptr(bias), ..GemmArgs::new(Ptr(a), Ptr(512), Ptr(1024)) };
            gemm.aligned_for(&args).alignment
        };
        assert_eq!([aligned(256, 0), aligned(256, 768), aligned(4096, 128)], [256, 256, 16]);
        assert_eq!([aligned(64, 0), aligned(48, 0), aligned(256, 2)], [16, 16, 2]);
    }
}
