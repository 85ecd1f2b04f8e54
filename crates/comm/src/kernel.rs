//! Reductions of bytes, as fast as memory is. Plain loops, which the compiler makes vectors of,
//! once for each set of instructions that processors have; which one is asked at run time.
//!
//! Half precision is computed in single precision and rounded to nearest even after every step, so
//! that the result does not depend on how many are reduced at once. Bytes may begin anywhere.

mod half_floats;
mod number;
pub mod stream;

use self::number::{
    Bf16, Fold, Greatest, Least, Number, Product, Sum, Unaligned, lanes, lanes_mut,
};
use crate::{DType, ReduceOp};

/// What is reduced in one go when there are many: it stays in the nearest cache.
const BLOCK_BYTES: usize = 8 << 10;

/// `into = into ∘ from`. Where lengths differ, the shorter counts.
pub fn reduce(dtype: DType, op: ReduceOp, into: &mut [u8], from: &[u8]) {
    each_type(dtype, op, Work::Into(into, from));
}

/// `out = a ∘ b`.
pub fn reduce_two(dtype: DType, op: ReduceOp, out: &mut [u8], a: &[u8], b: &[u8]) {
    each_type(dtype, op, Work::Two(out, a, b));
}

/// `out = (input(0) ∘ input(1)) ∘ … ∘ input(inputs - 1)`, in this order.
pub fn reduce_many<'a>(
    dtype: DType,
    op: ReduceOp,
    out: &mut [u8],
    inputs: usize,
    input: impl Fn(usize) -> &'a [u8],
) {
    match inputs {
        0 => {}
        1 => copy(out, input(0)),
        2 => reduce_two(dtype, op, out, input(0), input(1)),
        _ => {
            for (at, block) in out.chunks_mut(BLOCK_BYTES).enumerate() {
                let start = at * BLOCK_BYTES;
                let cut = |input: &'a [u8]| &input[start.min(input.len())..];
                reduce_two(dtype, op, block, cut(input(0)), cut(input(1)));
                (2..inputs).for_each(|i| reduce(dtype, op, block, cut(input(i))));
            }
        }
    }
}

/// What is left to do after all were reduced: the average's division.
pub fn finish(dtype: DType, op: ReduceOp, ranks: u32, data: &mut [u8]) {
    if op != ReduceOp::Average {
        return;
    }
    match dtype {
        DType::F16 => half_floats::divide(data, ranks),
        DType::Bf16 => divide::<Bf16>(data, ranks),
        DType::F32 => divide::<f32>(data, ranks),
        DType::F64 => divide::<f64>(data, ranks),
        DType::I8 => divide::<i8>(data, ranks),
        DType::I16 => divide::<i16>(data, ranks),
        DType::I32 => divide::<i32>(data, ranks),
        DType::I64 => divide::<i64>(data, ranks),
        DType::U8 => divide::<u8>(data, ranks),
    }
}

fn copy(out: &mut [u8], from: &[u8]) {
    let length = out.len().min(from.len());
    out[..length].copy_from_slice(&from[..length]);
}

/// What a loop has to do.
enum Work<'a> {
    Into(&'a mut [u8], &'a [u8]),
    Two(&'a mut [u8], &'a [u8], &'a [u8]),
}

fn each_type(dtype: DType, op: ReduceOp, work: Work<'_>) {
    match dtype {
        DType::F16 => each_op_of_halves(op, work),
        DType::Bf16 => each_op::<Bf16>(op, work),
        DType::F32 => each_op::<f32>(op, work),
        DType::F64 => each_op::<f64>(op, work),
        DType::I8 => each_op::<i8>(op, work),
        DType::I16 => each_op::<i16>(op, work),
        DType::I32 => each_op::<i32>(op, work),
        DType::I64 => each_op::<i64>(op, work),
        DType::U8 => each_op::<u8>(op, work),
    }
}

fn each_op<T: Number>(op: ReduceOp, work: Work<'_>) {
    match op {
        ReduceOp::Sum | ReduceOp::Average => run::<T, Sum>(work),
        ReduceOp::Product => run::<T, Product>(work),
        ReduceOp::Min => run::<T, Least>(work),
        ReduceOp::Max => run::<T, Greatest>(work),
    }
}

fn each_op_of_halves(op: ReduceOp, work: Work<'_>) {
    match op {
        ReduceOp::Sum | ReduceOp::Average => half_floats::run::<Sum>(work),
        ReduceOp::Product => half_floats::run::<Product>(work),
        ReduceOp::Min => half_floats::run::<Least>(work),
        ReduceOp::Max => half_floats::run::<Greatest>(work),
    }
}

/// The loop itself. It is compiled into each of the functions below.
#[inline(always)]
fn plain<T: Number, F: Fold>(work: Work<'_>) {
    match work {
        Work::Into(into, from) => {
            for (into, from) in lanes_mut::<T>(into).iter_mut().zip(lanes::<T>(from)) {
                *into = Unaligned(F::two(into.0, from.0));
            }
        }
        Work::Two(out, a, b) => {
            let inputs = lanes::<T>(a).iter().zip(lanes::<T>(b));
            for (out, (a, b)) in lanes_mut::<T>(out).iter_mut().zip(inputs) {
                *out = Unaligned(F::two(a.0, b.0));
            }
        }
    }
}

#[inline(always)]
fn plain_divide<T: Number>(data: &mut [u8], ranks: u32) {
    for value in lanes_mut::<T>(data) {
        *value = Unaligned(value.0.divided(ranks));
    }
}

#[cfg(target_arch = "x86_64")]
mod by_instructions {
    use super::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub fn avx512<T: Number, F: Fold>(work: Work<'_>) {
        plain::<T, F>(work);
    }

    #[target_feature(enable = "avx2")]
    pub fn avx2<T: Number, F: Fold>(work: Work<'_>) {
        plain::<T, F>(work);
    }

    #[target_feature(enable = "avx2")]
    pub fn divide_avx2<T: Number>(data: &mut [u8], ranks: u32) {
        plain_divide::<T>(data, ranks);
    }
}

fn run<T: Number, F: Fold>(work: Work<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        let whole = is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512dq");
        if wide && whole {
            // SAFETY: the processor has these instructions.
            return unsafe { by_instructions::avx512::<T, F>(work) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has these instructions.
            return unsafe { by_instructions::avx2::<T, F>(work) };
        }
    }
    plain::<T, F>(work);
}

fn divide<T: Number>(data: &mut [u8], ranks: u32) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has these instructions.
        return unsafe { by_instructions::divide_avx2::<T>(data, ranks) };
    }
    plain_divide::<T>(data, ranks);
}

#[cfg(test)]
mod tests;
