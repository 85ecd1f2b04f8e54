//! Compares the kernels with scalar arithmetic, element by element.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::dtype::bytes_of;
use crate::reference::{expected_outputs, float};
use crate::{CallKind, Counts};

/// Equality that treats all NaNs as equal and ignores the sign of zero.
fn same(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let floats = float(dtype, a).zip(float(dtype, b));
    floats.map_or(a == b, |(a, b)| a == b || (a.is_nan() && b.is_nan()))
}

fn check(dtype: DType, op: ReduceOp, inputs: &[Vec<u8>], out: &[u8]) -> Result<(), TestCaseError> {
    let counts = Counts::Equal(inputs[0].len() / dtype.size());
    let expected = &expected_outputs(CallKind::AllReduce, dtype, op, 0, &counts, inputs)[0];
    let size = dtype.size();
    for (at, (got, expected)) in out.chunks(size).zip(expected.chunks(size)).enumerate() {
        let same = same(dtype, got, expected);
        prop_assert!(same, "{dtype} {op} at {at}: {got:?}, not {expected:?}");
    }
    Ok(())
}

proptest! {
    /// Random bytes include infinities, NaNs and values that overflow.
    #[test]
    fn all_dtypes_and_ops_match_the_reference_at_any_alignment(
        seed in prop::collection::vec(any::<u8>(), 1..2000),
        (dtype, op) in (prop::sample::select(&DType::ALL[..]), prop::sample::select(&ReduceOp::ALL[..])),
        ranks in 1usize..6,
        count in 0usize..300,
        start in 0usize..9,
    ) {
        let bytes = count * dtype.size();
        let byte = |rank: usize, i: usize| seed[(i * (rank + 1) + rank) % seed.len()];
        let inputs: Vec<Vec<u8>> =
            (0..ranks).map(|r| (0..bytes).map(|i| byte(r, i)).collect()).collect();
        let shifted: Vec<Vec<u8>> =
            inputs.iter().map(|i| [&vec![0; start][..], i].concat()).collect();
        let slices: Vec<&[u8]> = shifted.iter().map(|i| &i[start..]).collect();
        let mut out = vec![0u8; start + bytes];
        reduce_many(dtype, op, &mut out[start..], slices.len(), |i| slices[i]);
        check(dtype, op, &inputs, &out[start..])?;

        // One by one, 16-bit floats are rounded after each step.
        let rounds_once = dtype.size() > 2 || dtype == DType::I16 || ranks < 3 && op != ReduceOp::Average;
        if !rounds_once {
            return Ok(());
        }
        let mut one_by_one = shifted[0].clone();
        for more in &slices[1..] {
            reduce(dtype, op, &mut one_by_one[start..], more);
        }
        finalize(dtype, op, ranks as u32, &mut one_by_one[start..]);
        check(dtype, op, &inputs, &one_by_one[start..])?;
    }
}

#[test]
fn reduce_many_covers_all_blocks() {
    let count = 3 * BLOCK_BYTES / 4 + 5;
    let inputs: Vec<Vec<u8>> = (0..4u32)
        .map(|r| (0..count as u32).flat_map(|i| ((i * r) as f32).to_ne_bytes()).collect())
        .collect();
    let slices: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut out = vec![0; count * 4];
    reduce_many(DType::F32, ReduceOp::Sum, &mut out, slices.len(), |i| slices[i]);
    for (i, got) in out.chunks(4).enumerate() {
        assert_eq!(f32::from_ne_bytes(got.try_into().unwrap()), (6 * i) as f32);
    }
}

#[test]
fn bf16_and_f16_accumulate_in_f32() {
    // Rounded after each step, 256 + 1 is 256 in bf16, and 2048 + 1 is 2048 in f16.
    for (dtype, large) in [(DType::Bf16, 256.0), (DType::F16, 2048.0)] {
        let of = |value: f32| match dtype {
            DType::Bf16 => bf16::from_f32(value).to_ne_bytes(),
            _ => f16::from_f32(value).to_ne_bytes(),
        };
        let inputs: Vec<[u8; 2]> = [large, 1.0, 1.0, 1.0, 1.0].map(of).to_vec();
        let mut out = [0; 2];
        reduce_many(dtype, ReduceOp::Sum, &mut out, inputs.len(), |i| &inputs[i][..]);
        assert_eq!(out, of(large + 4.0), "{dtype}");
        reduce_many(dtype, ReduceOp::Average, &mut out, inputs.len(), |i| &inputs[i][..]);
        assert_eq!(out, of((large + 4.0) / 5.0), "{dtype}");
    }
}

#[test]
fn bf16_rounds_to_nearest_even() {
    let of = |v: f32| bf16::from_f32(v).to_ne_bytes();
    let mut into = of(256.0);
    reduce(DType::Bf16, ReduceOp::Sum, &mut into, &of(1.0));
    assert_eq!(into, of(256.0));
    let mut into = of(258.0);
    reduce(DType::Bf16, ReduceOp::Sum, &mut into, &of(1.0));
    assert_eq!(into, of(260.0));
}

#[test]
fn min_and_max_order_signed_zeros() {
    let zeros = [bytes_of(&[0.0f32, -0.0, 1.0]).to_vec(), bytes_of(&[-0.0f32, 0.0, 1.0]).to_vec()];
    for (op, sign) in [(ReduceOp::Min, -0.0f32), (ReduceOp::Max, 0.0)] {
        for (a, b) in [(0, 1), (1, 0)] {
            let mut into = zeros[a].clone();
            reduce(DType::F32, op, &mut into, &zeros[b]);
            assert_eq!(into, bytes_of(&[sign, sign, 1.0]), "{op}");
        }
    }
}
