//! `elementwise.cu`.

use regatta_comm::DType;
use regatta_device::random::random_u32;

use super::super::launch::Launch;
use super::{Run, assert_vectors, for_elements, sum};

pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "add" => add,
        "scale" => scale,
        "dropout" => dropout,
        "convert" => convert,
        "copy_columns" => copy_columns,
        "fill" => fill,
        "fill_f64" => fill_f64,
        "fill_i32" => fill_i32,
        "sum_of_squares" => sum_of_squares,
        "add_scalars" => add_scalars,
        "add_column_partials" => add_column_partials,
        _ => return None,
    })
}

/// Threads of the kernels that reduce to a scalar.
const THREADS: usize = 256;

/// `COLUMNS` and `LANES` of `add_column_partials`.
const COLUMNS: usize = 32;
const LANES: usize = 16;

fn add(launch: &Launch<'_>) {
    let mut args = launch.args();
    let pointers = [args.ptr(), args.ptr(), args.ptr()];
    let (len, vectorised) = (args.size(), args.size());
    let [x, y, z] = [0, 1, 2].map(|at| launch.array(pointers[at], launch.dtypes[at], len));
    for_elements(launch, len, vectorised, |first, count| {
        assert_vectors(&[x, y, z], first, count);
        (first..first + count).for_each(|at| z.set(at, x.get(at) + y.get(at)));
    });
}

fn scale(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (x, by, len, vectorised) = (args.ptr(), args.f32(), args.size(), args.size());
    let x = launch.array(x, launch.dtypes[0], len);
    for_elements(launch, len, vectorised, |first, count| {
        assert_vectors(&[x], first, count);
        (first..first + count).for_each(|at| x.set(at, x.get(at) * by));
    });
}

fn dropout(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (x, (key, offset)) = (args.ptr(), args.mask());
    let (threshold, scale) = (args.f32(), args.f32());
    let (len, vectorised) = (args.size(), args.size());
    let x = launch.array(x, launch.dtypes[0], len);
    let factor = |at: usize| {
        let bits = random_u32(key, offset.wrapping_add(at as u64)) >> 8;
        if (bits as f32) < threshold { 0.0 } else { scale }
    };
    for_elements(launch, len, vectorised, |first, count| {
        assert_vectors(&[x], first, count);
        (first..first + count).for_each(|at| x.set(at, x.get(at) * factor(at)));
    });
}

fn convert(launch: &Launch<'_>) {
    let mut args = launch.args();
    let pointers = [args.ptr(), args.ptr()];
    let (len, vectorised) = (args.size(), args.size());
    let [x, y] = [0, 1].map(|at| launch.array(pointers[at], launch.dtypes[at], len));
    for_elements(launch, len, vectorised, |first, count| {
        assert_vectors(&[x, y], first, count);
        (first..first + count).for_each(|at| y.set(at, x.get(at)));
    });
}

fn copy_columns(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (x, x_row, x_first) = (args.ptr(), args.size(), args.size());
    let (y, y_row, y_first) = (args.ptr(), args.size(), args.size());
    let (columns, len, vectorised) = (args.size32(), args.size(), args.size());
    let rows = len / columns;
    let x = launch.array(x, launch.dtypes[0], rows * x_row);
    let y = launch.array(y, launch.dtypes[1], rows * y_row);
    for_elements(launch, len, vectorised, |first, count| {
        let (row, column) = (first / columns, first % columns);
        assert!(column + count <= columns, "a vector crosses rows");
        let from = row * x_row + x_first + column;
        let to = row * y_row + y_first + column;
        x.assert_vector(from, count);
        y.assert_vector(to, count);
        (0..count).for_each(|i| y.set(to + i, x.get(from + i)));
    });
}

fn fill(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (x, value, len, vectorised) = (args.ptr(), args.f32(), args.size(), args.size());
    let x = launch.array(x, launch.dtypes[0], len);
    for_elements(launch, len, vectorised, |first, count| {
        assert_vectors(&[x], first, count);
        (first..first + count).for_each(|at| x.set(at, value));
    });
}

fn fill_f64(launch: &Launch<'_>) {
    fill_values(launch, f64::from);
}

fn fill_i32(launch: &Launch<'_>) {
    fill_values(launch, |value| value as i32);
}

fn fill_values<T: Copy>(launch: &Launch<'_>, convert: impl Fn(f32) -> T) {
    let mut args = launch.args();
    let (x, value, len) = (args.ptr(), args.f32(), args.size());
    let x = launch.values::<T>(x, len);
    for at in 0..len.min(launch.blocks[0] * launch.threads) {
        x.set(at, convert(value));
    }
}

fn sum_of_squares(launch: &Launch<'_>) {
    launch.assert_threads(THREADS);
    let mut args = launch.args();
    let (x, partials, len, vectorised) = (args.ptr(), args.ptr(), args.size(), args.size());
    let x = launch.array(x, launch.dtypes[0], len);
    if vectorised > 0 {
        x.assert_vector(0, 8);
    }
    let blocks = launch.blocks[0];
    let partials = launch.values::<f64>(partials, blocks);
    let mut sums = vec![0.0; blocks];
    for at in 0..len {
        let thread = if at < vectorised { at / 8 } else { at - vectorised };
        let value = x.get(at);
        sums[thread / THREADS % blocks] += f64::from(value * value);
    }
    sums.iter().enumerate().for_each(|(block, sum)| partials.set(block, *sum));
}

/// Partial sums are used once: they are overwritten, so that a later operation cannot read them.
fn add_scalars(launch: &Launch<'_>) {
    launch.assert_threads(THREADS);
    assert_eq!(launch.blocks, [1, 1, 1], "blocks");
    let mut args = launch.args();
    let (partials, count, sum) = (args.ptr(), args.size(), args.ptr());
    let (partials, sum) = (launch.values::<f64>(partials, count), launch.values::<f64>(sum, 1));
    let added: f64 = (0..count).map(|at| partials.get(at)).sum();
    sum.set(0, sum.get(0) + added);
    (0..count).for_each(|at| partials.set(at, f64::NAN));
}

/// As [`add_scalars`]. Adds to the first and the second tensor, and overwrites the third.
fn add_column_partials(launch: &Launch<'_>) {
    launch.assert_threads(COLUMNS * LANES);
    launch.assert_one_dimension();
    let mut args = launch.args();
    let (partials, count, columns) = (args.ptr(), args.size32(), args.size());
    let (first, first_len) = (args.ptr(), args.size());
    let (second, second_end, third) = (args.ptr(), args.size(), args.ptr());
    let partials = launch.array(partials, DType::F32, count * columns);
    let first = launch.array(first, DType::F32, first_len);
    let second = launch.optional_array(second, DType::F32, second_end - first_len);
    let third = launch.optional_array(third, DType::F32, columns - second_end);
    for column in 0..columns.min(launch.blocks[0] * COLUMNS) {
        let sum = sum((0..count).map(|row| partials.get(row * columns + column)));
        if column < first_len {
            first.add(column, sum);
        } else if column < second_end {
            second.unwrap().add(column - first_len, sum);
        } else {
            third.unwrap().set(column - second_end, sum);
        }
    }
    (0..count * columns).for_each(|at| partials.set(at, f32::NAN));
}
