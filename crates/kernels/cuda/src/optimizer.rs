//! Optimizer updates, in one pass over memory.

use std::ops::Range;

use regatta_comm::DType;
use regatta_device::OptimizerOps;
use regatta_device::ops::{OptimizerState, TOKEN_DTYPE};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_device::tensor::{View, ViewMut};

use crate::elementwise::{kernel_name, to_u32};
use crate::{Arg, CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static SOURCE: Source =
    Source { name: "optimizer", text: include_str!("../kernels/optimizer.cu") };

/// `THREADS`, `CHUNK` and `MAX_BOUNDS` of the source.
const THREADS: u32 = 256;
const CHUNK: usize = 2048;
const MAX_BOUNDS: usize = 64;

/// Elements of a vector.
const VECTOR_LEN: usize = 4;

impl OptimizerOps for CudaDevice {
    fn clip_coefficient(
        &self,
        sum_of_squares: View<'_>,
        copies: f64,
        max_norm: f64,
        to: ViewMut<'_>,
    ) {
        let are_scalars = sum_of_squares.dtype() == DType::F64 && to.dtype() == DType::F64;
        assert!(are_scalars && !sum_of_squares.is_empty() && !to.is_empty(), "scalars are f64");
        let (sum_of_squares, to) = (Ptr::of(sum_of_squares), Ptr::of_mut(&to));
        self.launch(
            &Kernel::new(&SOURCE, "clip_coefficient"),
            Grid::new(1, 1),
            &[sum_of_squares.into(), copies.into(), max_norm.into(), to.into()],
        );
    }

    fn adamw(&self, config: &AdamW, state: OptimizerState<'_>) {
        let AdamW { beta1, beta2, eps, .. } = *config;
        let OptimizerState { grad, moment1, moment2, param, .. } = &state;
        let tensors = [*grad, moment1.view(), moment2.view(), param.view()];
        let constants = [beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps];
        self.launch_update("adamw", &state, &tensors, &constants, &config.factor_words());
    }

    fn sgd(&self, config: &Sgd, state: OptimizerState<'_>) {
        let OptimizerState { grad, moment1, param, .. } = &state;
        let tensors = [*grad, moment1.view(), param.view()];
        let constants = [config.momentum, config.weight_decay];
        self.launch_update("sgd", &state, &tensors, &constants, &config.factor_words());
    }
}

impl CudaDevice {
    /// Launches a kernel once per run of elements with as many bounds of weight decay as it takes. `tensors` are
    /// those of the state that it has as arguments, the gradient first.
    fn launch_update(
        &self,
        function: &str,
        state: &OptimizerState<'_>,
        tensors: &[View<'_>],
        constants: &[f64],
        factor_words: &[u32],
    ) {
        let weight = state.weight.as_ref();
        let len = check(tensors, state.grad_scale, weight);
        let pointers: Vec<Ptr> = tensors.iter().map(|tensor| Ptr::of(*tensor)).collect();
        let is_vectorised = is_vectorised(&pointers, weight);
        let mut args: Vec<Arg> = pointers.into_iter().map(Arg::from).collect();
        args.insert(1, Ptr::of(state.grad_scale).into());
        args.push(Ptr::optional_mut(weight).into());
        args.extend(constants.iter().map(|constant| Arg::from(*constant as f32)));
        args.extend(factor_args(factor_words, state.factors));
        let weight_dtype = weight.map_or(DType::F32, ViewMut::dtype);
        let kernel = Kernel::new(&SOURCE, kernel_name(function, [weight_dtype]));
        for Run { elements, bounds } in Run::all(len, state.decayed) {
            let mut args = args.clone();
            args.extend([elements.start, elements.end].map(|bound| Arg::from(bound as u64)));
            args.push(u32::from(is_vectorised).into());
            args.extend(bounds.map(Arg::from));
            let blocks = to_u32(elements.len().div_ceil(CHUNK));
            self.launch(&kernel, Grid::new(blocks, THREADS), &args);
        }
    }
}

/// Elements of one launch.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    elements: Range<usize>,
    /// Ascending: an element has weight decay if an odd number of bounds are at or before it.
    bounds: [u64; MAX_BOUNDS],
}

impl Run {
    /// Runs of all elements, which start at multiples of a vector.
    fn all(len: usize, decayed: &[Range<usize>]) -> Vec<Self> {
        let bounds = merged_bounds(decayed);
        let (mut runs, mut start) = (Vec::new(), 0);
        while start < len {
            let (before, after) = bounds.split_at(bounds.partition_point(|bound| *bound <= start));
            // One bound may be needed for the start.
            let next = after.get(MAX_BOUNDS - 1);
            let end = next.map_or(len, |bound| bound / VECTOR_LEN * VECTOR_LEN);
            let starts_decayed = (before.len() % 2 == 1).then_some(start);
            let inside = after.iter().copied().take_while(|bound| *bound < end);
            let mut of_run = [u64::MAX; MAX_BOUNDS];
            for (to, bound) in of_run.iter_mut().zip(starts_decayed.into_iter().chain(inside)) {
                *to = bound as u64;
            }
            runs.push(Self { elements: start..end, bounds: of_run });
            start = end;
        }
        runs
    }
}

/// Starts and ends of ranges, without those of empty ranges and those where ranges touch.
fn merged_bounds(ranges: &[Range<usize>]) -> Vec<usize> {
    let mut bounds: Vec<usize> = Vec::new();
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        match bounds.last_mut() {
            Some(end) if *end == range.start => *end = range.end,
            _ => bounds.extend([range.start, range.end]),
        }
    }
    bounds
}

/// The address of the factors in device memory, or null, and their values for launches without.
fn factor_args(words: &[u32], in_memory: Option<View<'_>>) -> Vec<Arg> {
    let is_valid =
        |factors: View<'_>| factors.len() == words.len() && factors.dtype() == TOKEN_DTYPE;
    assert!(in_memory.is_none_or(is_valid), "an optimizer has {} factors", words.len());
    let values = words.iter().map(|word| Arg::from(f32::from_bits(*word)));
    std::iter::once(Arg::from(in_memory.map_or(Ptr::NULL, Ptr::of))).chain(values).collect()
}

/// Number of elements of the tensors.
fn check(tensors: &[View<'_>], grad_scale: View<'_>, weight: Option<&ViewMut<'_>>) -> usize {
    let len = tensors[0].len();
    let lengths_match = tensors.iter().all(|tensor| tensor.len() == len);
    assert!(lengths_match && weight.is_none_or(|w| w.len() == len), "tensor lengths differ");
    let are_f32 = tensors.iter().all(|tensor| tensor.dtype() == DType::F32);
    assert!(are_f32, "parameters, gradients and moments are f32");
    assert!(grad_scale.dtype() == DType::F64 && !grad_scale.is_empty(), "scalars are f64");
    len
}

fn is_vectorised(pointers: &[Ptr], weight: Option<&ViewMut<'_>>) -> bool {
    let is_aligned =
        |pointer: Ptr, dtype: DType| pointer.0.is_multiple_of((VECTOR_LEN * dtype.size()) as u64);
    pointers.iter().all(|pointer| is_aligned(*pointer, DType::F32))
        && weight.is_none_or(|weight| is_aligned(Ptr::of_mut(weight), weight.dtype()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_decayed(bounds: &[u64], element: usize) -> bool {
        bounds.iter().filter(|bound| **bound <= element as u64).count() % 2 == 1
    }

    #[test]
    fn runs_cover_all_elements_and_know_their_decay() {
        let many: Vec<Range<usize>> = (0..100).map(|i| 10 * i + 3..10 * i + 3 + i % 9).collect();
        let touching: Vec<Range<usize>> = (1..300).map(|i| 3 * i..3 * i + 3).collect();
        let all = std::iter::once(0..1000).collect::<Vec<_>>();
        for decayed in [&[][..], &[0..4, 4..6], &all, &[7..7, 9..1000], &many, &touching] {
            let (runs, mut end) = (Run::all(1000, decayed), 0);
            for Run { elements, bounds } in &runs {
                assert_eq!((elements.start, elements.start % VECTOR_LEN), (end, 0));
                end = elements.end;
                for element in elements.clone() {
                    let expected = decayed.iter().any(|range| range.contains(&element));
                    assert_eq!(is_decayed(bounds, element), expected, "{element}");
                }
            }
            assert_eq!(end, 1000);
        }
        assert_eq!(Run::all(1000, &many).len(), 3);
        assert_eq!(Run::all(1000, &touching).len(), 1);
        assert_eq!(Run::all(0, &[]), []);
    }
}
