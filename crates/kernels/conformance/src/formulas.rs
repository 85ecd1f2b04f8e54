//! Copies, elementwise operations and optimizers: equal to their formulas.

use std::ops::Range;

use proptest::prelude::*;
use regatta_comm::DType;
use regatta_device::ops::{Device, OptimizerState};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::random;
use regatta_device::tensor::Tensor;

use crate::gradient_check::{assert_close, assert_same, exact_values, random_values};
use crate::guarded::{Guarded, activation, master, master_output};
use crate::host_copy::{read_scalar, rounded, scalar};
use crate::strategies::subrange;

/// A range of columns of a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub row_len: usize,
    /// First column and number of columns.
    pub columns: (usize, usize),
}

/// Columns of small matrices.
pub fn columns() -> impl Strategy<Value = Columns> {
    let row = (1usize..50).prop_flat_map(|len| (Just(len), subrange(len)));
    (1usize..20, row).prop_map(|(rows, (row_len, columns))| Columns { rows, row_len, columns })
}

/// Asserts that column copies convert dtypes and leave other columns unchanged.
pub fn check_column_copies(device: &dyn Device, columns: &Columns, seed: u64) {
    let dtypes = [device.master_dtype(), device.activation_dtype()];
    for (full, packed) in dtypes.iter().flat_map(|full| dtypes.map(|packed| (*full, packed))) {
        check_column_copy(device, columns, seed, full, packed);
    }
}

fn check_column_copy(
    device: &dyn Device,
    columns: &Columns,
    seed: u64,
    full_dtype: DType,
    packed_dtype: DType,
) {
    let Columns { rows, row_len, columns: (first, count) } = *columns;
    let columns = first..first + count;
    let values = exact_values(rows * row_len, seed);
    let full = Guarded::new(device, &values, full_dtype);
    let mut packed = Guarded::output(device, rows * count, packed_dtype);
    device.copy_from_columns(full.view(), row_len, columns.clone(), packed.view_mut());
    let found = packed.read(device);
    let mut expected_full = vec![0.5; rows * row_len];
    for row in 0..rows {
        let found = &found[row * count..(row + 1) * count];
        let columns = row * row_len + first..row * row_len + first + count;
        assert_same(found, &values[columns.clone()], "copy_from_columns");
        expected_full[columns].copy_from_slice(found);
    }
    let mut full = Guarded::new(device, &vec![0.5; rows * row_len], full_dtype);
    device.copy_to_columns(packed.view(), full.view_mut(), row_len, columns);
    assert_same(&full.read(device), &expected_full, "copy_to_columns");
}

/// Asserts the results of copies, fills, `add`, `add_assign`, `scale` and `sum_of_squares`.
pub fn check_elementwise(device: &dyn Device, len: &usize, seed: u64, tolerance: f64) {
    let (a, b) = (random_values(*len, seed), exact_values(*len, seed ^ 5));
    let (x, y) = (master(device, &a), activation(device, &b));
    let zip = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        a.iter().zip(&b).map(|(a, b)| f(*a, *b)).collect()
    };
    let mut z = master_output(device, *len);
    device.add(x.view(), y.view(), z.view_mut());
    assert_close(&z.read(device), &zip(&|a, b| a + b), tolerance, "add");
    device.add_assign(x.view(), z.view_mut());
    assert_close(&z.read(device), &zip(&|a, b| 2.0 * a + b), tolerance, "add_assign");
    device.add_assign(y.view(), z.view_mut());
    assert_close(&z.read(device), &zip(&|a, b| 2.0 * (a + b)), tolerance, "add_assign");
    device.scale(-0.3, z.view_mut());
    let expected = zip(&|a, b| -0.6 * (a + b));
    assert_close(&z.read(device), &expected, tolerance, "scale");
    check_sum_of_squares(device, &z, &expected, tolerance);
    check_copies_and_fills(device, &a);
}

/// Sums are added to the scalar.
fn check_sum_of_squares(device: &dyn Device, x: &Guarded, values: &[f64], tolerance: f64) {
    let squares: f64 = values.iter().map(|x| x * x).sum();
    let mut sum = scalar(device, 0.25);
    for expected in [0.25 + squares, 0.25 + 2.0 * squares] {
        device.sum_of_squares(x.view(), sum.view_mut());
        let found = read_scalar(device, &sum);
        assert_close(&[found], &[expected], tolerance * 4.0, "sum_of_squares");
    }
}

fn check_copies_and_fills(device: &dyn Device, values: &[f64]) {
    let dtypes = [device.master_dtype(), device.weight_dtype(), device.activation_dtype()];
    let x = master(device, values);
    for dtype in dtypes {
        let mut y = Guarded::output(device, values.len(), dtype);
        device.copy(x.view(), y.view_mut());
        let expected = rounded(&x.read(device), dtype);
        assert_same(&y.read(device), &expected, &format!("copy to {dtype}"));
        let mut back = master_output(device, values.len());
        device.copy(y.view(), back.view_mut());
        assert_same(&back.read(device), &y.read(device), &format!("copy from {dtype}"));
        for value in [0.0, -2.5, f64::NEG_INFINITY] {
            device.fill(value, y.view_mut());
            let (found, what) = (y.read(device), format!("fill of {dtype}"));
            assert_same(&found, &vec![value; values.len()], &what);
        }
        device.zero(y.view_mut());
        assert_same(&y.read(device), &vec![0.0; values.len()], &format!("zero of {dtype}"));
    }
    let values: Vec<f32> = values.iter().map(|a| *a as f32).collect();
    let (mut z, mut back) = (master_output(device, values.len()), vec![f32::NAN; values.len()]);
    device.copy_from_host(&values, z.view_mut());
    device.copy_to_host(z.view(), &mut back);
    assert!(back == values, "copies from and to host memory differ");
}

/// Asserts that the sum of squares is NaN if an element is, so that a diverged training is noticed.
pub fn check_nan_sum(device: &dyn Device, len: &usize, seed: u64) {
    let (mut values, mut sum) = (random_values(*len, seed), scalar(device, 0.0));
    let at = seed as usize % len;
    values[at] = f64::NAN;
    device.sum_of_squares(master(device, &values).view(), sum.view_mut());
    let sum = read_scalar(device, &sum);
    assert!(sum.is_nan(), "the sum of squares is {sum} with NaN as element {at}");
}

/// Norms whose squares are exact in f32.
pub fn exact_norms() -> impl Strategy<Value = f64> {
    (1u32..4096).prop_map(|count| f64::from(count) / 64.0)
}

/// Asserts the clip coefficients of gradients with this norm.
pub fn check_clip_coefficient(device: &dyn Device, norm: &f64, tolerance: f64) {
    let mut found = scalar(device, -1.0);
    for copies in [1.0, 4.0] {
        let sum = scalar(device, copies * norm * norm);
        for max_norm in [0.5 * norm, 2.0 * norm, 1.0, 0.0] {
            device.clip_coefficient(sum.view(), copies, max_norm, found.view_mut());
            let expected = if max_norm == 0.0 { 1.0 } else { (max_norm / (norm + 1e-6)).min(1.0) };
            let what = format!("clip coefficient of norm {norm} for {max_norm}, {copies} copies");
            assert_close(&[read_scalar(device, &found)], &[expected], tolerance, &what);
        }
        assert_eq!(read_scalar(device, &sum), copies * norm * norm);
    }
}

/// Flat parameters of an optimizer.
#[derive(Debug, Clone)]
pub struct FlatParams {
    /// Elements.
    pub len: usize,
    /// Parts, each with or without weight decay, at most.
    pub parts: usize,
    /// Optimizer steps.
    pub steps: u64,
}

/// Small buffers of a few parameters.
pub fn flat_params() -> impl Strategy<Value = FlatParams> {
    (1usize..100, 1usize..8).prop_map(|(len, parts)| FlatParams { len, parts, steps: 6 })
}

impl FlatParams {
    /// Disjoint, ascending, partly adjacent ranges with weight decay.
    fn decayed(&self, seed: u64) -> Vec<Range<usize>> {
        let uniform =
            |stream: u64, index: usize| random::uniform(random::key(seed, &[stream]), index as u64);
        let bound = |part| (uniform(1, part) * self.len as f64) as usize;
        let mut bounds: Vec<usize> = (1..self.parts).map(bound).collect();
        bounds.extend([0, self.len]);
        bounds.sort_unstable();
        bounds.dedup();
        let ranges = bounds.windows(2).map(|pair| pair[0]..pair[1]);
        ranges.enumerate().filter(|(at, _)| uniform(2, *at) < 0.6).map(|(_, range)| range).collect()
    }

    /// Gradients of a step, some of them zero, as those of tokens that do not occur.
    fn gradients(&self, seed: u64, step: u64) -> Vec<f64> {
        let mut all = random_values(self.len, seed ^ (step << 32));
        all.iter_mut().step_by(5).for_each(|g| *g = 0.0);
        all
    }
}

/// Parameters and optimizer state on a device, and the values that they should have.
struct Optimizer<'a> {
    device: &'a dyn Device,
    decayed: Vec<Range<usize>>,
    has_decay: Vec<bool>,
    grad_scale: Tensor,
    /// First moment, second moment and parameters.
    state: [Guarded; 3],
    expected: [Vec<f64>; 3],
    weight: Option<Guarded>,
}

impl<'a> Optimizer<'a> {
    fn new(device: &'a dyn Device, params: &FlatParams, seed: u64, grad_scale: f64) -> Self {
        let (len, decayed) = (params.len, params.decayed(seed));
        let mut has_decay = vec![false; len];
        decayed.iter().for_each(|range| has_decay[range.clone()].fill(true));
        let expected = [vec![0.0; len], vec![0.0; len], random_values(len, seed)];
        let has_copy = device.weight_dtype() != device.master_dtype();
        Self {
            device,
            decayed,
            has_decay,
            grad_scale: scalar(device, grad_scale),
            state: expected.each_ref().map(|values| master(device, values)),
            expected,
            weight: has_copy.then(|| Guarded::output(device, len, device.weight_dtype())),
        }
    }

    /// One step on the device.
    fn step(&mut self, grads: &[f64], update: impl FnOnce(&dyn Device, OptimizerState<'_>)) {
        let grad = master(self.device, grads);
        let [moment1, moment2, param] = self.state.each_mut().map(Guarded::view_mut);
        let state = OptimizerState {
            factors: None,
            grad: grad.view(),
            grad_scale: self.grad_scale.view(),
            moment1,
            moment2,
            param,
            weight: self.weight.as_mut().map(Guarded::view_mut),
            decayed: &self.decayed,
        };
        update(self.device, state);
    }

    fn check(&self, tolerance: f64) {
        let [m, v, params] = self.state.each_ref().map(|state| state.read(self.device));
        let [expected_m, expected_v, expected] = &self.expected;
        assert_close(&m, expected_m, tolerance, "first moment");
        assert_close(&v, expected_v, tolerance, "second moment");
        assert_close(&params, expected, tolerance, "params");
        if let Some(weight) = &self.weight {
            let expected = rounded(&params, self.device.weight_dtype());
            assert_same(&weight.read(self.device), &expected, "weight copy");
        }
    }
}

/// Asserts the results of AdamW.
pub fn check_adamw(device: &dyn Device, params: &FlatParams, seed: u64, tolerance: f64) {
    let (lr, beta1, beta2, eps, weight_decay) = (0.01, 0.9, 0.95, 1e-8, 0.1);
    let grad_scale = 0.75;
    let mut optimizer = Optimizer::new(device, params, seed, grad_scale);
    for step in 1..=params.steps {
        let given = params.gradients(seed, step);
        let config = AdamW { lr, beta1, beta2, eps, weight_decay, step };
        optimizer.step(&given, |device, state| device.adamw(&config, state));
        let [m, v, expected] = &mut optimizer.expected;
        for i in 0..params.len {
            let g = given[i] * grad_scale;
            m[i] = beta1 * m[i] + (1.0 - beta1) * g;
            v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
            let m_hat = m[i] / (1.0 - beta1.powi(step as i32));
            let v_hat: f64 = v[i] / (1.0 - beta2.powi(step as i32));
            let weight_decay = if optimizer.has_decay[i] { weight_decay } else { 0.0 };
            expected[i] -= lr * weight_decay * expected[i];
            expected[i] -= lr * m_hat / (v_hat.sqrt() + eps);
        }
        optimizer.check(tolerance);
    }
}

/// Asserts the results of SGD with momentum. It leaves the second moment unchanged.
pub fn check_sgd(device: &dyn Device, params: &FlatParams, seed: u64, tolerance: f64) {
    let (lr, momentum, weight_decay, grad_scale) = (0.05, 0.9, 0.01, 0.375);
    let mut optimizer = Optimizer::new(device, params, seed, grad_scale);
    for step in 1..=params.steps {
        let given = params.gradients(seed, step);
        let config = Sgd { lr, momentum, weight_decay };
        optimizer.step(&given, |device, state| device.sgd(&config, state));
        let [velocity, _, expected] = &mut optimizer.expected;
        for i in 0..params.len {
            let weight_decay = if optimizer.has_decay[i] { weight_decay } else { 0.0 };
            let g = given[i] * grad_scale + weight_decay * expected[i];
            velocity[i] = momentum * velocity[i] + g;
            expected[i] -= lr * velocity[i];
        }
        optimizer.check(tolerance);
    }
}
