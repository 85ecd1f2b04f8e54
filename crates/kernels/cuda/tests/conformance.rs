//! The device agrees with the f64 reference, on a real GPU. Skipped with a message without one.
//! `REGATTA_CONFORMANCE=attention` runs only the checks with this word in their name.

#![allow(clippy::unwrap_used)]

use regatta_comm::gpu_runtime::Vendor;
use regatta_device::ops::{Device, Fp8};
use regatta_device::precision::Precision;
use regatta_device_conformance::{Check, Suite, Tolerances, run_checks};
use regatta_kernels_cuda::{CudaDevice, device_count};

fn check(precision: Precision, tolerances: Tolerances, deterministic: bool) {
    if device_count(Vendor::Nvidia) == 0 {
        return eprintln!("skipped: no NVIDIA GPU");
    }
    let make_device = || -> Box<dyn Device> {
        let device = CudaDevice::open(0, precision).unwrap();
        Box::new(if deterministic { device.deterministic_results() } else { device })
    };
    let suite = Suite { make_device: &make_device, tolerances, cases: 24, max: 40, seed: 1 };
    run(suite.checks(), precision.name());
}

fn run(checks: Vec<Check<'_>>, what: &str) {
    let wanted = std::env::var("REGATTA_CONFORMANCE").unwrap_or_default();
    let checks = checks.into_iter().filter(|check| check.name.contains(&wanted));
    if let Err(failures) = run_checks(checks) {
        panic!("{} of {what}:\n{failures}", failures.lines().count());
    }
}

#[test]
fn fp8_gemms_match_the_reference() {
    if device_count(Vendor::Nvidia) == 0 {
        return eprintln!("skipped: no NVIDIA GPU");
    }
    let make_device = || -> Box<dyn Device> {
        Box::new(CudaDevice::open(0, Precision::Bf16).unwrap().with_fp8(Fp8::All).unwrap())
    };
    let tolerances = Tolerances::BF16;
    let suite = Suite { make_device: &make_device, tolerances, cases: 16, max: 40, seed: 1 };
    run(suite.fp8(), "fp8");
}

#[test]
fn gpu_matches_the_reference_in_f32() {
    check(Precision::F32, Tolerances::F32, false);
}

#[test]
fn gpu_matches_the_reference_in_bf16() {
    check(Precision::Bf16, Tolerances::BF16, false);
}

#[test]
fn gpu_matches_the_reference_with_deterministic_kernels() {
    check(Precision::Bf16, Tolerances::BF16, true);
}
