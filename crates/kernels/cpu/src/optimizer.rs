//! Optimizer updates, in one pass over memory.

use crate::Cpu;
use crate::isa::kernel;
use crate::lanes::WIDTH;
use crate::slice::{DisjointMut, load_padded, store_partial};
use regatta_device::OptimizerOps;
use regatta_device::ops::OptimizerState;
use regatta_device::optimizer::{AdamW, Sgd, split_by_decay};

const MIN_PARAMS_PER_THREAD: usize = 4 * 1024;

impl OptimizerOps for Cpu {
    fn adamw(&self, config: &AdamW, state: OptimizerState<'_>) {
        let _timer = self.timer("adamw");
        let OptimizerState { grad, grad_scale, moment1: m, moment2: v, param, decayed, .. } = state;
        let len = param.len();
        assert_eq!([grad.len(), m.len(), v.len()], [len; 3], "tensor lengths differ");
        let (grad, grad_scale) = (grad.as_slice::<f32>(), grad_scale.as_slice::<f64>()[0]);
        let (param, m, v) = (DisjointMut::new(param), DisjointMut::new(m), DisjointMut::new(v));
        for (part, has_decay) in split_by_decay(len, decayed) {
            let weight_decay = if has_decay { config.weight_decay } else { 0.0 };
            let config = AdamW { weight_decay, ..*config };
            self.pool.run_balanced(part.len(), MIN_PARAMS_PER_THREAD, WIDTH, |range| {
                let range = part.start + range.start..part.start + range.end;
                // SAFETY: ranges are disjoint.
                let [m, v, param] =
                    unsafe { [m, v, param].map(|all| all.slice_f32(range.clone())) };
                adamw_kernel(self.isa, &config, grad_scale, &grad[range], m, v, param);
            });
        }
    }

    fn sgd(&self, config: &Sgd, state: OptimizerState<'_>) {
        let _timer = self.timer("sgd");
        let OptimizerState { grad, grad_scale, moment1: momentum, param, decayed, .. } = state;
        let len = param.len();
        assert_eq!([grad.len(), momentum.len()], [len; 2], "tensor lengths differ");
        let (grad, grad_scale) = (grad.as_slice::<f32>(), grad_scale.as_slice::<f64>()[0]);
        let (param, m) = (DisjointMut::new(param), DisjointMut::new(momentum));
        for (part, has_decay) in split_by_decay(len, decayed) {
            let weight_decay = if has_decay { config.weight_decay } else { 0.0 };
            let config = Sgd { weight_decay, ..*config };
            self.pool.run_balanced(part.len(), MIN_PARAMS_PER_THREAD, WIDTH, |range| {
                let range = part.start + range.start..part.start + range.end;
                // SAFETY: ranges are disjoint.
                let [m, param] = unsafe { [m, param].map(|all| all.slice_f32(range.clone())) };
                sgd_kernel(self.isa, &config, grad_scale, &grad[range], m, param);
            });
        }
    }
}

kernel! {
    fn adamw_kernel<V>(
        config: &AdamW, grad_scale: f64, grads: &[f32],
        m: &mut [f32], v: &mut [f32], params: &mut [f32],
    ) {
        let factors = config.factors();
        let splat = |x: f64| V::splat(x as f32);
        let (beta1, one_minus_beta1) = (splat(config.beta1), splat(1.0 - config.beta1));
        let (beta2, one_minus_beta2) = (splat(config.beta2), splat(1.0 - config.beta2));
        let (grad_scale, eps) = (splat(grad_scale), splat(config.eps));
        let (step_size, v_correction) = (splat(-factors.step_size), splat(factors.v_correction));
        let decay = splat(factors.decay);
        for at in (0..params.len()).step_by(WIDTH) {
            let grad = load_padded::<V>(grads, at).mul(grad_scale);
            let new_m = load_padded::<V>(m, at).mul_add(beta1, grad.mul(one_minus_beta1));
            let new_v = load_padded::<V>(v, at).mul_add(beta2, grad.mul(grad).mul(one_minus_beta2));
            let update = new_m.div(new_v.sqrt().mul_add(v_correction, eps));
            let decayed = load_padded::<V>(params, at).mul(decay);
            store_partial(m, at, new_m);
            store_partial(v, at, new_v);
            store_partial(params, at, update.mul_add(step_size, decayed));
        }
    }

    fn sgd_kernel<V>(
        config: &Sgd, grad_scale: f64, grads: &[f32], momentum: &mut [f32], params: &mut [f32],
    ) {
        let splat = |x: f64| V::splat(x as f32);
        let (beta, weight_decay) = (splat(config.momentum), splat(config.weight_decay));
        let (grad_scale, lr) = (splat(grad_scale), splat(-config.lr));
        for at in (0..params.len()).step_by(WIDTH) {
            let param: V = load_padded(params, at);
            let grad = load_padded::<V>(grads, at).mul_add(grad_scale, param.mul(weight_decay));
            let m = load_padded::<V>(momentum, at).mul_add(beta, grad);
            store_partial(momentum, at, m);
            store_partial(params, at, m.mul_add(lr, param));
        }
    }
}
