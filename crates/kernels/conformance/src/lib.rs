//! Checks that a device backend agrees with the f64 reference. For tests of backends only.
//!
//! Operations run on random small shapes and on fixed shapes that kernels specialise on, with the dtypes
//! that the training engine uses. The device's memory need not be host memory. Errors are relative to
//! the largest element of a result.
//!
//! ```
//! use regatta_device::reference::Reference;
//! use regatta_device_conformance::{Suite, Tolerances, run_checks};
//!
//! let suite = Suite {
//!     make_device: &|| Box::new(Reference),
//!     tolerances: Tolerances::F64,
//!     cases: 4,
//!     max: 10,
//!     seed: 1,
//! };
//! run_checks(suite.checks().into_iter().filter(|check| check.name.contains("norm"))).unwrap();
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed check may panic")]

mod attention;
mod attention_chunks;
mod embedding_loss;
mod fixed_shapes;
mod formulas;
mod fp8;
mod gradient_check;
mod guarded;
pub mod host_copy;
mod layers;
mod norms;
mod pinned_copies;
mod runner;
mod strategies;

pub use pinned_copies::{PinnedBlocks, check_pinned_blocks};
pub use runner::{Check, MakeDevice, run_checks};

use proptest::prelude::*;
use regatta_device::ops::Device;

use attention::check_decode_attention;
use attention_chunks::{check_chunks, check_head_shards, split_case};
use embedding_loss::{check_nan_loss, check_vocab_parallel_loss};
use formulas::{
    check_adamw, check_clip_coefficient, check_column_copies, check_elementwise, check_nan_sum,
    check_sgd, columns, exact_norms, flat_params,
};
use gradient_check::{
    Operation, check_finite_differences, check_positive_gradients, check_reference, check_scaled,
};
use strategies::{NamedStrategy, attention_shape, cross_entropy, operations, vocab_parallel};

/// Largest errors, relative to the largest element of a result, or to 1 if that is smaller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerances {
    /// Of results of the master dtype.
    pub master: f64,
    /// Of results that depend on activations.
    pub activation: f64,
}

impl Tolerances {
    /// For f64.
    pub const F64: Self = Self { master: 1e-13, activation: 1e-12 };
    /// For f32.
    pub const F32: Self = Self { master: 1e-5, activation: 1e-5 };
    /// For bf16 activations.
    pub const BF16: Self = Self { master: 1e-5, activation: 2e-2 };
}

/// What is checked, and how.
#[derive(Clone, Copy)]
pub struct Suite<'a> {
    /// Creates a device for each check, so that an error of one device fails one check only.
    pub make_device: MakeDevice<'a>,
    /// Tolerances.
    pub tolerances: Tolerances,
    /// Random cases of each operation.
    pub cases: u32,
    /// Random sizes are below it.
    pub max: usize,
    /// Seed of random cases and values.
    pub seed: u64,
}

/// Runs all checks of a device. The error names every operation that failed, with its shape and seed.
pub fn run_suite(
    make_device: &dyn Fn() -> Box<dyn Device>,
    tolerances: Tolerances,
    cases: u32,
    max: usize,
    seed: u64,
) -> Result<(), String> {
    run_checks(Suite { make_device, tolerances, cases, max, seed }.checks())
}

impl<'a> Suite<'a> {
    /// All checks of a device, except for finite differences, which need f64.
    pub fn checks(&self) -> Vec<Check<'a>> {
        [self.random_operations(), self.random_formulas(), self.fixed_shapes()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Gradients agree with finite differences; for a device in f64.
    pub fn finite_differences(&self) -> Vec<Check<'a>> {
        let check = |(name, strategy): NamedStrategy| {
            self.random(name, strategy, |device, operation, seed| {
                check_finite_differences(device, &**operation, seed);
            })
        };
        operations(self.max).into_iter().map(check).collect()
    }

    /// GEMMs on fp8 operands and what produces these; for a device with fp8.
    pub fn fp8(&self) -> Vec<Check<'a>> {
        let tolerance = self.tolerances.activation;
        let linear = move |device: &dyn Device, case: &fp8::Dimensions, seed: u64| {
            fp8::check_linear(device, case, seed, tolerance);
        };
        let fused = move |device: &dyn Device, case: &fp8::Dimensions, seed: u64| {
            fp8::check_fused(device, case, seed, tolerance);
        };
        vec![
            self.random("fp8 conversion", fp8::dimensions(), fp8::check_quantize),
            self.random("fp8 linear", fp8::dimensions(), linear),
            self.random("fp8 fused", fp8::dimensions(), fused),
            self.fixed("fp8 conversion", fp8::fixed_dimensions(), fp8::check_quantize),
            self.fixed("fp8 linear", fp8::fixed_dimensions(), linear),
            self.fixed("fp8 fused", fp8::fixed_dimensions(), fused),
        ]
    }

    /// Outputs and gradients of random operations agree with the reference.
    pub fn random_operations(&self) -> Vec<Check<'a>> {
        let tolerance = self.tolerances.activation;
        let check = |(name, strategy): NamedStrategy| {
            self.random(name, strategy, move |device, operation, seed| {
                check_reference(device, &**operation, seed, tolerance);
            })
        };
        operations(self.max).into_iter().map(check).collect()
    }

    /// Other random operations agree with their formulas.
    pub fn random_formulas(&self) -> Vec<Check<'a>> {
        let (Tolerances { master, activation }, max) = (self.tolerances, self.max);
        vec![
            self.random("decode_attention", attention_shape(max, 1), move |device, case, seed| {
                check_decode_attention(device, case, seed, activation);
            }),
            self.random("attention by chunks", split_case(max), move |device, case, seed| {
                check_chunks(device, case, seed, activation);
            }),
            self.random("attention by heads", split_case(max), move |device, case, seed| {
                check_head_shards(device, case, seed, activation);
            }),
            self.random("vocab-parallel loss", vocab_parallel(max), move |device, case, seed| {
                check_vocab_parallel_loss(device, case, seed, master);
            }),
            self.random("NaN loss", cross_entropy(max), check_nan_loss),
            self.random("column copies", columns(), check_column_copies),
            self.random("elementwise", 1..max * max, move |device, case, seed| {
                check_elementwise(device, case, seed, master);
            }),
            self.random("NaN sum", 1..max * max, check_nan_sum),
            self.random("clip_coefficient", exact_norms(), move |device, case, _| {
                check_clip_coefficient(device, case, master);
            }),
            self.random("adamw", flat_params(), move |device, case, seed| {
                check_adamw(device, case, seed, master);
            }),
            self.random("sgd", flat_params(), move |device, case, seed| {
                check_sgd(device, case, seed, master);
            }),
        ]
    }

    /// Operations of fixed shapes agree with the reference or with their formulas.
    pub fn fixed_shapes(&self) -> Vec<Check<'a>> {
        let Tolerances { master, activation } = self.tolerances;
        let reference = |name, cases: Vec<Box<dyn Operation>>| {
            self.fixed(name, cases, move |device, operation, seed| {
                check_reference(device, &**operation, seed, activation);
            })
        };
        vec![
            reference("linear", fixed_shapes::linear()),
            reference("linear_gelu", fixed_shapes::linear_gelu()),
            reference("norm", fixed_shapes::norm()),
            reference("attention", fixed_shapes::attention()),
            reference("rope", fixed_shapes::rope()),
            reference("embedding", fixed_shapes::embedding()),
            reference("cross_entropy", fixed_shapes::cross_entropy()),
            reference("activation", fixed_shapes::activation()),
            self.fixed(
                "cross_entropy probabilities",
                fixed_shapes::cross_entropy(),
                move |device, operation, seed| {
                    check_positive_gradients(device, &**operation, seed, activation);
                },
            ),
            self.fixed(
                "cross_entropy of large logits",
                fixed_shapes::large_logits(),
                move |device, operation, seed| {
                    check_scaled(device, &**operation, 256.0, seed, activation);
                },
            ),
            self.fixed(
                "decode_attention",
                fixed_shapes::decode_attention(),
                move |device, case, seed| check_decode_attention(device, case, seed, activation),
            ),
            self.fixed(
                "attention by chunks",
                fixed_shapes::attention_chunks(),
                move |device, case, seed| check_chunks(device, case, seed, activation),
            ),
            self.fixed("elementwise", fixed_shapes::lens(), move |device, case, seed| {
                check_elementwise(device, case, seed, master);
            }),
            self.fixed("adamw", fixed_shapes::flat_params(), move |device, case, seed| {
                check_adamw(device, case, seed, master);
            }),
            self.fixed("sgd", fixed_shapes::flat_params(), move |device, case, seed| {
                check_sgd(device, case, seed, master);
            }),
            self.fixed("pinned copies", fixed_shapes::pinned_blocks(), |device, case, _| {
                check_pinned_blocks(device, *case);
            }),
        ]
    }

    fn random<S: Strategy + 'a>(
        &self,
        name: &str,
        strategy: S,
        check: impl Fn(&dyn Device, &S::Value, u64) + 'a,
    ) -> Check<'a> {
        Check::random(name, self.make_device, (self.cases, self.seed), strategy, check)
    }

    fn fixed<T: std::fmt::Debug + 'a>(
        &self,
        name: &str,
        cases: Vec<T>,
        check: impl Fn(&dyn Device, &T, u64) + 'a,
    ) -> Check<'a> {
        Check::fixed(name, self.make_device, self.seed, cases, check)
    }
}

#[cfg(test)]
mod tests {
    use regatta_device::reference::Reference;

    use super::*;

    fn named(tolerance: f64, name: &str) -> Result<(), String> {
        let tolerances = Tolerances { master: tolerance, activation: tolerance };
        let make_device: MakeDevice<'_> = &|| Box::new(Reference);
        let suite = Suite { make_device, tolerances, cases: 2, max: 8, seed: 1 };
        run_checks(suite.checks().into_iter().filter(|check| check.name == name))
    }

    #[test]
    fn errors_name_the_case_and_are_reproducible() {
        // No result has a negative error.
        let [random, again] = [(); 2].map(|()| named(-1.0, "random linear").unwrap_err());
        assert!(random.starts_with("random linear: Linear { shape: LinearShape {"), "{random}");
        assert!(random.contains("output: element 0 is"), "{random}");
        assert!(random.contains("seed "), "{random}");
        assert_eq!(random, again);
        let fixed = named(-1.0, "fixed rope").unwrap_err();
        assert_eq!(fixed.lines().count(), 3, "{fixed}");
    }

    #[test]
    fn a_name_without_a_check_is_an_error() {
        assert_eq!(named(1.0, "conv2d").unwrap_err(), "no check was selected");
        assert_eq!(named(1e-12, "fixed rope"), Ok(()));
    }
}
