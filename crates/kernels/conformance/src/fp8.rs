//! GEMMs on fp8 operands. Values in fp8 are read by products with the identity.

use proptest::prelude::*;
use regatta_device::e4m3;
use regatta_device::ops::{
    CrossEntropyArgs, Device, FP8_DTYPE, FP8_SCALE_DTYPE, Fp8Rows, Fp8RowsMut, LinearArgs,
    LinearShape, Norm, NormArgs, NormBackwardArgs, NormInputGrad,
};
use regatta_device::tensor::Tensor;

use crate::gradient_check::{assert_close, assert_same, exact_values};
use crate::guarded::{
    Guarded, accumulated, activation, activation_output, initial_grad, logits, master_output,
    residual, residual_grad, residual_output, weight,
};
use crate::host_copy::{read_scalar, rounded, scalar, tokens};

/// Dimensions of a matrix, multiples of 16.
pub type Dimensions = [usize; 2];

/// Random dimensions.
pub fn dimensions() -> impl Strategy<Value = Dimensions> {
    [1..9usize, 1..9].prop_map(|sizes| sizes.map(|size| 16 * size))
}

/// Dimensions of the layers of common models, and long rows.
pub fn fixed_dimensions() -> Vec<Dimensions> {
    vec![[48, 768], [32, 3072], [16, 4096], [16, 8192], [16, 50_304], [304, 1024]]
}

/// Longest rows that are read by products with the identity.
const MAX_IDENTITY: usize = 1024;

/// Rows in fp8 on a device.
struct Fp8 {
    values: Tensor,
    scales: Tensor,
    columns: usize,
}

impl Fp8 {
    fn new(device: &dyn Device, rows: usize, columns: usize) -> Self {
        let values = device.zeros(rows * columns, FP8_DTYPE);
        Self { values, scales: device.zeros(rows, FP8_SCALE_DTYPE), columns }
    }

    fn of_rows(device: &dyn Device, x: &[f64], columns: usize) -> Self {
        let mut rows = Self::new(device, x.len() / columns, columns);
        device.quantize_rows(weight(device, x).view(), rows.rows_mut(), None);
        rows
    }

    fn rows(&self) -> Fp8Rows<'_> {
        Fp8Rows { values: self.values.view(), scales: self.scales.view() }
    }

    fn rows_mut(&mut self) -> Fp8RowsMut<'_> {
        Fp8RowsMut { values: self.values.view_mut(), scales: self.scales.view_mut() }
    }

    /// The elements; for long rows products of the rows with others.
    fn read(&self, device: &dyn Device) -> Vec<f64> {
        let columns = self.columns;
        let (outputs, operand) = match columns <= MAX_IDENTITY {
            true => (columns, identity(columns)),
            false => (16, exact_values(16 * columns, 1)),
        };
        let operand = Self::of_rows(device, &operand, columns);
        let shape = LinearShape { rows: self.scales.len(), inputs: columns, outputs };
        let mut y = activation_output(device, shape.rows * outputs);
        let (x, weight, to) = (self.rows(), operand.rows(), y.view_mut());
        device.linear_fp8(LinearArgs { shape, x, weight, bias: None, y: to });
        y.read(device)
    }
}

fn identity(size: usize) -> Vec<f64> {
    (0..size * size).map(|at| f64::from(u8::from(at % size == at / size))).collect()
}

/// What rows become, computed as devices do.
fn quantized(x: &[f64], columns: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        let max = row.iter().fold(0.0f32, |max, x| max.max(x.abs() as f32));
        let scale = if max > 0.0 { max / e4m3::MAX } else { 1.0 };
        let value = move |x: &f64| e4m3::decode(e4m3::encode(*x as f32 * (1.0 / scale))) * scale;
        row.iter().map(value).map(f64::from).collect::<Vec<_>>()
    };
    x.chunks_exact(columns).flat_map(row).collect()
}

/// Asserts equality up to one unit in the last place of bf16: a GEMM may truncate.
fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_near = (found - expected).abs() <= expected.abs() / 128.0;
        assert!(is_near, "{what}: element {at} is {found}, expected {expected}");
    }
}

fn transposed(x: &[f64], columns: usize) -> Vec<f64> {
    let rows = x.len() / columns;
    (0..x.len()).map(|at| x[at % rows * columns + at / rows]).collect()
}

/// Values of very different magnitudes, and a row of zeros.
fn matrix([rows, columns]: Dimensions, seed: u64) -> Vec<f64> {
    let mut x = exact_values(rows * columns, seed);
    x.iter_mut()
        .enumerate()
        .for_each(|(at, x)| *x *= 2f64.powi((at / columns * 7 % 40) as i32 - 20));
    x[..columns].fill(0.0);
    x
}

/// Rows and columns become the nearest values of their scale.
pub fn check_quantize(device: &dyn Device, dimensions: &Dimensions, seed: u64) {
    let [rows, columns] = *dimensions;
    let x = matrix(*dimensions, seed);
    let on_device = activation(device, &x);
    let mut fp8 = Fp8::new(device, rows, columns);
    let mut sums = initial_grad(device, columns);
    device.quantize_rows(on_device.view(), fp8.rows_mut(), Some(sums.view_mut()));
    let mut expected_sums = vec![0.0; columns];
    for row in x.chunks_exact(columns) {
        expected_sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    assert_close(&accumulated(device, &sums), &expected_sums, 1e-5, "column sums");
    let mut again = Fp8::new(device, rows, columns);
    device.quantize_rows(on_device.view(), again.rows_mut(), None);
    assert_same(&again.read(device), &fp8.read(device), "without column sums");
    let mut by_columns = Fp8::new(device, columns, rows);
    device.quantize_columns(on_device.view(), by_columns.rows_mut());
    let dtype = device.activation_dtype();
    if columns <= MAX_IDENTITY {
        assert_near(&fp8.read(device), &rounded(&quantized(&x, columns), dtype), "rows");
    }
    if rows <= MAX_IDENTITY {
        let expected = rounded(&quantized(&transposed(&x, columns), rows), dtype);
        assert_near(&by_columns.read(device), &expected, "columns");
    }
}

/// Products of operands in fp8 agree with products of their values.
pub fn check_linear(
    device: &dyn Device,
    [inputs, outputs]: &Dimensions,
    seed: u64,
    tolerance: f64,
) {
    let shape = LinearShape { rows: 24, inputs: *inputs, outputs: *outputs };
    let x = exact_values(shape.rows * inputs, seed);
    let w = exact_values(outputs * inputs, seed + 1);
    let bias = exact_values(*outputs, seed + 2);
    let [x8, w8] = [&x, &w].map(|operand| Fp8::of_rows(device, operand, *inputs));
    let (x, w) = (quantized(&x, *inputs), quantized(&w, *inputs));
    let bias_on_device = weight(device, &bias);
    for bias in [None, Some(&bias)] {
        let mut y = activation_output(device, shape.rows * outputs);
        device.linear_fp8(LinearArgs {
            shape,
            x: x8.rows(),
            weight: w8.rows(),
            bias: bias.map(|_| bias_on_device.view()),
            y: y.view_mut(),
        });
        let element = |at: usize| {
            let (row, output) = (at / outputs, at % outputs);
            let [x, w] =
                [(&x, row), (&w, output)].map(|(m, at)| &m[at * inputs..(at + 1) * inputs]);
            x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>() + bias.map_or(0.0, |b| b[output])
        };
        let expected: Vec<f64> = (0..shape.rows * outputs).map(element).collect();
        assert_close(&y.read(device), &expected, tolerance, "product");
    }
}

/// Fused operations agree with the operations and the conversion of their result.
pub fn check_fused(device: &dyn Device, dimensions: &Dimensions, seed: u64, tolerance: f64) {
    let [rows, columns] = *dimensions;
    let values = |index| exact_values(rows * columns, seed + index);
    let is_converted = |y: &Guarded, fp8: &Fp8, what: &str| {
        let mut expected = Fp8::new(device, rows, columns);
        device.quantize_rows(y.view(), expected.rows_mut(), None);
        assert_same(&fp8.read(device), &expected.read(device), what);
    };
    check_gelu(device, &values, columns, &is_converted, tolerance);
    check_norm(device, &values, columns, &is_converted, tolerance);
    for padding in [0, 13] {
        check_cross_entropy(
            device,
            &values,
            [columns - padding, padding],
            &is_converted,
            tolerance,
        );
    }
}

type IsConverted<'a> = &'a dyn Fn(&Guarded, &Fp8, &str);

fn check_gelu(
    device: &dyn Device,
    values: &dyn Fn(u64) -> Vec<f64>,
    columns: usize,
    is_converted: IsConverted<'_>,
    tolerance: f64,
) {
    let rows = values(0).len() / columns;
    let [mut saved, mut plain_saved] = [(); 2].map(|()| activation(device, &values(0)));
    let [mut y, mut plain] = [(); 2].map(|()| activation_output(device, rows * columns));
    let mut fp8 = Fp8::new(device, rows, columns);
    device.gelu_fp8(saved.view_mut(), y.view_mut(), fp8.rows_mut());
    device.gelu(plain_saved.view_mut(), plain.view_mut());
    is_converted(&y, &fp8, "gelu");
    assert_close(&y.read(device), &plain.read(device), tolerance, "gelu");
    for has_bias in [false, true] {
        let [mut dy, mut plain] = [(); 2].map(|()| activation(device, &values(1)));
        let [mut dbias, mut plain_dbias] = [(); 2].map(|()| initial_grad(device, columns));
        let sums = has_bias.then(|| dbias.view_mut());
        device.gelu_backward_fp8(saved.view(), dy.view_mut(), sums, fp8.rows_mut());
        let sums = has_bias.then(|| plain_dbias.view_mut());
        device.gelu_backward(plain_saved.view(), plain.view_mut(), sums);
        is_converted(&dy, &fp8, "gelu_backward");
        assert_close(&dy.read(device), &plain.read(device), tolerance, "gelu_backward");
        let [found, expected] = [&dbias, &plain_dbias].map(|grad| accumulated(device, grad));
        assert_close(&found, &expected, 1e-4, "gelu_backward: bias gradient");
    }
}

fn check_cross_entropy(
    device: &dyn Device,
    values: &dyn Fn(u64) -> Vec<f64>,
    [vocab, padding]: [usize; 2],
    is_converted: IsConverted<'_>,
    tolerance: f64,
) {
    let (columns, mut values) = (vocab + padding, values(9));
    let rows = values.len() / columns;
    values.chunks_exact_mut(columns).for_each(|row| row[vocab..].fill(f64::NAN));
    let targets: Vec<u32> = (0..rows as u32).map(|row| row * 31 % vocab as u32).collect();
    let (targets, mut fp8) = (tokens(device, &targets), Fp8::new(device, rows, columns));
    let [mut fused, mut plain] = [(); 2].map(|()| logits(device, &values));
    let [mut fused_loss, mut plain_loss] = [(); 2].map(|()| scalar(device, 0.0));
    let (targets, grad_scale) = (targets.view(), Some(0.5));
    let (logits, loss) = (fused.view_mut(), fused_loss.view_mut());
    let args = CrossEntropyArgs { targets, vocab, logits, grad_scale, loss };
    device.cross_entropy_fp8(args, fp8.rows_mut());
    let (logits, loss) = (plain.view_mut(), plain_loss.view_mut());
    device.cross_entropy(CrossEntropyArgs { targets, vocab, logits, grad_scale, loss });
    is_converted(&fused, &fp8, "dlogits");
    assert_close(&fused.read(device), &plain.read(device), tolerance, "dlogits");
    let losses = [fused_loss, plain_loss].map(|loss| read_scalar(device, &loss));
    assert_close(&losses[..1], &losses[1..], 1e-5, "loss");
}

fn check_norm(
    device: &dyn Device,
    values: &dyn Fn(u64) -> Vec<f64>,
    columns: usize,
    is_converted: IsConverted<'_>,
    tolerance: f64,
) {
    let norm = Norm::Layer { eps: 1e-5 };
    let rows = values(0).len() / columns;
    let mut fp8 = Fp8::new(device, rows, columns);
    let (x, delta) = (residual(device, &values(2)), activation(device, &values(3)));
    let w = weight(device, &values(4)[..columns]);
    let [mut sum, mut y] =
        [residual_output(device, rows * columns), activation_output(device, rows * columns)];
    let mut stats = master_output(device, 2 * rows);
    let args = NormArgs {
        norm,
        x: x.view(),
        weight: w.view(),
        bias: None,
        y: y.view_mut(),
        mean_rstd: stats.view_mut(),
    };
    device.add_norm_fp8(args, delta.view(), sum.view_mut(), fp8.rows_mut());
    is_converted(&y, &fp8, "add_norm");
    let mut plain = activation_output(device, rows * columns);
    let mut plain_stats = master_output(device, 2 * rows);
    device.norm(NormArgs {
        norm,
        x: sum.view(),
        weight: w.view(),
        bias: None,
        y: plain.view_mut(),
        mean_rstd: plain_stats.view_mut(),
    });
    assert_close(&y.read(device), &plain.read(device), tolerance, "add_norm");
    let (dy, mut dx) = (activation(device, &values(5)), residual_grad(device, &values(6)));
    let has_copy = device.residual_grad_dtype() != device.activation_dtype();
    let mut copy = has_copy.then(|| activation_output(device, rows * columns));
    let (mut dweight, mut sums) = (initial_grad(device, columns), master_output(device, columns));
    let input_grad = NormInputGrad {
        dx: dx.view_mut(),
        copy: copy.as_mut().map(Guarded::view_mut),
        column_sums: Some(sums.view_mut()),
    };
    let args = NormBackwardArgs {
        norm,
        x: sum.view(),
        weight: w.view(),
        mean_rstd: stats.view(),
        dy: dy.view(),
        input_grad,
        dweight: dweight.view_mut(),
        dbias: None,
    };
    device.norm_backward_fp8(args, fp8.rows_mut());
    is_converted(copy.as_ref().unwrap_or(&dx), &fp8, "norm_backward");
}
