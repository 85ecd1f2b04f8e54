//! Matrix products, norms and activations.

use regatta_device::ops::{Device, LinearShape, Norm, NormGrads, NormSaved};
use regatta_device::tensor::Tensor;

use crate::check::{Operation, activation, added, begun, real, unread};
use crate::slice::fetch;

/// `linear`: the row, the weight, perhaps the bias.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub of: LinearShape,
    pub bias: bool,
    /// Whether the gradient of the input is added to what is there.
    pub add: bool,
}

impl Operation for Product {
    fn inputs(&self) -> Vec<usize> {
        let LinearShape { rows, inputs, outputs } = self.of;
        let mut all = vec![rows * inputs, outputs * inputs];
        all.extend(self.bias.then_some(outputs));
        all
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (x, weight) = (activation(device, &inputs[0]), real(device, &inputs[1]));
        let bias = inputs.get(2).map(|bias| real(device, bias));
        let mut y = activation(device, &unread(self.of.rows * self.of.outputs));
        let bias = bias.as_ref().map(|bias| bias.view());
        device.linear(self.of, x.view(), weight.view(), bias, y.view_mut());
        fetch(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (x, weight) = (activation(device, &inputs[0]), real(device, &inputs[1]));
        let dy = activation(device, dy);
        let before = vec![0.5; inputs[0].len()];
        let before = if self.add { before } else { unread(inputs[0].len()) };
        let mut dx = activation(device, &before);
        device.linear_back_input(self.of, dy.view(), weight.view(), dx.view_mut(), self.add);
        let dx = fetch(device, dx.view());
        let dx = dx.iter().map(|dx| if self.add { dx - 0.5 } else { *dx }).collect();

        let mut dweight = begun(device, inputs[1].len());
        let mut dbias = inputs.get(2).map(|bias| begun(device, bias.len()));
        let sum = dbias.as_mut().map(|dbias| dbias.view_mut());
        device.linear_back_weight(self.of, x.view(), dy.view(), dweight.view_mut(), sum);
        let mut all = vec![dx, added(device, &dweight)];
        all.extend(dbias.map(|dbias| added(device, &dbias)));
        all
    }
}

/// `norm`: rows, the weight, perhaps the bias.
#[derive(Debug, Clone, Copy)]
pub struct Scaling {
    pub how: Norm,
    pub rows: usize,
    pub width: usize,
    pub bias: bool,
}

impl Scaling {
    /// What comes out, and the mean_rstd.
    fn both(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> (Vec<f64>, Vec<f64>) {
        let (x, weight) = (real(device, &inputs[0]), real(device, &inputs[1]));
        let bias = inputs.get(2).map(|bias| real(device, bias));
        let bias = bias.as_ref().map(|bias| bias.view());
        let mut y = activation(device, &unread(x.len()));
        let mut mean_rstd = real(device, &unread(2 * self.rows));
        let (to, beside) = (y.view_mut(), mean_rstd.view_mut());
        device.norm(self.how, x.view(), weight.view(), bias, to, beside);
        (fetch(device, y.view()), fetch(device, mean_rstd.view()))
    }
}

impl Operation for Scaling {
    fn inputs(&self) -> Vec<usize> {
        let mut all = vec![self.rows * self.width, self.width];
        all.extend(self.bias.then_some(self.width));
        all
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        self.both(device, inputs).0
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (x, weight) = (real(device, &inputs[0]), real(device, &inputs[1]));
        let mean_rstd = real(device, &self.both(device, inputs).1);
        let dy = activation(device, dy);
        let mut dx = begun(device, x.len());
        let mut dweight = begun(device, self.width);
        let mut dbias = self.bias.then(|| begun(device, self.width));
        let saved = NormSaved { x: x.view(), weight: weight.view(), mean_rstd: mean_rstd.view() };
        let bias = dbias.as_mut().map(|dbias| dbias.view_mut());
        let grads = NormGrads { weight: dweight.view_mut(), bias };
        device.norm_back(self.how, saved, dy.view(), dx.view_mut(), grads);
        let mut all = vec![added(device, &dx), added(device, &dweight)];
        all.extend(dbias.map(|dbias| added(device, &dbias)));
        all
    }
}

/// `gelu`.
#[derive(Debug, Clone, Copy)]
pub struct Gelu {
    pub count: usize,
}

impl Operation for Gelu {
    fn inputs(&self) -> Vec<usize> {
        vec![self.count]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [_, y] = self.both(device, &inputs[0]);
        fetch(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let ([slopes, _], mut dy) = (self.both(device, &inputs[0]), activation(device, dy));
        device.gelu_back(slopes.view(), dy.view_mut());
        vec![fetch(device, dy.view())]
    }
}

impl Gelu {
    /// Slopes, and what comes out.
    fn both(&self, device: &dyn Device, x: &[f64]) -> [Tensor; 2] {
        let (mut x, mut y) = (activation(device, x), activation(device, &unread(self.count)));
        device.gelu(x.view_mut(), y.view_mut());
        [x, y]
    }
}

/// `swiglu`.
#[derive(Debug, Clone, Copy)]
pub struct Swiglu {
    pub rows: usize,
    pub width: usize,
}

impl Operation for Swiglu {
    fn inputs(&self) -> Vec<usize> {
        vec![self.rows * 2 * self.width]
    }

    fn forward(&self, device: &dyn Device, inputs: &[Vec<f64>]) -> Vec<f64> {
        let x = activation(device, &inputs[0]);
        let mut y = activation(device, &unread(self.rows * self.width));
        device.swiglu(self.width, x.view(), y.view_mut());
        fetch(device, y.view())
    }

    fn backward(&self, device: &dyn Device, inputs: &[Vec<f64>], dy: &[f64]) -> Vec<Vec<f64>> {
        let (x, dy) = (activation(device, &inputs[0]), activation(device, dy));
        let mut dx = activation(device, &unread(x.len()));
        device.swiglu_back(self.width, x.view(), dy.view(), dx.view_mut());
        vec![fetch(device, dx.view())]
    }
}
