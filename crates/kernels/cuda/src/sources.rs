//! Kernels of all sources, for the test that compiles them.

use crate::{
    Kernel, activation, elementwise, embedding, flash, fp8, linear, loss, norm, optimizer, rope,
};

/// Kernels of every source, with the definitions of typical and of extreme shapes.
pub(crate) fn representative_kernels() -> Vec<Kernel> {
    let without_definitions = [
        &activation::SOURCE,
        &elementwise::SOURCE,
        &embedding::SOURCE,
        &linear::SOURCE,
        &loss::SOURCE,
        &optimizer::SOURCE,
        &rope::SOURCE,
    ];
    let mut kernels: Vec<Kernel> =
        without_definitions.map(|source| Kernel::new(source, "any")).to_vec();
    kernels.extend(norm::representative_kernels());
    kernels.extend(fp8::representative_kernels());
    kernels.extend(flash::representative_kernels());
    kernels
}
