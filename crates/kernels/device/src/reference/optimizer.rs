//! AdamW and SGD.

use super::Reference;
use crate::ops::{OptimizerOps, OptimizerState};
use crate::optimizer::{AdamW, AdamWFactors, Sgd, split_by_decay};
use crate::tensor::ViewMut;

impl OptimizerOps for Reference {
    fn adamw(&self, config: &AdamW, state: OptimizerState<'_>) {
        let OptimizerState { grad, grad_scale, moment1, moment2, param, decayed, .. } = state;
        let [m, v, p] = [moment1, moment2, param].map(ViewMut::as_slice::<f64>);
        let (grad, grad_scale) = (grad.as_slice::<f64>(), grad_scale.as_slice::<f64>()[0]);
        assert!([grad.len(), m.len(), v.len()].iter().all(|len| *len == p.len()));
        let AdamWFactors { step_size, v_correction, decay } = config.factors();
        for (range, has_decay) in split_by_decay(p.len(), decayed) {
            let decay = if has_decay { decay } else { 1.0 };
            for i in range {
                let g = grad[i] * grad_scale;
                m[i] = config.beta1 * m[i] + (1.0 - config.beta1) * g;
                v[i] = config.beta2 * v[i] + (1.0 - config.beta2) * g * g;
                p[i] = p[i] * decay - step_size * m[i] / (v[i].sqrt() * v_correction + config.eps);
            }
        }
    }

    fn sgd(&self, config: &Sgd, state: OptimizerState<'_>) {
        let OptimizerState { grad, grad_scale, moment1, param, decayed, .. } = state;
        let [m, p] = [moment1, param].map(ViewMut::as_slice::<f64>);
        let (grad, grad_scale) = (grad.as_slice::<f64>(), grad_scale.as_slice::<f64>()[0]);
        assert!([grad.len(), m.len()].iter().all(|len| *len == p.len()));
        for (range, has_decay) in split_by_decay(p.len(), decayed) {
            let weight_decay = if has_decay { config.weight_decay } else { 0.0 };
            for i in range {
                m[i] = config.momentum * m[i] + grad[i] * grad_scale + weight_decay * p[i];
                p[i] -= config.lr * m[i];
            }
        }
    }
}
