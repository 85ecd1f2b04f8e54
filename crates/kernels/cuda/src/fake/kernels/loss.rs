//! `loss.cu`.

use regatta_comm::DType;

use super::super::array::Array;
use super::super::launch::Launch;
use super::fp8::Fp8Rows;
use super::{Run, VECTOR, exp, local_row, sum};

pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "cross_entropy" => |launch| cross_entropy(launch, false),
        "cross_entropy_fp8" => |launch| cross_entropy(launch, true),
        "cross_entropy_partials" => cross_entropy_partials,
        "cross_entropy_backward" => cross_entropy_backward,
        "merge_partials" => merge_partials,
        _ => return None,
    })
}

/// Bytes of a vector.
const VECTOR_BYTES: u64 = 16;

/// Threads per block of the kernel that merges partials.
const MERGE_THREADS: usize = 256;

/// The maximum, which ignores NaN, and the sum of the exponentials.
fn softmax(row: &[f32], dtype: DType) -> (f32, f32) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
    (max, sum(row.iter().map(|x| exp(x - base, dtype))))
}

/// Replaces logits by their gradient, and padding up to `row_len` by 0.
fn to_gradient(
    logits: Array,
    row: &[f32],
    row_len: usize,
    softmax: (f32, f32),
    scale: f32,
    target: Option<usize>,
) {
    let (max, sum_exp) = softmax;
    let factor = scale / sum_exp;
    for (column, x) in row.iter().enumerate() {
        let probability = exp(x - max, logits.dtype()) * factor;
        let one = if target == Some(column) { scale } else { 0.0 };
        logits.set(column, probability - one);
    }
    (row.len()..row_len).for_each(|column| logits.set(column, 0.0));
}

/// One block per row, whose aligned vectors are in shared memory.
fn cross_entropy(launch: &Launch<'_>, has_fp8: bool) {
    launch.assert_one_dimension();
    let mut args = launch.args();
    let (targets, logits, columns) = (args.ptr(), args.ptr(), args.size32());
    let (row_len, grad_scale, losses) = (args.size32(), args.f32(), args.ptr());
    let (rows, dtype) = (launch.blocks[0], launch.dtypes[0]);
    let targets = launch.values::<i32>(targets, rows);
    let losses = launch.values::<f64>(losses, rows);
    let all = launch.array(logits, dtype, rows * row_len);
    let fp8 = has_fp8.then(|| Fp8Rows::new(launch, [args.ptr(), args.ptr()], rows, row_len));
    for row in 0..rows {
        let start = logits.0 + (row * row_len * dtype.size()) as u64;
        // Rows that are written in fp8 are in shared memory with their padding.
        let copied = if has_fp8 { row_len } else { columns };
        let row_bytes = start % VECTOR_BYTES + (copied * dtype.size()) as u64;
        let shared_bytes = row_bytes.next_multiple_of(VECTOR_BYTES) as usize;
        assert!(shared_bytes <= launch.shared_bytes, "a row of {shared_bytes} bytes");
        let logits = all.from(row * row_len);
        let values = logits.row(0, columns, 1);
        let target = local_row(targets.get(row), 0, columns);
        let target_logit = target.map_or(0.0, |target| values[target]);
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum_exp = sum(values.iter().map(|x| exp(x - max, dtype)));
        to_gradient(logits, &values, row_len, (max, sum_exp), grad_scale, target);
        if let Some(fp8) = fp8 {
            fp8.set_row(row, &logits.row(0, row_len, VECTOR), dtype);
        }
        losses.set(row, loss_of(max.into(), sum_exp.into(), target_logit.into()));
    }
}

fn loss_of(max: f64, sum_exp: f64, target_logit: f64) -> f64 {
    max - target_logit + sum_exp.ln()
}

fn cross_entropy_partials(launch: &Launch<'_>) {
    launch.assert_one_dimension();
    let mut args = launch.args();
    let (targets, first, logits) = (args.ptr(), args.size(), args.ptr());
    let (columns, row_len, partials) = (args.size32(), args.size32(), args.ptr());
    let (rows, dtype) = (launch.blocks[0], launch.dtypes[0]);
    let targets = launch.values::<i32>(targets, rows);
    let logits = launch.array(logits, dtype, rows * row_len);
    let partials = launch.array(partials, DType::F32, 3 * rows);
    for row in 0..rows {
        let values = logits.row(row * row_len, columns, 1);
        let (max, sum_exp) = softmax(&values, dtype);
        let target = local_row(targets.get(row), first, columns);
        let of_row = [max, sum_exp, target.map_or(0.0, |target| values[target])];
        (0..3).for_each(|at| partials.set(3 * row + at, of_row[at]));
    }
}

fn cross_entropy_backward(launch: &Launch<'_>) {
    launch.assert_one_dimension();
    let mut args = launch.args();
    let (targets, first, merged) = (args.ptr(), args.size(), args.ptr());
    let (logits, columns, row_len) = (args.ptr(), args.size32(), args.size32());
    let grad_scale = args.f32();
    let rows = launch.blocks[0];
    let targets = launch.values::<i32>(targets, rows);
    let merged = launch.array(merged, DType::F32, 3 * rows);
    let all = launch.array(logits, launch.dtypes[0], rows * row_len);
    for row in 0..rows {
        let logits = all.from(row * row_len);
        let values = logits.row(0, columns, 1);
        let softmax = (merged.get(3 * row), merged.get(3 * row + 1));
        let target = local_row(targets.get(row), first, columns);
        to_gradient(logits, &values, row_len, softmax, grad_scale, target);
    }
}

fn merge_partials(launch: &Launch<'_>) {
    launch.assert_threads(MERGE_THREADS);
    launch.assert_one_dimension();
    let mut args = launch.args();
    let (partials, rows, sets) = (args.ptr(), args.size(), args.size32());
    let (merged, losses) = (args.ptr(), args.ptr());
    let partials = launch.array(partials, DType::F32, 3 * sets * rows);
    let merged = launch.optional_array(merged, DType::F32, 3 * rows);
    let losses = (losses.0 != 0).then(|| launch.values::<f64>(losses, rows));
    for row in 0..rows.min(launch.blocks[0] * MERGE_THREADS) {
        let partial = |set: usize, at: usize| f64::from(partials.get(3 * (set * rows + row) + at));
        let max = (0..sets).map(|set| partial(set, 0)).fold(f64::NEG_INFINITY, f64::max);
        let (mut sum_exp, mut target_logit) = (0.0, 0.0);
        for set in 0..sets {
            if partial(set, 1) != 0.0 {
                sum_exp += partial(set, 1) * (partial(set, 0) - max).exp();
            }
            target_logit += partial(set, 2);
        }
        if let Some(merged) = merged {
            let of_row = [max, sum_exp, target_logit];
            (0..3).for_each(|at| merged.set(3 * row + at, of_row[at] as f32));
        }
        if let Some(losses) = losses {
            losses.set(row, loss_of(max, sum_exp, target_logit));
        }
    }
}
