//! Reduction kernels, limited by memory bandwidth. Plain loops that the compiler vectorises, once
//! per instruction set; the CPU is detected at run time.
//!
//! f16 and bf16 are computed in f32 and rounded to nearest even. [`reduce_many`] accumulates all
//! inputs in f32 and rounds once. Buffers may be unaligned.

mod accumulate_f32;
mod f16;
mod reduce_fn;
pub mod stream;

use std::ops::Range;

use self::reduce_fn::{
    Bf16, Max, Min, Product, ReduceFn, Reducible, Sum, Unaligned, elements, elements_mut,
};
use crate::{DType, ReduceOp};

/// Block size when many inputs are reduced: a block of the output stays in the L1 cache.
const BLOCK_BYTES: usize = 4 << 10;

/// `into = into ∘ from`, up to the shorter length.
pub fn reduce(dtype: DType, op: ReduceOp, into: &mut [u8], from: &[u8]) {
    dispatch_dtype(dtype, op, Operands::Into(into, from));
}

/// `out = a ∘ b`.
pub fn reduce_pair(dtype: DType, op: ReduceOp, out: &mut [u8], a: &[u8], b: &[u8]) {
    dispatch_dtype(dtype, op, Operands::Two(out, a, b));
}

/// `out = (input(0) ∘ input(1)) ∘ … ∘ input(inputs - 1)`, in this order, divided by their number if the
/// reduction is an average.
pub fn reduce_many<'a>(
    dtype: DType,
    op: ReduceOp,
    out: &mut [u8],
    inputs: usize,
    input: impl Fn(usize) -> &'a [u8],
) {
    let rounds_twice = inputs > 2 || op == ReduceOp::Average;
    match inputs {
        0 => {}
        1 => copy(out, input(0)),
        _ if dtype.size() == 2 && dtype != DType::I16 && rounds_twice => {
            accumulate_f32::reduce_many(dtype, op, out, inputs, input);
        }
        _ => {
            for (at, block) in out.chunks_mut(BLOCK_BYTES).enumerate() {
                let range = at * BLOCK_BYTES..at * BLOCK_BYTES + block.len();
                let part = |i: usize| subslice(input(i), &range);
                reduce_pair(dtype, op, block, part(0), part(1));
                (2..inputs).for_each(|i| reduce(dtype, op, block, part(i)));
                finalize(dtype, op, inputs as u32, block);
            }
        }
    }
}

/// The part of `range` that is inside.
fn subslice<'a>(of: &'a [u8], range: &Range<usize>) -> &'a [u8] {
    &of[range.start.min(of.len())..range.end.min(of.len())]
}

/// Divides by the number of ranks if the reduction is an average.
pub fn finalize(dtype: DType, op: ReduceOp, ranks: u32, data: &mut [u8]) {
    if op != ReduceOp::Average {
        return;
    }
    match dtype {
        DType::F16 => f16::divide(data, ranks),
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

/// Operands of a reduction loop.
enum Operands<'a> {
    Into(&'a mut [u8], &'a [u8]),
    Two(&'a mut [u8], &'a [u8], &'a [u8]),
}

fn dispatch_dtype(dtype: DType, op: ReduceOp, operands: Operands<'_>) {
    match dtype {
        DType::F16 => dispatch_f16_op(op, operands),
        DType::Bf16 => dispatch_op::<Bf16>(op, operands),
        DType::F32 => dispatch_op::<f32>(op, operands),
        DType::F64 => dispatch_op::<f64>(op, operands),
        DType::I8 => dispatch_op::<i8>(op, operands),
        DType::I16 => dispatch_op::<i16>(op, operands),
        DType::I32 => dispatch_op::<i32>(op, operands),
        DType::I64 => dispatch_op::<i64>(op, operands),
        DType::U8 => dispatch_op::<u8>(op, operands),
    }
}

fn dispatch_op<T: Reducible>(op: ReduceOp, operands: Operands<'_>) {
    match op {
        ReduceOp::Sum | ReduceOp::Average => run::<T, Sum>(operands),
        ReduceOp::Product => run::<T, Product>(operands),
        ReduceOp::Min => run::<T, Min>(operands),
        ReduceOp::Max => run::<T, Max>(operands),
    }
}

fn dispatch_f16_op(op: ReduceOp, operands: Operands<'_>) {
    match op {
        ReduceOp::Sum | ReduceOp::Average => f16::run::<Sum>(operands),
        ReduceOp::Product => f16::run::<Product>(operands),
        ReduceOp::Min => f16::run::<Min>(operands),
        ReduceOp::Max => f16::run::<Max>(operands),
    }
}

/// The reduction loop, compiled once per instruction set below.
#[inline(always)]
fn reduce_loop<T: Reducible, F: ReduceFn>(operands: Operands<'_>) {
    match operands {
        Operands::Into(into, from) => {
            for (into, from) in elements_mut::<T>(into).iter_mut().zip(elements::<T>(from)) {
                *into = Unaligned(F::apply(into.0, from.0));
            }
        }
        Operands::Two(out, a, b) => {
            let inputs = elements::<T>(a).iter().zip(elements::<T>(b));
            for (out, (a, b)) in elements_mut::<T>(out).iter_mut().zip(inputs) {
                *out = Unaligned(F::apply(a.0, b.0));
            }
        }
    }
}

#[inline(always)]
fn divide_loop<T: Reducible>(data: &mut [u8], ranks: u32) {
    for value in elements_mut::<T>(data) {
        *value = Unaligned(T::div_by(value.0, ranks));
    }
}

#[cfg(target_arch = "x86_64")]
mod isa {
    use super::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub fn avx512<T: Reducible, F: ReduceFn>(operands: Operands<'_>) {
        reduce_loop::<T, F>(operands);
    }

    #[target_feature(enable = "avx2")]
    pub fn avx2<T: Reducible, F: ReduceFn>(operands: Operands<'_>) {
        reduce_loop::<T, F>(operands);
    }

    #[target_feature(enable = "avx2")]
    pub fn divide_avx2<T: Reducible>(data: &mut [u8], ranks: u32) {
        divide_loop::<T>(data, ranks);
    }
}

fn run<T: Reducible, F: ReduceFn>(operands: Operands<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        let vl_dq = is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512dq");
        if avx512 && vl_dq {
            // SAFETY: the CPU supports these instructions.
            return unsafe { isa::avx512::<T, F>(operands) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU supports these instructions.
            return unsafe { isa::avx2::<T, F>(operands) };
        }
    }
    reduce_loop::<T, F>(operands);
}

fn divide<T: Reducible>(data: &mut [u8], ranks: u32) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU supports these instructions.
        return unsafe { isa::divide_avx2::<T>(data, ranks) };
    }
    divide_loop::<T>(data, ranks);
}

#[cfg(test)]
mod tests;
