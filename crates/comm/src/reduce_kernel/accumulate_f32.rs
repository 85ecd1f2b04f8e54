//! Reduces many f16 or bf16 inputs with an f32 accumulator.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::reduce_fn::{Bf16, Unaligned, elements, elements_mut};
use super::{copy, finalize, reduce, subslice};
use crate::dtype::{bytes_of, bytes_of_mut};
use crate::{DType, ReduceOp};

/// Elements per block: the accumulator and a converted input stay in the L1 cache.
const BLOCK: usize = 1024;
const ELEMENT_BYTES: usize = 2;

/// [`super::reduce_many`] for f16 and bf16.
pub fn reduce_many<'a>(
    dtype: DType,
    op: ReduceOp,
    out: &mut [u8],
    inputs: usize,
    input: impl Fn(usize) -> &'a [u8],
) {
    let (mut sum, mut next) = ([0f32; BLOCK], [0f32; BLOCK]);
    for (at, block) in out.chunks_mut(BLOCK * ELEMENT_BYTES).enumerate() {
        let start = at * BLOCK * ELEMENT_BYTES;
        let range = start..start + block.len();
        let count = block.len() / ELEMENT_BYTES;
        let (sum, next) = (&mut sum[..count], &mut next[..count]);
        widen(dtype, sum, subslice(input(0), &range));
        for i in 1..inputs {
            widen(dtype, next, subslice(input(i), &range));
            reduce(DType::F32, op, bytes_of_mut(sum), bytes_of(next));
        }
        finalize(DType::F32, op, inputs as u32, bytes_of_mut(sum));
        narrow(dtype, block, sum);
    }
}

fn widen(dtype: DType, out: &mut [f32], from: &[u8]) {
    if dtype == DType::F16 {
        let mut aligned = [f16::ZERO; BLOCK];
        let aligned = &mut aligned[..out.len()];
        copy(bytes_of_mut(aligned), from);
        return aligned.convert_to_f32_slice(out);
    }
    with_avx2(|| {
        for (out, from) in out.iter_mut().zip(elements::<Bf16>(from)) {
            *out = from.0.to_f32();
        }
    });
}

fn narrow(dtype: DType, out: &mut [u8], from: &[f32]) {
    if dtype == DType::F16 {
        let mut aligned = [f16::ZERO; BLOCK];
        let aligned = &mut aligned[..from.len()];
        aligned.convert_from_f32_slice(from);
        return copy(out, bytes_of(aligned));
    }
    with_avx2(|| {
        for (out, from) in elements_mut::<Bf16>(out).iter_mut().zip(from) {
            *out = Unaligned(Bf16::from_f32(*from));
        }
    });
}

/// Runs a loop compiled for AVX2, if the CPU supports it.
fn with_avx2(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn compiled(work: impl FnOnce()) {
            work();
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU supports these instructions.
            return unsafe { compiled(work) };
        }
    }
    work();
}
