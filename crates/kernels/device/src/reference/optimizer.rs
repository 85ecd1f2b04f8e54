//! AdamW and SGD.

use super::Reference;
use crate::ops::OptimizerOps;
use crate::optimizer::{AdamW, AdamWFactors, Sgd};
use crate::tensor::{View, ViewMut};

impl OptimizerOps for Reference {
    fn adamw(&self, config: &AdamW, grad: View<'_>, moments: [ViewMut<'_>; 2], param: ViewMut<'_>) {
        let [m, v] = moments.map(ViewMut::as_slice::<f64>);
        let AdamWFactors { step_size, v_correction, decay } = config.factors();
        let p = param.as_slice::<f64>();
        assert!([grad.len(), m.len(), v.len()].iter().all(|len| *len == p.len()));
        for (i, g) in grad.as_slice::<f64>().iter().enumerate() {
            let g = g * config.grad_scale;
            m[i] = config.beta1 * m[i] + (1.0 - config.beta1) * g;
            v[i] = config.beta2 * v[i] + (1.0 - config.beta2) * g * g;
            p[i] = p[i] * decay - step_size * m[i] / (v[i].sqrt() * v_correction + config.eps);
        }
    }

    fn sgd(&self, config: &Sgd, grad: View<'_>, momentum: ViewMut<'_>, param: ViewMut<'_>) {
        let (m, p) = (momentum.as_slice::<f64>(), param.as_slice::<f64>());
        assert!([grad.len(), m.len()].iter().all(|len| *len == p.len()));
        for (i, g) in grad.as_slice::<f64>().iter().enumerate() {
            m[i] = config.momentum * m[i] + g * config.grad_scale + config.weight_decay * p[i];
            p[i] -= config.lr * m[i];
        }
    }
}
