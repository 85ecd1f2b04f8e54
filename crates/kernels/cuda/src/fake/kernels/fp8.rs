//! `fp8.cu` and `fp8_transpose.cu`.

use regatta_comm::DType;
use regatta_device::e4m3;

use super::super::array::{Array, Values, rounded};
use super::super::launch::Launch;
use super::activation::{gelu_derivative, gelu_sigmoid};
use super::{Run, VECTOR};
use crate::Ptr;

/// Rows in registers.
pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "quantize_rows" => |launch| quantize(launch, 1, |x, _| x),
        "quantize_gelu" => |launch| quantize(launch, 2, |x, _| x * gelu_sigmoid(x)),
        "quantize_gelu_backward" => |launch| quantize(launch, 2, |x, dy| dy * gelu_derivative(x)),
        _ => return None,
    })
}

/// Transposed matrices.
pub(super) fn transpose_kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "column_maxima" => column_maxima,
        "quantize_transpose" => quantize_transpose,
        _ => return None,
    })
}

/// `THREADS`, `LANES`, `GROUPS` and `TILE` of the transposing source.
const TRANSPOSE_THREADS: usize = 256;
const LANES: usize = 16;
const GROUPS: usize = TRANSPOSE_THREADS / LANES;
const TILE: usize = 64;

/// Largest magnitudes below it are 0.
const MIN_MAGNITUDE: f32 = 1e-30;

fn scale_of(max: f32) -> f32 {
    if max >= MIN_MAGNITUDE { max / e4m3::MAX } else { 1.0 }
}

/// Rows in fp8.
#[derive(Clone, Copy)]
pub(super) struct Fp8Rows {
    values: Values<u8>,
    scales: Array,
}

impl Fp8Rows {
    pub fn new(
        launch: &Launch<'_>,
        [values, scales]: [Ptr; 2],
        rows: usize,
        columns: usize,
    ) -> Self {
        assert!(values.0.is_multiple_of(VECTOR as u64), "vectors of values are not aligned");
        let scales = launch.array(scales, DType::F32, rows);
        Self { values: launch.values(values, rows * columns), scales }
    }

    /// Writes a row of elements that were rounded to a dtype.
    pub fn set_row(&self, row: usize, x: &[f32], dtype: DType) {
        let stored: Vec<f32> = x.iter().map(|x| rounded(*x, dtype)).collect();
        let scale = scale_of(stored.iter().fold(0.0, |max, x| x.abs().max(max)));
        self.scales.set(row, scale);
        for (column, x) in stored.iter().enumerate() {
            self.values.set(row * stored.len() + column, e4m3::encode(x * (1.0 / scale)));
        }
    }
}

/// `tensors` tensors are the first arguments; the result is also written to the second.
fn quantize(launch: &Launch<'_>, tensors: usize, value: fn(f32, f32) -> f32) {
    let [columns, row_threads, block_rows] =
        ["COLUMNS", "ROW_THREADS", "BLOCK_ROWS"].map(|name| launch.define(name));
    launch.assert_threads(row_threads * block_rows);
    launch.assert_one_dimension();
    let rows = launch.args_from_end(1).size();
    let (dtype, mut args) = (launch.dtype("X_BF16"), launch.args());
    let arrays: Vec<Array> = (0..tensors).map(|_| args.array(dtype, rows * columns)).collect();
    let fp8 = Fp8Rows::new(launch, [args.ptr(), args.ptr()], rows, columns);
    let blocks = launch.blocks[0];
    let has_sums = launch.define("HAS_SUMS") == 1;
    let partials = args.ptr();
    let partials = has_sums.then(|| launch.array(partials, DType::F32, blocks * columns));
    for block in 0..blocks {
        let mut sums = vec![0.0; columns];
        for row in (0..rows).filter(|row| row / block_rows % blocks == block) {
            let inputs: Vec<Vec<f32>> =
                arrays.iter().map(|array| array.row(row * columns, columns, VECTOR)).collect();
            let second = inputs.last().unwrap();
            let results: Vec<f32> =
                inputs[0].iter().zip(second).map(|(x, y)| value(*x, *y)).collect();
            if let Some(to) = arrays.get(1) {
                results.iter().enumerate().for_each(|(at, x)| to.set(row * columns + at, *x));
            }
            fp8.set_row(row, &results, dtype);
            sums.iter_mut().zip(&results).for_each(|(sum, x)| *sum += x);
        }
        if let Some(partials) = partials {
            sums.iter().enumerate().for_each(|(at, sum)| partials.set(block * columns + at, *sum));
        }
    }
}

fn column_maxima(launch: &Launch<'_>) {
    launch.assert_threads(TRANSPOSE_THREADS);
    let mut args = launch.args();
    let (x, rows, columns, partials) = (args.ptr(), args.size(), args.size(), args.ptr());
    let x = launch.array(x, launch.dtypes[0], rows * columns);
    let [column_blocks, row_blocks, _] = launch.blocks;
    let partials = launch.array(partials, DType::F32, row_blocks * columns);
    for block in 0..row_blocks {
        for column in 0..columns.min(column_blocks * LANES * VECTOR) {
            let rows = (0..rows).filter(|row| row / GROUPS % row_blocks == block);
            let max = rows.map(|row| x.get(row * columns + column).abs()).fold(0.0, f32::max);
            partials.set(block * columns + column, max);
        }
    }
}

fn quantize_transpose(launch: &Launch<'_>) {
    launch.assert_threads(TRANSPOSE_THREADS);
    let mut args = launch.args();
    let (x, partials, count) = (args.ptr(), args.ptr(), args.size32());
    let (rows, columns) = (args.size(), args.size());
    let x = launch.array(x, launch.dtypes[0], rows * columns);
    let partials = launch.array(partials, DType::F32, count * columns);
    let values = launch.values::<u8>(args.ptr(), rows * columns);
    let scales = args.array(DType::F32, columns);
    let multiples = [rows, columns].iter().all(|len| len.is_multiple_of(16));
    assert!(multiples, "{rows} rows and {columns} columns");
    let [column_tiles, row_tiles, _] = launch.blocks;
    for column in 0..columns.min(column_tiles * TILE) {
        let maxima = (0..count).map(|at| partials.get(at * columns + column));
        let scale = scale_of(maxima.fold(0.0, f32::max));
        scales.set(column, scale);
        for row in 0..rows.min(row_tiles * TILE) {
            let x = x.get(row * columns + column);
            values.set(column * rows + row, e4m3::encode(x * (1.0 / scale)));
        }
    }
}
