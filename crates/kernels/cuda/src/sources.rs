//! Kernels of all sources, for the test that compiles them.

use regatta_comm::gpu_runtime::Vendor;

use crate::{
    Kernel, activation, elementwise, embedding, flash, fp8, linear, loss, norm, optimizer, rope,
};

/// Kernels of every source of a vendor, with the definitions of typical and of extreme shapes.
pub(crate) fn representative_kernels(vendor: Vendor) -> Vec<Kernel> {
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
    kernels.extend(norm::representative_kernels(if vendor == Vendor::Amd { 64 } else { 32 }));
    if vendor == Vendor::Nvidia {
        kernels.extend(fp8::representative_kernels());
    }
    kernels.extend(flash::representative_kernels(vendor));
    kernels
}
