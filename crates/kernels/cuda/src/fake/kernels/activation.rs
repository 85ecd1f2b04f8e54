//! `activation.cu`.

use regatta_comm::DType;

use super::super::array::Array;
use super::super::launch::Launch;
use super::{Run, VECTOR, assert_vectors, for_elements, sigmoid};

pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "gelu" => gelu,
        "gelu_backward" => gelu_backward,
        "gelu_backward_bias" => gelu_backward_bias,
        "swiglu" => swiglu,
        "swiglu_backward" => swiglu_backward,
        _ => return None,
    })
}

/// `COLUMN_THREADS` of the source.
const COLUMN_THREADS: usize = 128;

/// sqrt(2 / pi), twice.
const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;

pub(super) fn gelu_sigmoid(x: f32) -> f32 {
    sigmoid(TWICE_SQRT_2_OVER_PI * x * (1.0 + 0.044715 * x * x))
}

pub(super) fn gelu_derivative(x: f32) -> f32 {
    let s = gelu_sigmoid(x);
    s + x * s * (1.0 - s) * TWICE_SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * x * x)
}

/// The two tensors of a GELU kernel, and the numbers of elements.
fn gelu_tensors(launch: &Launch<'_>) -> ([Array; 2], usize, usize) {
    let mut args = launch.args();
    let pointers = [args.ptr(), args.ptr()];
    let (len, vectorised) = (args.size(), args.size());
    ([0, 1].map(|at| launch.array(pointers[at], launch.dtypes[at], len)), len, vectorised)
}

fn gelu(launch: &Launch<'_>) {
    let ([x, y], len, vectorised) = gelu_tensors(launch);
    for_elements(launch, len, vectorised, |first, count| {
        assert_vectors(&[x, y], first, count);
        (first..first + count).for_each(|at| y.set(at, x.get(at) * gelu_sigmoid(x.get(at))));
    });
}

fn gelu_backward(launch: &Launch<'_>) {
    let ([x, dy], len, vectorised) = gelu_tensors(launch);
    for_elements(launch, len, vectorised, |first, count| {
        assert_vectors(&[x, dy], first, count);
        (first..first + count).for_each(|at| dy.set(at, dy.get(at) * gelu_derivative(x.get(at))));
    });
}

/// The sums are those of the gradients before they are rounded.
fn gelu_backward_bias(launch: &Launch<'_>) {
    launch.assert_threads(COLUMN_THREADS);
    let mut args = launch.args();
    let pointers = [args.ptr(), args.ptr()];
    let (partials, rows, columns) = (args.ptr(), args.size(), args.size());
    let width = if args.flag() { VECTOR } else { 1 };
    let [x, dy] = [0, 1].map(|at| launch.array(pointers[at], launch.dtypes[at], rows * columns));
    let [column_blocks, row_blocks, _] = launch.blocks;
    let partials = launch.array(partials, DType::F32, row_blocks * columns);
    assert!(columns.is_multiple_of(width), "a vector crosses rows");
    for column in 0..columns.min(column_blocks * COLUMN_THREADS * width) {
        for block in 0..row_blocks {
            let mut sum = 0.0;
            for at in (block..rows).step_by(row_blocks).map(|row| row * columns + column) {
                if column % width == 0 {
                    assert_vectors(&[x, dy], at, width);
                }
                let grad = dy.get(at) * gelu_derivative(x.get(at));
                dy.set(at, grad);
                sum += grad;
            }
            partials.set(block * columns + column, sum);
        }
    }
}

fn swiglu(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (x, y, dim) = (args.ptr(), args.ptr(), args.size32());
    let (len, vectorised) = (args.size(), args.size());
    let x = launch.array(x, launch.dtypes[0], 2 * len);
    let y = launch.array(y, launch.dtypes[1], len);
    for_elements(launch, len, vectorised, |first, count| {
        let gate_at = gate_index(first, count, dim);
        assert_vectors(&[x], gate_at, count);
        assert_vectors(&[x], gate_at + dim, count);
        assert_vectors(&[y], first, count);
        for i in 0..count {
            let (gate, up) = (x.get(gate_at + i), x.get(gate_at + dim + i));
            y.set(first + i, up * gate * sigmoid(gate));
        }
    });
}

fn swiglu_backward(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (x, dy, dx, dim) = (args.ptr(), args.ptr(), args.ptr(), args.size32());
    let (len, vectorised) = (args.size(), args.size());
    let x = launch.array(x, launch.dtypes[0], 2 * len);
    let dy = launch.array(dy, launch.dtypes[1], len);
    let dx = launch.array(dx, launch.dtypes[2], 2 * len);
    for_elements(launch, len, vectorised, |first, count| {
        let gate_at = gate_index(first, count, dim);
        assert_vectors(&[x, dx], gate_at, count);
        assert_vectors(&[x, dx], gate_at + dim, count);
        assert_vectors(&[dy], first, count);
        for i in 0..count {
            let (gate, up, grad) =
                (x.get(gate_at + i), x.get(gate_at + dim + i), dy.get(first + i));
            let s = sigmoid(gate);
            dx.set(gate_at + i, grad * up * s * (1.0 + gate * (1.0 - s)));
            dx.set(gate_at + dim + i, grad * gate * s);
        }
    });
}

/// The index of the gate of an output.
fn gate_index(at: usize, count: usize, dim: usize) -> usize {
    assert!(at % dim + count <= dim, "a vector crosses rows");
    at / dim * dim + at
}
