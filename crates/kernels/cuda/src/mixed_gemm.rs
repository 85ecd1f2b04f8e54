//! GEMMs of bf16 with an f32 output, which not every version of hipBLASLt has algorithms for.

use regatta_comm::DType;

use crate::blaslt::{Epilogue, Gemm, GemmArgs, GemmError};
use crate::elementwise::{Elements, SOURCE};
use crate::{CudaDevice, Ptr};

/// Alignment of the second operand's copy.
const ALIGNMENT: usize = 256;

/// Whether f32 copies of the operands replace a GEMM that the library does not support.
pub(crate) fn has_f32_replacement(gemm: &Gemm) -> bool {
    let is_mixed = (gemm.input, gemm.output) == (DType::Bf16, DType::F32);
    is_mixed && gemm.epilogue == Epilogue::None
}

impl CudaDevice {
    /// Multiplies f32 copies of bf16 operands: the products are the same, but slower.
    pub(crate) fn gemm_of_f32_copies(&self, gemm: Gemm, args: &GemmArgs) -> Result<(), GemmError> {
        let library = self.blas.describe();
        self.note(format!(
            "{library} has no bf16 GEMM with f32 output; operands are copied to f32"
        ));
        let [a_len, b_len] = [gemm.m * gemm.k, gemm.k * gemm.n].map(|elements| elements as usize);
        let bytes = |elements: usize| (elements * DType::F32.size()).next_multiple_of(ALIGNMENT);
        let a = self.scratch(bytes(a_len) + bytes(b_len));
        let b = a.offset_bytes(bytes(a_len));
        self.copy_to_f32(args.a, a, a_len);
        self.copy_to_f32(args.b, b, b_len);
        if self.has_failed() {
            return Ok(());
        }
        self.gemm(Gemm { input: DType::F32, ..gemm }, &GemmArgs { a, b, ..*args })
    }

    fn copy_to_f32(&self, from: Ptr, to: Ptr, len: usize) {
        let (elements, pointers) = (Elements::flat(len, &[from, to]), [from, to]);
        self.launch_elements(&SOURCE, "convert_bf16_f32".to_owned(), elements, &pointers, &[]);
    }
}
