//! LayerNorm and RMSNorm, also of a sum.

use regatta_comm::DType;
use regatta_device::ops::{Device, Norm, NormArgs, NormBackwardArgs, NormInputGrad};

use crate::gradient_check::{Operation, assert_close, assert_same};
use crate::guarded::{
    Guarded, accumulated, activation, activation_output, initial_grad, initial_residual_grad,
    master_output, residual, residual_grad, residual_output, weight,
};
use crate::host_copy::rounded;

/// LayerNorm or RMSNorm: inputs are x, weight and, with a bias, bias.
#[derive(Debug, Clone, Copy)]
pub struct NormLayer {
    /// Kind.
    pub norm: Norm,
    /// Tokens.
    pub rows: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether the backward pass copies the gradient of x to the activation dtype and sums its columns.
    pub dx_copy: bool,
}

impl NormLayer {
    /// Output, and mean and rstd.
    fn forward_with_stats(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> [Guarded; 2] {
        let (x, w) = (residual(device, &inputs[0]), weight(device, &inputs[1]));
        let bias = inputs.get(2).map(|bias| weight(device, bias));
        let bias = bias.as_ref().map(Guarded::view);
        let mut y = activation_output(device, x.len());
        let mut mean_rstd = master_output(device, 2 * self.rows);
        device.norm(NormArgs {
            norm: self.norm,
            x: x.view(),
            weight: w.view(),
            bias,
            y: y.view_mut(),
            mean_rstd: mean_rstd.view_mut(),
        });
        [y, mean_rstd]
    }

    /// Accumulates into `dx`. Returns the gradients of weight and bias.
    fn accumulate(
        &self,
        device: &dyn Device,
        [x, weight, mean_rstd]: [&Guarded; 3],
        dy: &[f64],
        dx: &mut Guarded,
    ) -> Vec<Vec<f64>> {
        let dy = activation(device, dy);
        let mut copy = self.dx_copy.then(|| activation_output(device, dx.len()));
        let mut dweight = initial_grad(device, self.dim);
        let mut dbias = self.bias.then(|| initial_grad(device, self.dim));
        let mut sums = self.dx_copy.then(|| master_output(device, self.dim));
        let input_grad = NormInputGrad {
            dx: dx.view_mut(),
            copy: copy.as_mut().map(Guarded::view_mut),
            column_sums: sums.as_mut().map(Guarded::view_mut),
        };
        device.norm_backward(NormBackwardArgs {
            norm: self.norm,
            x: x.view(),
            weight: weight.view(),
            mean_rstd: mean_rstd.view(),
            dy: dy.view(),
            input_grad,
            dweight: dweight.view_mut(),
            dbias: dbias.as_mut().map(Guarded::view_mut),
        });
        if let Some(sums) = sums {
            let (dx, mut expected) = (dx.read(device), vec![0.0; self.dim]);
            for row in dx.chunks_exact(self.dim) {
                expected.iter_mut().zip(row).for_each(|(sum, dx)| *sum += dx);
            }
            let what = format!("{self:?}: column sums");
            assert_close(&sums.read(device), &expected, sums_tolerance(device), &what);
        }
        if let Some(copy) = copy {
            let expected = rounded(&dx.read(device), device.activation_dtype());
            assert_same(&copy.read(device), &expected, &format!("{self:?}: dx_copy"));
        }
        let mut all = vec![accumulated(device, &dweight)];
        all.extend(dbias.map(|dbias| accumulated(device, &dbias)));
        all
    }
}

impl Operation for NormLayer {
    fn input_lens(&self) -> Vec<usize> {
        let mut all = vec![self.rows * self.dim, self.dim];
        all.extend(self.bias.then_some(self.dim));
        all
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [y, _] = self.forward_with_stats(device, inputs);
        y.read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (x, w) = (residual(device, &inputs[0]), weight(device, &inputs[1]));
        let [_, mean_rstd] = self.forward_with_stats(device, inputs);
        let mut dx = initial_residual_grad(device, x.len());
        let mut all = self.accumulate(device, [&x, &w, &mean_rstd], dy, &mut dx);
        all.insert(0, accumulated(device, &dx));
        all
    }
}

/// Column sums may be of gradients before these are rounded.
fn sums_tolerance(device: &dyn Device) -> f64 {
    if device.residual_grad_dtype() == DType::Bf16 { 2e-2 } else { 1e-5 }
}

/// Norm of the sum of the residual stream and the output of a layer. Inputs are both, weight and, with a
/// bias, bias; outputs are the sum and its norm.
#[derive(Debug, Clone, Copy)]
pub struct AddNorm(pub NormLayer);

impl AddNorm {
    /// Sum, output, and mean and rstd.
    fn forward_with_stats(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> [Guarded; 3] {
        let (x, delta) = (residual(device, &inputs[0]), activation(device, &inputs[1]));
        let w = weight(device, &inputs[2]);
        let bias = inputs.get(3).map(|bias| weight(device, bias));
        let bias = bias.as_ref().map(Guarded::view);
        let (mut sum, mut y) =
            (residual_output(device, x.len()), activation_output(device, x.len()));
        let mut mean_rstd = master_output(device, 2 * self.0.rows);
        let args = NormArgs {
            norm: self.0.norm,
            x: x.view(),
            weight: w.view(),
            bias,
            y: y.view_mut(),
            mean_rstd: mean_rstd.view_mut(),
        };
        device.add_norm(args, delta.view(), sum.view_mut());
        [sum, y, mean_rstd]
    }
}

impl Operation for AddNorm {
    fn input_lens(&self) -> Vec<usize> {
        let mut all = self.0.input_lens();
        all.insert(1, all[0]);
        all
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [sum, y, _] = self.forward_with_stats(device, inputs);
        [sum.read(device), y.read(device)].concat()
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let [sum, _, mean_rstd] = self.forward_with_stats(device, inputs);
        let w = weight(device, &inputs[2]);
        let (dsum, dy) = dy.split_at(sum.len());
        let mut dx = residual_grad(device, dsum);
        let mut all = self.0.accumulate(device, [&sum, &w, &mean_rstd], dy, &mut dx);
        let dx = dx.read(device);
        all.splice(0..0, [dx.clone(), dx]);
        all
    }
}
