//! The host code of the device agrees with the f64 reference, on a fake GPU whose kernels are emulated.

#![allow(clippy::unwrap_used)]

use regatta_device::ops::Device;
use regatta_device::precision::Precision;
use regatta_device_conformance::{Suite, Tolerances, run_checks};
use regatta_kernels_cuda::CudaDevice;
use regatta_kernels_cuda::fake::{self, FakeDevice};

fn check(make_device: &dyn Fn() -> CudaDevice, tolerances: Tolerances) {
    let make_device = || -> Box<dyn Device> { Box::new(make_device()) };
    let suite = Suite { make_device: &make_device, tolerances, cases: 12, max: 24, seed: 1 };
    let wanted = std::env::var("REGATTA_CONFORMANCE").unwrap_or_default();
    let checks = suite.checks().into_iter().filter(|check| check.name.contains(&wanted));
    if let Err(failures) = run_checks(checks) {
        panic!("{} failures:\n{failures}", failures.lines().count());
    }
}

#[test]
fn fake_gpu_matches_the_reference_in_f32() {
    check(&|| fake::device(Precision::F32), Tolerances::F32);
}

#[test]
fn fake_gpu_matches_the_reference_in_bf16() {
    check(&|| fake::device(Precision::Bf16), Tolerances::BF16);
}

#[test]
fn deterministic_kernels_match_the_reference() {
    check(&|| fake::device(Precision::Bf16).deterministic_results(), Tolerances::BF16);
}

#[test]
fn separate_bias_and_gelu_match_the_reference() {
    let device = || FakeDevice::new(Precision::Bf16).without_epilogues().open().unwrap();
    check(&device, Tolerances::BF16);
}
