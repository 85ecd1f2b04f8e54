//! `norm.cu` and `norm_generic.cu`.

use regatta_comm::DType;

use super::super::array::{Array, rounded};
use super::super::launch::{Args, Launch};
use super::fp8::Fp8Rows;
use super::{Run, VECTOR, sum};
use crate::Ptr;

/// Rows in registers.
pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "norm_forward" => |launch| norm_forward(launch, Rows::in_registers(launch)),
        "add_norm" => |launch| add_norm(launch, Rows::in_registers(launch)),
        "norm_backward" => backward_in_registers,
        _ => return None,
    })
}

/// Rows of any length.
pub(super) fn generic_kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "norm_forward" => |launch| norm_forward(launch, Rows::generic(launch)),
        "add_norm" => |launch| add_norm(launch, Rows::generic(launch)),
        "norm_backward" => backward_generic,
        "norm_backward_params" => backward_params,
        _ => return None,
    })
}

/// `THREADS` of the generic source.
const GENERIC_THREADS: usize = 256;

/// The rows of a launch.
#[derive(Clone, Copy)]
struct Rows {
    count: usize,
    columns: usize,
    /// Elements of an access.
    width: usize,
}

impl Rows {
    /// The last argument is the number of rows; the grid must have a block for each of them.
    fn in_registers(launch: &Launch<'_>) -> Self {
        let (columns, block_rows) = (launch.define("COLUMNS"), block_rows(launch));
        let rows = launch.args_from_end(1).size();
        let count = rows.min(launch.blocks[0] * block_rows);
        Self { count, columns, width: VECTOR }
    }

    /// The last argument is the number of columns; each block has a row.
    fn generic(launch: &Launch<'_>) -> Self {
        launch.assert_threads(GENERIC_THREADS);
        launch.assert_one_dimension();
        Self { count: launch.blocks[0], columns: launch.args_from_end(1).size(), width: 1 }
    }

    /// The arguments of rows in fp8, which only kernels with rows in registers have.
    fn fp8_pointers(self, args: &mut Args<'_>) -> [Ptr; 2] {
        if self.width == VECTOR { [args.ptr(), args.ptr()] } else { [Ptr::NULL; 2] }
    }

    fn fp8(self, launch: &Launch<'_>, pointers: [Ptr; 2]) -> Option<Fp8Rows> {
        let has_fp8 = self.width == VECTOR && launch.define("HAS_FP8") == 1;
        has_fp8.then(|| Fp8Rows::new(launch, pointers, self.count, self.columns))
    }

    fn elements(self) -> usize {
        self.count * self.columns
    }

    fn row(self, array: Array, row: usize) -> Vec<f32> {
        array.row(row * self.columns, self.columns, self.width)
    }
}

/// The rows of a block, of which a thread has vectors of 8 elements.
fn block_rows(launch: &Launch<'_>) -> usize {
    let [columns, row_threads, block_rows] =
        ["COLUMNS", "ROW_THREADS", "BLOCK_ROWS"].map(|name| launch.define(name));
    launch.assert_threads(row_threads * block_rows);
    launch.assert_one_dimension();
    let warp = launch.gpu.config.warp_size();
    assert!(columns.is_multiple_of(VECTOR) && row_threads.is_multiple_of(warp), "layout");
    block_rows
}

/// What a forward kernel reads and writes besides its input.
struct Forward {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    y: Array,
    fp8: Option<Fp8Rows>,
    mean_rstd: Array,
    eps: f32,
    is_rms: bool,
}

impl Forward {
    /// `fp8` are the arguments after `y` of kernels with rows in registers.
    fn new(launch: &Launch<'_>, rows: Rows, [weight, bias, y]: [Ptr; 3], fp8: [Ptr; 2]) -> Self {
        let mut last = launch.args_from_end(3);
        let (mean_rstd, eps) = (last.ptr(), last.f32());
        let parameters = launch.dtype("WEIGHT_BF16");
        let parameter = |array: Array| array.row(0, rows.columns, rows.width);
        Self {
            weight: parameter(launch.array(weight, parameters, rows.columns)),
            bias: launch.optional_array(bias, parameters, rows.columns).map(parameter),
            y: launch.array(y, launch.dtype("Y_BF16"), rows.elements()),
            fp8: rows.fp8(launch, fp8),
            mean_rstd: launch.array(mean_rstd, DType::F32, 2 * rows.count),
            eps,
            is_rms: launch.define("IS_RMS") == 1,
        }
    }

    /// The norm of a row.
    fn norm(&self, row: usize, rows: Rows, x: &[f32]) {
        let columns = rows.columns as f32;
        let mean = if self.is_rms { 0.0 } else { sum(x.iter().copied()) / columns };
        let squares = sum(x.iter().map(|x| (x - mean) * (x - mean)));
        let rstd = 1.0 / (squares / columns + self.eps).sqrt();
        self.mean_rstd.assert_vector(2 * row, 2);
        self.mean_rstd.set(2 * row, mean);
        self.mean_rstd.set(2 * row + 1, rstd);
        self.y.assert_vector(row * rows.columns, rows.width);
        let mut y = Vec::with_capacity(rows.columns);
        for (column, x) in x.iter().enumerate() {
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[column]);
            y.push((x - mean) * rstd * self.weight[column] + bias);
            self.y.set(row * rows.columns + column, y[column]);
        }
        if let Some(fp8) = self.fp8 {
            fp8.set_row(row, &y, self.y.dtype());
        }
    }
}

fn norm_forward(launch: &Launch<'_>, rows: Rows) {
    let mut args = launch.args();
    let x = args.array(launch.dtype("X_BF16"), rows.elements());
    let tensors = [args.ptr(), args.ptr(), args.ptr()];
    let forward = Forward::new(launch, rows, tensors, rows.fp8_pointers(&mut args));
    for row in 0..rows.count {
        forward.norm(row, rows, &rows.row(x, row));
    }
}

fn add_norm(launch: &Launch<'_>, rows: Rows) {
    let mut args = launch.args();
    let x_dtype = launch.dtype("X_BF16");
    let x = args.array(x_dtype, rows.elements());
    let delta = args.array(launch.dtype("DELTA_BF16"), rows.elements());
    let (weight, bias) = (args.ptr(), args.ptr());
    let sum = args.array(x_dtype, rows.elements());
    let tensors = [weight, bias, args.ptr()];
    let forward = Forward::new(launch, rows, tensors, rows.fp8_pointers(&mut args));
    for row in 0..rows.count {
        let both = rows.row(x, row).into_iter().zip(rows.row(delta, row));
        let sums: Vec<f32> = both.map(|(x, delta)| rounded(x + delta, x_dtype)).collect();
        sum.assert_vector(row * rows.columns, rows.width);
        sums.iter().enumerate().for_each(|(at, x)| sum.set(row * rows.columns + at, *x));
        forward.norm(row, rows, &sums);
    }
}

/// What a backward kernel reads and writes.
struct Backward {
    rows: Rows,
    dy: Array,
    x: Array,
    weight: Vec<f32>,
    mean_rstd: Array,
    dx: Array,
    dx_copy: Option<Array>,
    fp8: Option<Fp8Rows>,
    copy_dtype: DType,
    is_rms: bool,
}

impl Backward {
    fn new(launch: &Launch<'_>, rows: Rows) -> Self {
        let mut args = launch.args();
        Self {
            rows,
            dy: args.array(launch.dtype("Y_BF16"), rows.elements()),
            x: args.array(launch.dtype("X_BF16"), rows.elements()),
            weight: args.array(launch.dtype("WEIGHT_BF16"), rows.columns).row(
                0,
                rows.columns,
                rows.width,
            ),
            mean_rstd: args.array(DType::F32, 2 * rows.count),
            dx: args.array(launch.dtype("DX_BF16"), rows.elements()),
            dx_copy: launch.optional_array(args.ptr(), launch.dtype("COPY_BF16"), rows.elements()),
            fp8: rows.fp8(launch, rows.fp8_pointers(&mut args)),
            copy_dtype: launch.dtype("COPY_BF16"),
            is_rms: launch.define("IS_RMS") == 1,
        }
    }

    /// Updates the input's gradient of a row. Returns what the row adds to the gradients of the weight and of
    /// the bias, and the input's gradient.
    fn row(&self, row: usize) -> [Vec<f32>; 3] {
        let rows = self.rows;
        let dy = rows.row(self.dy, row);
        let normalised = normalised(&rows.row(self.x, row), self.mean_rstd, row);
        let columns = rows.columns as f32;
        let upstream: Vec<f32> = dy.iter().zip(&self.weight).map(|(dy, w)| dy * w).collect();
        let shift = if self.is_rms { 0.0 } else { sum(upstream.iter().copied()) / columns };
        let projection = sum(upstream.iter().zip(&normalised).map(|(a, b)| a * b)) / columns;
        let rstd = self.mean_rstd.get(2 * row + 1);
        for array in [Some(self.dx), self.dx_copy].into_iter().flatten() {
            array.assert_vector(row * rows.columns, rows.width);
        }
        let mut totals = Vec::with_capacity(rows.columns);
        for column in 0..rows.columns {
            let at = row * rows.columns + column;
            let added = (upstream[column] - shift - normalised[column] * projection) * rstd;
            let total = self.dx.get(at) + added;
            self.dx.set(at, total);
            if let Some(copy) = self.dx_copy {
                copy.set(at, total);
            }
            totals.push(total);
        }
        if let Some(fp8) = self.fp8 {
            fp8.set_row(row, &totals, self.copy_dtype);
        }
        let dweight = dy.iter().zip(&normalised).map(|(dy, x)| dy * x).collect();
        [dweight, dy, totals]
    }
}

fn normalised(x: &[f32], mean_rstd: Array, row: usize) -> Vec<f32> {
    mean_rstd.assert_vector(2 * row, 2);
    let (mean, rstd) = (mean_rstd.get(2 * row), mean_rstd.get(2 * row + 1));
    x.iter().map(|x| (x - mean) * rstd).collect()
}

/// A block has every `blocks`-th group of rows.
fn backward_in_registers(launch: &Launch<'_>) {
    let (columns, block_rows) = (launch.define("COLUMNS"), block_rows(launch));
    let mut last = launch.args_from_end(2);
    let (partials, rows) = (last.ptr(), last.size());
    let backward = Backward::new(launch, Rows { count: rows, columns, width: VECTOR });
    let is_summed = [true, launch.define("HAS_BIAS") == 1, launch.define("HAS_SUMS") == 1];
    let parts: Vec<usize> = (0..3).filter(|part| is_summed[*part]).collect();
    let blocks = launch.blocks[0];
    let partials = launch.array(partials, DType::F32, blocks * parts.len() * columns);
    for block in 0..blocks {
        let mut sums = vec![0.0; parts.len() * columns];
        for row in (0..rows).filter(|row| row / block_rows % blocks == block) {
            let of_row = backward.row(row);
            let added = parts.iter().flat_map(|part| &of_row[*part]);
            sums.iter_mut().zip(added).for_each(|(sum, x)| *sum += x);
        }
        let first = block * parts.len() * columns;
        partials.assert_vector(first, VECTOR);
        sums.iter().enumerate().for_each(|(at, sum)| partials.set(first + at, *sum));
    }
}

fn backward_generic(launch: &Launch<'_>) {
    let rows = Rows::generic(launch);
    let backward = Backward::new(launch, rows);
    (0..rows.count).for_each(|row| drop(backward.row(row)));
}

fn backward_params(launch: &Launch<'_>) {
    launch.assert_threads(GENERIC_THREADS);
    let mut args = launch.args();
    let (dy, x, mean_rstd, partials) = (args.ptr(), args.ptr(), args.ptr(), args.ptr());
    let (rows, columns, has_bias) = (args.size(), args.size(), args.flag());
    let dy = launch.array(dy, launch.dtype("Y_BF16"), rows * columns);
    let x = launch.array(x, launch.dtype("X_BF16"), rows * columns);
    let mean_rstd = launch.array(mean_rstd, DType::F32, 2 * rows);
    let [column_blocks, row_blocks, _] = launch.blocks;
    let row_len = if has_bias { 2 * columns } else { columns };
    let partials = launch.array(partials, DType::F32, row_blocks * row_len);
    for block in 0..row_blocks {
        for column in 0..columns.min(column_blocks * GENERIC_THREADS) {
            let (mut dweight, mut dbias) = (0.0, 0.0);
            for row in (block..rows).step_by(row_blocks) {
                let at = row * columns + column;
                dweight += dy.get(at) * normalised(&[x.get(at)], mean_rstd, row)[0];
                dbias += dy.get(at);
            }
            partials.set(block * row_len + column, dweight);
            if has_bias {
                partials.set(block * row_len + columns + column, dbias);
            }
        }
    }
}
