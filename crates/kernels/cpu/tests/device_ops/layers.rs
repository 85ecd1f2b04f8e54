//! Linear layers, norms, activations and dropout.

use regatta_device::ops::{Device, LinearShape, Norm, NormGrads, NormSaved};
use regatta_device::random::DropoutMask;
use regatta_device::tensor::Tensor;

use crate::gradient_check::{Operation, accumulated, activation, initial_grad, master, nans};
use crate::host_copy::copy_to_f64;

/// Linear layer: inputs are x, weight and, with a bias, bias.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    pub shape: LinearShape,
    pub bias: bool,
    pub accumulate: bool,
}

impl Operation for Linear {
    fn input_lens(&self) -> Vec<usize> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        let mut all = vec![rows * inputs, outputs * inputs];
        all.extend(self.bias.then_some(outputs));
        all
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (x, weight) = (activation(device, &inputs[0]), master(device, &inputs[1]));
        let bias = inputs.get(2).map(|bias| master(device, bias));
        let mut y = activation(device, &nans(self.shape.rows * self.shape.outputs));
        let bias = bias.as_ref().map(|bias| bias.view());
        device.linear(self.shape, x.view(), weight.view(), bias, y.view_mut());
        copy_to_f64(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (x, weight) = (activation(device, &inputs[0]), master(device, &inputs[1]));
        let dy = activation(device, dy);
        let len = inputs[0].len();
        let initial = if self.accumulate { vec![0.5; len] } else { nans(len) };
        let mut dx = activation(device, &initial);
        let (shape, accumulate) = (self.shape, self.accumulate);
        device.linear_backward_input(shape, dy.view(), weight.view(), dx.view_mut(), accumulate);
        let dx = copy_to_f64(device, dx.view());
        let dx = dx.iter().map(|dx| if accumulate { dx - 0.5 } else { *dx }).collect();

        let mut dweight = initial_grad(device, inputs[1].len());
        let mut dbias = inputs.get(2).map(|bias| initial_grad(device, bias.len()));
        let bias = dbias.as_mut().map(|dbias| dbias.view_mut());
        device.linear_backward_weight(shape, x.view(), dy.view(), dweight.view_mut(), bias);
        let mut all = vec![dx, accumulated(device, &dweight)];
        all.extend(dbias.map(|dbias| accumulated(device, &dbias)));
        all
    }
}

/// LayerNorm or RMSNorm: inputs are x, weight and, with a bias, bias.
#[derive(Debug, Clone, Copy)]
pub struct NormLayer {
    pub norm: Norm,
    pub rows: usize,
    pub dim: usize,
    pub bias: bool,
}

impl NormLayer {
    /// Output, and mean and rstd.
    fn forward_with_stats(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> (Vec<f64>, Vec<f64>) {
        let (x, weight) = (master(device, &inputs[0]), master(device, &inputs[1]));
        let bias = inputs.get(2).map(|bias| master(device, bias));
        let bias = bias.as_ref().map(|bias| bias.view());
        let mut y = activation(device, &nans(x.len()));
        let mut mean_rstd = master(device, &nans(2 * self.rows));
        let (y_view, stats) = (y.view_mut(), mean_rstd.view_mut());
        device.norm(self.norm, x.view(), weight.view(), bias, y_view, stats);
        (copy_to_f64(device, y.view()), copy_to_f64(device, mean_rstd.view()))
    }
}

impl Operation for NormLayer {
    fn input_lens(&self) -> Vec<usize> {
        let mut all = vec![self.rows * self.dim, self.dim];
        all.extend(self.bias.then_some(self.dim));
        all
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        self.forward_with_stats(device, inputs).0
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (x, weight) = (master(device, &inputs[0]), master(device, &inputs[1]));
        let mean_rstd = master(device, &self.forward_with_stats(device, inputs).1);
        let dy = activation(device, dy);
        let mut dx = initial_grad(device, x.len());
        let mut dweight = initial_grad(device, self.dim);
        let mut dbias = self.bias.then(|| initial_grad(device, self.dim));
        let saved = NormSaved { x: x.view(), weight: weight.view(), mean_rstd: mean_rstd.view() };
        let bias = dbias.as_mut().map(|dbias| dbias.view_mut());
        let grads = NormGrads { weight: dweight.view_mut(), bias };
        device.norm_backward(self.norm, saved, dy.view(), dx.view_mut(), grads);
        let mut all = vec![accumulated(device, &dx), accumulated(device, &dweight)];
        all.extend(dbias.map(|dbias| accumulated(device, &dbias)));
        all
    }
}

/// GELU.
#[derive(Debug, Clone, Copy)]
pub struct Gelu {
    pub len: usize,
}

impl Operation for Gelu {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.len]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [_, y] = self.derivative_and_output(device, &inputs[0]);
        copy_to_f64(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let [derivative, _] = self.derivative_and_output(device, &inputs[0]);
        let mut dy = activation(device, dy);
        device.gelu_backward(derivative.view(), dy.view_mut());
        vec![copy_to_f64(device, dy.view())]
    }
}

impl Gelu {
    fn derivative_and_output(&self, device: &dyn Device, x: &[f64]) -> [Tensor; 2] {
        let (mut x, mut y) = (activation(device, x), activation(device, &nans(self.len)));
        device.gelu(x.view_mut(), y.view_mut());
        [x, y]
    }
}

/// SwiGLU.
#[derive(Debug, Clone, Copy)]
pub struct Swiglu {
    pub rows: usize,
    pub dim: usize,
}

impl Operation for Swiglu {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.rows * 2 * self.dim]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let x = activation(device, &inputs[0]);
        let mut y = activation(device, &nans(self.rows * self.dim));
        device.swiglu(self.dim, x.view(), y.view_mut());
        copy_to_f64(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (x, dy) = (activation(device, &inputs[0]), activation(device, dy));
        let mut dx = activation(device, &nans(x.len()));
        device.swiglu_backward(self.dim, x.view(), dy.view(), dx.view_mut());
        vec![copy_to_f64(device, dx.view())]
    }
}

/// Dropout.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    pub len: usize,
    pub mask: DropoutMask,
}

impl Operation for Dropout {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.len]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let mut x = activation(device, &inputs[0]);
        device.dropout(self.mask, x.view_mut());
        copy_to_f64(device, x.view())
    }

    fn backward(&self, device: &dyn Device, _: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        vec![self.forward(device, &[dy.to_vec()])]
    }
}
