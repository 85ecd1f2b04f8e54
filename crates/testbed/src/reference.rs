//! The reference implementation of all collectives, computed from the inputs of all ranks. Tests
//! compare the engines with it, and [`crate::in_process`] uses it.

use half::{bf16, f16};

use regatta_comm::{CallKind, Counts, DType, ReduceOp};

/// The output of each rank. `inputs` follow the table at [`regatta_comm::Call`]; for a broadcast, the root's
/// input is its data. For per-pair counts see [`all_to_all_v`].
pub fn expected_outputs(
    kind: CallKind,
    dtype: DType,
    op: ReduceOp,
    root: usize,
    counts: &Counts,
    inputs: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let ranks = inputs.len();
    let size = dtype.size();
    let part = |all: &[u8], rank: usize| {
        let start = counts.offset(rank) * size;
        all[start..start + counts.of(rank) * size].to_vec()
    };
    let only = |root: usize, bytes: Vec<u8>| {
        let mut all = vec![Vec::new(); ranks];
        all[root] = bytes;
        all
    };
    match kind {
        CallKind::AllReduce => vec![reduce(dtype, op, inputs); ranks],
        CallKind::Reduce => only(root, reduce(dtype, op, inputs)),
        CallKind::Broadcast => vec![inputs[root].clone(); ranks],
        CallKind::AllGather => vec![inputs.concat(); ranks],
        CallKind::Gather => only(root, inputs.concat()),
        CallKind::ReduceScatter => {
            let all = reduce(dtype, op, inputs);
            (0..ranks).map(|rank| part(&all, rank)).collect()
        }
        CallKind::Scatter => (0..ranks).map(|rank| part(&inputs[root], rank)).collect(),
        CallKind::AllToAll => {
            let from = |rank| (0..ranks).flat_map(|r| part(&inputs[r], rank)).collect();
            (0..ranks).map(from).collect()
        }
        CallKind::Barrier | CallKind::Send | CallKind::Receive => vec![Vec::new(); ranks],
    }
}

/// An all-to-all with per-pair counts: `send[r]` are the counts that rank `r` sends to each rank.
pub fn all_to_all_v(dtype: DType, send: &[Vec<usize>], inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let size = dtype.size();
    let part = |from: usize, to: usize| {
        let start = send[from][..to].iter().sum::<usize>() * size;
        &inputs[from][start..start + send[from][to] * size]
    };
    let output = |to| (0..inputs.len()).flat_map(|from| part(from, to).to_vec()).collect();
    (0..inputs.len()).map(output).collect()
}

/// The reduction of all inputs, in rank order.
fn reduce(dtype: DType, op: ReduceOp, inputs: &[Vec<u8>]) -> Vec<u8> {
    macro_rules! half {
        ($t:ident) => {
            // `from_f64` ignores the low half of the mantissa; the value is an f32.
            floats(
                op,
                inputs,
                |b| $t::from_ne_bytes(b).to_f64(),
                |v| $t::from_f32(v as f32).to_ne_bytes(),
            )
        };
    }
    macro_rules! by {
        ($reduce:ident, $t:ident, $wide:ident) => {
            $reduce(op, inputs, |b| $wide::from($t::from_ne_bytes(b)), |v| (v as $t).to_ne_bytes())
        };
    }
    match dtype {
        DType::F16 => half!(f16),
        DType::Bf16 => half!(bf16),
        DType::F32 => by!(floats, f32, f64),
        DType::F64 => by!(floats, f64, f64),
        DType::I8 => by!(integers, i8, i64),
        DType::I16 => by!(integers, i16, i64),
        DType::I32 => by!(integers, i32, i64),
        DType::I64 => by!(integers, i64, i64),
        DType::U8 => by!(integers, u8, i64),
    }
}

/// The value of an element, if it is a float.
pub fn float(dtype: DType, bytes: &[u8]) -> Option<f64> {
    Some(match dtype {
        DType::F16 => f16::from_ne_bytes(bytes.try_into().ok()?).to_f64(),
        DType::Bf16 => bf16::from_ne_bytes(bytes.try_into().ok()?).to_f64(),
        DType::F32 => f32::from_ne_bytes(bytes.try_into().ok()?).into(),
        DType::F64 => f64::from_ne_bytes(bytes.try_into().ok()?),
        _ => return None,
    })
}

fn floats<const N: usize>(
    op: ReduceOp,
    inputs: &[Vec<u8>],
    read: impl Fn([u8; N]) -> f64,
    write: impl Fn(f64) -> [u8; N],
) -> Vec<u8> {
    // Accumulated in f32 or, if it is wider, in the element type, as in the engines. NaN propagates
    // through min and max.
    let accumulate = |value: f64| if N == 2 { f64::from(value as f32) } else { read(write(value)) };
    let two = |a: f64, b: f64| match op {
        ReduceOp::Sum | ReduceOp::Average => a + b,
        ReduceOp::Product => a * b,
        ReduceOp::Min | ReduceOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
    };
    let ranks = inputs.len() as f64;
    let last = |all| if op == ReduceOp::Average { accumulate(all / ranks) } else { all };
    each(inputs, &read, |a, b| accumulate(two(a, b)), |all| write(last(all)))
}

fn integers<const N: usize>(
    op: ReduceOp,
    inputs: &[Vec<u8>],
    read: impl Fn([u8; N]) -> i64,
    write: impl Fn(i64) -> [u8; N],
) -> Vec<u8> {
    let two = |a: i64, b: i64| match op {
        ReduceOp::Sum | ReduceOp::Average => a.wrapping_add(b),
        ReduceOp::Product => a.wrapping_mul(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
    };
    let ranks = inputs.len() as i64;
    let last = |all| if op == ReduceOp::Average { all / ranks } else { all };
    each(inputs, &read, |a, b| read(write(two(a, b))), |all| write(last(all)))
}

/// Reduces the elements of all inputs at each index.
fn each<V, const N: usize>(
    inputs: &[Vec<u8>],
    read: impl Fn([u8; N]) -> V,
    two: impl Fn(V, V) -> V,
    write: impl Fn(V) -> [u8; N],
) -> Vec<u8> {
    let inputs: Vec<&[[u8; N]]> = inputs.iter().map(|input| input.as_chunks().0).collect();
    let Some((first, others)) = inputs.split_first() else { return Vec::new() };
    let count = inputs.iter().map(|input| input.len()).min().unwrap_or(0);
    let mut output = vec![[0; N]; count];
    for (at, element) in output.iter_mut().enumerate() {
        let all = others.iter().fold(read(first[at]), |all, input| two(all, read(input[at])));
        *element = write(all);
    }
    output.into_flattened()
}

/// Elements of a rank as input of a reduction: small integers, pseudo-random, whose sums and products are exact
/// in every dtype, so that the order of the reduction does not matter.
pub fn exact_input(dtype: DType, op: ReduceOp, seed: u64, rank: usize, count: usize) -> Vec<u8> {
    let stream = hash64(rank as u64) ^ seed;
    let value = |at: usize| -> i32 {
        let mixed = hash64(stream ^ (at as u64).wrapping_mul(0x9e37_79b9));
        match op {
            ReduceOp::Product => {
                let sign = if mixed & 1 == 0 { 1 } else { -1 };
                sign * (1 + i32::from((rank + at).is_multiple_of(5)))
            }
            _ => (mixed % 31) as i32 - 15,
        }
    };
    match dtype {
        DType::F16 => elements(count, |at| f16::from_f32(value(at) as f32).to_ne_bytes()),
        DType::Bf16 => elements(count, |at| bf16::from_f32(value(at) as f32).to_ne_bytes()),
        DType::F32 => elements(count, |at| (value(at) as f32).to_ne_bytes()),
        DType::F64 => elements(count, |at| f64::from(value(at)).to_ne_bytes()),
        DType::I8 => elements(count, |at| (value(at) as i8).to_ne_bytes()),
        DType::I16 => elements(count, |at| (value(at) as i16).to_ne_bytes()),
        DType::I32 => elements(count, |at| value(at).to_ne_bytes()),
        DType::I64 => elements(count, |at| i64::from(value(at)).to_ne_bytes()),
        DType::U8 => elements(count, |at| [value(at) as u8]),
    }
}

/// The bytes of elements.
fn elements<const N: usize>(count: usize, element: impl Fn(usize) -> [u8; N]) -> Vec<u8> {
    let mut all = vec![[0; N]; count];
    all.iter_mut().enumerate().for_each(|(at, bytes)| *bytes = element(at));
    all.into_flattened()
}

/// A 64-bit hash, as a source of pseudo-random values.
pub fn hash64(of: u64) -> u64 {
    let mixed = (of ^ (of >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_comm::dtype::bytes_of;

    fn of<T: regatta_comm::Element>(rows: &[&[T]]) -> Vec<Vec<u8>> {
        rows.iter().map(|r| bytes_of(r).to_vec()).collect()
    }

    #[test]
    fn matches_hand_computed_results() {
        let inputs = of(&[&[1i32, 5], &[2, -7], &[4, 0]]);
        let all = |kind, op, count| {
            expected_outputs(kind, DType::I32, op, 1, &Counts::Equal(count), &inputs)
        };
        assert_eq!(all(CallKind::AllReduce, ReduceOp::Sum, 2)[2], bytes_of(&[7i32, -2]));
        assert_eq!(all(CallKind::AllReduce, ReduceOp::Average, 2)[0], bytes_of(&[2i32, 0]));
        assert_eq!(all(CallKind::Reduce, ReduceOp::Max, 2)[1], bytes_of(&[4i32, 5]));
        assert!(all(CallKind::Reduce, ReduceOp::Max, 2)[0].is_empty());
        assert_eq!(all(CallKind::Broadcast, ReduceOp::Sum, 2)[0], bytes_of(&[2i32, -7]));
        let gathered = bytes_of(&[1i32, 5, 2, -7, 4, 0]);
        assert_eq!(all(CallKind::AllGather, ReduceOp::Sum, 2)[1], gathered);
        let uneven = Counts::PerRank(vec![0, 2, 0].into());
        let (kind, op) = (CallKind::ReduceScatter, ReduceOp::Min);
        let parts = expected_outputs(kind, DType::I32, op, 0, &uneven, &inputs);
        assert_eq!(parts, [vec![], bytes_of(&[1i32, -7]).to_vec(), vec![]]);
        let square = of(&[&[1u8, 2], &[3, 4]]);
        let (kind, op, counts) = (CallKind::AllToAll, ReduceOp::Sum, Counts::Equal(1));
        let transposed = expected_outputs(kind, DType::U8, op, 0, &counts, &square);
        assert_eq!(transposed, [[1, 3], [2, 4]]);
        let send = [vec![2, 0], vec![1, 1]];
        assert_eq!(all_to_all_v(DType::U8, &send, &square), [vec![1, 2, 3], vec![4]]);
    }

    #[test]
    fn inputs_are_the_same_small_integers_in_every_dtype() {
        let of = |dtype| exact_input(dtype, ReduceOp::Sum, 7, 3, 40);
        let ints: Vec<i32> =
            of(DType::I32).as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect();
        assert!(ints.iter().all(|int| (-15..=15).contains(int)) && ints[0] != ints[1]);
        let floats = of(DType::F64);
        let floats = floats.as_chunks().0.iter().map(|bytes| f64::from_ne_bytes(*bytes) as i32);
        assert!(floats.eq(ints.iter().copied()));
        assert_ne!(of(DType::U8), exact_input(DType::U8, ReduceOp::Sum, 7, 4, 40), "of the rank");
    }

    #[test]
    fn nan_propagates_through_min() {
        let inputs = of(&[&[f32::NAN], &[1.0]]);
        let min = reduce(DType::F32, ReduceOp::Min, &inputs);
        assert!(f32::from_ne_bytes(min.try_into().unwrap()).is_nan());
    }
}
