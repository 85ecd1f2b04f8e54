//! The host code of the device agrees with the f64 reference, on a fake GPU whose kernels are emulated.

use std::cell::RefCell;

use regatta_device::ops::{Device, Fp8};
use regatta_device::precision::Precision;
use regatta_device_conformance::{Check, Suite, Tolerances, run_checks};
use regatta_kernels_cuda::CudaDevice;
use regatta_kernels_cuda::fake::FakeDevice;
use regatta_testbed::all_cases;

/// Runs the suite on devices that `configure` changes. They must free all of their memory.
fn check(fake: &FakeDevice, tolerances: Tolerances, configure: fn(CudaDevice) -> CudaDevice) {
    run(fake, tolerances, configure, |suite| suite.checks());
}

/// Like [`check`], but without fixed shapes, which take longest, unless in `cargo xtask accept conformance`.
fn check_variant(
    fake: &FakeDevice,
    tolerances: Tolerances,
    configure: fn(CudaDevice) -> CudaDevice,
) {
    run(fake, tolerances, configure, variant_checks);
}

fn variant_checks<'a>(suite: &Suite<'a>) -> Vec<Check<'a>> {
    if all_cases() { suite.checks() } else { suite.random_operations() }
}

fn run(
    fake: &FakeDevice,
    tolerances: Tolerances,
    configure: fn(CudaDevice) -> CudaDevice,
    select: for<'a> fn(&Suite<'a>) -> Vec<Check<'a>>,
) {
    let probes = RefCell::new(Vec::new());
    let make_device = || -> Box<dyn Device> {
        let (device, probe) = fake.clone().open_with_probe().unwrap();
        probes.borrow_mut().push(probe);
        Box::new(configure(device))
    };
    let suite = Suite { make_device: &make_device, tolerances, cases: 12, max: 24, seed: 1 };
    let wanted = std::env::var("REGATTA_CONFORMANCE").unwrap_or_default();
    let checks = select(&suite).into_iter().filter(|check| check.name.contains(&wanted));
    if let Err(failures) = run_checks(checks) {
        panic!("{} failures:\n{failures}", failures.lines().count());
    }
    assert!(probes.borrow().iter().all(|probe| probe.allocations() == 0), "memory leaks");
}

fn bf16() -> FakeDevice {
    FakeDevice::new(Precision::Bf16)
}

/// Waves of 64 lanes, 64 KiB of shared memory, MFMA kernels and hipBLASLt.
#[test]
fn fake_amd_gpu_matches_the_reference() {
    check(&FakeDevice::amd(Precision::Bf16), Tolerances::BF16, |device| device);
    let deterministic = FakeDevice::amd(Precision::Bf16).without_epilogues().without_mixed_gemms();
    check_variant(&deterministic, Tolerances::BF16, CudaDevice::deterministic_results);
}

#[test]
fn fake_gpu_matches_the_reference_in_f32() {
    check(&FakeDevice::new(Precision::F32), Tolerances::F32, |device| device);
}

#[test]
fn fake_gpu_matches_the_reference_in_bf16() {
    check(&bf16(), Tolerances::BF16, |device| device);
}

#[test]
fn deterministic_kernels_match_the_reference() {
    check_variant(&bf16(), Tolerances::BF16, CudaDevice::deterministic_results);
}

#[test]
fn separate_bias_and_gelu_match_the_reference() {
    check_variant(&bf16().without_epilogues(), Tolerances::BF16, |device| device);
}

/// Dtypes of the residual stream and of its gradient that are not the default.
const RESIDUALS: [(Precision, Precision); 3] = [
    (Precision::F32, Precision::F32),
    (Precision::Bf16, Precision::Bf16),
    (Precision::Bf16, Precision::F32),
];

#[test]
fn dtypes_of_the_residual_stream_and_its_gradient_match_the_reference() {
    for fake in [bf16(), bf16().unaligned()] {
        for (residual, gradient) in RESIDUALS {
            let make_device = || -> Box<dyn Device> {
                let device = fake.clone().open().unwrap().with_residual(residual);
                Box::new(device.with_residual_gradient(gradient))
            };
            let tolerances = Tolerances::BF16;
            let suite =
                Suite { make_device: &make_device, tolerances, cases: 12, max: 24, seed: 1 };
            let is_residual = |check: &Check<'_>| {
                ["norm", "embedding", "dropout"].iter().any(|name| check.name.contains(name))
            };
            run_checks(variant_checks(&suite).into_iter().filter(is_residual)).unwrap();
        }
    }
}

/// No kernel may use vectors.
#[test]
fn unaligned_tensors_match_the_reference() {
    check_variant(&FakeDevice::new(Precision::F32).unaligned(), Tolerances::F32, |device| device);
    check_variant(&bf16().unaligned(), Tolerances::BF16, CudaDevice::deterministic_results);
}

#[test]
fn fp8_gemms_match_the_reference() {
    for gradient in [Precision::F32, Precision::Bf16] {
        let make_device = || -> Box<dyn Device> {
            let device = bf16().open().unwrap().with_residual_gradient(gradient);
            Box::new(device.with_fp8(Fp8::All).unwrap())
        };
        let tolerances = Tolerances::BF16;
        let suite = Suite { make_device: &make_device, tolerances, cases: 6, max: 24, seed: 1 };
        // Long rows take minutes on the host.
        let checks = suite.fp8().into_iter().filter(|check| check.name.starts_with("random"));
        run_checks(checks).unwrap();
    }
}

#[test]
fn fp8_needs_bf16_and_a_gpu_with_scaled_gemms() {
    let open = |fake: FakeDevice, fp8| fake.open().unwrap().with_fp8(fp8).map(drop);
    let error = open(bf16().compute_capability(8, 9), Fp8::Layers).unwrap_err().to_string();
    assert!(error.contains("compute capability 9.0") && error.contains("train.fp8=off"), "{error}");
    assert!(open(FakeDevice::new(Precision::F32), Fp8::All).is_err());
    assert!(open(bf16().compute_capability(8, 0), Fp8::Off).is_ok());
}

#[test]
fn a_library_without_scales_per_row_is_an_error_with_the_fix() {
    let make_device: &dyn Fn() -> Box<dyn Device> =
        &|| Box::new(bf16().without_scale_modes().open().unwrap().with_fp8(Fp8::All).unwrap());
    let tolerances = Tolerances::BF16;
    let suite = Suite { make_device, tolerances, cases: 1, max: 24, seed: 1 };
    let linear = suite.fp8().into_iter().filter(|check| check.name == "random fp8 linear");
    let error = run_checks(linear).unwrap_err();
    assert!(error.contains("CUDA 12.9") && error.contains("train.fp8=off"), "{error}");
}
