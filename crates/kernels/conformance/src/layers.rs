//! Linear layers, activation functions and dropout.

use regatta_comm::DType;
use regatta_device::ops::{
    Device, LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs, LinearShape,
};
use regatta_device::random::DropoutMask;

use crate::gradient_check::Operation;
use crate::guarded::{
    Guarded, accumulated, activation, activation_output, gemm_operand, initial_grad, weight,
};

/// Linear layer: inputs are x, weight and, with a bias, bias.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// Shape.
    pub shape: LinearShape,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether the gradient of x is accumulated.
    pub accumulate: bool,
    /// Whether the outputs are logits, which have a dtype of their own.
    pub logits: bool,
}

impl Linear {
    fn output_dtype(&self, device: &dyn Device) -> DType {
        if self.logits { device.logit_dtype() } else { device.activation_dtype() }
    }
}

impl Operation for Linear {
    fn input_lens(&self) -> Vec<usize> {
        linear_input_lens(self.shape, self.bias)
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [x, w] = gemm_operands(device, inputs);
        let bias = inputs.get(2).map(|bias| weight(device, bias));
        let len = self.shape.rows * self.shape.outputs;
        let mut y = Guarded::output(device, len, self.output_dtype(device));
        let (shape, bias) = (self.shape, bias.as_ref().map(Guarded::view));
        let (x, weight, to) = (x.view(), w.view(), y.view_mut());
        device.linear(LinearArgs { shape, x, weight, bias, y: to });
        y.read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let [x, w] = gemm_operands(device, inputs);
        let dy = gemm_operand(device, dy, self.output_dtype(device));
        let (shape, accumulate) = (self.shape, self.accumulate);
        let mut dx = match accumulate {
            true => activation(device, &vec![0.5; x.len()]),
            false => activation_output(device, x.len()),
        };
        let (dy, weight, to) = (dy.view(), w.view(), dx.view_mut());
        let args = LinearBackwardInputArgs { shape, dy, weight, dx: to, accumulate };
        device.linear_backward_input(args);
        let dx = dx.read(device);
        let dx = dx.iter().map(|dx| if accumulate { dx - 0.5 } else { *dx }).collect();

        let mut dweight = initial_grad(device, w.len());
        let mut dbias = inputs.get(2).map(|bias| initial_grad(device, bias.len()));
        device.linear_backward_weight(LinearBackwardWeightArgs {
            shape,
            x: x.view(),
            dy,
            dweight: dweight.view_mut(),
            dbias: dbias.as_mut().map(Guarded::view_mut),
        });
        let mut all = vec![dx, accumulated(device, &dweight)];
        all.extend(dbias.map(|dbias| accumulated(device, &dbias)));
        all
    }
}

/// Lengths of x, weight and, with a bias, bias.
fn linear_input_lens(shape: LinearShape, bias: bool) -> Vec<usize> {
    let LinearShape { rows, inputs, outputs } = shape;
    let mut all = vec![rows * inputs, outputs * inputs];
    all.extend(bias.then_some(outputs));
    all
}

/// x and weight of a linear layer.
fn gemm_operands(device: &dyn Device, inputs: &[Vec<f64>]) -> [Guarded; 2] {
    let x = gemm_operand(device, &inputs[0], device.activation_dtype());
    [x, gemm_operand(device, &inputs[1], device.weight_dtype())]
}

/// Linear layer with GELU; its bias gradient is that of the backward pass of GELU. Inputs are x, weight
/// and, with a bias, bias.
#[derive(Debug, Clone, Copy)]
pub struct LinearGelu {
    /// Shape.
    pub shape: LinearShape,
    /// Whether there is a bias.
    pub bias: bool,
}

impl LinearGelu {
    /// What is saved for the backward pass, and the output.
    fn saved_and_output(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> [Guarded; 2] {
        let [x, w] = gemm_operands(device, inputs);
        let bias = inputs.get(2).map(|bias| weight(device, bias));
        let bias = bias.as_ref().map(Guarded::view);
        let len = self.shape.rows * self.shape.outputs;
        let [mut saved, mut y] = [(); 2].map(|()| activation_output(device, len));
        let (shape, x, weight, to) = (self.shape, x.view(), w.view(), y.view_mut());
        device.linear_gelu(LinearArgs { shape, x, weight, bias, y: to }, saved.view_mut());
        [saved, y]
    }
}

impl Operation for LinearGelu {
    fn input_lens(&self) -> Vec<usize> {
        linear_input_lens(self.shape, self.bias)
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [_, y] = self.saved_and_output(device, inputs);
        y.read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let [saved, _] = self.saved_and_output(device, inputs);
        let ([x, w], mut dy) = (gemm_operands(device, inputs), activation(device, dy));
        let mut dbias = inputs.get(2).map(|bias| initial_grad(device, bias.len()));
        let bias = dbias.as_mut().map(Guarded::view_mut);
        device.gelu_backward(saved.view(), dy.view_mut(), bias);
        let mut dx = activation_output(device, x.len());
        device.linear_backward_input(LinearBackwardInputArgs {
            shape: self.shape,
            dy: dy.view(),
            weight: w.view(),
            dx: dx.view_mut(),
            accumulate: false,
        });
        let mut dweight = initial_grad(device, w.len());
        device.linear_backward_weight(LinearBackwardWeightArgs {
            shape: self.shape,
            x: x.view(),
            dy: dy.view(),
            dweight: dweight.view_mut(),
            dbias: None,
        });
        let mut all = vec![dx.read(device), accumulated(device, &dweight)];
        all.extend(dbias.map(|dbias| accumulated(device, &dbias)));
        all
    }
}

/// GELU.
#[derive(Debug, Clone, Copy)]
pub struct Gelu {
    /// Elements.
    pub len: usize,
}

impl Operation for Gelu {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.len]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [_, y] = self.saved_and_output(device, &inputs[0]);
        y.read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let [saved, _] = self.saved_and_output(device, &inputs[0]);
        let mut dy = activation(device, dy);
        device.gelu_backward(saved.view(), dy.view_mut(), None);
        vec![dy.read(device)]
    }
}

impl Gelu {
    /// What is saved for the backward pass, and the output.
    fn saved_and_output(&self, device: &dyn Device, x: &[f64]) -> [Guarded; 2] {
        let (mut x, mut y) = (activation(device, x), activation_output(device, self.len));
        device.gelu(x.view_mut(), y.view_mut());
        [x, y]
    }
}

/// SwiGLU.
#[derive(Debug, Clone, Copy)]
pub struct Swiglu {
    /// Tokens.
    pub rows: usize,
    /// Elements of a row of the output.
    pub dim: usize,
}

impl Operation for Swiglu {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.rows * 2 * self.dim]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let x = activation(device, &inputs[0]);
        let mut y = activation_output(device, self.rows * self.dim);
        device.swiglu(self.dim, x.view(), y.view_mut());
        y.read(device)
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (x, dy) = (activation(device, &inputs[0]), activation(device, dy));
        let mut dx = activation_output(device, x.len());
        device.swiglu_backward(self.dim, x.view(), dy.view(), dx.view_mut());
        vec![dx.read(device)]
    }
}

/// Dropout.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// Elements.
    pub len: usize,
    /// Mask.
    pub mask: DropoutMask,
    /// Whether it is applied to the residual stream.
    pub residual: bool,
}

impl Operation for Dropout {
    fn input_lens(&self) -> Vec<usize> {
        vec![self.len]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let dtype = if self.residual { device.residual_dtype() } else { device.activation_dtype() };
        let mut x = Guarded::new(device, &inputs[0], dtype);
        device.dropout(self.mask, x.view_mut());
        x.read(device)
    }

    fn backward(&self, device: &dyn Device, _: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        vec![self.forward(device, &[dy.to_vec()])]
    }
}
