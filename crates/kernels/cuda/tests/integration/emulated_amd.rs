//! The kernel sources agree with the f64 reference on an emulated AMD GPU with wavefronts of 64 lanes: they are
//! compiled for the host, and lanes, barriers, shuffles and MFMA instructions are emulated. Skipped with a
//! message without a C++ compiler. `REGATTA_CONFORMANCE=attention` runs only the checks with this word in
//! their name.

use std::cell::RefCell;
use std::collections::BTreeSet;

use regatta_device::ops::Device;
use regatta_device::precision::Precision;
use regatta_device_conformance::{Check, Suite, Tolerances, run_checks};
use regatta_kernels_cuda::CudaDevice;
use regatta_kernels_cuda::fake::FakeDevice;

/// Runs some checks, and returns the kernels that were launched.
fn check(
    precision: Precision,
    tolerances: Tolerances,
    configure: fn(CudaDevice) -> CudaDevice,
    select: for<'a> fn(&Suite<'a>) -> Vec<Check<'a>>,
) -> Option<BTreeSet<String>> {
    let Some(fake) = FakeDevice::running_sources(precision) else {
        eprintln!("skipped: no C++ compiler (set CXX)");
        return None;
    };
    let probes = RefCell::new(Vec::new());
    let make_device = || -> Box<dyn Device> {
        let (device, probe) = fake.clone().open_with_probe().unwrap();
        probes.borrow_mut().push(probe);
        Box::new(configure(device))
    };
    let suite = Suite { make_device: &make_device, tolerances, cases: 3, max: 12, seed: 1 };
    let wanted = std::env::var("REGATTA_CONFORMANCE").unwrap_or_default();
    let checks = select(&suite).into_iter().filter(|check| check.name.contains(&wanted));
    if let Err(failures) = run_checks(checks) {
        panic!("{} failures:\n{failures}", failures.lines().count());
    }
    let launched = probes.into_inner();
    Some(launched.iter().flat_map(|probe| probe.launched()).map(|(_, kernel)| kernel).collect())
}

/// Every shape of these has sources of its own, which take seconds to compile.
fn has_a_source_per_shape(check: &Check<'_>) -> bool {
    check.name.contains("norm") || check.name.contains("attention")
}

fn with_few_sources<'a>(suite: &Suite<'a>) -> Vec<Check<'a>> {
    suite.checks().into_iter().filter(|check| !has_a_source_per_shape(check)).collect()
}

fn attention<'a>(suite: &Suite<'a>) -> Vec<Check<'a>> {
    let is_attention = |check: &Check<'_>| check.name.contains("attention");
    suite.fixed_shapes().into_iter().filter(is_attention).collect()
}

/// Norms of few shapes: rows in registers and generic ones.
fn random_norms<'a>(suite: &Suite<'a>) -> Vec<Check<'a>> {
    let is_norm = |check: &Check<'_>| check.name.contains("norm");
    suite.random_operations().into_iter().filter(is_norm).collect()
}

fn norms_and_random_attention<'a>(suite: &Suite<'a>) -> Vec<Check<'a>> {
    let random = suite.random_operations().into_iter().filter(has_a_source_per_shape);
    let fixed = suite.fixed_shapes().into_iter().filter(|check| check.name.contains("norm"));
    random.chain(fixed).collect()
}

#[test]
fn mfma_attention_matches_the_reference() {
    let launched = check(Precision::Bf16, Tolerances::BF16, |device| device, attention);
    if let Some(launched) = launched {
        for kernel in ["forward", "backward_kv", "backward_q"] {
            assert!(launched.contains(&format!("attention_mfma_{kernel}")), "{launched:?}");
        }
    }
}

#[test]
fn elementwise_and_loss_kernels_match_the_reference() {
    check(Precision::F32, Tolerances::F32, |device| device, with_few_sources);
    check(Precision::Bf16, Tolerances::BF16, CudaDevice::deterministic_results, with_few_sources);
}

#[test]
fn norms_and_generic_attention_match_the_reference() {
    check(Precision::F32, Tolerances::F32, |device| device, norms_and_random_attention);
}

/// In bf16, the gradient of the residual stream has another dtype than the stream by default.
#[test]
fn norms_with_a_bf16_gradient_match_the_reference() {
    check(Precision::Bf16, Tolerances::BF16, |device| device, random_norms);
}
