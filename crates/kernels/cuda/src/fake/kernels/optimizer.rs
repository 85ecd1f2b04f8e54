//! `optimizer.cu`.

use regatta_comm::DType;

use super::super::array::Array;
use super::super::launch::{Args, Launch};
use super::Run;
use crate::Ptr;

pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "adamw" => adamw,
        "sgd" => sgd,
        "clip_coefficient" => clip_coefficient,
        _ => return None,
    })
}

/// `THREADS`, `CHUNK` and `MAX_BOUNDS` of the source.
const THREADS: usize = 256;
const CHUNK: usize = 2048;
const MAX_BOUNDS: usize = 64;

/// Elements of a vector.
const VECTOR: usize = 4;

/// The last arguments: the elements of a launch.
struct Elements {
    begin: usize,
    end: usize,
    is_vectorised: bool,
    bounds: [usize; MAX_BOUNDS],
}

impl Elements {
    fn new(launch: &Launch<'_>) -> Self {
        launch.assert_threads(THREADS);
        launch.assert_one_dimension();
        let mut args = launch.args_from_end(3 + MAX_BOUNDS);
        let (begin, end, is_vectorised) = (args.size(), args.size(), args.flag());
        let mut bounds = [0; MAX_BOUNDS];
        bounds.fill_with(|| args.size());
        assert!(bounds.is_sorted(), "the bounds are not ascending");
        Self { begin, end, is_vectorised, bounds }
    }

    /// An element has weight decay if an odd number of bounds are at or before it.
    fn has_decay(&self, element: usize) -> bool {
        self.bounds.iter().filter(|bound| **bound <= element).count() % 2 == 1
    }

    /// Calls a function for each element of the grid. A block has a chunk.
    fn for_each(&self, launch: &Launch<'_>, arrays: &[Array], update: impl Fn(usize, bool)) {
        for first in (0..launch.blocks[0]).map(|block| self.begin + block * CHUNK) {
            let last = self.end.min(first + CHUNK);
            let is_uniform =
                !self.bounds.iter().any(|bound| *bound > first && *bound < first + CHUNK);
            if self.is_vectorised && is_uniform && first + CHUNK <= self.end {
                arrays.iter().for_each(|array| array.assert_vector(first, VECTOR));
            }
            (first..last).for_each(|at| update(at, self.has_decay(at)));
        }
    }
}

/// Tensors of the elements up to `end`; the weight is optional.
fn tensors<const N: usize>(
    launch: &Launch<'_>,
    args: &mut Args<'_>,
    end: usize,
) -> ([Array; N], Option<Array>, Vec<Array>) {
    let all = [(); N].map(|()| args.array(DType::F32, end));
    let weight = launch.optional_array(args.ptr(), launch.dtypes[0], end);
    (all, weight, all.into_iter().chain(weight).collect())
}

/// Factors in device memory, or the arguments if their address is null.
fn factors<const N: usize>(launch: &Launch<'_>, args: &mut Args<'_>) -> [f32; N] {
    let (in_memory, values) = (args.ptr(), [(); N].map(|()| args.f32()));
    match in_memory {
        Ptr::NULL => values,
        start => std::array::from_fn(|at| launch.values::<f32>(start, N).get(at)),
    }
}

fn adamw(launch: &Launch<'_>) {
    let elements = Elements::new(launch);
    let mut args = launch.args();
    let grad = args.array(DType::F32, elements.end);
    let grad_scale = launch.values::<f64>(args.ptr(), 1).get(0) as f32;
    let ([moment1, moment2, param], weight, mut all) = tensors(launch, &mut args, elements.end);
    all.push(grad);
    let (beta1, one_minus_beta1) = (args.f32(), args.f32());
    let (beta2, one_minus_beta2, eps) = (args.f32(), args.f32(), args.f32());
    let [step_size, v_correction, decay] = factors(launch, &mut args);
    elements.for_each(launch, &all, |at, has_decay| {
        let scaled = grad.get(at) * grad_scale;
        let m = moment1.get(at).mul_add(beta1, scaled * one_minus_beta1);
        let v = moment2.get(at).mul_add(beta2, scaled * scaled * one_minus_beta2);
        let update = m / v.sqrt().mul_add(v_correction, eps);
        let decayed = if has_decay { param.get(at) * decay } else { param.get(at) };
        moment1.set(at, m);
        moment2.set(at, v);
        set_param(param, weight, at, update.mul_add(-step_size, decayed));
    });
}

fn sgd(launch: &Launch<'_>) {
    let elements = Elements::new(launch);
    let mut args = launch.args();
    let grad = args.array(DType::F32, elements.end);
    let grad_scale = launch.values::<f64>(args.ptr(), 1).get(0) as f32;
    let ([moment, param], weight, mut all) = tensors(launch, &mut args, elements.end);
    all.push(grad);
    let (momentum, weight_decay) = (args.f32(), args.f32());
    let [lr] = factors(launch, &mut args);
    elements.for_each(launch, &all, |at, has_decay| {
        let decay = if has_decay { param.get(at) * weight_decay } else { 0.0 };
        let m = moment.get(at).mul_add(momentum, grad.get(at).mul_add(grad_scale, decay));
        moment.set(at, m);
        set_param(param, weight, at, m.mul_add(-lr, param.get(at)));
    });
}

fn set_param(param: Array, weight: Option<Array>, at: usize, value: f32) {
    param.set(at, value);
    if let Some(weight) = weight {
        weight.set(at, value);
    }
}

fn clip_coefficient(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (sum_of_squares, copies) = (args.ptr(), args.f64());
    let (max_norm, to) = (args.f64(), args.ptr());
    let norm = (launch.values::<f64>(sum_of_squares, 1).get(0) / copies).sqrt();
    let clipped = max_norm / (norm + 1e-6);
    let is_clipped = max_norm > 0.0 && clipped < 1.0;
    launch.values::<f64>(to, 1).set(0, if is_clipped { clipped } else { 1.0 });
}
